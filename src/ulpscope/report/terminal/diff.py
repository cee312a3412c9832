"""Tells how two tensors, or two files of them, differ, as text and as JSON."""

import cmath
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

from rich.console import Group, RenderableType

from ulpscope.records.pairs import Agreement, ElementPair, FileDiff, TensorDiff, TensorSide
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.tables import pairs, plain, render, section, table
from ulpscope.report.words.language import count_text

METRICS = {
    "elements": "elements",
    "different": "different elements",
    "mismatched": "nan or inf on one side only",
    "max_abs": "largest difference",
    "max_rel": "largest relative difference",
    "mean_rel": "mean relative difference",
    "accumulated_rel": "sum of relative differences",
    "within_thousandth": "within 1/1000",
    "within_five_thousandths": "within 5/1000",
    "distance": "distance (L2)",
    "relative_distance": "distance / norm of the reference",
    "cosine": "cosine",
    "rmse": "root mean square difference",
    "mae": "mean absolute difference",
    "max_ulp": "largest difference in ulps",
    "mean_ulp": "mean difference in ulps",
    "kl_divergence": "KL divergence",
}
SHARES = ("within_thousandth", "within_five_thousandths")
SIDES = {"norm": "norm", "mean": "mean", "std": "standard deviation"}


def diff_text(diff: FileDiff, *, count: int, width: int, color: bool) -> str:
    """The answer; of many tensors `count` are listed, the worst first, all if 0."""
    content = _single(diff, diff.tensors[0], count) if diff.single else _files(diff, count)
    return render(Group(*content), width=width, color=color)


def _single(diff: FileDiff, tensor: TensorDiff, count: int) -> Iterator[RenderableType]:
    sides = tensor.sides
    yield plain(_sentence(tensor, diff), style="bold")
    yield plain("")
    yield pairs(
        [
            ("reference", _side(diff.paths.reference, sides.reference)),
            ("target", _side(diff.paths.target, sides.target)),
            ("allclose", None if tensor.outside is None else _allclose(tensor, diff)),
        ]
    )
    if tensor.worst:
        few = len(tensor.worst) == 1
        title = "the element that differs most" if few else f"the {len(tensor.worst):,} elements that differ most"
        headers = ("index", "reference", "target", "difference", "relative")
        rows = [
            (list(pair.index), pair.texts.reference, pair.texts.target, *_differences(pair)) for pair in tensor.worst
        ]
        yield section(title, table(headers, rows, right=headers[1:]))
    if tensor.metrics is not None:
        values = {name: value for name, value in fields_of(tensor.metrics).items() if value is not None}
        told = [(label, _metric(name, values[name])) for name, label in METRICS.items() if name in values]
        yield section("metrics", pairs(told))
        runs = ("reference", "target")
        sides_rows = [
            (label, *(_number(getattr(tensor.metrics, f"{run}_{name}")) for run in runs))
            for name, label in SIDES.items()
        ]
        yield section("sides", table(("", *runs), sides_rows, right=runs))
    yield from _refused(diff, count)


def _side(path: str, side: TensorSide) -> str:
    return f"{path}{f'::{side.key}' if side.key else ''}  {side.dtype} {list(side.shape)}"


def _sentence(tensor: TensorDiff, diff: FileDiff) -> str:
    sides, metrics = tensor.sides, tensor.metrics
    if tensor.agreement is Agreement.NOT_COMPARED or metrics is None:
        return f"The shapes differ: {list(sides.reference.shape)} and {list(sides.target.shape)}."
    if tensor.agreement is Agreement.IDENTICAL:
        return f"Identical: {count_text(metrics.elements, 'number')}, the same bits."
    types = f"{sides.reference.dtype} and {sides.target.dtype}"
    other_types = f", of other types ({types})" if sides.reference.dtype != sides.target.dtype else ""
    if tensor.agreement is Agreement.EQUAL:
        why = other_types or ", though not the same bits: the sign of a zero or the bits of a nan differ"
        return f"Equal: {count_text(metrics.elements, 'number')}{why}."
    share = f"{metrics.different:,} of {count_text(metrics.elements, 'number')}"
    told = f"{share}{other_types}, the largest difference is {_number(metrics.max_abs)}{_at(tensor)}"
    within = tensor.agreement is Agreement.WITHIN
    return f"Within the tolerance; not equal are {told}." if within else f"Different: {told}."


