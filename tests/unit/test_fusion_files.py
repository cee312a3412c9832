"""Fusion files: three generations of results, two of switches, and the file that switches passes off."""

import json
from pathlib import Path

import pytest

from ulpscope.cli.main import main
from ulpscope.dialects.ascend.fusion_files import (
    PassCount,
    Stage,
    is_switch_file,
    read_fusion_result,
    read_fusion_switch,
)
from ulpscope.records.errors import UlpscopeError

FUSION = Path(__file__).parents[1] / "data" / "ascend" / "fusion"
GENERATIONS = ["concat", "list", "nested"]
# What the fixtures were made of.
PASSES = (
    PassCount("AABiasaddConvFusion", Stage.GRAPH, 1, 1),
    PassCount("MatMulBiasAddFusionPass", Stage.GRAPH, 2, 2),
    PassCount("FusedBatchnormFusionPass", Stage.GRAPH, 1, 1),
    PassCount("ConstToAttrPass", Stage.GRAPH, 0, 3),
    PassCount("TbeConvRequantFusionPass", Stage.UB, 0, 0, 0),
    PassCount("TbeConv2dReluFusionPass", Stage.UB, 1, 1, 0),
)


def result(generation: str) -> Path:
    return FUSION / f"fusion_result.{generation}.json"


def write(tmp_path: Path, content: str) -> Path:
    path = tmp_path / "fusion.json"
    path.write_text(content)
    return path


@pytest.mark.parametrize("generation", GENERATIONS)
def test_every_generation_tells_the_same(generation: str) -> None:
    graphs = read_fusion_result(result(generation))
    assert [graph.graph for graph in graphs] == ["0_11", "0_21"]
    assert [graph.passes for graph in graphs] == [PASSES, PASSES]


def test_numbers_may_be_numbers_and_ids_may_be_called_otherwise(tmp_path: Path) -> None:
    path = write(tmp_path, '{"graphId": 7, "graph_fusion": {"A": {"effect_times": 3, "match_times": " 4 "}}}\n\n')
    (graph,) = read_fusion_result(path)
    assert graph.graph == "7"
    assert graph.passes == (PassCount("A", Stage.GRAPH, 3, 4),)


def test_switch_files_of_both_forms() -> None:
    switch = read_fusion_switch(FUSION / "fusion_switch.cfg")
    assert switch.states[Stage.GRAPH] == {"ALL": True, "ConvBatchnormFusionPass": False}
    assert switch.states[Stage.UB] == {"ALL": True, "TbePool2dQuantFusionPass": False}
    old = read_fusion_switch(FUSION / "fusion_switch.old.cfg")
    for stage in Stage:
        assert old.states[stage] == {"ConvBatchnormFusionPass": False, "TbePool2dQuantFusionPass": True}


def test_results_and_switches_are_told_apart() -> None:
    assert [is_switch_file(result(generation)) for generation in GENERATIONS] == [False] * 3
    assert is_switch_file(FUSION / "fusion_switch.cfg")
    assert is_switch_file(FUSION / "fusion_switch.old.cfg")


