"""The metrics of msaccucmp's tables, to the bit."""
