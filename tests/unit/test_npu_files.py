"""acl.json and lists of mixed precision: what is written, and what a device would refuse or ignore."""

import json
from pathlib import Path
from typing import Any

import pytest

from ulpscope.cli.main import main
from ulpscope.dialects.ascend.acl_file import read_acl
from ulpscope.dialects.ascend.mixed_lists import merged, read_mix_lists
from ulpscope.records.errors import UlpscopeError

DATA = Path(__file__).parents[1] / "data/ascend/precision_data"
MODEL = {"model_name": "resnet50", "layer": ["conv1", "fc"]}
GOOD = {"dump_path": "/data", "dump_list": [MODEL], "dump_mode": "all"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def content(name: str) -> Any:
    return json.loads(Path(name).read_text(encoding="utf-8"))


def test_a_dump_of_some_layers_is_written(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["npu-dump", "--acl", "acl.json", "--model", "resnet50", "--layers", "conv1, fc"]) == 0
    path = str(folder / "precision_data/npu/debug_0/dump")
    assert content("acl.json") == {"dump": {"dump_path": path, "dump_mode": "all", "dump_list": [MODEL]}}
    told = capsys.readouterr().out
    assert "acl.json is written: operators of 1 model are dumped" in told
    assert "is not on this machine: make it where the model runs" in told
    assert main(["npu-dump", "--acl", "acl.json"]) == 0
    assert "acl.json is right" in capsys.readouterr().out


def test_a_file_that_is_there_is_replaced_only_if_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["npu-dump", "--acl", "acl.json", "--overflow", "--dump-path", "/data"]) == 0
    assert content("acl.json") == {"dump": {"dump_path": "/data", "dump_debug": "on"}}
    words = ["npu-dump", "--acl", "acl.json", "--model", "net", "--steps", "0|3-5", "--mode", "input"]
    assert main(words) == 2
    assert "acl.json is there already" in capsys.readouterr().err
    assert content("acl.json")["dump"]["dump_debug"] == "on"
    assert main([*words, "--overwrite"]) == 0
    dump = content("acl.json")["dump"]
    assert (dump["dump_step"], dump["dump_mode"], dump["dump_list"]) == ("0|3-5", "input", [{"model_name": "net"}])


@pytest.mark.parametrize(
    "dump",
    [
        GOOD,
        {"dump_path": "/data", "dump_list": [], "dump_op_switch": "on", "dump_data": "stats", "dump_level": "kernel"},
        {"dump_path": "/data", "dump_debug": "on"},
        {**GOOD, "dump_step": "0|3-5|10", "dump_debug": "off"},
    ],
)
def test_files_that_a_device_reads(dump: dict[str, Any]) -> None:
    Path("acl.json").write_text(json.dumps({"dump": dump, "max_opqueue_num": "9"}), encoding="utf-8")
    found = read_acl(Path("acl.json"))
    assert json.loads(found.text())["dump"] == dump


