"""Names that users of the tools it succeeds have in their scripts."""
