"""ulpscope finds the operation where a deep-learning run's numbers went wrong."""

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence

from ulpscope._version import __version__
from ulpscope.cli.arguments import Parser
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError

COMMANDS = ("demo", "run", "show")

BROKEN_PIPE = 128 + 13
"""What a shell reports for a program whose reader went away."""


def entry() -> None:
    """The `ulpscope` console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command; every outcome is an exit code of docs/commands.md."""
    try:
        code = _dispatch(argv)
        sys.stdout.flush()
        return code
    except UlpscopeError as error:
        _complain(f"ulpscope: error: {error}", argv)
        return int(error.code)
    except KeyboardInterrupt:
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        # What is still buffered for the reader that went away must not raise again at interpreter exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except Exception as error:
        _complain(_own_fault(error), argv)
        return int(ExitCode.OWN_FAULT)


def _dispatch(argv: Sequence[str]) -> int:
    options, command = split_command(argv)
    try:
        arguments = build_parser().parse_args(options)
    except SystemExit as finished:
        return int(finished.code or 0)
    arguments.command = command
    return int(_module(arguments.subcommand).run(arguments))


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the user's command after `run ... --`, which argparse must never read."""
    words = list(argv)
    if "--" not in words or next((word for word in words if not word.startswith("-")), None) != "run":
        return words, []
    border = words.index("--")
    return words[:border], words[border + 1 :]


def build_parser() -> argparse.ArgumentParser:
    """The parser of all commands; importing them must stay cheap, it happens for every `--help`."""
    parser = Parser(prog="ulpscope", description=__doc__, epilog="ulpscope COMMAND --help tells more about a command.")
    parser.add_argument("--version", action="version", version=f"ulpscope {__version__}")
    parser.add_argument("--debug", action="store_true", help="show a traceback with an error")
    subparsers = parser.add_subparsers(dest="subcommand", metavar="COMMAND", required=True, parser_class=Parser)
    for name in COMMANDS:
        _module(name).register(subparsers)
    return parser


def _module(name: str):  # type: ignore[no-untyped-def]
    return importlib.import_module(f"ulpscope.cli.{name}")


def _own_fault(error: Exception) -> str:
    return (
        f"ulpscope: internal error: {type(error).__name__}: {error}\n"
        "  expected: no such error; this is a fault of ulpscope, not of your run\n"
        "  next: repeat the command with --debug and report the traceback"
    )


def _complain(text: str, argv: Sequence[str]) -> None:
    options, _ = split_command(argv)
    if "--debug" in options:
        traceback.print_exc()
    print(text, file=sys.stderr)


if __name__ == "__main__":
    entry()
