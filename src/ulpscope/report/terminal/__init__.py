"""Answers as text for a terminal or a file: a module a command."""
