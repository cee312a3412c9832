"""What the Tab key offers."""

import os
import shlex
from pathlib import Path

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from ulpscope.shell.commands import ShellCompleter, all_commands
from ulpscope.shell.data import Context, find_data, no_data

ASCEND = Path(__file__).parents[1] / "data" / "ascend"


@pytest.fixture(scope="module")
def completer() -> ShellCompleter:
    data = find_data(ASCEND)
    assert data is not None
    return ShellCompleter(Context(data), all_commands())


def offered(completer: ShellCompleter, line: str) -> list[str]:
    """Whole words after each completion."""
    found = completer.get_completions(Document(line), CompleteEvent())
    return [f"{line[: len(line) + each.start_position]}{each.text}".rpartition(" ")[2] for each in found]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("v", ["vc", "vcs"]),
        ("ove", ["overflow"]),
        ("ex", ["exit"]),
        ("help n", ["ni"]),
        ("cp --a", ["--atol"]),
        ("vc -", ["-h", "--help", "-lt", "--left", "-rt", "--right", "-g", "--graph"]),
        ("ls -t Mat", ["MatMulV2"]),
        ("ls -f Tbe", ["TbeConv2dRelu"]),
        ("ls -k te_relu", ["te_relu_8370230a_0__kernel0"]),
        ("ni -g ge_", ["ge_default_20260101000000_11"]),
        ("ni fc1/R", ["fc1/Relu"]),
        ("ni -n fc1/R", ["fc1/Relu"]),
        # In the middle of a name, after those that begin with it.
        ("ni argm", ["pred/ArgMax"]),
        ("pt Relu.fc1_Relu.21.0.1767225600021123.o", ["Relu.fc1_Relu.21.0.1767225600021123.output.0"]),
        ("cp a fc1_Rel", ["fc1_Relu.0.1767225600900010.npy"]),
        ("dc MatMulV2.fc2", ["MatMulV2.fc2_MatMul.22.0.1767225600022123"]),
        ("nothing_known", []),
    ],
)
def test_words_are_completed(completer: ShellCompleter, line: str, words: list[str]) -> None:
    assert offered(completer, line)[: len(words)] == words


def test_files_are_completed(completer: ShellCompleter, tmp_path: Path) -> None:
    (tmp_path / "result_1.csv").write_text("")
    for line in (f"vcs -f {tmp_path}/res", f"run cat {tmp_path}/res", f"cat {tmp_path}/res"):
        assert offered(completer, line) == [f"{tmp_path}/result_1.csv"]


def test_names_with_blanks_are_quoted_and_completed_inside_of_quotes(
    completer: ShellCompleter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "two words's.csv").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    for begun in (f"{tmp_path}/two", f"'{tmp_path}/two w", f'"{tmp_path}/two w', f"{tmp_path}/two\\ w", "~/two"):
        (found,) = completer.get_completions(Document(f"vcs -f {begun}"), CompleteEvent())
        assert found.start_position == -len(begun)
        (word,) = shlex.split(found.text)
        assert os.path.expanduser(word) == f"{tmp_path}/two words's.csv"


def test_the_tensors_of_a_call_are_completed() -> None:
    data = find_data(ASCEND / "debug_1")
    assert data is not None
    completer = ShellCompleter(Context(data), all_commands())
    assert offered(completer, "pt Relu.0::o") == ["Relu.0::output.0"]
    assert offered(completer, "cp a Relu.0::") == ["Relu.0::args.0", "Relu.0::output.0"]


def test_without_data_nothing_is_offered_and_nothing_fails(tmp_path: Path) -> None:
    completer = ShellCompleter(Context(no_data(tmp_path)), all_commands())
    assert offered(completer, "ni a") == []
    assert offered(completer, "pt zzz") == []


def test_data_that_cannot_be_read_offers_nothing(tmp_path: Path) -> None:
    graph = tmp_path / "npu" / "debug_0" / "graph" / "ge_proto_00000_Build.txt"
    graph.parent.mkdir(parents=True)
    graph.write_text("no graph at all {")
    data = find_data(tmp_path)
    assert data is not None
    assert offered(ShellCompleter(Context(data), all_commands()), "ni a") == []


def test_calls_of_a_run_are_completed() -> None:
    data = find_data(ASCEND / "debug_1")
    assert data is not None
    assert offered(ShellCompleter(Context(data), all_commands()), "ni Relu") == ["Relu.0"]
