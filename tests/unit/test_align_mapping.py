"""The mapping file: what it may say, and what is said of mistakes in it."""

from pathlib import Path

import pytest

from ulpscope.align.mapping import Mapped, TensorName, read_mapping
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError

WHOLE = """
modules:
  model.encoder.layer.*: model.blocks.*
  model.head: model.lm_head
ops:
  torch.nn.functional.gelu: mylib.ops.gelu
  torch.*: mylib.torch.*
tensors:
  torch.nn.functional.linear.3 output.0: torch.Tensor.matmul.7 output.0
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "names.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_names_of_the_target_become_those_of_the_reference(tmp_path: Path) -> None:
    mapped = read_mapping(written(tmp_path, WHOLE))
    assert mapped.modules.to_reference("model.blocks.0.attn") == "model.encoder.layer.0.attn"
    assert mapped.modules.to_reference("model.lm_head") == "model.head"
    assert mapped.ops.to_reference("mylib.ops.gelu") == "torch.nn.functional.gelu"
    assert mapped.ops.to_reference("mylib.torch.relu") == "torch.relu"
    target, reference = (
        TensorName("torch.Tensor.matmul.7", "output.0"),
        TensorName("torch.nn.functional.linear.3", "output.0"),
    )
    assert mapped.tensors == {target: reference}


@pytest.mark.parametrize(
    "name", ["model.blocks", "model.blocks.", "other.model.lm_head", "model.lm_head.x", "modelxlm_head"]
)
def test_a_rule_speaks_only_of_whole_names(tmp_path: Path, name: str) -> None:
    assert read_mapping(written(tmp_path, WHOLE)).modules.to_reference(name) is None


def test_the_first_rule_that_fits_counts(tmp_path: Path) -> None:
    mapped = read_mapping(written(tmp_path, "modules:\n  first: net.head\n  second.*: net.*\n"))
    assert mapped.modules.to_reference("net.head") == "first"
    assert mapped.modules.to_reference("net.tail") == "second.tail"


def test_several_stars_stand_each_for_a_text(tmp_path: Path) -> None:
    mapped = read_mapping(written(tmp_path, "modules:\n  layers.*.attn.*: blocks.*.attention.*\n"))
    assert mapped.modules.to_reference("blocks.3.attention.q") == "layers.3.attn.q"


def test_sections_may_be_left_out_or_empty(tmp_path: Path) -> None:
    mapped = read_mapping(written(tmp_path, "modules:\nops: {}\n"))
    assert mapped == Mapped()
    assert not mapped.modules
    assert not mapped.ops


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[1, 2]", "it holds list, not a mapping"),
        ("", "it holds NoneType, not a mapping"),
        ("layers: {}", "it has a section 'layers'"),
        ("3: {}", "it has a section '3'"),
        ("modules: [a, b]", "its section modules is no mapping of reference to target"),
        ("ops: gelu", "its section ops is no mapping of reference to target"),
        ("modules: {a: 3}", "its section modules maps 'a' to 3, which are not both names"),
        ("ops: {a: }", "its section ops maps 'a' to None, which are not both names"),
        ("modules: {1: b}", "its section modules maps 1 to 'b', which are not both names"),
        ("modules: {'a.*': b}", "'a.*' and 'b' have not the same number of *"),
        ("ops: {a: 'b.*'}", "'a' and 'b.*' have not the same number of *"),
        ("tensors: {linear.3: matmul.7 output.0}", "'linear.3' in its section tensors is not `CALL PLACE`"),
        ("tensors: {linear.3 output.0: matmul.7}", "'matmul.7' in its section tensors is not `CALL PLACE`"),
        ("modules: {a: [", "while parsing"),
        ("modules: {a: 2025-13-45}", "month must be in 1..12"),
        ("modules: !!python/object:os.system {}", "could not determine a constructor"),
    ],
)
def test_every_mistake_is_named(tmp_path: Path, text: str, problem: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(UlpscopeError) as raised:
        read_mapping(path)
    assert raised.value.seen.startswith(f"mapping file {path}: {problem}")
    assert raised.value.expected == "YAML with the sections modules, ops, tensors, each `reference: target`"
    assert "docs/compare.md" in raised.value.next_step
    assert raised.value.code is ExitCode.USAGE


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(UlpscopeError, match=r"none\.yaml: .*No such file"):
        read_mapping(tmp_path / "none.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"modules: {\xff: a}")
    with pytest.raises(UlpscopeError, match=r"bytes\.yaml: 'utf-8' codec"):
        read_mapping(tmp_path / "bytes.yaml")
    with pytest.raises(UlpscopeError, match=r"deep\.yaml: "):
        (tmp_path / "deep.yaml").write_text("[" * 5_000)
        read_mapping(tmp_path / "deep.yaml")
