"""--only and --skip: patterns on a call's op, module and name."""

from fnmatch import fnmatchcase


class CallPatterns:
    """Decides whether a call is wanted; the same question is answered once.

    A pattern with `*`, `?` or `[` is matched as a whole against op, module path and call name. A plain word matches an
    op by its full or last name, a call by its name, and a module together with everything inside it. The kernels of a
    chosen call are chosen with it.
    """

    def __init__(self, *, only: tuple[str, ...], skip: tuple[str, ...]) -> None:
        self._only = only
        self._skip = skip
        self._answers: dict[tuple[str, str | None, str, bool], bool] = {}

    @property
    def chooses(self) -> bool:
        """Whether some calls are wanted and others are not."""
        return bool(self._only)

    def wants(self, op: str, module: str | None, name: str, *, inside: bool = False) -> bool:
        """Whether this call is wanted; one `inside` of a chosen call unless it is to be skipped."""
        if not self._only and not self._skip:
            return True
        question = (op, module, name, inside)
        answer = self._answers.get(question)
        if answer is None:
            answer = self._answers[question] = self._decide(*question)
        return answer

    def _decide(self, op: str, module: str | None, name: str, inside: bool) -> bool:
        if self._only and not inside and not any(matches(pattern, op, module, name) for pattern in self._only):
            return False
        return not any(matches(pattern, op, module, name) for pattern in self._skip)


def matches(pattern: str, op: str, module: str | None, name: str) -> bool:
    """Whether a pattern means this call."""
    if any(sign in pattern for sign in "*?["):
        return any(fnmatchcase(text, pattern) for text in (op, module, name) if text is not None)
    if pattern in (op, op.rpartition(".")[2], name):
        return True
    return module is not None and (module == pattern or f".{module}.".find(f".{pattern}.") >= 0)
