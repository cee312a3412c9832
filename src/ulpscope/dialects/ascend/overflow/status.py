"""What the status of an overflow record means, by the unit that set it."""

from collections.abc import Iterable
from enum import Enum


class Unit(str, Enum):
    """Which unit overflowed, in the words of the records."""

    DHA = "DHA Atomic Add"
    L2 = "L2 Atomic Add"
    AI_CORE = "AI Core"
    AIC = "AIC"
    """The cube half of an AI Core."""
    AIV = "AIV"
    """The vector half."""
    AICPU = "AICPU"
    SDMA = "SDMA"
    """Copies between memories, and adds while it copies."""


class Meaning(str, Enum):
    """One thing that a status says."""

    NEGATED_SMALLEST = "negated_smallest"
    INTEGER = "integer"
    FLOAT = "float"
    NEGATIVE_TO_UNSIGNED = "negative_to_unsigned"
    TO_FLOAT16 = "to_float16"
    CUBE = "cube"
    OVERFLOW = "overflow"
    UNDERFLOW = "underflow"
    SOURCE_NAN = "source_nan"
    TARGET_NAN = "target_nan"
    BOTH_NAN = "both_nan"
    UNKNOWN = "unknown"
    """A bit or code that no documentation explains."""


# CANN documentation, "overflow detection": bits of an AI Core's status, which may stand together.
CORE_BITS = {
    0x008: Meaning.NEGATED_SMALLEST,
    0x010: Meaning.INTEGER,
    0x020: Meaning.FLOAT,
    0x080: Meaning.NEGATIVE_TO_UNSIGNED,
    0x100: Meaning.TO_FLOAT16,
    0x400: Meaning.CUBE,
}
# The same: a number in bits 8 to 15, and one in bits 16 to 18.
DHA_CODES = {
    0x9: Meaning.OVERFLOW,
    0xA: Meaning.UNDERFLOW,
    0xB: Meaning.SOURCE_NAN,
    0xC: Meaning.TARGET_NAN,
    0xD: Meaning.BOTH_NAN,
}
L2_CODES = {
    0b001: Meaning.OVERFLOW,
    0b010: Meaning.UNDERFLOW,
    0b011: Meaning.SOURCE_NAN,
    0b100: Meaning.TARGET_NAN,
    0b101: Meaning.BOTH_NAN,
}


def meanings(unit: Unit, status: Iterable[int]) -> tuple[Meaning, ...]:
    """What a status of one or several words says; nothing if it is 0."""
    found = [meaning for word in status if word for meaning in _of_word(unit, word)]
    return tuple(dict.fromkeys(found))


def _of_word(unit: Unit, word: int) -> list[Meaning]:
    if unit in (Unit.DHA, Unit.SDMA):
        return [DHA_CODES.get(word >> 8 & 0xFF, Meaning.UNKNOWN)]
    if unit is Unit.L2:
        return [L2_CODES.get(word >> 16 & 0b111, Meaning.UNKNOWN)]
    if unit is Unit.AICPU:
        return [Meaning.UNKNOWN]
    known = [meaning for bit, meaning in CORE_BITS.items() if word & bit]
    return [*known, Meaning.UNKNOWN] if word & ~sum(CORE_BITS) else known