@pytest.mark.parametrize(
    ("dump", "seen"),
    [
        ({**GOOD, "dump_modes": "all"}, "has the unknown key 'dump_modes'"),
        ({**GOOD, "dump_mode": "both"}, 'has dump_mode "both"'),
        ({**GOOD, "dump_op_switch": True}, "has dump_op_switch true"),
        ({**GOOD, "dump_mode": ["all"]}, 'has dump_mode ["all"]'),
        ({**GOOD, "dump_step": 3}, "has dump_step 3"),
        ({**GOOD, "dump_step": "3,4"}, 'has dump_step "3,4"'),
        ({**GOOD, "dump_debug": "on"}, "has dump_debug on and a dump_list"),
        ({**GOOD, "dump_list": [{"model": "net"}]}, 'has {"model": "net"} in dump_list'),
        ({**GOOD, "dump_list": [{"model_name": "net", "layers": []}]}, "has the unknown key 'layers' in dump_list"),
        ({**GOOD, "dump_list": [{"model_name": "net", "layer": "fc"}]}, 'has layer "fc" in dump_list'),
        ({**GOOD, "dump_list": [MODEL, MODEL]}, "has the model 'resnet50' twice"),
        ({"dump_path": "/data"}, "dumps nothing"),
        ({"dump_list": [MODEL]}, "has no dump_path"),
        ({**GOOD, "dump_path": ""}, 'has dump_path ""'),
        ("all", "has no object dump"),
    ],
)
def test_files_that_a_device_would_refuse_or_ignore(dump: Any, seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("acl.json").write_text(json.dumps({"dump": dump}), encoding="utf-8")
    assert main(["npu-dump", "--acl", "acl.json"]) == 2
    assert f"ulpscope: error: acl.json {seen}" in capsys.readouterr().err


@pytest.mark.parametrize(("text", "seen"), [("{", "is no JSON"), ("[]", "has no object dump"), ("[" * 9999, "is no")])
def test_files_that_are_no_acl_json(text: str, seen: str) -> None:
    Path("acl.json").write_text(text, encoding="utf-8")
    with pytest.raises(UlpscopeError) as error:
        read_acl(Path("acl.json"))
    assert seen in error.value.seen


@pytest.fixture(scope="module")
def overflow_result(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("results") / "overflow"
    assert main(["overflow", str(DATA / "overflow/dump"), "--out", str(out)]) == 1
    return out


def test_what_findings_name_stays_in_float32(overflow_result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["mixlist", str(overflow_result), "--out", "ops_info.json"]) == 0
    assert content("ops_info.json") == {"black-list": {"to-add": ["Muls"]}}
    told = capsys.readouterr().out
    assert "black-list, to-add: Muls: stay in float32" in told
    assert "  Muls: scale/Mul\n" in told
    assert "atc --modify_mixlist=ops_info.json" in told
    assert main(["mixlist", "ops_info.json"]) == 0
    assert "ops_info.json is right: 1 type" in capsys.readouterr().out
    assert main(["mixlist", str(overflow_result), "--out", "ops_info.json"]) == 2
    assert "ops_info.json is there already" in capsys.readouterr().err


def test_what_the_user_says_of_a_type_counts_more(overflow_result: Path) -> None:
    words = ["mixlist", str(overflow_result), "--white", "Muls,Conv2D", "--gray", "Relu", "--out", "ops_info.json"]
    assert main(words) == 0
    assert content("ops_info.json") == {
        "white-list": {"to-add": ["Muls", "Conv2D"]},
        "gray-list": {"to-add": ["Relu"]},
    }


def test_a_type_is_taken_from_where_it_stood() -> None:
    lists = {"black-list": {"to-add": ("A", "B"), "to-remove": ("C",)}, "white-list": {"to-remove": ("D",)}}
    found = merged(lists, {"white-list": ["A", "C"], "black-list": ["D"]})
    assert found == {"black-list": {"to-add": ("B", "D")}, "white-list": {"to-add": ("A", "C")}}


def test_functions_of_a_framework_are_no_types_of_an_npu(capsys: pytest.CaptureFixture[str]) -> None:
    findings = [
        {"kind": "computation", "op": "torch.nn.functional.gelu", "module": None, "call": "torch.nn.functional.gelu.0"},
        {"kind": "input", "op": "Data", "module": "x", "call": "Data.0"},
    ]
    Path("summary.json").write_text(json.dumps({"command": "compare", "findings": findings}), encoding="utf-8")
    assert main(["mixlist", ".", "--out", "ops_info.json"]) == 3
    told = capsys.readouterr().out
    assert "left out torch.nn.functional.gelu (torch.nn.functional.gelu.0)" in told
    assert "Data" not in told
    assert not Path("ops_info.json").exists()


@pytest.mark.parametrize(
    ("lists", "seen"),
    [
        ({"black_list": {"to-add": []}, "white-list": {}}, "has the unknown list 'black_list'"),
        ({"gray-list": {"to-remove": ["A"]}}, "has 'to-remove' in gray-list"),
        ({"black-list": {"to-add": "MatMul"}}, 'has "MatMul" in black-list, to-add'),
        ({"black-list": {"to-add": ["fc1/MatMul"]}}, 'has "fc1/MatMul" in black-list, to-add'),
        ({"black-list": ["A"]}, "has black-list that is no object"),
        ({"black-list": {"to-add": ["A"]}, "white-list": {"to-add": ["A"]}}, "adds A to black-list and to white-list"),
    ],
)
def test_lists_that_a_compiler_would_refuse_or_ignore(lists: Any, seen: str) -> None:
    Path("ops_info.json").write_text(json.dumps(lists), encoding="utf-8")
    with pytest.raises(UlpscopeError) as error:
        read_mix_lists(Path("ops_info.json"))
    assert error.value.seen.startswith(f"ops_info.json {seen}")
    assert main(["mixlist", "ops_info.json"]) == 2


@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (["mixlist"], "neither a result nor a type"),
        (["mixlist", "nothing"], "nothing cannot be read: No such file or directory"),
        (["mixlist", "--black", "fc1/MatMul"], "'fc1/MatMul' is no type of operator"),
        (["mixlist", "--black", "A", "--white", "A"], "A is to be on black-list and on white-list"),
        (["mixlist", "--black", "A", "--overwrite"], "--overwrite without --out"),
    ],
)
def test_bad_usage(words: list[str], seen: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert f"ulpscope: error: {seen}" in capsys.readouterr().err


def test_json_tells_the_same(overflow_result: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert main(["mixlist", str(overflow_result), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["command"], told["written"], told["file"]) == ("mixlist", False, None)
    assert told["lists"] == {"black-list": {"to-add": ["Muls"]}}
    assert told["operators"] == {"Muls": ["scale/Mul"]}
    assert main(["npu-dump", "--acl", "acl.json", "--overflow", "--dump-path", "/data", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["written"], told["dump"]["dump_debug"]) == (True, "on")
