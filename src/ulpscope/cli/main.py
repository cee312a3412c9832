"""ulpscope finds the operation where a deep-learning run's numbers went wrong."""

import argparse
import importlib
import os
import shlex
import sys
import traceback
from collections.abc import Sequence

from ulpscope._version import __version__
from ulpscope.cli.command import Parser
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.workflows.worker_pool import interruptible

COMMANDS = (
    *"demo run compare check repro overflow show diff env repeat investigate convert fusion report shell".split(),
    *"npu-dump npu-overflow tf-dump mixlist".split(),
)
OF_NETWORKS = frozenset("fusion npu-dump npu-overflow tf-dump mixlist".split())
"""Commands that lie in a folder of their own."""
TAKES_COMMAND = {"run": "-o TRACE ", "repeat": "", "investigate": "", "npu-dump": "", "npu-overflow": "", "tf-dump": ""}
"""Commands that run a user's own, and what stands before it at least."""


BROKEN_PIPE = 128 + 13
"""What a shell reports for a program whose reader went away."""


def entry() -> None:
    """The `ulpscope` console script."""
    sys.exit(main(sys.argv[1:]))


def main(argv: Sequence[str]) -> int:
    """Run one command; every outcome is an exit code of docs/commands.md."""
    try:
        with interruptible():
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
        if isinstance(error, OSError) and error.filename is not None:
            # A file that was taken away, cut off or changed while the command read it.
            lost = UlpscopeError(
                f"{error.filename} cannot be used: {error.strerror}",
                expected="a regular file that stays as it is while the command runs",
                next_step="check the path and its permissions, or copy the file again, and repeat the command",
            )
            _complain(f"ulpscope: error: {lost}", argv)
            return int(ExitCode.USAGE)
        own = UlpscopeError(
            f"{type(error).__name__}: {error}",
            expected="no such error; this is a fault of ulpscope, not of your run",
            next_step="repeat the command with --debug and report the traceback",
        )
        _complain(f"ulpscope: internal error: {own}", argv)
        return int(ExitCode.OWN_FAULT)


def _dispatch(argv: Sequence[str]) -> int:
    options, command = split_command(argv)
    if not options:
        raise UlpscopeError(
            "no command given",
            expected=f"one of {', '.join(COMMANDS)}",
            next_step="ulpscope demo, for a first look; ulpscope --help tells the rest",
        )
    try:
        arguments, unknown = build_parser().parse_known_args(options)
    except SystemExit as finished:
        return int(finished.code or 0)
    if unknown:
        raise _unknown_words(arguments.subcommand, unknown, options=options, border=len(options) < len(argv))
    arguments.command = command
    return int(_module(arguments.subcommand).run(arguments))


def split_command(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Our own options, and the user's command after `run ... --`, which argparse must never read."""
    words = list(argv)
    if "--" not in words or next((word for word in words if not word.startswith("-")), None) not in TAKES_COMMAND:
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


def _unknown_words(command: str, unknown: list[str], *, options: list[str], border: bool) -> UlpscopeError:
    if command in TAKES_COMMAND and not border and not unknown[0].startswith("-"):
        begins = options.index(unknown[0])
        return UlpscopeError(
            f"the command {shlex.join(unknown)} without `--` before it",
            expected=f"ulpscope {command} {TAKES_COMMAND[command]}[options] -- CMD ...",
            next_step=f"ulpscope {shlex.join(options[:begins])} -- {shlex.join(options[begins:])}",
        )
    return UlpscopeError(
        f"unrecognized arguments: {shlex.join(unknown)}",
        expected=f"the arguments that ulpscope {command} knows",
        next_step=f"see ulpscope {command} --help",
    )


def _module(name: str):  # type: ignore[no-untyped-def]
    folder = "network." if name in OF_NETWORKS else ""
    return importlib.import_module(f"ulpscope.cli.{folder}{name.replace('-', '_')}")


def _complain(text: str, argv: Sequence[str]) -> None:
    # Imported here: an answer without an error need not wait for it.
    from ulpscope.report.words.language import shown_text

    options, _ = split_command(argv)
    trail = traceback.format_exc().splitlines() if "--debug" in options else []
    print("\n".join(map(shown_text, [*trail, *text.split("\n")])), file=sys.stderr)


if __name__ == "__main__":
    entry()
