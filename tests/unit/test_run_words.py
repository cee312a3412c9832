"""The text of `ulpscope run` is a product: each sentence that a user may meet is written down here."""

from dataclasses import replace
from pathlib import Path

import pytest

from ulpscope.records.enums import Watch
from ulpscope.records.runs import (
    CapturedProcess,
    CaptureSettings,
    Coverage,
    FinishedProcess,
    IntRanges,
    LastCall,
    RankInfo,
    Root,
    RunOutcome,
    SeenProcesses,
    Stepping,
)
from ulpscope.report.terminal.run import outcome_object, plan_text, roots_text, stepping_text, summary_text, why_nothing
from ulpscope.report.words.language import bytes_text, count_text, ranges_text, seconds_text

SETTINGS = CaptureSettings(out=Path("runs/ref"))
RAN = SeenProcesses(pythons=1, ranks=(0,), finished=(FinishedProcess(rank=0, steps=3, calls=1200, recorded=1200),))


def rank_info(rank: int = 0, **changes: object) -> RankInfo:
    info = RankInfo(
        rank=rank,
        world_size=1,
        process={},
        framework={},
        versions={},
        devices=("cpu",),
        environment={},
        seeds={},
        capture={},
        started="2026-01-01T00:00:00",
        closed="2026-01-01T00:01:00",
        exit="ended",
    )
    return replace(info, **changes)  # type: ignore[arg-type]


def captured(
    rank: int = 0,
    *,
    calls: int = 1200,
    unfinished: tuple[int, ...] = (),
    last_call: LastCall | None = None,
    **changes: object,
) -> CapturedProcess:
    return CapturedProcess(
        directory=f"rank{rank}",
        info=rank_info(rank, **changes),
        steps=(0, 1, 2) if calls else (),
        calls=calls,
        unfinished=unfinished,
        bytes=1_340_000,
        last_call=last_call,
    )


def outcome(**changes: object) -> RunOutcome:
    plain = RunOutcome(
        trace="runs/ref",
        command=("python", "train.py"),
        settings=SETTINGS,
        script_exit=0,
        interrupted=False,
        captured=(captured(),),
        seen=RAN,
    )
    return replace(plain, **changes)  # type: ignore[arg-type]


def test_plan_states_what_will_be_captured() -> None:
    settings = replace(SETTINGS, steps=IntRanges(((0, 2),)), only=("*norm*",), max_disk=10**10, stop=True)
    assert plan_text(settings, command=["python", "my train.py"], interpreter="/env/bin/python").splitlines() == [
        "ulpscope: capturing into runs/ref",
        "  command      python 'my train.py'",
        "  interpreter  /env/bin/python",
        "  level        api",
        "  save         stats",
        "  steps        0-2",
        "  ranks        all",
        "  only         *norm*",
        "  max-disk     10.0 GB a rank",
        "  stop         after step 2",
    ]


def test_summary_of_a_good_run() -> None:
    assert summary_text(outcome()).splitlines() == [
        "ulpscope: captured steps 0-2, 1,200 calls, 1.3 MB in runs/ref",
        "  next: ulpscope show runs/ref",
    ]


def test_gradients_that_were_watched_are_there_to_be_compared() -> None:
    told = summary_text(replace(outcome(), settings=CaptureSettings(out=Path("runs/ref"), watch=Watch.GRADIENTS)))
    assert told.endswith("  next: ulpscope compare runs/ref OTHER")


def test_summary_of_two_ranks_and_their_gaps() -> None:
    coverage = Coverage(calls_unobserved={"fast path": 2, "other": 1}, not_saved=3)
    told = summary_text(outcome(captured=(captured(0, coverage=coverage), captured(1, closed=None))))
    assert told.splitlines() == [
        "ulpscope: captured 2 processes, steps 0-2, 2,400 calls, 2.7 MB in runs/ref",
        "  rank0: steps 0-2, 1,200 calls, 1.3 MB",
        "  rank1: steps 0-2, 1,200 calls, 1.3 MB",
        "  rank0: 3 calls not looked into: fast path 2, other 1",
        "  rank0: data of 3 values not saved: --max-disk was reached",
        "  rank1: was not closed (killed, crashed, left by os._exit, or unable to write); on disk: steps 0-2 whole",
        "  next: ulpscope show runs/ref",
    ]


GAN = Stepping(updates=9, optimizers=2)
NETS = (
    Root("model", "torch.nn.modules.container.Sequential", "/home/me/gan.py:16", 12),
    Root("Sequential", "torch.nn.modules.container.Sequential", "/home/me/gan.py:14", 6),
    Root("MSELoss", "torch.nn.modules.loss.MSELoss", None, 1),
)


