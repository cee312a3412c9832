"""Reads what is computed inside of TensorFlow's graphs, without changing it: docs/decisions/tensorflow-graphs.md."""
