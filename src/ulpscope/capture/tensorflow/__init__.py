"""Captures of TensorFlow."""
