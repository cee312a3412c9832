"""Kernels that are wrong as real ones have been, for `ulpscope check` to find; each module holds a family.

Every fault was written before any was judged, without sight of the judge's thresholds.
"""
