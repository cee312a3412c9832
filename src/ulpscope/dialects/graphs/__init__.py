"""Graph files of other tools, read without these tools: GE's text, JSON and ONNX text, TensorFlow's graphs, ONNX."""