def test_the_command_lists_what_took_effect(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fusion", str(result("nested"))]) == 0
    text = capsys.readouterr().out
    assert "2 graphs, 4 of 6 passes took effect" in text
    assert "MatMulBiasAddFusionPass   GraphFusion       2      2" in text
    assert "ConstToAttrPass" not in text


def test_json_has_all_counters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fusion", str(result("list")), "--json"]) == 0
    content = json.loads(capsys.readouterr().out)
    assert content["counts"] == {"graphs": 2, "passes": 6, "passes_with_effect": 4}
    assert content["graphs"][0]["passes"][3] == {
        "name": "ConstToAttrPass",
        "stage": "GraphFusion",
        "effect": 0,
        "match": 3,
        "repository_hits": None,
    }


def test_a_switch_file_is_written_with_each_pass_in_its_stage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "new" / "fusion_switch.cfg"
    wanted = "MatMulBiasAddFusionPass,TbeConv2dReluFusionPass"
    assert main(["fusion", str(result("concat")), "--switch-off", wanted, "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == {
        "Switch": {
            "GraphFusion": {"ALL": "on", "MatMulBiasAddFusionPass": "off"},
            "UBFusion": {"ALL": "on", "TbeConv2dReluFusionPass": "off"},
        }
    }
    assert str(out) in capsys.readouterr().out


def test_all_switches_everything_off(tmp_path: Path) -> None:
    out = tmp_path / "fusion_off.cfg"
    assert main(["fusion", str(result("list")), "--switch-off", "ALL", "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == {"Switch": {"GraphFusion": {"ALL": "off"}, "UBFusion": {"ALL": "off"}}}


def test_a_switch_file_keeps_what_it_said(tmp_path: Path) -> None:
    out = tmp_path / "more.cfg"
    given = FUSION / "fusion_switch.cfg"
    assert main(["fusion", str(given), "--switch-off", "ConvBatchnormFusionPass", "--out", str(out)]) == 0
    assert json.loads(out.read_text()) == json.loads(given.read_text())


def test_a_pass_that_is_not_there_would_switch_nothing_off(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "switch.cfg"
    assert main(["fusion", str(result("list")), "--switch-off", "MatMulBiasAdFusionPass", "--out", str(out)]) == 2
    assert "expected: one of MatMulBiasAddFusionPass" in capsys.readouterr().err
    assert not out.exists()


def test_a_file_is_replaced_only_if_that_was_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "switch.cfg"
    out.write_text("mine")
    command = ["fusion", str(result("list")), "--switch-off", "ALL", "--out", str(out)]
    assert main(command) == 2
    assert out.read_text() == "mine"
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0


@pytest.mark.parametrize("options", [["--switch-off", "ALL"], ["--out", "x.cfg"]])
def test_half_a_request_is_refused(options: list[str]) -> None:
    assert main(["fusion", str(result("list")), *options]) == 2


BROKEN = {
    "empty": "",
    "cut": '{"graph_fusion": {"A": {"effect',
    "no graph": "[]",
    "text in a list": '["a"]',
    "no passes": '{"graph_fusion": [1]}',
    "no counters": '{"graph_fusion": {"A": 1}}',
    "no number": '{"graph_fusion": {"A": {"effect_times": "many"}}}',
    "deep": "[" * 100_000,
    "other JSON": '{"a": {"b": 1}}',
    "other objects": '[{"name": "x"}]',
    "bool": '{"graph_fusion": {"A": {"effect_times": true}}}',
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_result_is_one_clear_error(tmp_path: Path, what: str) -> None:
    path = write(tmp_path, BROKEN[what])
    with pytest.raises(UlpscopeError) as raised:
        read_fusion_result(path)
    assert str(path) in raised.value.seen


@pytest.mark.parametrize("content", ['{"Switch": 1}', '{"Switch": {"UBFusion": {"A": "maybe"}}}', "A:perhaps", "what"])
def test_a_broken_switch_file_is_one_clear_error(tmp_path: Path, content: str) -> None:
    with pytest.raises(UlpscopeError):
        read_fusion_switch(write(tmp_path, content))


@pytest.mark.parametrize("content", ["", "\n \n"])
def test_an_empty_file_is_neither(tmp_path: Path, content: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["fusion", str(write(tmp_path, content))]) == 2
    assert "is empty" in capsys.readouterr().err


def test_a_result_without_passes_is_nothing_to_tell(tmp_path: Path) -> None:
    assert main(["fusion", str(write(tmp_path, '{"session_and_graph_id": "0_1", "graph_fusion": {}}'))]) == 3
    assert main(["fusion", str(write(tmp_path, '{"session_and_graph_id_0_1": {}}'))]) == 3


def test_switches_of_an_unknown_stage_are_not_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = write(tmp_path, '{"Switch": {"GraphFusion": {"A": "on"}, "NewFusion": {"B": "off"}}}')
    assert main(["fusion", str(given), "--switch-off", "A", "--out", str(tmp_path / "more.cfg")]) == 2
    assert "a stage that is not known: 'NewFusion'" in capsys.readouterr().err


def test_both_languages_say_the_same_things(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "off.cfg"
    words = ["fusion", str(result("list")), "--switch-off", "ALL", "--out", str(out), "--language", "zh"]
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "2 张图，6 个融合规则中有 4 个生效" in told
    assert "MatMulBiasAddFusionPass   GraphFusion     2     2" in told
    assert f"已写入 {out}" in told
    assert main(["fusion", str(FUSION / "fusion_switch.cfg"), "--language", "zh"]) == 0
    assert "融合规则开关" in capsys.readouterr().out
