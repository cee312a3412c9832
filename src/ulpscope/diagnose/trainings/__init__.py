"""Two watched trainings: how far apart they are at each step, and where they part."""
