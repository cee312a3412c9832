"""The text of a script that shows one call."""
