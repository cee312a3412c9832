"""The tensors of a step in which an overflow shows (nan, inf, a saturated float16), the calls that were given or made
them, and what the arguments of these calls ask for.
"""

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import polars as pl

from ulpscope.numerics.dtypes import FLOATING
from ulpscope.operations.registry import Trait, operation
from ulpscope.records.enums import MAKING_ROLES, Kind, Role
from ulpscope.records.overflows import FLOAT16_LARGEST
from ulpscope.trace.reader import RankTrace

NOT_FINITE = ("nan", "inf", "-inf")
"""Floats that arguments have as text."""


@dataclass(frozen=True, slots=True)
class Ends:
    """Where numbers leave their type: nan, upwards, downwards."""

    nan: bool
    high: bool
    low: bool

    def cover(self, shown: "Ends") -> bool:
        """Whether all that shows is among these."""
        return not ((shown.nan and not self.nan) or (shown.high and not self.high) or (shown.low and not self.low))


def asked(op: str | None, arguments: str | None) -> Ends:
    """What the numbers among a call's arguments say."""
    numbers = [] if arguments is None else list(_numbers(arguments))
    # Masks are made by arithmetic with -65504 or -1e9; a large positive factor is an overflow like any other.
    places = operation(op or "").has(Trait.PLACING)
    return Ends(
        nan=any(map(math.isnan, numbers)),
        high=any(each >= FLOAT16_LARGEST and (places or math.isinf(each)) for each in numbers),
        low=any(each <= -FLOAT16_LARGEST for each in numbers),
    )


def _numbers(arguments: str) -> Iterator[float]:
    """The floats among a call's arguments; integers are sizes and indices."""
    try:
        pending: list[Any] = [json.loads(arguments)]
    except (ValueError, RecursionError):
        return
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if item.get("$float") in NOT_FINITE:
                yield float(item["$float"])
            pending += item.values()
        elif isinstance(item, list):
            pending += item
        elif isinstance(item, float):
            yield item


_TRAINED = (Role.GRADIENT.value, Role.PARAMETER.value)


class Row(NamedTuple):
    """A tensor of a call in which something shows."""

    call: int
    role: str
    place: str
    value: int
    made: bool
    wrong: bool
    nan: bool
    high: bool
    low: bool
    digest: int | None
    storage: int | None


@dataclass(slots=True)
class Values:
    """Tensors that a search has met, and the calls at which it has."""

    ids: dict[int, int] = field(default_factory=dict)
    digests: dict[int | None, int] = field(default_factory=dict)
    """Dumps do not tell which output an input is, but it has the same bits."""
    storages: dict[int | None, int] = field(default_factory=dict)
    """What is written through one view is read through another: the last that was met."""

    def add(self, rows: Iterable[Row]) -> None:
        for row in rows:
            self.ids.setdefault(row.value, row.call)
            if row.digest is not None:
                self.digests.setdefault(row.digest, row.call)
            if row.storage is not None:
                self.storages[row.storage] = row.call

    def forget_between(self, last: int, first: int) -> None:
        """Forget what was met at calls between these two."""
        self.ids = {key: call for key, call in self.ids.items() if not last < call < first}
        self.digests = {key: call for key, call in self.digests.items() if not last < call < first}
        self.storages = {key: call for key, call in self.storages.items() if not last < call < first}

    def have(self, row: Row) -> bool:
        return row.value in self.ids or row.digest in self.digests


@dataclass(frozen=True, slots=True)
class ShownStep:
    """The calls of a step, and what shows in them."""

    rows: Mapping[int, list[Row]]
    """By call, in the order of execution."""
    parents: Mapping[int, int | None]
    forwards: Mapping[int, int | None]
    kinds: Mapping[int, str]
    asking: Mapping[int, tuple[str | None, str | None]]
    """Operation and arguments."""
    readers: Set[int]
    """Calls that read a tensor."""
    losses: Set[int]
    """Values."""
    trained: Set[int]
    """Storages of an optimizer's gradients and parameters."""

    @property
    def first(self) -> int | None:
        """The first call that made something that shows."""
        return next((call for call in self.rows if self.made(call)), None)

    def given(self, call: int) -> list[Row]:
        """What a call has read; a backward also what its forward read and made."""
        forward = self.forwards.get(call)
        earlier = [] if forward is None else self.rows.get(forward, [])
        return [*self.read(call), *earlier]

    def read(self, call: int) -> list[Row]:
        return [row for row in self.rows[call] if not row.made]

    def made(self, call: int) -> list[Row]:
        return [row for row in self.rows[call] if row.made]

    def order(self) -> Iterator[int]:
        """The calls in the order in which what shows was there.

        A module's backward has the gradients of its parameters as hooks have left them.
        """
        late: list[int] = []
        for call in self.rows:
            if self.kinds[call] == Kind.OPTIMIZER.value:
                yield from late
                late = []
            if self.kinds[call] == Kind.MODULE_BACKWARD.value:
                late.append(call)
            else:
                yield call
        yield from late

    def above(self, call: int) -> Iterator[int]:
        """The calls around this one, the innermost first."""
        parent = self.parents.get(call)
        while parent is not None:
            yield parent
            parent = self.parents.get(parent)

    def around(self) -> set[int]:
        """Calls around others in which the same shows."""
        worst = {call: max(map(_severity, made)) for call in self.rows if (made := self.made(call))}
        inside: dict[int, int] = {}
        for call, severity in worst.items():
            for parent in self.above(call):
                if inside.get(parent, 0) >= severity:
                    break
                inside[parent] = severity
        return {call for call, severity in worst.items() if inside.get(call, 0) >= severity}

    def innermost(self, calls: set[int]) -> set[int]:
        """Without the calls around them, in which the same shows."""
        return calls - {parent for call in calls for parent in self.above(call)}

    def asked(self, call: int) -> Ends:
        return asked(*self.asking.get(call, (None, None)))

    def asker(self, row: Row) -> int | None:
        """The call around its reader whose argument says this number: a kernel gets it as a tensor."""
        return next((call for call in self.above(row.call) if self.asked(call).cover(ends([row]))), None)


