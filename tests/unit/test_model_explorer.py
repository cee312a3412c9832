"""Graphs and node data for Model Explorer: which calls are nodes, what links and what colours them."""

import json
import math
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from network_data import DUMPS, GRAPH, REFERENCE
from tests.unit.handmade import HandmadeRun
from tests.unit.traces import make_trace

from ulpscope.cli.main import main
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.files.model_explorer import (
    COLORS,
    OWN_IDS,
    NodeIds,
    RunStep,
    captured_step,
    compared_step,
    error_data,
    graph_json,
    judgement_data,
    magnitude_data,
    namespace,
    not_finite_data,
)
from ulpscope.trace.reader import open_trace
from ulpscope.workflows.compare.command import compare
from ulpscope.workflows.report.exports import Export, Wanted, export_model_explorer
from ulpscope.workflows.results import write_json

Json = dict[str, Any]

# The names of ai-edge-model-explorer's graph_builder and node_data_builder, version 0.1.34.
NODE_KEYS = {
    "id", "label", "namespace", "subgraphIds", "attrs", "incomingEdges", "outputsMetadata", "inputsMetadata",
    "style", "config",
}  # fmt: skip
EDGE_KEYS = {"sourceNodeId", "sourceNodeOutputId", "targetNodeInputId"}
DATA_KEYS = {"results", "thresholds", "gradient", "showExpandedSummaryOnGroupNode"}


def step_of(run: Path, step: int = 0) -> RunStep:
    return captured_step(open_trace(run).ranks[0], step)


def graph_of(step: RunStep, ids: NodeIds = OWN_IDS) -> dict[str, Json]:
    """The nodes of a graph by their ids."""
    graph = graph_json(step, name="run", facts={"step": "0"}, ids=ids)
    return {node["id"]: node for node in graph["nodes"]}


def edges(nodes: dict[str, Json]) -> set[tuple[str, str]]:
    return {(edge["sourceNodeId"], name) for name, node in nodes.items() for edge in node["incomingEdges"]}


def attributes(entry: Json) -> dict[str, str]:
    return {each["key"]: each["value"] for each in entry["attrs"]}


def passing_on() -> HandmadeRun:
    """A module around the call that makes its output; a backward that hands its gradient on as it got it."""
    run = HandmadeRun()
    x = run.value([1.0, 2.0])
    outer = run.call("Linear", kind="module", module="model.head", reads={"args.0": x})
    made = run.call("linear", module="model.head", parent=outer, reads={"args.0": x}, makes={"output.0": [3.0, -4.0]})
    run.use(outer, "output", "output.0", run.output(made))
    back = {"kind": "backward", "phase": "backward", "role": "grad_output", "made_role": "grad_input"}
    first = run.call("mul", **back, makes={"args.0": [0.5, float("nan")]})
    gradient = run.output(first, "args.0")
    run.call("add", **back, reads={"output.0": gradient}, makes={"args.0": gradient, "args.1": gradient})
    run.call("linear", **back, module="model.head", reads={"output.0": gradient}, makes={"args.0": [0.0, 0.0]})
    return run


def test_calls_are_nodes_in_groups_of_phase_and_module(tmp_path: Path) -> None:
    make_trace(tmp_path / "run", steps=1)
    nodes = graph_of(step_of(tmp_path / "run"))
    # Call 0 is the module around call 1.
    assert list(nodes) == ["1", "2", "3", "4", "5", "6"]
    assert [node["label"] for node in nodes.values()] == [
        "linear", "relu", "relu backward", "linear backward", "SGD", "rand",
    ]  # fmt: skip
    groups = {name: node["namespace"] for name, node in nodes.items()}
    assert (groups["1"], groups["2"], groups["3"], groups["5"]) == ("forward/layers/0", "forward", "backward", "update")


def test_values_link_the_calls_that_make_and_read_them(tmp_path: Path) -> None:
    make_trace(tmp_path / "run")
    assert edges(graph_of(step_of(tmp_path / "run"))) == {("1", "2"), ("2", "3"), ("3", "4"), ("4", "5")}
    # The weight of the second step is the first one's: no call of this graph has made it.
    second = graph_of(step_of(tmp_path / "run", 1))
    assert edges(second) == {("8", "9"), ("9", "10"), ("10", "11"), ("11", "12")}
    assert attributes(second["8"])["parameter args.1"] == "float32 [2, 3], norm 3.5"


