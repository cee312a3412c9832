"""What twins of the reference tell: how far a sound value may be off."""
