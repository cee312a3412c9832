"""`ulpscope investigate`."""
