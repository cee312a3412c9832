"""Names of operations taken apart, and the registry that is asked by them."""

import csv
import re
from importlib import resources
from pathlib import Path

import pytest

import ulpscope
from ulpscope.operations.registry import (
    TABLES,
    Choosing,
    Family,
    Trait,
    is_in_place,
    names_with,
    operation,
    operation_name,
    own_word,
)

SOURCES = [file.read_text(encoding="utf-8") for file in Path(ulpscope.__file__).parent.rglob("*.py")]


@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("torch.add", "add"),
        ("torch.Tensor.add_", "add"),
        ("torch.Tensor.__add__", "add"),
        ("torch.Tensor.__radd__", "add"),
        ("torch.Tensor.__iadd__", "add"),
        ("torch.Tensor.__and__", "and"),
        ("torch.Tensor.__iand__", "and"),
        ("torch.Tensor.__or__", "or"),
        ("torch.Tensor.__ior__", "or"),
        ("torch.Tensor.__ror__", "or"),
        ("torch.Tensor.__invert__", "invert"),
        ("torch.Tensor.__rshift__", "rshift"),
        ("torch.Tensor.__irshift__", "rshift"),
        ("torch.Tensor.__int__", "int"),
        ("torch.Tensor.__index__", "index"),
        ("torch.Tensor.__getitem__", "getitem"),
        ("torch.Tensor.T", "T"),
        ("relu_", "relu"),
        ("_", "_"),
        ("aten.add", "add"),
        ("aten.add.Tensor", "add"),
        ("aten.add_.Tensor", "add"),
        ("aten.sum.dim_IntList", "sum"),
        ("aten._softmax.default", "softmax"),
        ("my_library.attend.default", "attend"),
        ("my_package.layers.Attend", "Attend"),
        ("torch.nn.functional.layer_norm", "layer_norm"),
        ("torch._C._nn.gelu", "gelu"),
        ("torch_npu.npu_rms_norm", "npu_rms_norm"),
        ("mindspore.ops.matmul", "matmul"),
        ("MatMulV2", "MatMulV2"),
    ],
)
def test_an_operation_has_one_name(op: str, name: str) -> None:
    assert operation_name(op) == name


@pytest.mark.parametrize(
    ("op", "writes"),
    [
        ("torch.Tensor.add_", True),
        ("aten.add_.Tensor", True),
        ("torch.Tensor.__iadd__", True),
        ("torch.Tensor.__setitem__", True),
        ("torch.Tensor.__invert__", False),
        ("torch.Tensor.__int__", False),
        ("torch.Tensor.__getitem__", False),
        ("torch.add", False),
    ],
)
def test_an_in_place_form_is_told_by_its_name(op: str, writes: bool) -> None:
    assert is_in_place(op) is writes


def test_every_form_of_an_operation_has_the_same_entry() -> None:
    forms = (
        "torch.matmul",
        "torch.Tensor.matmul",
        "torch.Tensor.__matmul__",
        "torch.Tensor.__rmatmul__",
        "aten.matmul.out",
    )
    assert {operation(form).family for form in forms} == {Family.CONTRACTION}
    assert operation("torch.Tensor.__getitem__").has(Trait.PICKING)
    assert operation("aten.argmax.default").chooses is Choosing.EXTREME


def test_an_operation_that_no_table_has_is_known_by_its_name_alone() -> None:
    assert operation("my_library.attend").family is Family.OTHER
    assert not operation("my_library.attend").traits


def test_a_form_that_differs_has_an_entry_of_its_own() -> None:
    assert operation("torch.Tensor.set_").has(Trait.REACHING_OUT)
    assert operation("torch.Tensor.set_").has(Trait.WITHOUT_RESULT)
    # torch.distributed.reduce is an operation, Tensor.__reduce__ is not.
    assert operation("torch.Tensor.__reduce__").has(Trait.METADATA)
    assert not operation("torch.distributed.reduce").traits


@pytest.mark.parametrize("table", TABLES)
def test_rows_are_sorted_each_once_and_reachable(table: str) -> None:
    text = resources.files("ulpscope.operations").joinpath(table).read_text(encoding="utf-8")
    names = [row["operation"] for row in csv.DictReader(text.splitlines())]
    assert names == sorted(set(names), key=lambda name: (name.lower(), name))
    assert all(name in (operation_name(name), own_word(name)) for name in names)


@pytest.mark.parametrize("trait", Trait)
def test_every_trait_is_somebodys_and_is_asked_for(trait: Trait) -> None:
    assert names_with(trait)
    asked = re.compile(rf"\bTrait\.{trait.name}\b")
    assert any(asked.search(source) for source in SOURCES)


@pytest.mark.parametrize(
    ("op", "family"),
    [
        ("tf.raw_ops._MklMatMul", Family.CONTRACTION),
        ("tf.raw_ops._MklNativeFusedMatMul", Family.CONTRACTION),
        ("tf.raw_ops._MklNativeFusedConv2D", Family.CONVOLUTION),
        ("tf.raw_ops._MklNativeConv2DBackpropFilterWithBias", Family.CONVOLUTION),
        ("tf.raw_ops._MklUnheardOf", Family.OTHER),
    ],
)
def test_what_onednn_computes_is_the_operation_that_it_stands_for(op: str, family: Family) -> None:
    assert operation(op).family is family


def test_gradients_of_kinks_may_flip() -> None:
    assert operation("tf.raw_ops.ReluGrad").has(Trait.KINKED)
    assert operation("tf.raw_ops.ReluGrad").has(Trait.GRADIENT)


def test_the_gradient_of_a_pooling_chooses_anew_and_is_given_last() -> None:
    for op in ("tf.raw_ops.MaxPoolGrad", "tf.raw_ops._MklNativeMaxPoolGrad"):
        assert operation(op).has(Trait.KINKED)
        assert operation(op).has(Trait.GRADIENT_LAST)
