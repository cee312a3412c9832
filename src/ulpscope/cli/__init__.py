"""The command line: one file a command, its docstring is its help."""