def test_summary_says_how_steps_were_told_apart_and_what_modules_are_called() -> None:
    told = summary_text(outcome(captured=(captured(stepping=GAN, roots=NETS),)))
    assert told.splitlines()[1:3] == [
        "  steps: one begins with the first forward after an optimizer's step; "
        "2 optimizers took steps: an iteration where two do so in turn is two steps",
        "  modules: model is Sequential (12 calls, first gan.py:16); Sequential (6 calls, first gan.py:14); "
        "MSELoss (1 call)",
    ]
    rank = outcome_object(outcome(captured=(captured(stepping=GAN, roots=NETS),)))["ranks"][0]
    assert rank["stepping"] == {"updates": 9, "forwards": 0, "marks": 0, "optimizers": 2}
    assert [root["name"] for root in rank["roots"]] == ["model", "Sequential", "MSELoss"]


@pytest.mark.parametrize(
    ("stepping", "text"),
    [
        (Stepping(), ""),
        (Stepping(optimizers=1), ""),
        (Stepping(updates=3, optimizers=1), "steps: one begins with the first forward after an optimizer's step"),
        (Stepping(forwards=3), "steps: one begins whenever a module is called again"),
        (Stepping(marks=3, updates=1), "steps: one begins where the script marks it"),
        (
            Stepping(updates=3, forwards=2, optimizers=1),
            "steps: one begins with the first forward after an optimizer's step; "
            "before the first update, one began when a module was called again (2 times)",
        ),
    ],
)
def test_how_steps_were_told_apart(stepping: Stepping, text: str) -> None:
    assert stepping_text(stepping) == text


def test_ranks_that_differ_in_their_steps_are_told_apart() -> None:
    alike = (captured(0, stepping=GAN), captured(1, stepping=GAN))
    assert summary_text(outcome(captured=alike)).count("steps: one begins") == 1
    told = summary_text(outcome(captured=(captured(0, stepping=GAN), captured(1, stepping=Stepping(forwards=2)))))
    assert "  rank1: steps: one begins whenever a module is called again" in told.splitlines()


def test_many_modules_are_cut() -> None:
    roots = tuple(Root(f"Net-{number}", "m.Net", None, 1) for number in range(2, 10))
    assert roots_text(roots).endswith("; Net-7 (1 call); 2 more in rank.json")
    assert roots_text(roots[:1]) == ""


def test_a_limit_of_the_users_is_no_error() -> None:
    limited = captured(coverage=Coverage(ended_early="--max-disk reached in step 3"))
    assert "error" not in summary_text(outcome(captured=(limited,)))
    assert outcome_object(outcome(captured=(limited,)))["ranks"][0]["ended_early"] == "--max-disk reached in step 3"


def test_a_capture_that_ended_early_is_told_again_at_the_end() -> None:
    failure = "capture stopped at step 2: cannot write x: No space left on device\n  expected: a directory with space"
    seen = replace(RAN, failures=(failure,), messages=(failure, "--max-disk reached: capture ends (step 3)"))
    assert summary_text(outcome(seen=seen)).splitlines()[1:3] == [
        "  capture stopped at step 2: cannot write x: No space left on device",
        "  --max-disk reached: capture ends (step 3)",
    ]
    assert len(outcome_object(outcome(seen=seen))["notes"]) == 2


@pytest.mark.parametrize(
    ("wrong", "note"),
    [
        (0, "  rank0: 104 reused summaries recomputed, none differed"),
        (1, "  rank0: 1 reused summary differed from the value: report this"),
    ],
)
def test_verify_says_what_it_found(wrong: int, note: str) -> None:
    coverage = Coverage(summaries_verified=104, summaries_wrong=wrong)
    assert note in summary_text(outcome(captured=(captured(0, coverage=coverage),))).splitlines()


def test_processes_left_alone_are_told() -> None:
    told = summary_text(outcome(seen=replace(RAN, left_alone={"a launcher of ranks": 1, "a forked process": 2})))
    assert told.splitlines()[1:3] == [
        "  left alone: a forked process (2 of them)",
        "  left alone: a launcher of ranks",
    ]


def test_summary_of_a_crashed_script() -> None:
    told = summary_text(outcome(script_exit=1, captured=(captured(exit="ZeroDivisionError: division by zero"),)))
    assert "the script ended with exit code 1" in told
    assert "rank0: ended: ZeroDivisionError: division by zero" in told


@pytest.mark.parametrize(
    ("last", "unfinished", "text"),
    [
        (
            LastCall(3, "forward", "torch.ops.ours.attend.0", "layers.1", running=True),
            (),
            "ended abruptly in step 3, inside torch.ops.ours.attend.0 of layers.1; on disk: steps 0-2 whole",
        ),
        (
            LastCall(2, "backward", "torch.Tensor.mean.0", "", running=False),
            (2,),
            "ended abruptly in step 2, after torch.Tensor.mean.0 (backward); "
            "on disk: steps 0-1 whole and the beginning of step 2",
        ),
        (
            None,
            (0, 1, 2),
            "was not closed (killed, crashed, left by os._exit, or unable to write); "
            "on disk: the beginning of steps 0-2",
        ),
    ],
)
def test_a_process_that_died_is_told_with_what_is_left(
    last: LastCall | None, unfinished: tuple[int, ...], text: str
) -> None:
    process = captured(closed=None, unfinished=unfinished, last_call=last)
    told = summary_text(outcome(script_exit=139, captured=(process,)))
    assert "the script was ended by SIGSEGV (segmentation fault)" in told
    assert f"rank0: {text}\n" in told


