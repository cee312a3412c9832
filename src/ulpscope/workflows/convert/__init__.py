"""`ulpscope convert`."""
