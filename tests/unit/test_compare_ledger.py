"""What is told of calls that were executed again: sentences, the block on the screen, JSON and table."""

import csv
import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.cells import cell_len
from tests.unit.comparisons import HARMLESS, HOSTILE, agreeing, diverged, entry, finding, ledger, sound_entry

from ulpscope.records.checks import Direction
from ulpscope.records.evidence import Evidence, FinalDifference, Ledger, LedgerEntry, Maker, Part, Replay
from ulpscope.records.findings import Comparison, FindingKind, Scope
from ulpscope.report.files.compare_tables import LEDGER_COLUMNS, ledger_table, write_csv
from ulpscope.report.terminal.compare import compare_json, compare_text
from ulpscope.report.words.comparison import next_command, sentence, statements
from ulpscope.report.words.language import Language

AGAIN = "executed again in float64"
CLOSED = "cross_entropy.0 differs by 0.010: calls made 99.5%, inputs and parameters 0.5%"


def told(executed: LedgerEntry, known: Ledger | None = None, language: Language = Language.EN) -> list[str]:
    """What is said of a finding beside its distances."""
    plain = statements(finding(error_in=1e-3, error_out=7e-3), language)
    said = statements(finding(error_in=1e-3, error_out=7e-3, ledger=executed), language, ledger=known)
    assert said[: len(plain)] == plain
    return said[len(plain) :]


def proven(known: Ledger | None = None, **changes: Any) -> Comparison:
    known = known or ledger()
    found = finding(error_in=1e-3, error_out=7e-3, ledger=known.entries[0])
    return diverged(findings=(found,), ledger=known, **changes)


def test_a_proven_finding() -> None:
    assert told(entry(), ledger()) == [
        f"{AGAIN} from each run's own inputs: the target made 6.0e-3 itself (at [5, 7] 0.0893555 instead of "
        "0.0742188, 31 ulp), inherited 1.2e-3, the reference made 2.0e-7",
        "no rounding explains its largest error; this machine's own kernel makes no such error from the same inputs",
        "it accounts for 97% of the final difference (0.010 in cross_entropy.0)",
    ]
    assert told(entry(), ledger(), Language.ZH) == [
        "用各自的输入以 float64 重新执行：目标运行自身产生 6.0e-3（[5, 7] 处得到 0.0893555，应为 0.0742188，"
        "差 31 ulp），继承 1.2e-3，参考运行产生 2.0e-7",
        "舍入无法解释它最大的误差；本机自己的 kernel 用同样的输入没有这种误差",
        "它占最终差异（cross_entropy.0 相差 0.010）的 97%",
    ]


def test_the_reference_at_fault() -> None:
    executed = entry(maker=Maker.REFERENCE, made_by_reference=Part(0.02, 9.0), made_by_target=Part(1e-3, 0.5))
    assert told(executed) == [
        f"{AGAIN} from each run's own inputs: the reference made 0.020 itself, the target made 1.0e-3, "
        "inherited 1.2e-3",
        "this machine's own kernel makes no such error from the same inputs",
    ]


@pytest.mark.parametrize(
    ("maker", "said"),
    [
        (Maker.NEITHER, "neither run's call is wrong by itself"),
        (Maker.BOTH, "both runs' calls are off alike"),
        (Maker.KERNEL, "the target's call is off no more than this machine's own kernel"),
    ],
)
def test_a_cleared_finding(maker: Maker, said: str) -> None:
    assert told(entry(maker=maker), ledger()) == [
        f"{AGAIN}, {said}: the target made 6.0e-3, inherited 1.2e-3, the reference made 2.0e-7"
    ]


def test_other_random_numbers_are_no_error_of_anyone() -> None:
    drawn: dict[str, Any] = {"generators": ("abc", "def"), "error_out": 1.4}
    executed = finding(FindingKind.RANDOMNESS, **drawn, ledger=entry(maker=Maker.NEITHER))
    assert statements(executed) == statements(finding(FindingKind.RANDOMNESS, **drawn))


