"""The one way from a record to JSON."""

import json
import math
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath

from ulpscope.report.record_json import answer_json, fields_of, marked, to_json


class Colour(str, Enum):
    RED = "red"


@dataclass(frozen=True, slots=True)
class Inner:
    shape: tuple[int, ...]
    colour: Colour | None


@dataclass(frozen=True, slots=True)
class Outer:
    name: str
    numbers: tuple[float, ...]
    inner: Inner
    by_step: dict[int, Inner]


RECORD = Outer("x", (1.0, math.nan, -math.inf), Inner((2, 3), Colour.RED), {4: Inner((), None)})


def test_a_record_becomes_plain_values() -> None:
    told = to_json(RECORD)
    assert told == {
        "name": "x",
        "numbers": [1.0, "nan", "-inf"],
        "inner": {"shape": [2, 3], "colour": "red"},
        "by_step": {"4": {"shape": [], "colour": None}},
    }
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_what_stands_for_a_float_without_a_number_is_asked_for() -> None:
    assert to_json(RECORD.numbers, marked) == [1.0, {"$float": "nan"}, {"$float": "-inf"}]
    assert to_json(complex(1.0, math.inf)) == {"real": 1.0, "imag": "inf"}
    assert math.isnan(to_json(math.nan, no_number=float))


def test_fields_stay_as_they_are() -> None:
    assert fields_of(RECORD, "inner", "name") == {"inner": RECORD.inner, "name": "x"}
    assert list(fields_of(RECORD)) == ["name", "numbers", "inner", "by_step"]


def test_an_answer_begins_with_its_command() -> None:
    assert list(answer_json("show", {"path": PurePosixPath("a/b")}).items()) == [
        ("schema", 1),
        ("command", "show"),
        ("path", "a/b"),
    ]
