"""What the shell's checks tell, as plain commands: `diff GRAPH GRAPH`, `show GRAPH --casts`, `show RESULT`."""

import csv
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from network_data import DUMPS, GRAPH, OTHER_DUMPS, REFERENCE
from tests.unit.graph_files import GRAPHS

from ulpscope.cli.main import main

EXPECTED = Path(__file__).parents[1] / "data" / "ascend" / "expected"
RESULTS = [
    EXPECTED / "msaccucmp_2022-05" / "cmp_npu_tf_plain.csv",
    EXPECTED / "msaccucmp_2025-09_native" / "cmp_npu_tf_plain.csv",
    EXPECTED / "msprobe_26.2.0" / "cmp_npu_tf_plain.csv",
]
OLDEST = """LeftOp,RightOp,TensorIndex,CosineSimilarity
good,good,good:output:0,1.0
bad,"one,two",bad:input:0,NaN
bad,"one,two",bad:output:0,0.25
worse,worse,worse:output:0,-1
alone,*,NaN,NaN
"""

Told = Callable[..., tuple[int, str, str]]


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    """Run a command; gives exit code, stdout, stderr."""

    def run(*words: object) -> tuple[int, str, str]:
        code = main([str(word) for word in words])
        streams = capsys.readouterr()
        return code, streams.out, streams.err

    return run


def answer(told: Told, *words: object) -> tuple[int, Any]:
    code, out, err = told(*words, "--json")
    assert (err, out.count("\n")) == ("", 1)
    return code, json.loads(out)


def changed(path: Path, operator: str, before: str, after: str) -> Path:
    """The fixture's graph, in which one operator says something else."""
    text = GRAPH.read_text()
    blocks = re.split(r"(?m)^(?=  op \{)", text)
    (place,) = (number for number, block in enumerate(blocks) if f'name: "{operator}"\n' in block[:200])
    assert before in blocks[place]
    blocks[place] = blocks[place].replace(before, after)
    path.write_text("".join(blocks))
    return path


def test_equal_graphs(told: Told) -> None:
    code, out, err = told("diff", GRAPH, GRAPH)
    name = "ge_default_20260101000000_11"
    assert (code, out, err) == (0, f"{name} and {name} (0_11): 14 of 14 operators alike\n", "")


def test_an_operator_of_another_type(told: Told, tmp_path: Path) -> None:
    target = changed(tmp_path / "graph.txt", "fc1/Relu", "DT_FLOAT16", "DT_FLOAT")
    code, found = answer(told, "diff", GRAPH, target)
    assert (code, found["command"], found["verdict"]) == (1, "diff", "differ")
    (graph,) = found["graphs"]
    assert (graph["compared"], graph["similar"], graph["session_graph"]) == (14, 13, "0_11")
    forms = {"reference": "float16 FRACTAL_NZ", "target": "float32 FRACTAL_NZ"}
    assert graph["differences"] == [
        {"operator": "fc1/Relu", "type": "Relu", "tensor": tensor, **forms} for tensor in ("input.0", "output.0")
    ]


def test_only_so_many_operators_are_listed(told: Told, tmp_path: Path) -> None:
    target = tmp_path / "graph.txt"
    target.write_text(GRAPH.read_text().replace("DT_FLOAT16", "DT_FLOAT"))
    _, found = answer(told, "diff", GRAPH, target)
    operators = {each["operator"] for each in found["graphs"][0]["differences"]}
    _, few, _ = told("diff", GRAPH, target, "-n", "2")
    _, all_of_them, _ = told("diff", GRAPH, target, "-n", "0")
    assert len(operators) > 2
    assert f"{len(operators) - 2} more; -n 0 for all" in few
    assert {name for name in operators if f"  {name} " in few} < operators
    assert {name for name in operators if f"  {name} " in all_of_them} == operators


def test_an_operator_that_one_side_lacks(told: Told, tmp_path: Path) -> None:
    target = changed(tmp_path / "graph.txt", "fc1/Relu", 'name: "fc1/Relu"', 'name: "fc1/other"')
    code, out, _ = told("diff", GRAPH, target)
    lines = [line.strip() for line in out.splitlines()]
    assert code == 1
    assert "13 of 13 operators alike" in lines[0]
    assert lines[lines.index("only in the reference") + 1] == "fc1/Relu"
    assert lines[lines.index("only in the target") + 1] == "fc1/other"


def test_files_of_other_sessions_are_compared_if_they_are_named(told: Told, tmp_path: Path) -> None:
    target = tmp_path / "graph.txt"
    target.write_text(GRAPH.read_text().replace('s: "0_11"', 's: "7_99"'))
    code, found = answer(told, "diff", GRAPH, target)
    assert (code, found["graphs"][0]["compared"], found["graphs"][0]["session_graph"]) == (0, 14, None)


