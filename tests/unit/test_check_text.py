"""What a check says: text, sentences and JSON in both languages, verdicts over several cases."""

import json
import shlex
from dataclasses import replace

import pytest
from tests.unit.checking import call, checked, ended, failing, output, passing, run

from ulpscope.records.check_runs import CheckedCall, CheckOptions, CheckStandard, PerturbRun, worst_tested
from ulpscope.records.checks import Direction, Perturbation, PerturbStandard, Variant, Verdict
from ulpscope.report.terminal.check import check_json, check_sentence, check_text, live_text, repro_command
from ulpscope.report.terminal.check_modes import perturb_text
from ulpscope.report.words.language import Language, phrases

FINDING_KEYS = {
    "kind", "rank", "step", "phase", "call", "op", "module", "tensor", "source", "evidence", "sentence", "next",
}  # fmt: skip
CHECK_KEYS = {
    "schema", "command", "verdict", "findings", "notes", "counts", "trace", "scope", "skipped", "untested",
    "interrupted", "remarks", "missing", "graph",
}  # fmt: skip


def warned() -> CheckedCall:
    gradient = output(Verdict.WARN, Direction.BACKWARD, statistic="noise", message="noise: the rms error is 3 times")
    outputs = (output(Verdict.PASS), gradient)
    message = outputs[1].message
    return call(
        "linear", checked("linear", Verdict.PASS, Verdict.WARN, number=2, message=message, outputs=outputs), number=2
    )


def test_the_answer_comes_first() -> None:
    told = check_text(run(passing("relu"), failing(), warned(), passing("gelu", 3)), width=120).splitlines()
    assert told[0] == ("UNSOUND: of 4 APIs on cuda:0, 1 computes wrongly; 1 less precise than need be (WARN)")
    assert told[2] == "  torch.layer_norm.0"
    assert told[3] == (
        "  output.0 (bfloat16) is wrong on cuda:0: outlier: a single error is 31 times what rounding can make it."
    )
    table = [line.split()[:4] for line in told[6:8]]
    assert table == [["layer_norm.0", "bfloat16", "FAIL", "PASS"], ["linear.0", "bfloat16", "PASS", "WARN"]]
    assert "  4 APIs (4 cases, 6 outputs): 2 PASS, 1 WARN, 1 FAIL." in told
    assert told[-1] == "  Next: ulpscope repro runs/ref 57 -o repro --data random --device cuda:0"


def test_several_kinds_of_wrong() -> None:
    crash = ended("conv2d", Verdict.CRASH, "died of SIGSEGV", 3)
    late = [ended("svd", Verdict.TIMEOUT, "not done within 60 seconds", number) for number in (4, 5)]
    told = check_text(run(*late, crash, failing()), width=120)
    assert told.startswith("UNSOUND: of 4 APIs on cuda:0, 1 computes wrongly, 1 crashes and 2 take too long\n")
    rows = [line.split()[0] for line in told.splitlines() if line.startswith("  ") and ".0  " in line]
    assert rows == ["layer_norm.0", "conv2d.0", "svd.0", "svd.0"]


def test_a_sound_trace() -> None:
    told = check_text(run(passing("relu"), ended("empty", Verdict.SKIP, "its result is not defined", 1)))
    assert told.startswith("SOUND: 1 API checked on cuda:0, none computes wrongly\n")
    assert "SKIP 1: its result is not defined" in told
    assert "Next" not in told


def test_reasons_are_summed_up() -> None:
    skipped = [ended("all_reduce", Verdict.SKIP, "a collective", number) for number in range(3)]
    others = [ended("empty", Verdict.SKIP, f"reason {number}", 10 + number) for number in range(6)]
    told = check_text(run(passing("relu", 99), *skipped, *others))
    assert "SKIP 3: a collective" in told
    assert "SKIP 2: ..." in told


def test_circumstances_are_told() -> None:
    options = CheckOptions(devices=("cuda:0", "cuda:1"), standard=CheckStandard.THOUSANDTH)
    told = check_text(
        run(passing("relu"), options=options, remarks=("a limit was set",), missing=("rank1: none",), repeated=12)
    )
    assert "on cuda:0 and cuda:1" in told
    assert "Judged by the standard thousandth" in told
    assert "Note: a limit was set." in told
    assert "Missing: rank1: none" in told
    assert "12 calls more of the same" in told


def test_an_untested_output_beside_a_tested_one_is_told() -> None:
    outputs = (output(Verdict.PASS), output(Verdict.UNTESTED, Direction.BACKWARD))
    partly = call("max", checked("max", Verdict.PASS, Verdict.UNTESTED, outputs=outputs))
    told = run(partly, ended("empty", Verdict.UNTESTED, "constant", 1))
    assert "Of the calls that were tested, 1 output could not be" in check_text(told, width=120)
    assert check_json(told)["counts"]["outputs_untested"] == 1
    assert "could not be" not in check_text(run(passing("relu")))


def test_long_tables_are_cut_and_say_so() -> None:
    told = check_text(run(*(failing("gelu", number) for number in range(25))), width=160)
    assert sum("gelu.0 " in line for line in told.splitlines()) == 20
    assert "and 5 more" in told


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize("language", list(Language))
def test_nothing_is_wider_than_the_terminal(width: int, language: Language) -> None:
    from rich.cells import cell_len

    told = check_text(run(failing(), warned()), width=width, language=language)
    *lines, command = told.splitlines()
    assert all(cell_len(line) <= width for line in lines)
    assert "ulpscope repro" in command


def test_hostile_names_steer_no_terminal() -> None:
    told = check_text(run(failing("norm\x1b[2J\u202e[red]")), width=100)
    assert not set(told) & {"\x1b", "\u202e"}
    assert "[red]" in told


