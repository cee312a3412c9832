"""The languages that a comparison is told in: tables of phrases, and how numbers and names are put into them."""

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache

LONGEST_NAME = 160
LONGEST_TEXT = 2000
"""Characters of one text of a trace that are shown: rich folds some 100,000 a second."""
NAMES_SHOWN = 3

# Format characters hide or reorder what follows, line and paragraph separators break a line.
_STEERING = ("Cc", "Cf", "Cs", "Zl", "Zp")


class Language(str, Enum):
    """What people read; tables and JSON keys are the same in all of them."""

    EN = "en"
    ZH = "zh"


@dataclass(frozen=True, slots=True)
class Phrases:
    """One language: templates by key, nouns as (one, several), and what stands between words."""

    templates: Mapping[str, str]
    nouns: Mapping[str, tuple[str, str]]
    comma: str
    """Between names."""
    clause_comma: str
    semicolon: str
    stop: str
    last: str
    """Before the last of several names."""

    def say(self, key: str, **parts: object) -> str:
        return self.templates[key].format(**parts)

    def count(self, number: int, noun: str) -> str:
        """`1 call`, `12,345 calls`."""
        return f"{number:,} {self.nouns[noun][number != 1]}"

    def names(self, names: Sequence[str], *, total: int | None = None) -> str:
        """The first few names; `total` where there are more than those given."""
        shown = [shown_name(name) for name in names[:NAMES_SHOWN]]
        left = max(len(names), total or 0) - len(shown)
        if left > 0:
            return self.say("names.more", names=self.comma.join(shown), left=f"{left:,}")
        return self.listed(shown)

    def listed(self, parts: Sequence[str]) -> str:
        """`a, b and c`."""
        if len(parts) < 2:
            return "".join(parts)
        return f"{self.comma.join(parts[:-1])}{self.last}{parts[-1]}"


@cache
def phrases(language: Language) -> Phrases:
    """The table of a language."""
    from ulpscope.report.words import comparison_en as words_en
    from ulpscope.report.words import comparison_zh as words_zh

    return {Language.EN: words_en.PHRASES, Language.ZH: words_zh.PHRASES}[language]


def shown_name(name: str, *, longest: int = LONGEST_NAME) -> str:
    """A name out of a trace on one line: nothing in it steers a terminal, its middle gives way if it is too long."""
    return "".join(map(_visible, _shortened(name, longest)))


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
