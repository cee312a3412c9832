"""`ulpscope repeat`."""
