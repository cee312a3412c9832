"""Executes recorded calls of PyTorch."""
