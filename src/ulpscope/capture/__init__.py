"""Watches a run and writes its trace."""
