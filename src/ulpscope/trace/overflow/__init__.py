"""Where a run's numbers left the range of their type, and how that travelled."""
