"""`ulpscope fusion`."""
