"""Comparisons built by hand, with the numbers of a real one: eps of a norm differs in one layer."""

from dataclasses import fields, replace
from typing import Any

from ulpscope.records.checks import Direction, Verdict
from ulpscope.records.enums import Phase
from ulpscope.records.evidence import (
    ArgumentDifference,
    Evidence,
    FinalDifference,
    Ledger,
    LedgerEntry,
    Maker,
    Part,
    Replay,
)
from ulpscope.records.findings import (
    Advice,
    AdviceKind,
    AnchorPart,
    Comparison,
    Counts,
    Finding,
    FindingKind,
    Nearness,
    Neighbour,
    Outcome,
    Place,
    Scope,
)
from ulpscope.records.pairs import Measured

PLACE = Place(
    rank=0,
    step=0,
    phase=Phase.FORWARD,
    call="torch.Tensor.add.17",
    call_id=57,
    op="torch.Tensor.add",
    module="model.layers.2.input_layernorm",
    tensor="output.0",
    source="/home/me/modeling.py:66",
)
EPS = ArgumentDifference("args.1", "1e-06", "1e-02")


def evidence(**told: Any) -> Evidence:
    """The evidence with these entries, each in the part that has it."""
    parts = {part.name: type(getattr(Evidence(), part.name)) for part in fields(Evidence) if part.name != "ledger"}
    names = {name: {entry.name for entry in fields(kind)} for name, kind in parts.items()}
    found = {name: kind(**{key: told.pop(key) for key in names[name] & told.keys()}) for name, kind in parts.items()}
    return Evidence(**found, **told)


EVIDENCE = evidence(
    measured=Measured.SKETCH,
    error_in=1.0e-3,
    error_out=5.9,
    expected=8e-3,
    dtype="bfloat16",
    arguments=(EPS,),
    followers=683,
)

HOSTILE = "[red]torch[/red].\x1b[2Jadd\n\x07:smile:\u202e\u2028{call}%s.0"
HARMLESS = "[red]torch[/red].\\x1b[2Jadd\\n\\x07:smile:\\u202e\\u2028{call}%s.0"


def finding(kind: FindingKind = FindingKind.COMPUTATION, place: Place = PLACE, **told: Any) -> Finding:
    """A finding of this evidence; without any, that of the planted eps."""
    return Finding(kind, place, evidence(**told) if told else EVIDENCE)


def place(**changes: Any) -> Place:
    return replace(PLACE, **changes)


def neighbour(nearness: Nearness, module: str, op: str, errors: tuple[float, float], judgement: str) -> Neighbour:
    return Neighbour(nearness, f"{op}.1", op, module, errors[0], errors[1], judgement)


def diverged(**changes: Any) -> Comparison:
    near = (
        neighbour(
            Nearness.BEFORE,
            "model.layers.1.mlp.down_proj",
            "torch.nn.functional.linear",
            (7.0e-3, 7.2e-3),
            "rounding",
        ),
        neighbour(Nearness.BEFORE, "model.layers.1", "torch.Tensor.add", (7.2e-3, 4.4e-3), "rounding"),
        neighbour(Nearness.HERE, "model.layers.2.input_layernorm", "torch.Tensor.add", (1.0e-3, 5.9), "made_here"),
    )
    comparison = Comparison(
        reference="runs/ref",
        target="runs/target",
        outcome=Outcome.DIVERGED,
        findings=(finding(),),
        notes=(),
        counts=Counts(1007, 1007, 1001, 6, 6, 2913, 401, 1120, 1391, 1, 0),
        scope=Scope(ranks=(0,), steps=(0, 1, 2), measured=((Measured.DIGEST, 401), (Measured.SKETCH, 2512))),
        anchor=(
            AnchorPart("inputs", 2, 2, None),
            AnchorPart("parameters", 38, 38, None),
            AnchorPart("embedding", 1, 1, None),
        ),
        neighbours=near,
        advice=(Advice(AdviceKind.SAME_ARGUMENT, "torch.Tensor.add.17"),),
    )
    return replace(comparison, **changes)


def agreeing(**changes: Any) -> Comparison:
    counts = Counts(1001, 1001, 1001, 0, 0, 2913, 401, 2512, 0, 0, 0)
    quiet: dict[str, Any] = {"findings": (), "neighbours": (), "advice": (), "counts": counts}
    return diverged(**{"outcome": Outcome.AGREE, **quiet, **changes})


def nothing_compared(**changes: Any) -> Comparison:
    counts = Counts(calls_reference=12, calls_target=1007, unmatched_reference=12, unmatched_target=1007)
    scope = Scope(ranks=(0,), steps=(), steps_reference_only=(0, 1), steps_target_only=(4,))
    empty: dict[str, Any] = {"counts": counts, "scope": scope, "anchor": ()}
    return agreeing(**{"outcome": Outcome.NOTHING_COMPARED, **empty, **changes})


def entry(**changes: Any) -> LedgerEntry:
    """One wrong element of an output, executed again."""
    known = LedgerEntry(
        rank=0,
        step=0,
        call="torch.nn.functional.linear.7",
        call_id=57,
        call_reference="torch.nn.functional.linear.9",
        op="torch.nn.functional.linear",
        module="model.b.3.fc2",
        place="output.0",
        direction=Direction.FORWARD,
        dtypes=("float32", "bfloat16"),
        observed=Part(7e-3, 32.0),
        made_by_target=Part(6e-3, 15.0),
        by_arguments=None,
        inherited=Part(1.2e-3, 4.0),
        made_by_reference=Part(2e-7, 4e-4),
        verdict_target=Verdict.FAIL,
        statistic="outlier",
        message="outlier: ...",
        verdict_reference=Verdict.PASS,
        maker=Maker.TARGET,
        worst=(5, 7),
        # 0.0625 to 0.125 has 128 numbers of bfloat16: 31 of their distances.
        worst_values=(0.07421875 + 31 / 2048, 0.07421875),
        contribution=0.0097,
    )
    return replace(known, **changes)


def sound_entry(call: str, call_id: int, contribution: float | None) -> LedgerEntry:
    small = Part(1.7e-3, 0.5)
    return entry(
        call=call,
        call_id=call_id,
        module=None,
        observed=small,
        made_by_target=small,
        verdict_target=Verdict.PASS,
        statistic="rounded",
        maker=Maker.NEITHER,
        worst=None,
        worst_values=None,
        contribution=contribution,
    )


def ledger(*entries: LedgerEntry, **changes: Any) -> Ledger:
    """A ledger that closes: 0.01 at the end, of which the wrong element made 0.0097."""
    known = entries or (entry(), sound_entry("torch.relu.1", 58, 0.0002), sound_entry("torch.relu.2", 59, 1e-6))
    final = FinalDifference(0, 0, "torch.nn.functional.cross_entropy.0", 0.01, calls=0.00995, start=0.00005)
    return replace(Ledger(Replay.ON, known, (final,)), **changes)
