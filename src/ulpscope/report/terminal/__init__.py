"""A module a command: its answer as text for a terminal or a file, and as a JSON object."""