def test_edges_name_outputs_and_inputs(tmp_path: Path) -> None:
    run = HandmadeRun()
    x = run.value([1.0])
    split = run.call("split", reads={"args.0": x}, makes={"output.0": [1.0], "output.1": [[2.0, 3.0]]})
    second = run.output(split, "output.1")
    run.call("add", reads={"args.0": x, "args.1": second})
    nodes = graph_of(step_of(run.write(tmp_path / "run")))
    assert nodes["1"]["incomingEdges"] == [
        {"sourceNodeId": "0", "sourceNodeOutputId": "1", "targetNodeInputId": "1"},
    ]
    output = attributes(nodes["0"]["outputsMetadata"][1])
    assert (output["shape"], output["dtype"], output["max"], output["not_finite"]) == ("1x2", "float32", "3", "0")
    assert attributes(nodes["1"]["inputsMetadata"][1]) == {"__tensor_tag": "args.1"}


def test_what_a_call_hands_on_comes_from_it(tmp_path: Path) -> None:
    nodes = graph_of(step_of(passing_on().write(tmp_path / "run")))
    assert edges(nodes) == {("2", "3"), ("3", "4")}


def test_a_module_whose_inside_was_not_recorded_is_a_node(tmp_path: Path) -> None:
    run = HandmadeRun()
    outer = run.call("Block", kind="module", module="block")
    run.call("Linear", kind="module", module="block.head", parent=outer, makes={"output.0": [1.0]})
    own = run.call("Mixed", kind="module", module="mixed", makes={"output.0": [2.0]})
    run.call("relu", module="mixed", parent=own)
    assert list(graph_of(step_of(run.write(tmp_path / "run")))) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("module", "path"),
    [
        (None, "forward"),
        ("model.layers.0", "forward/model/layers/0"),
        ("scope/Conv2D.1", "forward/scope/Conv2D.1"),
        ("..a", "forward/a"),
    ],
)
def test_modules_are_paths(module: str | None, path: str) -> None:
    assert namespace("forward", module) == path


def test_a_run_shows_how_large_its_numbers_are_and_which_are_none(tmp_path: Path) -> None:
    step = step_of(passing_on().write(tmp_path / "run"))
    sizes = magnitude_data(step, OWN_IDS)["results"]
    assert {name: entry["value"] for name, entry in sizes.items()} == {"1": 4.0, "2": 0.5, "3": 0.5, "4": 0.0}
    assert sizes["1"]["bgColor"] == "#1b4f8f"
    assert sizes["2"]["bgColor"] == sizes["4"]["bgColor"] == "#eef3f9"
    counts = not_finite_data(step, OWN_IDS)["results"]
    assert {name: entry["value"] for name, entry in counts.items()} == {"1": 0, "2": 1, "3": 1, "4": 0}
    assert counts["2"]["bgColor"] != counts["1"]["bgColor"]


def rows(*judged: tuple[int, int, str | None, float | None]) -> pl.DataFrame:
    """Rows of pairs.parquet: call, value, judgement and error."""
    names = ["id_target", "value_target", "judgement", "error"]
    schema = dict(zip(names, (pl.Int64, pl.Int64, pl.String, pl.Float64), strict=True))
    return pl.DataFrame(judged, schema=schema, orient="row")


def test_new_error_stands_on_the_call_that_made_it(tmp_path: Path) -> None:
    run = passing_on()
    output, gradient = run.output(1), run.output(2, "args.0")
    table = rows(
        # The row of the module around it comes first and tells it.
        (0, output, "made_here", 0.5),
        (1, output, "inherited", 0.5),
        (2, gradient, "made_here", 0.25),
        (3, gradient, "inherited", 0.25),
        (4, run.output(4, "args.0"), None, None),
    )
    step = step_of(run.write(tmp_path / "run"))
    errors = error_data(step, table, "target", OWN_IDS)["results"]
    assert errors == {
        "1": {"value": 0.5, "bgColor": COLORS["made_here"]},
        "2": {"value": 0.25, "bgColor": COLORS["made_here"]},
        "3": {"value": 0.25, "bgColor": COLORS["inherited"]},
    }
    words = judgement_data(step, table, "target", OWN_IDS)["results"]
    assert {name: entry["value"] for name, entry in words.items()} == {
        "1": "made here", "2": "made here", "3": "inherited", "4": "not compared",
    }  # fmt: skip


