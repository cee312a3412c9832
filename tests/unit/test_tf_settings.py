"""Keys of precision_tool's config.py, and what an action names; without TensorFlow."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ulpscope.compat import telling, tf_switches
from ulpscope.compat.tf_switches import FUSION_OFF_FILE, Asked, asked, set_global_options
from ulpscope.workflows.tf_runs.settings import FOLDERS, graph_variables, read_settings

Told = Callable[[], str]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(telling, "_TOLD", set())
    monkeypatch.chdir(tmp_path)


def test_by_default_data_lies_where_users_know_it() -> None:
    settings = read_settings({})
    assert settings.path("DEFAULT_NPU_DUMP_DIR") == "precision_data/npu/debug_0/dump"
    assert settings.path("DEFAULT_OP_DEBUG_DIR") == "precision_data/npu/debug_0"
    assert settings.path("NPU_OVERFLOW_DUMP_DIR") == "precision_data/overflow/dump"
    assert settings.path("TF_DEBUG_DUMP_DIR") == "precision_data/tf/tf_debug"
    assert settings.path("TF_CKPT_FILE") == "precision_data/tf/checkpoints/ckpt"
    assert (settings.dump_step, settings.numbers["OP_DEBUG_LEVEL"], settings.numbers["DUMP_SEED"]) == ("0", 4, 2022)
    assert settings.problems == ()
    assert all(settings.path(key) for key in FOLDERS)


def test_a_variable_wins_over_the_file_and_moves_what_lies_below(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("TF_DUMP_STEP: 1|2\nOP_DEBUG_LEVEL: 0\nROOT_DIR: /data\nNPU_DIR: npus\n", encoding="utf-8")
    settings = read_settings({"PRECISION_TOOL_CONFIG": str(file), "TF_DUMP_STEP": "5"})
    assert (settings.dump_step, settings.numbers["OP_DEBUG_LEVEL"]) == ("5", 0)
    assert settings.path("TF_DUMP_DIR") == "/data/precision_data/tf/dump"
    assert graph_variables(settings)["DUMP_GRAPH_PATH"] == "npus/debug_0/graph"


def test_variables_that_may_mean_something_else_need_the_prefix() -> None:
    environ = {"ROOT_DIR": "/root", "TF_DIR": "/tf", "LOG_LEVEL": "3", "PRECISION_TOOL_TF_DIR": "/mine"}
    settings = read_settings(environ)
    assert settings.path("NPU_DIR") == "precision_data/npu"
    assert settings.path("TF_DUMP_DIR") == "/mine/dump"


@pytest.mark.parametrize("steps", ["", "0", "0|5|10", "0|3-5|10"])
def test_steps_as_the_device_reads_them(steps: str) -> None:
    settings = read_settings({"TF_DUMP_STEP": steps})
    assert (settings.dump_step, settings.problems) == (steps, ())


@pytest.mark.parametrize("steps", ["0,5", "first", "0-", "|"])
def test_other_steps_would_dump_too_much_or_nothing(steps: str) -> None:
    settings = read_settings({"TF_DUMP_STEP": steps})
    assert settings.dump_step == "0"
    (problem,) = settings.problems
    assert f"TF_DUMP_STEP is {steps!r}, not steps such as 0|5|10" in problem


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("TF_DUMP_STEPS: '0'", "'TF_DUMP_STEPS' in FILE is not known; keys are"),
        ("CMD_ROOT_PATH: /usr/local", "CMD_ROOT_PATH in FILE has no effect: neither atc nor msaccucmp is needed"),
        ("OP_DEBUG_LEVEL: high", "OP_DEBUG_LEVEL in FILE is 'high', not a whole number: 4 is used"),
        ("OP_DEBUG_LEVEL: true", "OP_DEBUG_LEVEL in FILE is True, not a whole number: 4 is used"),
        ("ROOT_DIR: [1]", "ROOT_DIR in FILE is [1], not a text"),
        ("- 1", "FILE (PRECISION_TOOL_CONFIG) holds a list, not keys with values"),
        ("a: [", "FILE (PRECISION_TOOL_CONFIG) cannot be read"),
        ("a: !!python/object/apply:os.system [exit]", "FILE (PRECISION_TOOL_CONFIG) cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_and_the_rest_holds(content: str, problem: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(content, encoding="utf-8")
    settings = read_settings({"PRECISION_TOOL_CONFIG": str(file)})
    (told,) = settings.problems
    assert told.replace(str(file), "FILE").startswith(problem)
    assert settings.numbers["OP_DEBUG_LEVEL"] == 4


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    (problem,) = read_settings({"PRECISION_TOOL_CONFIG": str(tmp_path / "no.yaml")}).problems
    assert "No such file" in problem


@pytest.mark.parametrize(
    ("action", "expected"),
    [
        ("dump", Asked(dump=True)),
        ("dump|fusion_off", Asked(dump=True, fusion_off=True)),
        ("overflow, prof", Asked(overflow=True, prof=True)),
        ("npu_dump", Asked(dump=True)),
        (["dump", "fusion_switch"], Asked(dump=True, fusion_switch=True)),
    ],
)
def test_words_of_an_action(action: Any, expected: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(action, caller="update_custom_op") == expected
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("action", ["dmup", "dump|fusion-of", "", 7])
def test_words_of_no_action_are_told(action: Any, capsys: pytest.CaptureFixture[str]) -> None:
    asked(action, caller="update_custom_op")
    told = capsys.readouterr().err
    assert f"update_custom_op: action {action!r}" in told
    assert "expected: dump, overflow, fusion_off, fusion_switch, prof" in told


def options() -> Any:
    return SimpleNamespace(dump_config=SimpleNamespace())


def test_options_of_npu_device() -> None:
    found = options()
    set_global_options(found, Asked(overflow=True, fusion_off=True), read_settings({}))
    assert vars(found.dump_config) == {
        "enable_dump_debug": True,
        "dump_path": "precision_data/overflow/dump",
        "dump_debug_mode": "all",
    }
    assert (found.op_debug_level, found.fusion_switch_file) == (4, FUSION_OFF_FILE)
    found = options()
    set_global_options(found, Asked(dump=True), read_settings({"TF_DUMP_STEP": "0|5"}))
    assert vars(found.dump_config) == {
        "enable_dump": True,
        "dump_path": "precision_data/npu/debug_0/dump",
        "dump_mode": "all",
        "dump_debug_mode": "all",
        "dump_step": "0|5",
    }
    assert not hasattr(found, "fusion_switch_file")


def test_folders_that_cannot_be_made_do_not_end_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "precision_data").write_text("a file", encoding="utf-8")
    tf_switches.prepare()
    assert "precision_data/npu/debug_0/dump cannot be made (Not a directory)" in capsys.readouterr().err


SCRIPT = """
import builtins
real = builtins.__import__
def no_tensorflow(name, *args, **options):
    if name.partition(".")[0] == "tensorflow":
        raise ImportError("No module named 'tensorflow'")
    return real(name, *args, **options)
builtins.__import__ = no_tensorflow
import random
import ulpscope.compat.tf_config as npu_tf_config
first = random.random()
npu_tf_config.seed_everything(2022)
assert random.random() == first
assert npu_tf_config.npu_device_dump_config(None, action="dump") is None
assert npu_tf_config.estimator_dump_config(action="dump") is None
assert npu_tf_config.estimator_dump() is None
print("the script ran on")
"""


def test_a_machine_without_tensorflow_and_npu_runs_the_script(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "the script ran on\n"), done.stderr
    for part in (
        "seed_everything: TensorFlow cannot be imported",
        "npu_device_dump_config: None has no global_options: the NPU's package npu_device is expected",
        "npu_bridge is the NPU's package for Estimator scripts",
    ):
        assert part in done.stderr