def test_an_exit_code_that_is_no_signals() -> None:
    assert "the script was ended by signal 100" in summary_text(outcome(script_exit=228))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, 0),
        ({"captured": ()}, 3),
        ({"captured": (captured(calls=0),)}, 3),
        ({"captured": (captured(calls=0, unfinished=(0,)),)}, 0),
        ({"captured": (), "script_exit": 7}, 7),
        ({"script_exit": 137}, 137),
        ({"script_exit": 1, "interrupted": True}, 130),
    ],
)
def test_exit_codes(changes: dict[str, object], code: int) -> None:
    assert outcome(**changes).exit_code == code


@pytest.mark.parametrize(
    ("settings", "seen", "sentence", "step"),
    [
        (SETTINGS, SeenProcesses(), "the command started no Python that could be watched", "-I, -E and -S"),
        (SETTINGS, SeenProcesses(pythons=2), "2 Python processes ran, and none imported torch", "training script"),
        (
            SETTINGS,
            SeenProcesses(pythons=1, without_ulpscope={"/o/python": "ModuleNotFoundError: No module named 'ulpscope'"}),
            "/o/python imported torch but has no ulpscope; install it there",
            "/o/python -m pip install ",
        ),
        (
            SETTINGS,
            SeenProcesses(pythons=1, without_ulpscope={"/o/python": "ImportError: polars"}),
            "/o/python imported torch but could not import ulpscope (ImportError: polars)",
            "/o/python -m pip install ",
        ),
        (
            replace(SETTINGS, ranks=IntRanges(((4, 4),))),
            SeenProcesses(pythons=2, ranks=(0, 1)),
            "rank 4 asked for, but ranks 0-1 ran",
            "--ranks 0-1",
        ),
        (replace(SETTINGS, ranks=IntRanges(((4, 5),))), RAN, "ranks 4-5 asked for, but only rank 0 ran", "--ranks 0"),
        (replace(SETTINGS, steps=IntRanges(((7, 9),))), RAN, "steps 7-9 asked for, but steps 0-2 ran", "--steps 0-2"),
        (replace(SETTINGS, only=("*lstm*",)), RAN, "--only '*lstm*' left none of 1,200 calls", "patterns"),
        (SETTINGS, SeenProcesses(pythons=1, ranks=(0,)), "the script ended before anything was written", "step"),
        (
            SETTINGS,
            SeenProcesses(pythons=1, ranks=(0,), failures=("capture did not start: OSError: disk",)),
            "capture did not start: OSError: disk",
            "report",
        ),
        (SETTINGS, SeenProcesses(pythons=1, left_alone={"pip": 1}), "none that compute", "starts"),
        (SETTINGS, replace(RAN, left_alone={"a forked process": 2}), "computes in forked processes", "spawn"),
    ],
)
def test_why_nothing_was_captured(settings: CaptureSettings, seen: SeenProcesses, sentence: str, step: str) -> None:
    told = why_nothing(outcome(captured=(), seen=seen, settings=settings))
    assert sentence in told[0]
    assert step in told[1]


def test_filters_that_matched_only_in_part_are_told() -> None:
    told = summary_text(outcome(settings=replace(SETTINGS, ranks=IntRanges(((0, 0), (4, 4))))))
    assert "  ranks 0,4 asked for, but only rank 0 ran" in told.splitlines()
    told = summary_text(outcome(settings=replace(SETTINGS, steps=IntRanges(((2, 5),)))))
    assert "  steps 2-5 asked for, but steps 0-2 ran" in told.splitlines()


def test_json_has_every_commands_shape() -> None:
    told = outcome_object(outcome(captured=(), seen=SeenProcesses(pythons=1)))
    assert (told["schema"], told["command"], told["verdict"], told["exit"]) == (1, "run", "nothing_captured", 3)
    assert told["notes"] == [{"sentence": "1 Python process ran, and none imported torch"}]
    assert outcome_object(outcome())["counts"] == {"ranks": 1, "calls": 1200, "bytes": 1_340_000}


def test_quantities() -> None:
    assert [count_text(n, "process") for n in (0, 1, 1000)] == ["0 processes", "1 process", "1,000 processes"]
    assert [bytes_text(n) for n in (0, 999, 1000, 10**9)] == ["0 B", "999 B", "1.0 KB", "1.0 GB"]
    assert [seconds_text(s) for s in (0.0412, 0.41, 1.26, 75.4)] == ["0.041 s", "0.41 s", "1.3 s", "75 s"]
    assert ranges_text([5, 0, 2, 1, 1]) == "0-2,5"
