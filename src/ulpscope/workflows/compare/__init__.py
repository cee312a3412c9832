"""`ulpscope compare`."""
