"""Tells: values in, words and drawings out."""