def _at(tensor: TensorDiff) -> str:
    worst = None if tensor.metrics is None else tensor.metrics.worst
    if worst is None:
        return " (nan or inf on one side only)"
    shape = tensor.sides.reference.shape
    return f" at {[worst // prod(shape[axis + 1 :]) % size for axis, size in enumerate(shape)]}"


def _allclose(tensor: TensorDiff, diff: FileDiff) -> str:
    limits = f"|difference| <= {diff.tolerances.atol:g} + {diff.tolerances.rtol:g} * |reference|"
    default = "" if diff.tolerances.asked else " (numpy's tolerance; none was asked for)"
    elements = prod(tensor.sides.reference.shape)
    if not tensor.outside:
        return f"yes: {limits}{default}"
    share = f"{tensor.outside:,} of {count_text(elements, 'element')} ({tensor.outside / elements:.3%})"
    return f"no: {share} outside of {limits}{default}"


def _differences(pair: ElementPair) -> tuple[str, str]:
    reference, target = pair.numbers.reference, pair.numbers.target
    if not (cmath.isfinite(reference) and cmath.isfinite(target)):
        return "-", "-"
    # Of integers this is exact; of floats it is what float64 makes of it.
    difference = target - reference
    size = abs(reference)
    return _number(difference), _number(abs(difference) / size if size else math.inf)


def _number(number: complex | float | int | None) -> str:
    if number is None:
        return "-"
    if isinstance(number, int):
        return f"{number:,}"
    return f"{number:.6g}"


def _metric(name: str, value: float | int) -> str:
    if name in SHARES:
        return f"{value:.3%}"
    return f"{value:.12g}" if name == "cosine" else _number(value)


def _files(diff: FileDiff, count: int) -> Iterator[RenderableType]:
    yield plain(_files_sentence(diff), style="bold")
    yield plain("")
    yield pairs(
        [
            ("reference", diff.paths.reference + _below(diff.below.reference)),
            ("target", diff.paths.target + _below(diff.below.target)),
        ]
    )
    listed = [tensor for tensor in diff.tensors if tensor.agreement is not Agreement.IDENTICAL]
    shown = listed[:count] if count else listed
    if shown:
        more = f", {len(shown)} of {len(listed)}" if len(shown) < len(listed) else ""
        yield section(f"tensors that are not identical, the worst first{more}", _tensors(shown, diff))
    renamed = [f"{each.reference} is {each.target}" for each in diff.renamed]
    if renamed:
        yield section(f"paired by what they hold: {count_text(len(renamed), 'tensor')}", *_cut(renamed, count))
    yield from _refused(diff, count)
    for names, side in ((diff.only_reference, "reference"), (diff.only_target, "target")):
        if names:
            yield section(f"only in the {side}: {count_text(len(names), 'tensor')}", *_cut(names, count))


def _refused(diff: FileDiff, count: int) -> Iterator[RenderableType]:
    """What files hold beside tensors, by the names that they give it."""
    for side in ("reference", "target"):
        refused = [f"{place}: {name}" for place, name in getattr(diff.refused, side).items()]
        if refused:
            title = f"left out of the {side}, nothing of it was executed: {count_text(len(refused), 'object')}"
            yield section(title, *_cut(refused, count))


def _cut(names: Sequence[str], count: int) -> Iterator[RenderableType]:
    shown = names[:count] if count else names
    yield from (plain(name or "(no name)") for name in shown)
    if len(shown) < len(names):
        yield plain(f"... and {len(names) - len(shown):,} more")


def _below(prefix: str) -> str:
    return f"  (names below {prefix!r}; whatever else it holds is left out)" if prefix else ""