def test_arguments_that_differ() -> None:
    cleared = entry(maker=Maker.NEITHER, by_arguments=Part(5.9, 1e4))
    assert told(cleared) == [
        f"{AGAIN}: the arguments that differ made 5.9, the target itself 6.0e-3, inherited 1.2e-3, "
        "the reference made 2.0e-7"
    ]
    assert told(cleared, ledger())[-1].startswith("it accounts for 97% of ")
    assert told(entry(by_arguments=Part(0.5, 9.0)))[0].endswith(
        "the reference made 2.0e-7, the arguments that differ 0.50"
    )


@pytest.mark.parametrize(
    ("contribution", "said"),
    [
        (0.0097, "it accounts for 97% of the final difference (0.010 in cross_entropy.0)"),
        (0.00009, "it accounts for less than 1% of the final difference (0.010 in cross_entropy.0)"),
        (-0.00009, "it accounts for less than 1% of the final difference (0.010 in cross_entropy.0)"),
        (-0.0012, "it acts against the final difference (0.010 in cross_entropy.0): -12% of it"),
        (0.034, "its effect is 340% of the final difference (0.010 in cross_entropy.0), which others cancel"),
    ],
)
def test_shares_of_the_final_difference(contribution: float, said: str) -> None:
    assert told(entry(contribution=contribution), ledger())[-1] == said


def test_shares_that_cannot_be_told_are_not() -> None:
    (final,) = ledger().finals
    whole = told(entry(), ledger())
    for known in (
        None,
        ledger(finals=()),
        ledger(finals=(replace(final, step=1),)),
        ledger(finals=(replace(final, rank=3),)),
        ledger(finals=(replace(final, calls=0.004),)),
        ledger(finals=(replace(final, difference=0.0),)),
    ):
        assert told(entry(), known) == whole[:-1]
    assert told(entry(contribution=None), ledger()) == whole[:-1]


@pytest.mark.parametrize("language", list(Language))
def test_every_statistic_gives_a_sentence(language: Language) -> None:
    values = (float("nan"), 1.0), (1.0, float("inf")), (0.0, 0.0), (1e-45, 2e-45)
    for maker in Maker:
        for statistic in ("outlier", "near", "noise", "bias", "structure", "norm", "not_finite", "unheard_of"):
            for dtype in ("bfloat16", "float32", "int64", "float8_e4m3fn", "complex64", "odd"):
                for given in values:
                    executed = entry(maker=maker, statistic=statistic, dtypes=("float32", dtype), worst_values=given)
                    for kind in FindingKind:
                        said = sentence(finding(kind, error_out=1.0, ledger=executed), language, ledger=ledger())
                        assert not re.search(r"None|\{|\}|  |;\.|,\.|；。|，。", said), said


def test_the_next_command_is_a_script_of_the_call() -> None:
    assert next_command(proven().findings[0], proven()) == (
        "ulpscope repro runs/target torch.nn.functional.linear.7 -o repro --step 0 --phase forward"
    )
    blamed = proven(ledger(entry(maker=Maker.REFERENCE)))
    assert next_command(blamed.findings[0], blamed) == (
        "ulpscope repro runs/ref torch.nn.functional.linear.9 -o repro --step 0 --phase forward"
    )
    ranked = proven(ledger(entry(rank=1, step=2)), scope=Scope(ranks=(0, 1), steps=(2,)))
    assert shlex.split(next_command(ranked.findings[0], ranked))[-6:] == [
        "--step",
        "2",
        "--phase",
        "forward",
        "--rank",
        "1",
    ]
    for executed in (entry(maker=Maker.NEITHER), entry(call=HOSTILE), entry(call="--json")):
        other = proven(ledger(executed))
        assert next_command(other.findings[0], other).startswith("ulpscope show runs/target ")