def shown_step(calls: pl.DataFrame, uses: pl.DataFrame) -> ShownStep:
    """Of the calls of a step, and their tensors as signs_of() has them."""
    rows = rows_by_call(_without_handed_back(uses))
    told = calls.filter(pl.col("id").is_in(list(rows)))
    optimizers = calls.filter(pl.col("kind") == Kind.OPTIMIZER.value)["id"].implode()
    trained = uses.filter(pl.col("call").is_in(optimizers) & pl.col("role").is_in(_TRAINED))["storage"].drop_nulls()
    return ShownStep(
        rows,
        parents=dict(zip(calls["id"], calls["parent"], strict=True)),
        forwards=dict(zip(told["id"], told["forward"], strict=True)),
        kinds=dict(zip(told["id"], told["kind"], strict=True)),
        asking={number: (op, arguments) for number, op, arguments in told.select("id", "op", "arguments").iter_rows()},
        readers=set(uses.filter(~pl.col("made"))["call"]),
        losses=set(uses.filter(pl.col("role") == Role.LOSS.value)["value"]),
        trained=set(trained),
    )


def rows_by_call(uses: pl.DataFrame) -> dict[int, list[Row]]:
    """Of tensors as signs_of() has them, those in which something shows; in the order of execution."""
    rows: dict[int, list[Row]] = {}
    for row in map(Row._make, uses.filter("sign").sort("call", maintain_order=True).select(Row._fields).iter_rows()):
        rows.setdefault(row.call, []).append(row)
    return rows


def _without_handed_back(uses: pl.DataFrame) -> pl.DataFrame:
    """What a call hands back as it got it (aten.lift_fresh) it has not made."""
    shown = uses.filter("sign")
    read = shown.filter(~pl.col("made")).select("call", "value").unique().with_columns(read=True)
    marked = shown.join(read, on=["call", "value"], how="left", maintain_order="left")
    return marked.with_columns(made=pl.col("made") & pl.col("read").is_null())


def ends(rows: Sequence[Row]) -> Ends:
    """Where the numbers of these leave their type."""
    return Ends(any(row.nan for row in rows), any(row.high for row in rows), any(row.low for row in rows))


def _severity(row: Row) -> int:
    """-inf, which masks hold, is less than all else."""
    return 2 if row.nan or row.high else 1


_NUMBERS = ("nan", "pos_inf", "neg_inf", "min", "max")


def is_made(role: Role, kind: Kind) -> bool:
    """Whether a call gives this; everything else it is given."""
    return role.value in MAKING_ROLES or (role is Role.GRADIENT and kind is not Kind.OPTIMIZER)


def signs_of(rank: RankTrace, step: int) -> pl.DataFrame:
    """A row a tensor of a call: whether the call made it, whether something shows in it, and not as in a mask.

    `told` is false where no number of it is recorded that could show anything.
    """
    half = pl.col("dtype") == "float16"
    high = (pl.col("pos_inf") > 0) | (half & (pl.col("max") >= FLOAT16_LARGEST)).fill_null(False)
    low = (pl.col("neg_inf") > 0) | (half & (pl.col("min") <= -FLOAT16_LARGEST)).fill_null(False)
    shown = {"nan": pl.col("nan") > 0, "high": high, "low": low}
    sign = pl.any_horizontal(*shown.values()).fill_null(False) & pl.col("initialized").fill_null(True)
    wrong = sign & pl.any_horizontal(pl.col("nan", "pos_inf") > 0).fill_null(False)
    ends = {name: expression.fill_null(False) for name, expression in shown.items()}
    signs = rank.values(step).select("digest", "storage", value="id", sign=sign, wrong=wrong, told=_told(), **ends)
    kinds = rank.calls(step).select(pl.col("id").alias("call"), "kind")
    gradient = (pl.col("role") == Role.GRADIENT.value) & (pl.col("kind") != Kind.OPTIMIZER.value)
    made = pl.col("role").is_in(MAKING_ROLES) | gradient.fill_null(False)
    uses = rank.tensors(step).join(kinds, on="call", how="left", maintain_order="left")
    picked = uses.select("call", "role", "place", "value", made=made)
    return rank.collect(picked.join(signs, on="value", maintain_order="left"))


def _told() -> pl.Expr:
    number = pl.any_horizontal(pl.col(name).is_not_null() for name in _NUMBERS)
    nothing = ~pl.col("dtype").is_in(FLOATING) | ~pl.col("initialized") | pl.col("shape").list.contains(0)
    return number | nothing.fill_null(True)