def _files_sentence(diff: FileDiff) -> str:
    if not diff.tensors:
        return "Nothing compared: no tensor has the same name in both, and none holds what one of the other holds."
    counts = Counter(tensor.agreement for tensor in diff.tensors)
    words = {
        Agreement.IDENTICAL: "identical",
        Agreement.EQUAL: "equal but for type or sign of zero",
        Agreement.WITHIN: "within the tolerance",
        Agreement.DIFFERENT: "different",
        Agreement.NOT_COMPARED: "not compared",
    }
    told = ", ".join(f"{counts[agreement]:,} {word}" for agreement, word in words.items() if counts[agreement])
    alone = len(diff.only_reference) + len(diff.only_target)
    missing = f"; {count_text(len(diff.renamed), 'tensor')} under another name" if diff.renamed else ""
    missing += f"; {count_text(alone, 'tensor')} on one side only" if alone else ""
    return f"{'Agree' if diff.agrees else 'Different'}: of {count_text(len(diff.tensors), 'tensor')} {told}{missing}."


def _tensors(tensors: Sequence[TensorDiff], diff: FileDiff) -> RenderableType:
    asked = diff.tolerances.asked
    numbers = ("different", *(("outside",) if asked else ()), "max abs", "max rel", "distance / norm", "cosine")
    rows = [_tensor_row(tensor, asked=asked) for tensor in tensors]
    return table(("tensor", "type", "shape", *numbers), rows, right=numbers, folds=("tensor",))


def _tensor_row(tensor: TensorDiff, *, asked: bool) -> list[str]:
    metrics = tensor.metrics
    sides = (tensor.sides.reference, tensor.sides.target)
    # What is the same on both sides is told once.
    kinds = (dict.fromkeys(side.dtype for side in sides), dict.fromkeys(str(list(side.shape)) for side in sides))
    row = [tensor.name, *map(" / ".join, kinds)]
    if metrics is None:
        return [*row, tensor.problem or "", *([""] if asked else []), "", "", "", ""]
    share = f"{metrics.different:,} of {metrics.elements:,}"
    outside = [f"{tensor.outside:,}" if tensor.outside is not None else "-"] if asked else []
    numbers = (metrics.max_abs, metrics.max_rel, metrics.relative_distance)
    texts = [f"{number:.3g}" if number is not None else "-" for number in numbers]
    cosine = "-" if metrics.cosine is None else f"{metrics.cosine:.9f}"
    mismatched = f" ({metrics.mismatched:,} nan/inf)" if metrics.mismatched else ""
    return [*row, share + mismatched, *outside, *texts, cosine]


def diff_json(diff: FileDiff) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    asked, verdict = diff.tolerances.asked, "agree" if diff.agrees else "differ"
    counts = Counter(tensor.agreement for tensor in diff.tensors)
    compared = len(diff.tensors) - counts[Agreement.NOT_COMPARED]
    return answer_json(
        "diff",
        verdict=verdict if diff.tensors else "nothing_compared",
        reference=diff.paths.reference,
        target=diff.paths.target,
        tolerance=fields_of(diff.tolerances, "atol", "rtol") if asked else None,
        counts={"tensors_compared": compared, **{each.value: counts[each] for each in Agreement}},
        tensors=[_tensor(tensor, diff) for tensor in diff.tensors],
        below=diff.below,
        renamed=diff.renamed,
        refused=diff.refused,
        only_reference=diff.only_reference,
        only_target=diff.only_target,
    )


def _tensor(tensor: TensorDiff, diff: FileDiff) -> dict[str, Any]:
    limits = fields_of(diff.tolerances, "atol", "rtol")
    return {
        "name": tensor.name,
        "reference": tensor.sides.reference,
        "target": tensor.sides.target,
        "agreement": tensor.agreement,
        "problem": tensor.problem,
        "allclose": None if tensor.outside is None else {**limits, "within": tensor.outside == 0},
        "outside": tensor.outside,
        "metrics": tensor.metrics,
        "worst": [{"index": pair.index, **fields_of(pair.numbers)} for pair in tensor.worst],
    }
