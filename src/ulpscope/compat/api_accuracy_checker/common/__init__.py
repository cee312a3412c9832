"""Where scripts import msCheckerConfig from."""