def test_an_error_without_a_number_is_text(tmp_path: Path) -> None:
    run = passing_on()
    table = rows((1, run.output(1), "made_here", math.inf), (3, run.output(2, "args.0"), "inherited", math.nan))
    errors = error_data(step_of(run.write(tmp_path / "run")), table, "target", OWN_IDS)["results"]
    assert errors["1"]["value"] == "inf"
    json.dumps(errors, allow_nan=False)


@pytest.mark.parametrize(
    ("op", "kind", "label"),
    [
        ("aten.mm.default", "kernel", "mm"),
        ("aten.add_.Tensor", "kernel", "add_"),
        ("mine", "kernel", "mine"),
        ("torch.Tensor.add_", "api", "add_"),
        ("torch.nn.functional.linear", "backward", "linear backward"),
        ("Conv2D", "api", "Conv2D"),
    ],
)
def test_a_node_is_labelled_by_its_operation(tmp_path: Path, op: str, kind: str, label: str) -> None:
    run = HandmadeRun()
    run.call(op, kind=kind, makes={"output.0": [1.0]})
    (node,) = graph_json(step_of(run.write(tmp_path / "run")), name="run", facts={})["nodes"]
    assert node["label"] == label


def compared_run(factor: float, *, extra: bool = False) -> HandmadeRun:
    run = HandmadeRun()
    for step in range(2):
        run.step = step
        x = run.value([1.0 + step, 2.0])
        if extra:
            run.call("torch.zeros", makes={"output.0": [0.0]})
        linear = run.call("torch.linear", module="model.head", reads={"args.0": x}, makes={"output.0": [3.0, 4.0]})
        y = [3.0, 4.0 * factor if step else 4.0]
        run.call("torch.relu", module="model", reads={"args.0": run.output(linear)}, makes={"output.0": y})
    return run


@pytest.fixture
def result(tmp_path: Path) -> Path:
    """Two runs of which the target has one call more, and goes wrong in the relu of step 1; and their comparison."""
    compared_run(1.0).write(tmp_path / "ref")
    compared_run(2.0, extra=True).write(tmp_path / "target")
    answer = compare(tmp_path / "ref", tmp_path / "target")
    out = tmp_path / "result"
    out.mkdir()
    answer.pairs.write_parquet(out / "pairs.parquet")
    write_json(out / "summary.json", {**answer.json(), "reference": "ref", "target": "target"})
    return out


def exported(result: Path, wanted: Wanted | None = None) -> tuple[Export, dict[str, Json]]:
    """An export and the contents of its files, by their names before the first dot."""
    export = export_model_explorer(result, result.parent / "explorer", wanted or Wanted())
    return export, {file.name.split(".")[0]: json.loads(file.read_text()) for file in export.files}


def test_a_comparison_shows_both_runs_at_the_step_of_its_finding(result: Path) -> None:
    export, files = exported(result)
    assert export.notes == ()
    assert set(files) == {"graph", "error", "judgement"}
    target, reference = files["graph"]["graphs"]
    assert (target["id"], reference["id"]) == ("target", "reference")
    assert target["groupNodeAttributes"][""]["step"] == "1"
    assert "torch.relu.0" in target["groupNodeAttributes"][""]["finding"]
    assert [node["label"] for node in target["nodes"]] == ["zeros", "linear", "relu"]
    assert [node["label"] for node in reference["nodes"]] == ["linear", "relu"]
    # Partners have one id, so that a viewer that shows both follows from one to the other.
    assert [node["id"] for node in target["nodes"]] == ["3", "4", "5"]
    assert [node["id"] for node in reference["nodes"]] == ["4", "5"]
    for side in ("target", "reference"):
        # |8 - 4| against |(3, 4)|
        worst = files["error"][side]["results"]["5"]
        assert worst == {"value": pytest.approx(4 / 5), "bgColor": COLORS["made_here"]}
        assert files["judgement"][side]["results"]["4"]["value"] == "identical"
    assert files["judgement"]["target"]["results"]["3"]["value"] == "not compared"


