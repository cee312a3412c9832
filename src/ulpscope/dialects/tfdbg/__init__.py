"""Dumps of TensorFlow's debugger (tfdbg v1), read without TensorFlow."""
