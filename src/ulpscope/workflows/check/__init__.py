"""`ulpscope check`."""
