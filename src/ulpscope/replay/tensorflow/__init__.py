"""Executes recorded calls of TensorFlow's ops again."""
