"""`python -m ulpscope` is the `ulpscope` command."""

from ulpscope.cli.main import entry

entry()
