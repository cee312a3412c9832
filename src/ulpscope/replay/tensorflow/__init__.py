"""Executes recorded calls of TensorFlow's ops again."""

import os

# When it is imported, TensorFlow tells what it was built for, which is part of no answer.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
