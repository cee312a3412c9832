"""What long runs record in the place of their calls: gradients of every update, and calls before an overflow."""
