"""The fault zoo of TensorFlow and Keras: graphs, eager execution and sessions."""
