"""One function a command: puts the rooms together."""
