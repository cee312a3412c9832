"""Two arrays side by side: how they differ."""
