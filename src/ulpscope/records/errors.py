"""The error every command turns into one message: what was seen, what was expected, what to do next."""

from ulpscope.records.enums import ExitCode


class UlpscopeError(Exception):
    """A problem the user can act on."""

    def __init__(self, seen: str, *, expected: str, next_step: str, code: ExitCode = ExitCode.USAGE) -> None:
        super().__init__(f"{seen}\n  expected: {expected}\n  next: {next_step}")
        self.seen = seen
        self.expected = expected
        self.next_step = next_step
        self.code = code


class TraceError(UlpscopeError):
    """A trace that cannot be read, or not completely."""
