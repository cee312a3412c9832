"""Other tools' files."""
