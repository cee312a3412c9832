"""Commands around networks that TensorFlow or an Ascend NPU runs: dumps, references, fusion, mixed precision."""
