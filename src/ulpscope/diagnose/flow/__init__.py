"""Follows errors through two runs: what was made where, what came in."""
