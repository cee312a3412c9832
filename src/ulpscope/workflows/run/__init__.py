"""`ulpscope run` and `ulpscope.capture`."""
