"""Files of tensors, whoever wrote them, and folders of reference arrays."""