def test_every_variant_has_its_words() -> None:
    assert {f"check.variant.{variant.value}" for variant in Variant} <= phrases(Language.EN).templates.keys()


@pytest.mark.parametrize(("language", "told"), [(Language.EN, "  Next: "), (Language.ZH, "  下一步：")])
def test_other_questions_tell_the_next_command_in_the_same_language(language: Language, told: str) -> None:
    found = PerturbRun(run(failing()), Perturbation.BIT_NOISE, PerturbStandard.CONDITION)
    text = perturb_text(found, width=100, color=False, language=language)
    assert text.endswith(f"{told}ulpscope repro runs/ref 57 -o repro --data random --device cuda:0\n")


def test_chinese_tells_the_same() -> None:
    told = check_text(run(failing(), passing("relu")), width=200, language=Language.ZH)
    assert told.startswith("有错（UNSOUND）：在 cuda:0 上，2 个 API 中 1 个计算错误")
    assert "最差元素 [1, 2]：得到 1.25，应为 1.5" in told
    assert "ulpscope repro runs/ref 57 -o repro" in told


def test_a_sentence_names_the_changed_data() -> None:
    message = "outlier: far off"
    outputs = (output(Verdict.FAIL, message=message),)
    tiny = checked("rms_norm", Verdict.FAIL, variant=Variant.TINY, message=message, outputs=outputs)
    recorded = checked("rms_norm", Verdict.PASS, outputs=(output(Verdict.PASS),))
    told = check_sentence(call("rms_norm", recorded, tiny))
    assert told == (
        "torch.rms_norm.0, step 0, forward: output.0 (bfloat16) is wrong on cuda:0, with its data scaled down: "
        "outlier: far off."
    )


def test_an_id_needs_its_process_where_there_are_several() -> None:
    alone, several = run(failing()), run(failing(), processes=2)
    assert shlex.split(repro_command(failing(), alone))[2:4] == ["runs/ref", "57"]
    assert shlex.split(repro_command(failing(), several))[2:4] == ["runs/ref/rank0", "57"]


def test_json_has_the_shape_of_every_command() -> None:
    nan = output(Verdict.FAIL, worst_computed=float("nan"), metrics=(("outlier", float("inf")),))
    broken = call("exp", checked("exp", Verdict.FAIL, number=9, message="off", outputs=(nan,)), number=9)
    crash = ended("conv2d", Verdict.CRASH, "died of SIGSEGV", 10)
    told = check_json(run(passing("relu"), warned(), crash, broken))
    json.dumps(told, allow_nan=False)
    assert set(told) == CHECK_KEYS
    assert (told["schema"], told["command"], told["verdict"]) == (1, "check", "unsound")
    assert all(set(entry) == FINDING_KEYS for entry in (*told["findings"], *told["notes"]))
    assert [finding["op"] for finding in told["findings"]] == ["torch.exp", "torch.conv2d"]
    assert [note["op"] for note in told["notes"]] == ["torch.linear"]
    evidence = told["findings"][0]["evidence"]
    assert (evidence["worst_computed"], evidence["metrics"]["outlier"]) == ("nan", "inf")
    assert (told["findings"][0]["tensor"], told["findings"][1]["tensor"]) == ("output.0", None)
    counts = told["counts"]
    assert sum(counts[verdict.value.lower()] for verdict in Verdict) == counts["apis"] == 4


def test_chinese_changes_sentences_and_nothing_else() -> None:
    english, chinese = (check_json(run(failing()), language) for language in Language)
    one, other = english.pop("findings")[0], chinese.pop("findings")[0]
    assert english == chinese
    assert {key for key in one if one[key] != other[key]} == {"sentence"}


@pytest.mark.parametrize(
    ("verdicts", "worst"),
    [
        ([Verdict.PASS, Verdict.UNTESTED], Verdict.PASS),
        ([Verdict.SKIP, Verdict.UNTESTED], Verdict.UNTESTED),
        ([Verdict.PASS, Verdict.WARN, Verdict.SKIP], Verdict.WARN),
        ([Verdict.FAIL, Verdict.CRASH], Verdict.CRASH),
        ([None, Verdict.SKIP], Verdict.SKIP),
        ([None], None),
    ],
)
def test_what_was_not_tested_hides_nothing_that_was(verdicts: list[Verdict | None], worst: Verdict | None) -> None:
    assert worst_tested(verdicts) is worst
    assert worst_tested(verdicts[::-1]) is worst


def test_a_call_is_as_bad_as_its_worst_case() -> None:
    good = checked("norm", Verdict.PASS, Verdict.PASS, outputs=(output(Verdict.PASS),))
    bad = checked(
        "norm", Verdict.PASS, Verdict.FAIL, variant=Variant.TINY, message="off", outputs=(output(Verdict.FAIL),)
    )
    odd = checked("norm", Verdict.SKIP, variant=Variant.LONG, message="too large")
    found = call("norm", good, bad, odd)
    assert (found.forward, found.backward, found.verdict) == (Verdict.PASS, Verdict.FAIL, Verdict.FAIL)
    assert found.decisive is bad
    assert found.message == "off"


def test_the_live_count() -> None:
    assert live_text({}) == "checking"
    assert live_text({Verdict.FAIL: 1, Verdict.PASS: 61}) == "checking: 61 PASS, 1 FAIL"


def test_an_operation_of_ones_own_is_shown_and_no_script_is_offered() -> None:
    own = replace(failing(), place=replace(failing().place, op="__main__.SegmentMean"))
    assert repro_command(own, run(own)) == "ulpscope show runs/ref 57"
