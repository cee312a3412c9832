"""`ulpscope overflow`."""