def block(comparison: Comparison, *, width: int = 120, language: Language = Language.EN) -> list[str]:
    """The lines of the ledger."""
    lines = compare_text(comparison, width=width, language=language).splitlines()
    label = {Language.EN: "  ledger ", Language.ZH: "  账本 "}[language]
    start = next(number for number, line in enumerate(lines) if line.startswith(label))
    ends = (number for number, line in enumerate(lines) if number > start and not line.startswith("     "))
    return lines[start : next(ends)]


def test_the_block_of_a_diverged_run() -> None:
    assert block(proven()) == [
        "  ledger     3 calls executed again in float64",
        "             call         module         target made  inherited  reference made   ulp  share",
        "             linear.7     model.b.3.fc2       6.0e-3     1.2e-3          2.0e-7    31    97%",
        "             relu.1                           1.7e-3     1.2e-3          2.0e-7  0.50     2%",
        "             other calls                                                                 <1%",
        f"             {CLOSED}; the parts add up to 100.0%",
    ]
    assert block(proven(), language=Language.ZH)[0] == "  账本  以 float64 重新执行了 3 次调用"
    narrow = " ".join(line.strip() for line in block(proven(), width=60))
    assert (
        "linear.7 in model.b.3.fc2, target made 6.0e-3, inherited 1.2e-3, reference made 2.0e-7, ulp 31, share 97%"
        in narrow
    )


def test_the_block_of_an_agreeing_run() -> None:
    quiet = ledger(sound_entry("torch.relu.1", 58, None), sound_entry("torch.relu.2", 59, None), finals=())
    said = "2 calls executed again in float64: each within rounding of its own inputs"
    assert block(agreeing(ledger=quiet)) == [f"  ledger     {said}"]
    unasked = replace(quiet, replay=Replay.AUTO)
    assert block(agreeing(ledger=unasked)) == [f"  ledger     {said} (--replay on: every call)"]
    assert "linear.7     model.b.3.fc2" in block(agreeing(ledger=ledger()))[2]
    alike = ledger(entry(maker=Maker.BOTH), entry(maker=Maker.KERNEL, call="torch.exp.3", call_id=60), finals=())
    assert block(agreeing(ledger=alike)) == [
        "  ledger     2 calls executed again in float64",
        "             off alike in both runs: linear.7",
        "             off as this machine's own kernel is: exp.3",
    ]


def test_calls_that_were_left_are_counted_by_reason() -> None:
    left = (("random", 4), ("its data was not saved", 2), ("a", 1), ("b", 1))
    assert block(proven(ledger(left=left)), width=200)[0] == (
        "  ledger     3 calls executed again in float64; 8 calls not: random (4), its data was not saved (2), a (1) "
        "and 1 more"
    )
    nothing = Ledger(Replay.AUTO, left=(("the target has no saved data", 200),))
    assert block(agreeing(ledger=nothing)) == ["  ledger     no call executed again: the target has no saved data"]
    assert block(agreeing(ledger=nothing), language=Language.ZH) == [
        "  账本  没有重新执行任何调用：目标运行没有保存数据"
    ]


def test_the_closure_is_told_also_where_it_is_open() -> None:
    (final,) = ledger().finals
    wide = replace(final, difference=2.0, calls=0.8, start=0.1)
    assert block(proven(ledger(finals=(wide,))), width=300)[-1].strip() == (
        "cross_entropy.0 differs by 2.0, of which the parts account for 45.0%: the rest is beyond first order, "
        "or came with integers, random numbers or calls that were not executed again"
    )
    unseen = replace(final, calls=0.009, unseen=0.001)
    assert block(proven(ledger(finals=(unseen,))), width=300)[-1].strip() == (
        "cross_entropy.0 differs by 0.010: calls made 90.0%, inputs and parameters 0.5%, "
        "10.0% comes from or through calls that were not executed again; the parts add up to 100.5%"
    )
    several = ledger(entry(), entry(step=1, call_id=90), finals=tuple(replace(final, step=step) for step in range(5)))
    lines = block(proven(several), width=300)
    assert lines[-2].strip().startswith("cross_entropy.0 (step 2) differs by 0.010")
    assert lines[-1].strip() == "and 2 more, in --json and summary.json"


