"""Arrays in, numbers out: stats, sketch and digest of a value."""