def test_the_same_onnx_model_in_both_forms(told: Told) -> None:
    code, found = answer(told, "diff", GRAPHS / "branches.onnx", GRAPHS / "branches.pbtxt")
    assert (code, found["verdict"]) == (0, "agree")
    made = json.loads((GRAPHS / "branches.json").read_text())
    # The one Cast is passed over, as compilers insert them.
    assert found["graphs"][0]["compared"] == sum(node["type"] != "Cast" for node in made["nodes"])
    assert len(found["graphs"]) == 1 + len(made["bodies"]) + len(made["function"])


def test_graphs_that_have_nothing_in_common(told: Told) -> None:
    code, found = answer(told, "diff", GRAPH, GRAPHS / "branches.onnx")
    assert (code, found["verdict"]) == (3, "nothing_compared")


def test_a_graph_is_not_compared_with_anything_else(told: Told, tmp_path: Path) -> None:
    tensor = tmp_path / "x.npy"
    np.save(tensor, np.zeros(3))
    for sides in ((GRAPH, tensor), (tensor, GRAPH)):
        code, _, err = told("diff", *sides)
        assert code == 2
        assert f"{tensor} is" in err
        assert "expected: a graph" in err
    code, _, err = told("diff", GRAPH, GRAPH, "--key", "x", "--rtol", "1")
    assert code == 2
    assert "--key and --rtol with two graphs" in err


def test_the_dangerous_cast_of_a_graph(told: Told) -> None:
    code, out, err = told("show", GRAPH, "--casts")
    assert (code, err) == (1, "")
    assert [line.split() for line in out.splitlines()] == [
        ["1", "dangerous", "cast"],
        [],
        ["operator", "graph", "from", "to"],
        ["global_step/Cast", "ge_default_20260101000000_11", "float32", "int32"],
    ]


def test_many_casts_and_none(told: Told, tmp_path: Path) -> None:
    cast = 'op { name: "c%d" type: "Cast" input: "x:0" input_desc { dtype: DT_FLOAT } output_desc { dtype: DT_INT32 } }'
    path = tmp_path / "graph.txt"
    path.write_text('name: "m" graph { name: "g" ' + " ".join(cast % number for number in range(4)) + " }")
    code, out, _ = told("show", path, "--casts", "--limit", "1")
    assert code == 1
    assert out.splitlines()[-2].split() == ["c0", "g", "float32", "int32"]
    assert out.splitlines()[-1] == "3 more; --limit 0 for all"
    assert len(answer(told, "show", path, "--casts")[1]["casts"]) == 4
    path.write_text(path.read_text().replace("DT_INT32", "DT_FLOAT16"))
    assert answer(told, "show", path, "--casts") == (0, {"schema": 1, "command": "show", "view": "casts", "casts": []})


def low_of(path: Path, limit: float) -> list[str]:
    """Operators with an output at or below the limit, in the order of the file."""
    with open(path, newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if ":output:" in row["TensorIndex"]]
    low = [row["TensorIndex"].split(":")[0] for row in rows if float(row["CosineSimilarity"]) <= limit]
    return list(dict.fromkeys(low))


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.parent.name)
@pytest.mark.parametrize("limit", [0.98, 0.5])
def test_the_low_operators_of_a_result(told: Told, path: Path, limit: float) -> None:
    words = () if limit == 0.98 else ("--cosine", limit)
    code, found = answer(told, "show", path, *words)
    (result,) = found["results"]
    assert (code, found["view"], result["cosine"]) == (1, "results", limit)
    assert [operator["name"] for operator in result["operators"]] == low_of(path, limit)
    assert result["total"] == len(low_of(path, limit))


def test_a_result_as_text(told: Told, tmp_path: Path) -> None:
    path = tmp_path / "result.csv"
    path.write_text(OLDEST)
    code, out, err = told("show", path)
    assert (code, err) == (1, "")
    assert [line.split() for line in out.splitlines() if line] == [
        f"{path}: 2 of 3 operators have an output with a cosine of at most 0.98".split(),
        ["index", "operator", "NPU", "reference", "tensor", "cosine"],
        ["bad", "bad", "one,", "two", "input.0", "-"],
        ["output.0", "0.250000"],
        ["worse", "worse", "worse", "output.0", "-1.000000"],
    ]
    _, out, _ = told("show", path, "--limit", "1")
    assert out.splitlines()[-1] == "1 more; --limit 0 for all"
    assert told("show", path, "--cosine", "-1", "--limit", "0")[1].splitlines()[-1].split()[0] == "worse"
    _, found = answer(told, "show", path)
    assert found["results"][0]["operators"][0]["tensors"][0] == {"tensor": "input.0", "cosine": None}


