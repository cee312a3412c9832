"""Capture a small model twice, once with a planted fault, and look at both: the first minute.

  ulpscope demo
  ulpscope demo -o somewhere/else

Trains a two-layer transformer for three steps on the CPU, prints every command as you would type it, and leaves a page
to look at in a browser. Without -o all goes to ./ulpscope-demo, or to a new temporary directory if that exists already.
"""

import argparse
from pathlib import Path

from ulpscope.cli.command import Parser, Subparsers, add_command


def register(subparsers: "Subparsers[Parser]") -> None:
    """Add `demo` to the command line."""
    parser = add_command(subparsers, "demo", doc=__doc__)
    parser.add_argument("-o", "--out", metavar="DIR", type=Path, help="directory for script, traces and result")


def run(arguments: argparse.Namespace) -> int:
    """Show ulpscope on a small model."""
    from ulpscope.records.enums import ExitCode
    from ulpscope.workflows.demo import run_demo

    run_demo(arguments.out)
    return int(ExitCode.OK)
