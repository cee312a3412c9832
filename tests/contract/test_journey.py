"""How far it is from the command line to the answer: a reader has to go the same way."""

import traceback
from pathlib import Path
from typing import Any

import pytest
from trained import other_eps, write

import ulpscope
from ulpscope.cli.main import main
from ulpscope.diagnose.flow.states import Birth
from ulpscope.records.enums import ExitCode
from ulpscope.records.findings import Finding

MOST_FRAMES = 30
OURS = Path(ulpscope.__file__).parent


def test_the_demos_finding_is_made_within_thirty_frames(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the demo's fault, another eps in one norm, on the smallest model that has it."""
    runs = [write(tmp_path / "reference", steps=1), write(tmp_path / "target", other_eps, steps=1)]
    journeys = {kind: watch(kind, monkeypatch) for kind in (Birth, Finding)}
    assert main(["compare", *map(str, runs)]) == ExitCode.DIFFERENCE
    for kind, found in journeys.items():
        journey = max(found, key=len)
        assert journey[0] == "cli/main.py:main"
        assert journey[-1].startswith("diagnose/")
        assert len(journey) <= MOST_FRAMES, "\n".join([kind.__name__, *journey])


def watch(kind: type[Any], monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Gets our frames, the outermost first, wherever one of this kind is made."""
    found: list[list[str]] = []
    made = kind.__init__

    def told(self: Any, *args: Any, **kwargs: Any) -> None:
        made(self, *args, **kwargs)
        frames = [frame for frame in traceback.extract_stack() if OURS in Path(frame.filename).parents]
        found.append([f"{Path(frame.filename).relative_to(OURS)}:{frame.name}" for frame in frames])

    monkeypatch.setattr(kind, "__init__", told)
    return found
