"""A file by which the user says, while a training runs, what of it is recorded: looked at once a step."""

from pathlib import Path
from typing import Any, NamedTuple

from ulpscope.capture.recording.recorder import Choice
from ulpscope.records.runs import CaptureSettings

LARGEST = 2**20
"""Bytes. A few lines are asked for; whatever is larger is another file."""
KEYS = ("watch", "every", "only", "skip")


class Reading(NamedTuple):
    """What came of looking at the file: nothing, if it is as it was."""

    choice: Choice | None = None
    trouble: str = ""


class ControlFile:
    """What is not in the file is as the command line has it; so is everything, where there is no file."""

    def __init__(self, path: Path, settings: CaptureSettings) -> None:
        self._path = path
        self._usual = Choice(settings.training.every, settings.only, settings.skip)
        self._read: tuple[int, int] | None = None
        """Time and size of what was read last."""

    def read(self) -> Reading:
        try:
            known = self._path.stat()
            now = known.st_mtime_ns, known.st_size
        except OSError:
            now = None
        if now == self._read:
            return Reading()
        self._read = now
        if now is None:
            return Reading(self._usual)
        try:
            return Reading(self._choice(self._content()))
        except (OSError, ValueError, RecursionError) as error:
            return Reading(trouble=f"{self._path} is ignored: {error}")

    def _content(self) -> Any:
        import yaml

        if self._path.stat().st_size > LARGEST:
            raise ValueError("it is too large for a few lines of yaml")
        try:
            return yaml.safe_load(self._path.read_text(encoding="utf-8"))
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None

    def _choice(self, content: Any) -> Choice:
        if content is None:
            return self._usual
        if not isinstance(content, dict):
            raise ValueError(f"expected {', '.join(KEYS)}, each with its value")
        unknown = [str(key) for key in content if key not in KEYS]
        if unknown:
            raise ValueError(f"{unknown[0]} is none of {', '.join(KEYS)}")
        every = content.get("every", self._usual.every)
        if type(every) is not int or every < 1:
            raise ValueError(f"every: {every!r} is no number of steps from 1 up")
        on = content.get("watch", True)
        if type(on) is not bool:
            raise ValueError(f"watch: {on!r} is neither on nor off")
        only = _patterns("only", content.get("only", self._usual.only))
        return Choice(every, only, _patterns("skip", content.get("skip", self._usual.skip)), on)


def _patterns(key: str, given: Any) -> tuple[str, ...]:
    listed = (given,) if isinstance(given, str) else given
    if not isinstance(listed, list | tuple) or not all(isinstance(each, str) for each in listed):
        raise ValueError(f"{key}: {given!r} is no list of patterns")
    return tuple(listed)
