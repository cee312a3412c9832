"""Writes, reads and queries traces; the format is described in docs/trace-format.md."""