def test_a_call_without_partner_has_an_id_of_its_own(result: Path) -> None:
    summary = json.loads((result / "summary.json").read_text())
    turned = {"reference": "target", "target": "ref"}
    pairs = pl.read_parquet(result / "pairs.parquet")
    swap = str.maketrans({"<": "reference", ">": "target"})
    names = {each: each.replace("_reference", "_>").replace("_target", "_<").translate(swap) for each in pairs.columns}
    pairs.rename(names).select(pairs.columns).write_parquet(result / "pairs.parquet")
    write_json(result / "summary.json", {**summary, **turned})
    _, files = exported(result, Wanted(step=0))
    reference = files["graph"]["graphs"][1]
    assert [node["id"] for node in reference["nodes"]] == ["reference 0", "0", "1"]


def test_files_have_the_shape_that_model_explorer_reads(result: Path) -> None:
    _, files = exported(result)
    assert set(files["graph"]) == {"label", "graphs"}
    for graph in files["graph"]["graphs"]:
        assert set(graph) <= {"id", "nodes", "groupNodeAttributes"}
        ids = [node["id"] for node in graph["nodes"]]
        assert len(set(ids)) == len(ids)
        for node in graph["nodes"]:
            assert set(node) <= NODE_KEYS
            assert all(set(edge) == EDGE_KEYS and edge["sourceNodeId"] in ids for edge in node["incomingEdges"])
            assert all(isinstance(each["value"], str) for each in node["attrs"])
        for data in (files["error"], files["judgement"]):
            assert set(data) == {"target", "reference"}
            assert set(data[graph["id"]]) <= DATA_KEYS
            assert set(data[graph["id"]]["results"]) <= set(ids)


def test_without_its_trace_a_graph_has_what_the_table_keeps(result: Path) -> None:
    _, with_trace = exported(result)
    shutil.rmtree(result.parent / "target")
    export, files = exported(result)
    (note,) = export.notes
    assert "graph of the target has only the calls that were compared" in note
    assert "target does not exist" in note
    assert f"Note: {note}" in export.text()
    target = {node["id"]: node for node in files["graph"]["graphs"][0]["nodes"]}
    assert edges(target) == {("4", "5")}
    assert [node["namespace"] for node in target.values()] == ["forward/model/head", "forward/model"]
    assert files["error"] == with_trace["error"]


def test_a_trace_that_was_captured_anew_is_not_taken_for_the_compared_one(result: Path) -> None:
    shutil.rmtree(result.parent / "target")
    other = HandmadeRun()
    for step in range(2):
        other.step = step
        for _ in range(6):
            other.call("torch.gelu", makes={"output.0": [1.0]})
    other.write(result.parent / "target")
    export, files = exported(result)
    assert "no rank 0 step 1 any more that was compared" in export.notes[0]
    assert [node["label"] for node in files["graph"]["graphs"][0]["nodes"]] == ["linear", "relu"]


def test_a_trace_that_has_lost_calls_is_not_taken_for_the_compared_one(result: Path) -> None:
    shutil.rmtree(result.parent / "ref")
    shorter = compared_run(1.0)
    shorter.calls = [call for call in shorter.calls if call["name"] != "torch.relu.0"]
    shorter.write(result.parent / "ref")
    export, files = exported(result)
    assert "graph of the reference has only the calls that were compared" in export.notes[0]
    assert [node["label"] for node in files["graph"]["graphs"][1]["nodes"]] == ["linear", "relu"]


def test_a_network_has_the_calls_that_were_compared(tmp_path: Path) -> None:
    out = tmp_path / "result"
    main(["compare", str(REFERENCE), str(DUMPS), "--graph", str(GRAPH), "--out", str(out)])
    export, files = exported(out)
    assert export.notes == ()
    assert "fc1/Relu" in files["graph"]["graphs"][0]["groupNodeAttributes"][""]["finding"]
    nodes = {node["namespace"]: node for node in files["graph"]["graphs"][0]["nodes"]}
    wrong = files["judgement"]["target"]["results"]
    assert wrong[nodes["forward/fc1/Relu"]["id"]]["value"] == "made here"
    assert nodes["forward/fc1/Relu"]["incomingEdges"]


