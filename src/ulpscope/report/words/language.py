"""The languages that answers are told in: phrases, and how numbers and names are put into them."""

import math
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

from ulpscope.phrases import phrase_table
from ulpscope.records.remarks import Counted, Remark

LONGEST_NAME = 160
LONGEST_TEXT = 2000
"""Characters of one text of a trace that are shown: rich folds some 100,000 a second."""
NAMES_SHOWN = 3

_SIZES = ((10**12, "TB"), (10**9, "GB"), (10**6, "MB"), (10**3, "KB"))
# Format characters hide or reorder what follows, line and paragraph separators break a line.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


class Language(str, Enum):
    """What people read; tables and JSON keys are the same in all of them."""

    EN = "en"
    ZH = "zh"


@dataclass(frozen=True, slots=True)
class Phrases:
    """One language: its phrases by key, and what stands between words."""

    language: Language
    templates: Mapping[str, str]
    comma: str
    """Between names."""
    clause_comma: str
    semicolon: str
    stop: str
    last: str
    """Before the last of several names."""

    def say(self, key: str, **parts: object) -> str:
        return self.templates[key].format(**parts)

    def say_number(self, key: str, number: int) -> str:
        """A phrase about a number of things; `KEY.one` is that of one."""
        return self.say(f"{key}.one" if number == 1 else key, number=f"{number:,}")

    def known(self, key: str, text: str) -> str:
        """The phrase of what has one; the text itself, which may come from a trace, where it has none."""
        return self.templates.get(key) or shown_name(text)

    def count(self, number: int, noun: str) -> str:
        """`1 call`, `12,345 calls`."""
        word = self.say(f"noun.{noun}")
        return count_text(number, word) if self.language is Language.EN else f"{number:,} {word}"

    def names(self, names: Sequence[str], *, total: int | None = None) -> str:
        """The first few names; `total` where there are more than those given."""
        shown = [shown_name(name) for name in names[:NAMES_SHOWN]]
        left = max(len(names), total or 0) - len(shown)
        if left > 0:
            return self.say("names.more", names=self.comma.join(shown), left=f"{left:,}")
        return self.listed(shown)

    def some(self, names: Sequence[str]) -> str:
        """The first few, and how many more there are."""
        told, left = self.comma.join(names[:NAMES_SHOWN]), len(names) - NAMES_SHOWN
        return self.say("names.and_more", names=told, left=f"{left:,}") if left > 0 else told

    def listed(self, parts: Sequence[str]) -> str:
        """`a, b and c`."""
        if len(parts) < 2:
            return "".join(parts)
        return f"{self.comma.join(parts[:-1])}{self.last}{parts[-1]}"

    def columns(self, *names: str) -> list[str]:
        """Headers of a table."""
        return [self.say(f"column.{name}") for name in names]

    def remarks(self, texts: Iterable[str], *, longest: int) -> list[str]:
        """What is missing or was left out, each on one line."""
        return [shown_name(remark_text(text, self.language), longest=longest) for text in texts]


@cache
def phrases(language: Language) -> Phrases:
    """All that is said in a language."""
    table = phrase_table(language.value)
    marks = ("comma", "clause_comma", "semicolon", "stop", "last")
    return Phrases(language, table, **{mark: table[f"mark.{mark}"] for mark in marks})


def remark_text(text: str, language: Language) -> str:
    """A remark in a language; a text of which nothing more is known stays as it is."""
    if language is Language.EN or not isinstance(text, Remark):
        return text
    parts = {name: _remark_part(value, language) for name, value in text.parts.items()}
    return phrases(language).say(f"remark.{text.key}", **parts).strip()


def remark_texts(texts: Iterable[str], language: Language) -> list[str]:
    return [remark_text(text, language) for text in texts]


def _remark_part(value: object, language: Language) -> object:
    if isinstance(value, Counted):
        return f" {phrases(language).count(value.number, value.noun)}"
    return remark_text(value, language) if isinstance(value, str) else value


def shown_name(name: str, *, longest: int = LONGEST_NAME) -> str:
    """A name out of a trace on one line: nothing in it steers a terminal, its middle gives way if it is too long."""
    return "".join(map(_visible, _shortened(name, longest)))


def short_name(name: str, *, longest: int = LONGEST_NAME) -> str:
    """`gelu.3` of torch.nn.functional.gelu.3: `ulpscope show` takes it."""
    return shown_name(".".join(name.split(".")[-2:]), longest=longest)


def typed_path(path: str) -> str:
    """One that no command takes for an option."""
    return f"./{path}" if path.startswith("-") else path


def shown_text(text: str) -> str:
    """A text with its lines; nothing in it steers a terminal, its middle gives way if it is longer than a page."""
    lines = _shortened(text, LONGEST_TEXT).split("\n")
    return "\n".join("".join(map(_visible, line)) for line in lines)


def _shortened(text: str, longest: int) -> str:
    half = longest // 2
    return text if len(text) <= longest else f"{text[:half]}...{text[-half:]}"


def is_plain(name: str) -> bool:
    """Whether a name can be shown as it is."""
    return not any(unicodedata.category(character) in _STEERING for character in name)


def number_text(number: float) -> str:
    """Two digits, as much as an error has: `5.9`, `0.12`, `5,900`, `1.0e-3`."""
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "inf" if number > 0 else "-inf"
    size = abs(number)
    if size == 0:
        return "0"
    if 0.0095 <= size < 99.5:
        return f"{number:#.2g}".rstrip(".")
    if 1 <= size < 999_500:
        return f"{float(f'{number:.2g}'):,.0f}"
    digits, exponent = f"{number:.1e}".split("e")
    return f"{digits}e{int(exponent)}"


def element_text(number: float) -> str:
    """One element of a tensor, exact enough to be searched for."""
    return "NaN" if math.isnan(number) else f"{number:.6g}"


def _visible(character: str) -> str:
    if unicodedata.category(character) not in _STEERING:
        return character
    return character.encode("unicode_escape").decode()


def count_text(number: int, noun: str) -> str:
    """`1 call`, `12,345 calls`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {_plural(noun)}"


def bytes_text(number: int) -> str:
    """`812 B`, `3.4 MB`; thousands, as `--max-disk 10GB` counts them."""
    for size, unit in _SIZES:
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} B"


def seconds_text(seconds: float) -> str:
    """`0.041 s`, `1.3 s`, `75 s`."""
    digits = 3 if seconds < 0.1 else 2 if seconds < 1 else 1 if seconds < 10 else 0
    return f"{seconds:.{digits}f} s"


def ranges_text(numbers: Iterable[int]) -> str:
    """`0-2,5` for 0, 1, 2 and 5: the form in which `--steps` and `--ranks` take them."""
    ranges: list[list[int]] = []
    for number in sorted(set(numbers)):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in ranges)


def _plural(noun: str) -> str:
    if noun.endswith("y"):
        return f"{noun[:-1]}ies"
    return f"{noun}es" if noun.endswith("s") else f"{noun}s"
