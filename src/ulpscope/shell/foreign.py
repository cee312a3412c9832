"""Commands of the user's own shell."""

import os
import signal
import subprocess
import sys

from ulpscope.records.enums import ExitCode
from ulpscope.shell.telling import warn

SIGNALLED = 128
NOT_FOUND = 127


def run_foreign(line: str) -> ExitCode:
    """Run a line in the user's shell, in the foreground: Ctrl-C goes to it, not to us.

    The lines of a pipe are ours, not the command's.
    """
    shell = os.environ.get("SHELL") or "/bin/sh"
    sys.stdout.flush()
    # A handler is not inherited, as SIG_IGN would be: the command itself is stopped by Ctrl-C.
    before = signal.signal(signal.SIGINT, lambda number, frame: None)
    try:
        code = subprocess.call([shell, "-c", line], stdin=None if sys.stdin.isatty() else subprocess.DEVNULL)
    except (OSError, ValueError) as error:
        warn(f"{shell} cannot run this: {error}")
        return ExitCode.USAGE
    finally:
        signal.signal(signal.SIGINT, before)
    if code in (-signal.SIGINT, SIGNALLED + signal.SIGINT):
        print(file=sys.stderr)
        return ExitCode.INTERRUPTED
    if code:
        warn(f"exit status {code}" + ("; help tells the words of this shell" if code == NOT_FOUND else ""))
    return ExitCode.DIFFERENCE if code else ExitCode.OK
