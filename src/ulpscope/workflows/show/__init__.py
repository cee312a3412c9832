"""`ulpscope show`."""
