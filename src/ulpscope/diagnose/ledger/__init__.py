"""Calls of both runs executed again: who made which part of a difference."""
