"""Plans which call of the reference is which call of the target."""
