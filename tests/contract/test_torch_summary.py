"""Torch's two ways to a summary (kernels on the CPU, torch operations anywhere) against the plain reference."""

import os

os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ulpscope.capture.torch.summaries import summary
from ulpscope.capture.torch.summaries.constants import (
    CHUNK_BLOCKS,
    SPAN_CHUNKS,
    Constants,
    double_bits,
    double_bits_of_integers,
    double_bits_of_square,
)
from ulpscope.capture.torch.summaries.summary import summarize_cpu_into, summarize_tensor_into
from ulpscope.capture.torch.tensors import unsummarizable_reason
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.numerics.summaries.constants import (
    ABS_SUM,
    BLOCK_ELEMENTS,
    DIGEST,
    MAX,
    MIN,
    NAN,
    ROW_ELEMENTS,
    ROW_LENGTH,
    SKETCH,
    SUBNORMAL,
    SUM,
    SUM_SQUARES,
)
from ulpscope.numerics.summaries.summary import summarize

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
    here = np.full(ROW_LENGTH, 7.0)
    by_torch = torch.full((ROW_LENGTH,), 7.0, dtype=torch.float64)
    assert summarize_cpu_into(tensor, here.ctypes.data)
    assert summarize_tensor_into(tensor, by_torch)
    return {"compiled": here, "torch operations": by_torch.numpy()}


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
    rows = rows_of(tensor)
    assert_same_rows(rows["torch operations"], expected)
    # The compiled path sums the rows of a block in float32, if that holds the elements.
    is_double = tensor.dtype in (torch.float64, torch.complex128)
    assert_same_rows(rows["compiled"], expected, precision=1e-12 if is_double else 1e-6)


def random_bits(name: str, *shape: int, seed: int = 0) -> torch.Tensor:
    size = DTYPES[name].item_size
    generator = torch.Generator().manual_seed(seed)
    top = 2 if name == "bool" else 256
    data = torch.randint(0, top, (math.prod(shape) * size,), dtype=torch.uint8, generator=generator)
    return data.view(getattr(torch, name)).view(shape)


