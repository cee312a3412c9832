"""What a watched training did, step by step, and what of it is unlike the training itself."""
