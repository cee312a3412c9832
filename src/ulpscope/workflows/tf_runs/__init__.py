"""Runs of TensorFlow scripts as precision_tool's users start them: switches in the environment, data in its folders."""
