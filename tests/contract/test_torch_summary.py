"""Torch's two ways to a summary (numba on the CPU, torch operations anywhere) against the plain reference."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ulpscope.capture.torch import summary
from ulpscope.capture.torch.constants import make_constants
from ulpscope.capture.torch.double_bits import double_bits, double_bits_of_integers, double_bits_of_square
from ulpscope.capture.torch.summary import summarize_cpu_into, summarize_tensor_into, unsummarizable_reason
from ulpscope.numerics.constants import (
    ABS_SUM,
    BLOCK_ELEMENTS,
    DIGEST,
    MAX,
    MIN,
    NAN,
    ROW_LENGTH,
    SKETCH,
    SUBNORMAL,
    SUM,
    SUM_SQUARES,
)
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summary import summarize

torch.set_num_threads(1)

NAMES = [name for name in DTYPES if hasattr(torch, name)]
HOSTILE = [math.nan, math.inf, -math.inf, 0.0, -0.0, 2.0**29, 1e30, -3.4e38, 1e-40, 1e-25, 6e-8, 1.0, -3.0]

Rows = dict[str, np.ndarray]


def reference_row(tensor: torch.Tensor) -> np.ndarray:
    """The plain reference on a copy that torch's own indexing put in order, one element after the other."""
    plain = tensor.detach().resolve_conj().resolve_neg() if tensor.dtype != torch.complex32 else tensor.detach()
    if plain.is_complex():
        plain = torch.view_as_real(plain)
    ordered = torch.empty(plain.shape, dtype=plain.dtype)
    ordered.copy_(plain)
    name = str(tensor.dtype).removeprefix("torch.")
    carrier = {1: torch.uint8, 2: torch.int16}.get(ordered.element_size())
    keep = ordered.dtype in (torch.float16, torch.int8, torch.int16, torch.uint16)
    return summarize((ordered if keep or carrier is None else ordered.view(carrier)).numpy(), name)


def rows_of(tensor: torch.Tensor) -> Rows:
    by_numba = np.full(ROW_LENGTH, 7.0)
    by_torch = torch.full((ROW_LENGTH,), 7.0, dtype=torch.float64)
    assert summarize_cpu_into(tensor, by_numba)
    assert summarize_tensor_into(tensor, by_torch)
    return {"compiled": by_numba, "torch operations": by_torch.numpy()}


def assert_same_rows(got: np.ndarray, reference: np.ndarray, precision: float = 1e-12) -> None:
    tolerance = precision * (reference[ABS_SUM] + abs(reference[SUM]))
    exact = [MIN, MAX, *range(NAN, SKETCH)]
    assert got[exact].tolist() == reference[exact].tolist()
    assert got[DIGEST:].tobytes() == reference[DIGEST:].tobytes()
    np.testing.assert_allclose(got[SKETCH:DIGEST], reference[SKETCH:DIGEST], rtol=0, atol=tolerance)
    np.testing.assert_allclose(got[SUM], reference[SUM], rtol=0, atol=tolerance)
    np.testing.assert_allclose(got[[SUM_SQUARES, ABS_SUM]], reference[[SUM_SQUARES, ABS_SUM]], rtol=precision)


def check(tensor: torch.Tensor) -> None:
    expected = reference_row(tensor)
    for row in rows_of(tensor).values():
        assert_same_rows(row, expected)


def random_bits(name: str, *shape: int, seed: int = 0) -> torch.Tensor:
    size = DTYPES[name].item_size
    generator = torch.Generator().manual_seed(seed)
    top = 2 if name == "bool" else 256
    data = torch.randint(0, top, (math.prod(shape) * size,), dtype=torch.uint8, generator=generator)
    return data.view(getattr(torch, name)).view(shape)


def views(base: torch.Tensor) -> Iterator[torch.Tensor]:
    """Layouts of a tensor of shape (4, 3, 20, 9)."""
    flat = base.view(-1)
    yield base
    yield base.transpose(0, 3)
    yield base.permute(0, 2, 3, 1)
    yield base[1::2, :, 3:, ::2]
    yield base[:1].expand(3, 3, 20, 9)
    yield flat[1:]
    yield flat[3 : 3 + 2 * BLOCK_ELEMENTS]
    yield flat[7]
    yield base[:, :0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", range(9))
def test_every_type_in_every_layout(name: str, layout: int) -> None:
    check(list(views(random_bits(name, 4, 3, 20, 9)))[layout])


@pytest.mark.parametrize("name", ["float64", "float32", "float16", "bfloat16", "float8_e5m2"])
def test_hostile_values(name: str) -> None:
    check(torch.tensor(HOSTILE, dtype=torch.float64).to(getattr(torch, name)))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("float8")])
