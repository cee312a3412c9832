"""Executes recorded calls again, elsewhere or more precisely: gives evidence."""
