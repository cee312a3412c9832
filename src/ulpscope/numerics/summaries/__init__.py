"""Stats, sketch and digest of a value, from one read."""
