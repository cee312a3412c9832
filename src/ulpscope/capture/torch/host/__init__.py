"""The compiled recorder: what a captured call costs in the host's thread, in C++ on torch's own headers.

It does what recorder, values, storages, arguments and stacks of capture/recording, and calls, edges and pairing of
watching/ do in Python, for calls that do nothing out of the ordinary, and gives the same rows: those modules are its
reference and take over wherever it cannot be compiled. bridge.py is what it asks of Python; capture/recording's
writing_process.py reads what it leaves behind. In the same way it does what a twin's noise does (../noise.py); noise.py
here is what that asks of Python.
"""