@pytest.mark.parametrize("width", [20, 40, 80, 91, 92, 200])
def test_the_block_keeps_within_the_terminal(width: int) -> None:
    hostile = ledger(entry(call=HOSTILE, module=HOSTILE, place=HOSTILE), left=((HOSTILE, 3),))
    for comparison in (proven(), proven(hostile), agreeing(ledger=hostile)):
        for language in Language:
            lines = compare_text(comparison, width=width, language=language).splitlines()
            assert all(line.isprintable() for line in lines)
            assert all("ulpscope " in line for line in lines if cell_len(line) > width)


def test_json() -> None:
    answer = compare_json(proven(ledger(left=(("random", 4),))))
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer
    found = answer["ledger"]
    assert list(found) == ["replay", "calls", "entries", "left", "finals", "top"]
    assert (found["replay"], found["calls"], found["entries"], found["left"]) == ("on", 3, 3, {"random": 4})
    assert found["finals"] == [
        {
            "rank": 0,
            "step": 0,
            "call": "torch.nn.functional.cross_entropy.0",
            "difference": 0.01,
            "calls": 0.00995,
            "start": 0.00005,
            "unseen": 0.0,
            "closure": pytest.approx(1.0),
        }
    ]
    first = found["top"][0]
    assert (first["call"], first["place"], first["maker"]) == ("torch.nn.functional.linear.7", "output.0", "target")
    assert first["made_by_target"] == {"norm": 6e-3, "worst_ulp": 15.0}
    assert first["share"] == pytest.approx(0.97)
    assert answer["findings"][0]["evidence"]["ledger"]["maker"] == "target"
    assert answer["findings"][0]["sentence"].endswith("the final difference (0.010 in cross_entropy.0).")


def test_the_guilty_stand_first_and_each_call_once() -> None:
    gradient = entry(direction=Direction.BACKWARD, place="grad.args.0", contribution=None)
    loud = sound_entry("torch.relu.1", 58, -5.0)
    known = ledger(loud, gradient, replace(gradient, place="output.0", maker=Maker.NEITHER, contribution=0.0))
    top = compare_json(proven(known))["ledger"]["top"]
    assert [(row["call"], row["place"]) for row in top] == [
        ("torch.nn.functional.linear.7", "grad.args.0"),
        ("torch.relu.1", "output.0"),
    ]


def test_the_table(tmp_path: Path) -> None:
    frame = ledger_table(ledger())
    assert frame.columns == list(LEDGER_COLUMNS)
    first = frame.row(0, named=True)
    assert (first["call_target"], first["call_reference"]) == (
        "torch.nn.functional.linear.7",
        "torch.nn.functional.linear.9",
    )
    assert (first["made_by_target_norm"], first["made_by_target_ulp"], first["by_arguments_norm"]) == (6e-3, 15.0, None)
    assert first["share"] == pytest.approx(0.97)
    assert first["worst"] == [5, 7]
    write_csv(ledger_table(ledger(entry(call="=1+1", module=HOSTILE))), tmp_path / "t.csv", columns=LEDGER_COLUMNS)
    with (tmp_path / "t.csv").open(encoding="utf-8", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["call_target"], row["module"], row["worst"]) == ("'=1+1", HARMLESS, "[5, 7]")
    assert ledger_table(Ledger(Replay.AUTO)).schema == pl.Schema(LEDGER_COLUMNS)


def test_every_column_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "compare.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_]+)`", page))
    assert set(LEDGER_COLUMNS) - named == set()


def test_a_final_difference_of_nothing_has_no_closure() -> None:
    assert FinalDifference(0, 0, "a.0", 0.0, 0.0, 0.0).closure is None
    assert Evidence().ledger is None
