"""What is told beside an answer: what is missing, what was left out, what is not known.

A remark is a text, English, to all who hand it on; it also knows its phrase and what stands in it, so that it can be
told in another language (`remark_text` of `src/ulpscope/report/words/language.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from ulpscope.phrases import phrase_table

_VERBS = {"are": ("is", "are"), "have": ("has", "have")}


@dataclass(frozen=True, slots=True)
class Counted:
    """`1 tensor`, `12 tensors`; with a verb, `1 tensor has`, `12 tensors have`."""

    number: int
    noun: str

    def __format__(self, verb: str) -> str:
        several = self.number != 1
        words = f"{self.number:,} {self.noun}{'s' if several else ''}"
        return f"{words} {_VERBS[verb][several]}" if verb else words


class Remark(str):
    """A sentence without an end, with what it was made of."""

    key: str
    parts: Mapping[str, object]


def remark(key: str, **parts: object) -> str:
    """The remark of a phrase: `remark.KEY` of the catalogue."""
    told = Remark(phrase_table("en")[f"remark.{key}"].format_map(parts))
    told.key, told.parts = key, parts
    return told


def within(place: object, text: str) -> str:
    """A remark about something inside of a place: a path, a process."""
    return remark("within", place=str(place), remark=text)