def test_modules_of_a_table_do_not_make_what_calls_inside_them_made() -> None:
    common = {"phase": "forward", "op": "op", "role": "output", "place": "output.0", "value_target": 7}
    calls = [
        {"id_target": 1, "kind": "module", "module": "a"},
        {"id_target": 2, "kind": "module", "module": "a.b"},
        {"id_target": 3, "kind": "api", "module": "a.b"},
        {"id_target": 4, "kind": "api", "module": "a"},
    ]
    empty = {"call_target": "x", "dtype_target": "float32", "shape_target": [1]}
    table = pl.DataFrame([{**common, **empty, **call} for call in calls])
    assert compared_step(table, "target").values["producer"].to_list() == [3]
    assert compared_step(table.head(2), "target").values["producer"].to_list() == [2]


def test_the_wanted_step_and_rank_are_shown_and_others_named(tmp_path: Path) -> None:
    run = tmp_path / "run"
    make_trace(run, rank=0)
    make_trace(run, rank=1)
    export = export_model_explorer(run, tmp_path / "explorer", Wanted(rank=1, step=1))
    (graph,) = json.loads(export.files[0].read_text())["graphs"]
    assert graph["groupNodeAttributes"][""] == {"trace": str(run), "rank": "1", "step": "1"}
    with pytest.raises(UlpscopeError, match="has no rank 2 step 0") as caught:
        export_model_explorer(run, tmp_path / "explorer", Wanted(rank=2, step=0))
    assert "rank 0 step 0, rank 0 step 1, rank 1 step 0" in caught.value.expected
    assert "--rank 0 --step 0" in caught.value.next_step


def test_a_graph_without_edges_is_told(tmp_path: Path) -> None:
    run = HandmadeRun()
    run.call("Relu", makes={"output.0": [1.0]})
    export = export_model_explorer(run.write(tmp_path / "run"), tmp_path / "explorer", Wanted())
    assert "the graph has no edges" in export.notes[0]


def test_a_trace_without_steps_has_no_graph(tmp_path: Path) -> None:
    make_trace(tmp_path / "empty", steps=0)
    with pytest.raises(UlpscopeError, match="no step with calls") as caught:
        export_model_explorer(tmp_path / "empty", tmp_path / "explorer", Wanted())
    assert caught.value.code is ExitCode.NOTHING


def test_a_result_that_cannot_be_exported_is_told(result: Path) -> None:
    summary = json.loads((result / "summary.json").read_text())
    (result / "pairs.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(UlpscopeError, match=r"pairs\.parquet cannot be read"):
        exported(result)
    write_json(result / "summary.json", {**summary, "command": "check"})
    with pytest.raises(UlpscopeError, match="result of check") as caught:
        exported(result)
    assert "ulpscope compare" in caught.value.next_step


def test_the_command_exports_instead_of_making_a_page(result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    board, explorer = result.parent / "board", result.parent / "explorer"
    assert main(["report", str(result), "--tensorboard", str(board), "--model-explorer", str(explorer)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert str(explorer / "judgement.ulpscope.json") in lines
    assert lines[-1].startswith(f"Next: model-explorer {explorer / 'graph.ulpscope.json'} --node_data_paths=")
    assert not list(result.glob("*.html"))
    assert main(["report", str(result), "--tensorboard", str(board), "--model-explorer", str(board)]) == 0
    written = [Path(line) for line in capsys.readouterr().out.splitlines() if line.startswith("/")]
    # Scalars and two graphs for TensorBoard, a graph and two quantities for Model Explorer.
    assert len(written) == 6
    assert all(file.is_file() for file in written)
    assert main(["report", str(result), "--tensorboard", str(board), "--step", "1"]) == 2
    assert "--step or --rank without --model-explorer" in capsys.readouterr().err


def test_a_note_out_of_a_file_does_not_steer_a_terminal() -> None:
    told = Export((Path("graph.json"),), ("no trace: \x1b[31m does not exist",), "viewer").text()
    assert "\x1b" not in told
    assert "Note: no trace: " in told
