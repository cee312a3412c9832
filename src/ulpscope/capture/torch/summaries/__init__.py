"""Summaries of torch's tensors: on the CPU, on any device by plain operations, on CUDA by kernels of our own."""
