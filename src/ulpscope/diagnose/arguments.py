"""Arguments of a call that are not the same in both runs."""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ulpscope.diagnose.limits import COMPUTED_NOISE, LAST_BITS, LONGEST_ARGUMENT, MASK_SIZE, WRITTEN_DIGITS
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import SUMMING, Trait
from ulpscope.records.enums import Kind
from ulpscope.records.evidence import ArgumentDifference
from ulpscope.trace.objects import parse_arguments

if TYPE_CHECKING:
    from ulpscope.diagnose.flow.evidence import RankEvidence

# How a run is carried out, not what it computes.
IMPLEMENTATION = frozenset(
    "foreach fused capturable differentiable device non_blocking layout pin_memory inplace is_causal keepdim copy "
    "requires_grad enable_gqa need_weights memory_format out".split()
)

NO_NUMBERS = (Trait.REACHING_OUT, Trait.METADATA, Trait.EXPOSING)
"""Whose arguments say nothing about numbers: a copy's memory of what was copied, which is long."""
TYPE_CONSTANTS = (
    frozenset(2.0 * each.unit_roundoff for each in DTYPES.values()),
    frozenset(each.smallest_normal for each in DTYPES.values()),
)
"""Numbers that a program asks of its element type: finfo's eps and tiny."""
UNSTATED: dict[str, bool | str | float] = {
    "approximate": "none", "reduction": "mean", "padding_mode": "zeros", "label_smoothing": 0.0, "dropout_p": 0.0,
    "align_corners": False, "log_target": False, "ceil_mode": False, "count_include_pad": True, "largest": True,
    "descending": False, "unbiased": True,
}  # fmt: skip
"""Words, switches and numbers that mean the same wherever they go by this name, and what stands for them unstated."""
AXIS_PLACES = ("args.1", "kwargs.dim", "kwargs.axis")


def argument_differences(reference: str | None, target: str | None) -> tuple[ArgumentDifference, ...]:
    """What differs between two recorded argument lists, tensors and devices left out."""
    if reference == target:
        return ()
    one, other = _stated(reference), _stated(target)
    differing = [place for place in one | other if one.get(place) != other.get(place)]
    return tuple(ArgumentDifference(place, _text(one, place), _text(other, place)) for place in differing)


def differing_arguments(evidence: "RankEvidence", pair: int) -> tuple[ArgumentDifference, ...]:
    """What differs among the arguments of a pair of calls."""
    calls = evidence.calls
    return argument_differences(calls["reference_arguments"][pair], calls["arguments"][pair])


def numbers_differ(reference: str | None, target: str | None, *, unstated: float | None = None) -> bool:
    """Whether a float among the arguments differs; a limit of an element type (a mask's value) may.

    One that only one run states counts if there is a number for what is `unstated`.
    """
    if reference == target:
        return False
    one, other = _stated(reference), _stated(target)
    return any(_numbers_apart(one.get(place, unstated), other.get(place, unstated)) for place in one | other)


@lru_cache(maxsize=4096)
def telling_differences(reference: str | None, target: str | None) -> tuple[ArgumentDifference, ...]:
    """Floats, switches and words that differ: what may change a result a little. No sizes, dtypes, last bits."""
    if reference == target:
        return ()
    one, other = _stated(reference), _stated(target)
    telling = {place for place in one | other if _tells(one.get(place), other.get(place))}
    return tuple(each for each in argument_differences(reference, target) if each.place in telling)


def asks_for_more(evidence: "RankEvidence", pair: int) -> bool:
    """Whether a reworded pair of calls is asked for other mathematics: another axis, a switch, a word, a number."""
    calls, known = evidence.calls, evidence.operations[pair]
    texts = calls["reference_arguments"][pair], calls["arguments"][pair]
    if calls["kind"][pair] != Kind.API.value or calls["replaced"][pair]:
        return False
    # What words and numbers mean to a function of the run's own, nobody knows.
    if known.has(Trait.MOVING, Trait.DROPPING) or not calls["op"][pair].startswith(("torch.", "aten.")):
        return False
    one, other = map(_stated, texts)
    if known.family in SUMMING:
        given = evidence.given(pair)
        axes = len(evidence.operands[given[0]].shape) if given else 0
        if any(_axes_apart(one.get(place), other.get(place), axes) for place in AXIS_PLACES):
            return True
    pairs = ((_meant(one, place), _meant(other, place)) for place in dict.fromkeys((*one, *other)))
    both = [(entry, told) for entry, told in pairs if entry is not None and told is not None and _tells(entry, told)]
    noise = COMPUTED_NOISE * evidence.precision.coarsest
    return any(isinstance(entry, bool | str) or not _may_be_computed(entry, told, noise) for entry, told in both)