def test_padding_adds_nothing(name: str) -> None:
    check(torch.arange(3, dtype=torch.uint8).view(getattr(torch, name)))


def test_a_channels_last_tensor_equals_its_contiguous_self() -> None:
    tensor = torch.randn(2, 3, 8, 7)
    moved = tensor.to(memory_format=torch.channels_last)
    for one, other in zip(rows_of(tensor).values(), rows_of(moved).values(), strict=True):
        assert one.tobytes() == other.tobytes()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_view_of_any_type(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    tensor = random_bits(name, 6, 5, 40, seed=data.draw(st.integers(0, 9)))
    tensor = tensor.permute(*data.draw(st.permutations([0, 1, 2])))
    slices = [slice(data.draw(st.integers(0, 3)), None, data.draw(st.integers(1, 3))) for _ in range(3)]
    check(tensor[tuple(slices)])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(width=32), max_size=100))
def test_any_float32_numbers(numbers: list[float]) -> None:
    check(torch.tensor(numbers, dtype=torch.float32))


def test_chunks_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(summary, "_CHUNK", 2 * BLOCK_ELEMENTS)
    check(torch.randn(7 * BLOCK_ELEMENTS + 13))
    check(random_bits("float16", 5 * BLOCK_ELEMENTS))
    check(torch.arange(4 * BLOCK_ELEMENTS))


@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128])
def test_lazy_conjugates_and_negatives(dtype: torch.dtype) -> None:
    parts = torch.randn(5, 7, 2)
    tensor = torch.view_as_complex(parts.to(torch.tensor([], dtype=dtype).real.dtype))
    expected = torch.view_as_complex((parts * torch.tensor([1.0, -1.0])).to(tensor.real.dtype))
    assert tensor.conj().is_conj()
    for got, row in zip(rows_of(tensor.conj()).values(), rows_of(expected).values(), strict=True):
        assert got.tobytes() == row.tobytes()
    negative = tensor.conj().imag
    assert negative.is_neg()
    check(negative)


def summarize_both(tensor: torch.Tensor) -> list[bytes]:
    return [row.tobytes() for row in rows_of(tensor).values()]


def test_autograd_and_inference_mode_do_not_matter() -> None:
    plain = torch.randn(10, 12)
    expected = summarize_both(plain)
    assert summarize_both(plain.clone().requires_grad_()) == expected
    assert summarize_both(torch.nn.Parameter(plain)) == expected
    with torch.no_grad():
        assert summarize_both(plain.clone().requires_grad_()) == expected
    with torch.inference_mode():
        inference = plain * 1
        assert summarize_both(inference) == expected
        assert summarize_both(plain.clone().requires_grad_()) == expected
    assert inference.is_inference()
    assert summarize_both(inference) == expected
    half = plain.bfloat16().requires_grad_()
    assert summarize_both(half) == summarize_both(half.detach())


def test_rows_may_be_made_in_any_mode() -> None:
    tensor = torch.randn(30)
    outside = torch.zeros(ROW_LENGTH, dtype=torch.float64)
    with torch.inference_mode():
        inside = torch.zeros(ROW_LENGTH, dtype=torch.float64)
        summarize_tensor_into(tensor, outside)
    summarize_tensor_into(tensor, inside)
    assert inside.numpy().tobytes() == outside.numpy().tobytes() == summarize_both(tensor)[1]


