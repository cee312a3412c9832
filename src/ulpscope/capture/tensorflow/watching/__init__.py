"""What is put into TensorFlow and Keras while a capture runs."""
