"""What any framework's capture needs: everything between a call that somebody has seen and its rows on disk.

A framework brings what sees its calls, and answers what tensors.Tensors asks about its tensors (arrays.py does so for
numpy's). No framework is imported here.
"""