def views(base: torch.Tensor) -> Iterator[torch.Tensor]:
    """Layouts of a tensor of shape (4, 3, 40, 9)."""
    flat = base.view(-1)
    yield base
    yield base.transpose(0, 3)
    yield base.permute(0, 2, 3, 1)
    yield base[1::2, :, 3:, ::2]
    yield base[:1].expand(3, 3, 40, 9)
    yield flat[1:]
    yield flat[3 : 3 + 2 * BLOCK_ELEMENTS]
    yield flat[7]
    yield base[:, :0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("layout", range(9))
def test_every_type_in_every_layout(name: str, layout: int) -> None:
    check(list(views(random_bits(name, 4, 3, 40, 9)))[layout])


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


@settings(max_examples=60)
@given(data=st.data())
def test_any_view_of_any_type(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(NAMES))
    tensor = random_bits(name, 6, 5, 40, seed=data.draw(st.integers(0, 9)))
    tensor = tensor.permute(*data.draw(st.permutations([0, 1, 2])))
    slices = [slice(data.draw(st.integers(0, 3)), None, data.draw(st.integers(1, 3))) for _ in range(3)]
    check(tensor[tuple(slices)])


@settings(max_examples=60)
@given(st.lists(st.floats(width=32), max_size=100))
def test_any_float32_numbers(numbers: list[float]) -> None:
    check(torch.tensor(numbers, dtype=torch.float32))


CHUNK = 2 * BLOCK_ELEMENTS
SPAN = SPAN_CHUNKS * CHUNK
BORDERS = (1, 2, ROW_ELEMENTS, BLOCK_ELEMENTS, CHUNK, 3 * CHUNK, SPAN, SPAN + CHUNK, 2 * SPAN)


@pytest.fixture
def short_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    constants = Constants(torch.device("cpu"), torch.float64, chunk_blocks=CHUNK // BLOCK_ELEMENTS)
    monkeypatch.setattr(summary, "constants_of", lambda device: constants)


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", NAMES)
def test_lengths_around_every_border(name: str) -> None:
    elements = random_bits(name, 2 * SPAN + 1)
    for border in BORDERS:
        for length in (border - 1, border, border + 1):
            check(elements[:length])


@pytest.mark.usefixtures("short_chunks")
@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16", "float8_e8m0fnu", "int32"])
def test_parts_of_a_longer_value(name: str) -> None:
    elements = random_bits(name, SPAN + 5 * CHUNK + 7)
    for view in (elements[1:], elements[2:-2], elements[: SPAN + CHUNK].view(-1, 4).t()):
        check(view)


def test_a_value_longer_than_a_chunk() -> None:
    check(torch.randn(CHUNK_BLOCKS * BLOCK_ELEMENTS + 3 * BLOCK_ELEMENTS + 5).bfloat16())


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
    for row in rows.values():
        assert row[NAN:SKETCH].tolist() == expected.tolist()
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
    assert not summarize_cpu_into(tensor, row.ctypes.data)
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
    narrow = Constants(torch.device("cpu"), torch.float32, chunk_blocks=1)
    monkeypatch.setattr(summary, "constants_of", lambda device: narrow)
    floats = [torch.randn(20000), torch.full((3000,), 1e-25), torch.tensor(HOSTILE), torch.ones(0), torch.zeros(5000)]
    halves = [torch.randn(5000).bfloat16(), torch.randn(5000).half(), torch.randn(5000).to(torch.float8_e5m2)]
    others = [torch.randn(40, 100, dtype=torch.complex64), torch.arange(20000), torch.arange(5000) % 3 == 0]
    for tensor in floats + halves + others:
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


class Accelerator(TorchDispatchMode):
    """Torch's meta device, as if it were one that runs behind the host: refuses whatever would wait or copy.

    Counts the operations that such a device would run, and the most memory they hold at a time.
    """

    def __init__(self) -> None:
        super().__init__()
        self.operations = 0
        self.peak_bytes = 0
        self._made: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        kwargs = kwargs or {}
        if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd"):
            with self:
                return func.decompose(*args, **kwargs)
        assert not WAITING.intersection(func.tags), f"{func} waits"
        result = func(*args, **kwargs)
        tensors = [item for item in tree_leaves((args, kwargs, result)) if isinstance(item, torch.Tensor)]
        assert all(tensor.is_meta for tensor in tensors), f"{func} is not done by the device alone"
        self._note(func, tree_leaves(result))
        return result

    def _note(self, func: torch._ops.OpOverload, results: list[torch.Tensor]) -> None:
        if func.is_view:
            return
        self.operations += "empty" not in func.name()
        for tensor in results:
            storage = tensor.untyped_storage()
            self._made[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._made = {key: made for key, made in self._made.items() if not made[0].expired()}
        self.peak_bytes = max(self.peak_bytes, sum(size for _, size in self._made.values()))


class NoHostNumbers(TorchFunctionMode):
    """Refuses tensors that are made of the host's numbers: torch copies them to the device unseen by dispatch modes."""

    def __torch_function__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def, override]
        assert func not in (torch.tensor, torch.as_tensor, torch.asarray, torch.from_numpy), func
        return func(*args, **(kwargs or {}))


WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
Summarize = Callable[[torch.Tensor], Accelerator]


@pytest.fixture(params=[torch.float64, torch.float32])
def on_accelerator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Summarize:
    constants = Constants(torch.device("meta"), request.param)
    monkeypatch.setattr(summary, "constants_of", lambda device: constants)
    monkeypatch.setattr(summary, "unsummarizable_reason", lambda tensor: None)
    row = torch.zeros(ROW_LENGTH, dtype=torch.int64, device="meta")

    def summarize(tensor: torch.Tensor) -> Accelerator:
        summarize_tensor_into(tensor[..., :1], row)  # makes what belongs to the type
        with NoHostNumbers(), Accelerator() as accelerator:
            assert summarize_tensor_into(tensor, row)
        return accelerator

    return summarize


def meta(name: str, *shape: int) -> torch.Tensor:
    return torch.empty(shape, dtype=getattr(torch, name), device="meta")


NARROW = [name for name in NAMES if name not in ("float64", "complex128")]


@pytest.mark.parametrize("name", NARROW)
def test_nothing_waits_for_a_device(name: str, on_accelerator: Summarize) -> None:
    tensors = [meta(name, 10, 500), meta(name, 10, 500).t(), meta(name, 5001)[1:], meta(name, 0)]
    if tensors[0].is_complex():
        tensors += [tensors[0].conj(), tensors[0].conj().imag]
    for tensor in tensors:
        on_accelerator(tensor)


@pytest.mark.parametrize("name", ["float32", "float8_e4m3fn", "int64"])
def test_nothing_waits_in_a_long_value(name: str, on_accelerator: Summarize) -> None:
    on_accelerator(meta(name, (SPAN_CHUNKS + 1) * CHUNK_BLOCKS * BLOCK_ELEMENTS + 1))


WAITS: dict[str, Callable[[torch.Tensor], object]] = {
    "item": lambda x: x.sum().item(),
    "branch": lambda x: 1 if x.sum() > 0 else 0,
    "nonzero": lambda x: x.nonzero(),
    "boolean index": lambda x: x[x > 0],
    "unique": lambda x: x.unique(),
    "copy to the host": lambda x: x.cpu(),
    "copy to the device": lambda x: x + torch.ones(3).to("meta"),
    "numbers of the host": lambda x: x + torch.tensor([1.0, 2.0, 3.0], device="meta"),
}


@pytest.mark.parametrize("way", WAITS)
def test_what_waits_would_be_found(way: str) -> None:
    tensor = torch.ones(3, device="meta")
    with (
        torch.inference_mode(),
        NoHostNumbers(),
        Accelerator(),
        pytest.raises((AssertionError, RuntimeError, NotImplementedError)),
    ):
        WAITS[way](tensor)


@pytest.mark.parametrize("on_accelerator", [torch.float64], indirect=True)
def test_a_device_runs_few_operations_for_a_value(on_accelerator: Summarize) -> None:
    assert on_accelerator(meta("bfloat16", 8, 1000)).operations <= 38
    assert on_accelerator(meta("float32", 2**20)).operations <= 38
    assert on_accelerator(meta("int64", 8, 1000)).operations <= 25
    assert on_accelerator(meta("bfloat16", 2**24)).operations <= 38 + 15 * 26


@pytest.mark.parametrize("on_accelerator", [torch.float64], indirect=True)
@pytest.mark.parametrize("name", ["float64", "float32", "bfloat16", "float8_e4m3fn", "int64", "bool"])
def test_temporary_memory_is_bounded(name: str, on_accelerator: Summarize) -> None:
    assert on_accelerator(meta(name, 3 * 2**20)).peak_bytes <= 100e6


def test_torch_knows_the_small_types() -> None:
    assert {"bfloat16", "float8_e4m3fn", "uint64", "complex32"} <= set(NAMES)
