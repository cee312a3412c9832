"""Loaded once by the fork server, so that not every run has to import TensorFlow. Nothing is computed here."""

import keras
import tensorflow as tf

import ulpscope.capture.tensorflow.session
import ulpscope.workflows.run.python_capture

__all__ = ["keras", "tf", "ulpscope"]
