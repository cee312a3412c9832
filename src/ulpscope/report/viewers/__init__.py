"""Runs and comparisons for other viewers (TensorBoard, Model Explorer, graphviz)."""