def test_results_in_which_nothing_is_low_or_compared(told: Told, tmp_path: Path) -> None:
    lines = OLDEST.splitlines(keepends=True)
    path = tmp_path / "result.csv"
    path.write_text("".join(lines[:2]))
    assert told("show", path)[0] == 0
    path.write_text("".join([lines[0], lines[-1]]))
    assert told("show", path)[0] == 3


def test_a_directory_of_results_is_said_to_be_one(told: Told, tmp_path: Path) -> None:
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(OLDEST)
    code, found = answer(told, "show", tmp_path, "--cosine", "0.98")
    assert code == 1
    assert [Path(each["path"]).name for each in found["results"]] == ["a.csv", "b.csv"]
    assert told("show", tmp_path)[0] == 2


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        ((GRAPH, "--casts", "--type", "Cast"), "--type with --casts"),
        ((GRAPH, "fc1/Relu", "--casts"), "--casts with the name of one operator"),
        ((DUMPS, "--casts"), "--casts with a trace"),
        ((RESULTS[0], "--op", "x"), "--op with a comparison's result"),
        ((RESULTS[0], "--casts"), "--casts with a comparison's result"),
        ((RESULTS[0], "fc1/Relu"), "'fc1/Relu' with a comparison's result"),
        ((RESULTS[0], "--cosine", "nan"), "'nan' is not a number from -1 to 1"),
        ((GRAPH, "--cosine", "0.9"), "begins with"),
    ],
)
def test_options_that_would_have_no_effect(told: Told, words: tuple[object, ...], seen: str) -> None:
    code, out, err = told("show", *words)
    assert (code, out) == (2, "")
    assert seen in err


def test_a_mapping_without_a_pair(told: Told, tmp_path: Path) -> None:
    np.save(tmp_path / "elsewhere.0.1767225600900010.npy", np.zeros(3, np.float32))
    words = ("compare", tmp_path, DUMPS, "--graph", GRAPH, "--mapping")
    code, out, _ = told(*words)
    assert code == 3
    assert {row["GroundTruthPath"] for row in csv.DictReader(out.splitlines())} == {"NaN"}
    assert answer(told, *words)[0] == 3


def test_operators_of_a_network_do_not_become_msprobes_calls(told: Told, tmp_path: Path) -> None:
    out = tmp_path / "out"
    code, printed, problem = told("convert", DUMPS, "--to", "msprobe", "-o", out)
    assert (code, printed) == (2, "")
    assert f"{DUMPS} is a dump of an NPU" in problem
    assert f"ulpscope convert {DUMPS} --to npy -o DIR" in problem
    assert f"ulpscope compare REFERENCE {DUMPS} --graph GRAPH" in problem

    code, printed, problem = told("convert", REFERENCE, "--to", "msprobe", "-o", out)
    assert (code, printed) == (2, "")
    assert f"ulpscope compare {REFERENCE} DUMPS --graph GRAPH" in problem
    assert not out.exists()


def test_an_operator_of_a_network_has_no_script_and_the_refusal_names_what_checks_it(
    told: Told, tmp_path: Path
) -> None:
    code, printed, problem = told("repro", DUMPS, "fc1/Relu", "-o", tmp_path / "out")
    assert (code, printed) == (2, "")
    (command,) = re.findall(r"ulpscope (check .*)", problem)
    assert command == f"check {DUMPS} --graph GRAPH --only fc1/Relu"
    code, found = answer(told, *command.replace("GRAPH", str(GRAPH)).split())
    assert (code, found["findings"][0]["module"]) == (1, "fc1/Relu")

    code, _, problem = told("repro", REFERENCE, "fc1_Relu", "-o", tmp_path / "out")
    assert (code, problem.splitlines()[-1]) == (2, f"  next: look at it: ulpscope show {REFERENCE} fc1_Relu")
    assert told(*problem.splitlines()[-1].partition("ulpscope ")[2].split())[0] == 0
    assert not (tmp_path / "out").exists()


def test_operators_of_a_network_are_not_asked_of_torch(told: Told) -> None:
    code, found = answer(told, "compare", OTHER_DUMPS, DUMPS)
    assert (code, found["findings"][0]["module"], found["ledger"]) == (1, "fc1/Relu", None)
    code, _, problem = told("compare", OTHER_DUMPS, DUMPS, "--replay", "on")
    assert code == 2
    assert "ulpscope check DUMP --graph GRAPH" in problem