def states_a_number(evidence: "RankEvidence", pair: int) -> bool:
    """Whether a float among the arguments that differs was stated by somebody: the runs have not computed it."""
    one, other = (_stated(evidence.calls[field][pair]) for field in ("reference_arguments", "arguments"))
    pairs: list[tuple[Any, Any]] = [(one.get(place), other.get(place)) for place in one | other]
    noise = COMPUTED_NOISE * evidence.precision.coarsest
    return any(_numbers_apart(a, b) and not _may_be_computed(a, b, noise) for a, b in pairs)


def _meant(stated: dict[str, Any], place: str) -> Any:
    """What a call is told there, or what it takes where it is told nothing; none if that is not known."""
    return stated.get(place, UNSTATED.get(place.removeprefix("kwargs.")))


def _axes_apart(reference: Any, target: Any, axes: int) -> bool:
    """Whether these are two axes of so many, which may be counted from either end."""
    counted = all(isinstance(axis, int) and not isinstance(axis, bool) for axis in (reference, target))
    return counted and axes > 0 and reference % axes != target % axes


def _may_be_computed(reference: float, target: float, noise: float) -> bool:
    """Whether two numbers are as near as rounding, and not such as people write."""
    near = abs(reference - target) <= noise * max(abs(reference), abs(target))
    return near and any(len(f"{number:.12g}") > WRITTEN_DIGITS for number in (reference, target))


def tensor_places(text: str | None) -> frozenset[str]:
    """Where a recorded argument list has tensors."""
    return frozenset(path for path, _ in _leaves("", _load(text)) if path.endswith("$tensor"))


def reads_objects(text: str | None) -> bool:
    """Whether a recorded argument list has something of another library, an array for one."""
    return any(path.endswith("$object") for path, _ in _leaves("", _load(text)))


def _tells(reference: Any, target: Any) -> bool:
    if _numbers_apart(reference, target):
        return bool(abs(reference - target) > LAST_BITS * max(abs(reference), abs(target)))
    words = [entry for entry in (reference, target) if entry is not None]
    if not all(isinstance(entry, bool | str) for entry in words):
        return False
    return reference != target and not any(str(entry).removeprefix("torch.") in DTYPES for entry in words)


def _stated(text: str | None) -> dict[str, Any]:
    """What a recorded argument list states, by place; how it is carried out left out."""
    leaves = _leaves("", _plain(_load(text)))
    return {place: entry for place, entry in leaves if place.rpartition(".")[2] not in IMPLEMENTATION}


def _numbers_apart(reference: Any, target: Any) -> bool:
    numbers = [entry for entry in (reference, target) if isinstance(entry, int | float) and not isinstance(entry, bool)]
    some_float = any(isinstance(entry, float) for entry in numbers)
    if len(numbers) < 2 or not some_float or reference == target or max(map(abs, numbers)) >= MASK_SIZE:
        return False
    return not any(reference in constants and target in constants for constants in TYPE_CONSTANTS)


def _load(text: str | None) -> Any:
    try:
        loaded = parse_arguments(text or None)
    except ValueError:
        return {}
    return {key: entry for key, entry in loaded.items() if key != "returned"}


def _plain(entry: Any) -> Any:
    """Marked entries as what they stand for; tensors, devices and callables say nothing about numbers."""
    if isinstance(entry, list):
        return [_plain(item) for item in entry]
    if not isinstance(entry, dict):
        return entry
    word = next(iter(entry), "")
    if not word.startswith("$"):
        return {key: _plain(item) for key, item in entry.items()}
    if word in ("$tensor", "$device", "$generator", "$layout", "$memory_format", "$object"):
        return None
    return _plain(entry[word])


def _leaves(path: str, entry: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(entry, dict | list):
        for key, item in entry.items() if isinstance(entry, dict) else enumerate(entry):
            yield from _leaves(f"{path}.{key}" if path else str(key), item)
    elif entry is not None:
        yield path, entry


def _text(side: dict[str, Any], place: str) -> str:
    if place not in side:
        return ""
    text = str(side[place]) if isinstance(side[place], str) else json.dumps(side[place])
    return text if len(text) <= LONGEST_ARGUMENT else text[: LONGEST_ARGUMENT - 1] + "…"
