"""Capture of TensorFlow 2 and Keras. Imported only where the script itself has imported TensorFlow."""
