"""Standards: from evidence to "rounding or not"."""
