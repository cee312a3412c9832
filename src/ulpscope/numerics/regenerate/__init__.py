"""Random elements that look like a recorded value."""
