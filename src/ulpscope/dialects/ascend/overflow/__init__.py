"""Overflow records of a device: found, read, and what their status means."""
