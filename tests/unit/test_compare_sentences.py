"""A sentence says no more than is known: what a call was given is not called its output, nor a change a beginning."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from tests.unit.comparisons import agreeing, diverged, finding, ledger, place
from tests.unit.handmade import HandmadeRun

from ulpscope.diagnose.advice import advise
from ulpscope.diagnose.arguments import telling_differences
from ulpscope.records.enums import Phase
from ulpscope.records.findings import AdviceKind, Counts, Finding, FindingKind, Outcome
from ulpscope.records.pairs import PAIR_COLUMNS, Measured
from ulpscope.report.terminal.compare import compare_text
from ulpscope.report.words.comparison import note_sentence, sentence
from ulpscope.workflows.compare.command import compare

Array = np.ndarray[Any, Any]
Tell = Callable[[Finding], str]
ONLY_REFERENCE = place(call_id=None)
BACKWARD = place(phase=Phase.BACKWARD)


def said(told: Finding, tell: Tell = sentence) -> str:
    """What follows the place."""
    return tell(told).partition(": ")[2]


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (
            finding(place=place(tensor="args.0"), shown="given", error_in=0.0, error_out=1.6, expected=5e-7),
            "the tensors before it are identical, what it is given as args.0 differs by 1.6, "
            "where rounding and these explain 5.0e-7.",
        ),
        (
            finding(place=place(tensor="args.1"), shown="given", error_in=0.0, measured=Measured.DIGEST),
            "the tensors before it are identical, what it is given as args.1 differs; "
            "only digests were compared, so by how much is not known.",
        ),
        (
            finding(
                place=place(tensor="args.0"), shown="given", error_out=1.6, origins=("torch.relu.0 output.0", "b.1")
            ),
            "what it is given as args.0 differs by 1.6; "
            "that tensor is torch.relu.0 output.0 in the reference, b.1 in the target.",
        ),
        (
            finding(place=place(tensor="args.0"), shown="given", error_out=1.6, given_as="args.1"),
            "what it is given as args.0 differs by 1.6; the reference gives that tensor as args.1.",
        ),
        (
            finding(place=place(phase=Phase.BACKWARD), shown="given", error_in=1e-3, error_out=1.6),
            "the tensors before it differ by 1.0e-3, the gradient that it is given for output.0 differs by 1.6, "
            "1,600 times what came in.",
        ),
        (
            finding(place=place(phase=Phase.BACKWARD, tensor="weight"), shown="summed", error_in=0.0, error_out=1.0),
            "the gradients that are added up in it are identical, its gradient of weight differs by 1.0.",
        ),
        (
            finding(place=ONLY_REFERENCE, error_in=0.0, error_out=1.0, only_reference=("div.1",)),
            "its inputs are identical, what the target has instead of its output differs by 1.0; "
            "only the reference calls div.1.",
        ),
        (
            finding(error_in=0.0, shapes=((12,), (16,))),
            "its inputs are identical; its output has shape [12] in the reference, [16] in the target.",
        ),
        (
            finding(FindingKind.INPUT, error_out=1.0),
            "its output is not the same data in both runs; the distance is 1.0.",
        ),
        (
            finding(FindingKind.PARAMETER, changed_unseen=True, parameters=("m.w",), error_out=0.1),
            "the parameters are no longer the same, and no recorded call has changed them; concerned: m.w; "
            "the distance is 0.10.",
        ),
        (
            finding(FindingKind.PARAMETER, changed_unseen=True, changed_in="target", parameters=("m.w",)),
            "the parameters are no longer the same, and no recorded call has changed them: only those of the target "
            "have changed; concerned: m.w.",
        ),
        (
            finding(FindingKind.OPTIMIZER, changed_unseen=True, changed_in="reference", parameters=("m.w.exp_avg",)),
            "the optimizer's state is no longer the same, and no recorded call has changed it: only that of the "
            "reference has changed; concerned: m.w.exp_avg.",
        ),
    ],
)
def test_what_a_finding_says(told: Finding, words: str) -> None:
    assert said(told) == words


def test_a_choice_is_within_rounding_only_if_its_inputs_are() -> None:
    near, far = (finding(FindingKind.CHOICE, error_in=error, dtype="bfloat16") for error in (2e-3, 140.0))
    assert said(near, note_sentence).startswith("a choice flipped within the rounding of its inputs; ")
    assert said(far, note_sentence) == "a choice flipped, as its inputs differ; its inputs differ by 140."


def test_headings_name_a_step_and_other_models() -> None:
    step = diverged(findings=(finding(FindingKind.OPTIMIZER, ONLY_REFERENCE, backwards=(1, 2)),))
    assert compare_text(step, width=120).splitlines()[0].endswith(": a step that only one run makes")
    nowhere = place(call=None, call_id=None, op=None, module=None, tensor=None, source=None)
    other = compare_text(diverged(findings=(finding(FindingKind.STRUCTURE, nowhere, paired=(271, 2473)),)), width=120)
    assert other.splitlines()[0].endswith(": other models")
    assert other.splitlines()[2].strip() == (
        "Only 271 of 2,473 calls have a partner: these look like different models or programs."
    )


def test_agreement_does_not_end_with_made_here() -> None:
    counts = Counts(1001, 1001, 1001, 0, 0, 2913, 401, 2482, 0, 30, 0)
    told = " ".join(compare_text(agreeing(counts=counts, ledger=ledger())).split())
    assert "made here" not in told
    assert "30 beyond the estimate (no call was proven wrong)" in told


NO_PAIRS = pl.DataFrame(schema=dict.fromkeys(PAIR_COLUMNS, pl.Null) | {"shape_target": pl.List(pl.Int64)})


def advised(told: Finding, *, on_device: bool) -> set[AdviceKind]:
    return {each.kind for each in advise([told], NO_PAIRS, on_device=on_device)}


def test_advice_is_what_can_help() -> None:
    precise = finding(error_in=0.0, error_out=0.5, dtype="float32", measured=Measured.SKETCH)
    coarse = finding(error_in=0.0, error_out=0.5, dtype="bfloat16", measured=Measured.SKETCH)
    raised, moved = AdviceKind.RAISE_PRECISION, AdviceKind.RUN_ON_CPU
    assert advised(precise, on_device=False) & {raised, moved} == set()
    assert AdviceKind.COMPARE_LOGIC in advised(precise, on_device=False)
    assert advised(precise, on_device=True) & {raised, moved} == {moved}
    assert advised(coarse, on_device=False) & {raised, moved} == {raised}
    written = finding(FindingKind.OVERFLOW, not_finite=(0, 1), dtype="float32", only_target=("setitem.0",))
    assert raised not in advised(written, on_device=True)


@pytest.mark.parametrize(
    ("reference", "target", "places"),
    [
        ('{"kwargs": {"approximate": "none"}}', '{"kwargs": {"approximate": "tanh"}}', ["kwargs.approximate"]),
        ('{"args": [1.0]}', '{"args": [1.1]}', ["args.0"]),
        ('{"args": [1.0]}', '{"args": [1.000001]}', []),
        ('{"args": [2]}', '{"args": [3]}', []),
        ('{"args": [{"$dtype": "torch.float32"}]}', '{"args": [{"$dtype": "torch.bfloat16"}]}', []),
        ('{"kwargs": {"dtype": {"$dtype": "float32"}}}', '{"kwargs": {"dtype": {"$dtype": "bfloat16"}}}', []),
        ('{"kwargs": {"training": true}}', '{"kwargs": {"training": false}}', ["kwargs.training"]),
        ('{"args": [-1e9]}', '{"args": [-3e38]}', []),
    ],
)
def test_which_arguments_may_change_a_result_a_little(reference: str, target: str, places: list[str]) -> None:
    assert [each.place for each in telling_differences(reference, target)] == places


def gelu_run(out: Array, approximate: str) -> HandmadeRun:
    run = HandmadeRun()
    x = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    call = run.call(
        "torch.nn.functional.gelu",
        reads={"args.0": run.value(x, dtype="float32")},
        arguments={"args": [], "kwargs": {"approximate": approximate}},
        module="model.act",
        module_class="GELU",
    )
    run.use(call, "output", "output.0", run.value(out, dtype=str(out.dtype), producer=call))
    return run


def test_an_argument_that_asks_for_something_else_is_told_whatever_the_noise(tmp_path: Path) -> None:
    out = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float16)
    moved = np.nextafter(out, np.float16(9.0))
    runs = [gelu_run(out, "none").write(tmp_path / "r"), gelu_run(moved, "tanh").write(tmp_path / "t")]
    (found,) = compare(*runs).comparison.findings
    assert "approximate is none in the reference, tanh in the target" in sentence(found)


@pytest.mark.parametrize(
    ("op", "arguments", "told"),
    [
        ("torch.softmax", (-1, 0), True),
        ("torch.softmax", (-1, 1), False),
        ("torch.Tensor.mul", (0.5, 0.25), True),
        ("torch.Tensor.mul", (0.9, 0.901), True),
        ("torch.Tensor.mul", (0.9012345678, 0.9012545678), False),
        ("torch.Tensor.view", (2, 3), False),
        ("torch.nn.functional.dropout", (0.0, 0.1), False),
    ],
)
def test_what_asks_for_something_else_in_noise(
    tmp_path: Path, op: str, arguments: tuple[float, float], told: bool
) -> None:
    """Another axis, a number that somebody wrote; not one that a run has computed, nor what moves or drops elements."""
    x = np.random.default_rng(0).standard_normal((40, 30)).astype(np.float32)
    out = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)
    runs = []
    for name, argument, made in zip("rt", arguments, (out, out.astype(np.float16)), strict=True):
        run = HandmadeRun()
        given = {"args": [{"$tensor": "args.0"}, argument]}
        run.call(op, reads={"args.0": run.value(x)}, makes={"output.0": made}, arguments=given)
        runs.append(run.write(tmp_path / name))
    assert (compare(*runs).comparison.outcome is Outcome.DIVERGED) is told


def test_an_argument_that_changes_last_bits_is_a_note(tmp_path: Path) -> None:
    out = np.random.default_rng(1).standard_normal((40, 30)).astype(np.float32)
    moved = np.nextafter(out, np.float32(9.0))
    runs = [gelu_run(out, "none").write(tmp_path / "r"), gelu_run(moved, "tanh").write(tmp_path / "t")]
    comparison = compare(*runs).comparison
    assert comparison.outcome is Outcome.AGREE
    (note,) = [note for note in comparison.notes if note.evidence.unlike.arguments]
    assert (note.kind, note.place.op) == (FindingKind.COMPUTATION, "torch.nn.functional.gelu")
    assert said(note, note_sentence).startswith("its inputs are identical, its output differs by ")
    assert "approximate is none in the reference, tanh in the target" in note_sentence(note)
    assert note_sentence(note).endswith("rounding and its inputs explain that.")
    same = compare(runs[0], gelu_run(out, "tanh").write(tmp_path / "same")).comparison
    assert same.notes == ()