def test_summaries_leave_the_graph_alone() -> None:
    leaf = torch.randn(3, requires_grad=True)
    made = leaf * 2
    version = made._version
    summarize_both(made)
    assert (made._version, made.grad_fn is not None) == (version, True)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_counts_do_not_depend_on_flushing_subnormals(name: str) -> None:
    tensor = random_bits(name, 3000) if name == "float16" else (torch.randn(3000) * 1e-38).to(getattr(torch, name))
    expected = reference_row(tensor)[NAN:SKETCH]
    try:
        torch.set_flush_denormal(True)
        rows = rows_of(tensor)
    finally:
        torch.set_flush_denormal(False)
    assert rows["compiled"][NAN:SKETCH].tolist() == expected.tolist()
    assert expected[SUBNORMAL - NAN] > 0


class Tagged(torch.Tensor):
    """A subclass with memory of its own."""


class Wrapper(torch.Tensor):
    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> "Wrapper":
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape)

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        raise AssertionError("looked inside")


def freed() -> torch.Tensor:
    tensor = torch.randn(4)
    tensor.untyped_storage().resize_(0)
    return tensor


UNREADABLE: dict[str, Callable[[], torch.Tensor]] = {
    "sparse": lambda: torch.eye(3).to_sparse(),
    "meta": lambda: torch.empty(3, device="meta"),
    "quantized": lambda: torch.quantize_per_tensor(torch.randn(3), 0.1, 0, torch.qint8),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "subclass": lambda: Wrapper(torch.ones(3)),
    "uninitialized": lambda: torch.nn.parameter.UninitializedParameter(),
    "freed": freed,
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reason", UNREADABLE)
def test_what_cannot_be_read_is_left_alone(reason: str) -> None:
    tensor = UNREADABLE[reason]()
    row = np.full(ROW_LENGTH, 7.0)
    assert unsummarizable_reason(tensor) == reason
    assert not summarize_cpu_into(tensor, row)
    assert not summarize_tensor_into(tensor, torch.from_numpy(row))
    assert (row == 7.0).all()


@pytest.mark.filterwarnings("ignore")
def test_jagged_tensors_are_nested_or_subclass() -> None:
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert unsummarizable_reason(jagged) in ("nested", "subclass")


def test_tensors_inside_transforms_are_left_alone() -> None:
    reasons: list[str | None] = []

    def look(x: torch.Tensor) -> torch.Tensor:
        reasons.append(unsummarizable_reason(x))
        return (x * 2).sum()

    torch.func.vmap(look)(torch.ones(3, 4))
    torch.func.grad(look)(torch.ones(3))
    assert reasons == ["functorch", "functorch"]


def test_a_plain_subclass_is_read() -> None:
    plain = torch.randn(20)
    assert summarize_both(plain.as_subclass(Tagged)) == summarize_both(plain)


def test_devices_without_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow = make_constants(torch.device("cpu"), torch.float32)
    monkeypatch.setattr(summary, "constants_of", lambda device: narrow)
    monkeypatch.setattr(summary, "_CHUNK", 2 * BLOCK_ELEMENTS)
    tensors = [torch.randn(5000), torch.full((3000,), 1e-25), torch.tensor(HOSTILE), torch.arange(3000), torch.ones(0)]
    for tensor in tensors:
        row = torch.zeros(ROW_LENGTH, dtype=torch.int64)
        assert summarize_tensor_into(tensor, row)
        expected = reference_row(tensor)
        expected[MIN], expected[MAX] = np.float32(expected[MIN]), np.float32(expected[MAX])
        assert_same_rows(row.view(torch.float64).numpy(), expected, precision=2e-6)


@given(st.lists(st.floats(width=32, allow_nan=False, allow_subnormal=False), min_size=1))
def test_double_bits_of_float32(numbers: list[float]) -> None:
    got = double_bits(torch.tensor(numbers, dtype=torch.float32)).view(torch.float64).tolist()
    assert list(map(str, got)) == list(map(str, numbers))


@given(st.lists(st.integers(0, 2**52), min_size=1))
def test_double_bits_of_integers(numbers: list[int]) -> None:
    assert double_bits_of_integers(torch.tensor(numbers)).view(torch.float64).tolist() == numbers


@given(st.floats(width=32, min_value=2.0**-126, allow_infinity=False))
def test_double_bits_of_square(number: float) -> None:
    assert double_bits_of_square(torch.tensor(number)).view(torch.float64).item() == number * number


def test_torch_knows_the_small_types() -> None:
    assert {"bfloat16", "float8_e4m3fn", "uint64", "complex32"} <= set(NAMES)
