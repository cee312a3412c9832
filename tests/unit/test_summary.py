"""Stats against naive Python on exact numbers; the compiled path against the reference; rows as columns and Stats."""

import math
import shutil
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import partial

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ulpscope.numerics.dtypes import DTYPES, Dtype, DtypeKind, numpy_dtype
from ulpscope.numerics.machine_code import NoCompilerError
from ulpscope.numerics.pairs.metric_loading import form_and_table
from ulpscope.numerics.summaries import compiled
from ulpscope.numerics.summaries.constants import (
    ABS_SUM,
    DIGEST,
    EXPONENT_BINS,
    EXPONENTS,
    MAX,
    MIN,
    NAN,
    NEG_INF,
    POS_INF,
    ROW_LENGTH,
    SET_ASIDE,
    SKETCH,
    SUBNORMAL,
    SUM,
    SUM_SQUARES,
    ZERO,
)
from ulpscope.numerics.summaries.rows import rows_to_columns, stats_from_row
from ulpscope.numerics.summaries.summary import flat_elements, summarize

FLOATS = [name for name, dtype in DTYPES.items() if dtype.kind is DtypeKind.FLOAT]
INTEGERS = [name for name, dtype in DTYPES.items() if dtype.kind is DtypeKind.INT]
HOSTILE = [
    *(math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -2.5),
    *(2.0**29, -(2.0**29), 2.0**29 - 32, 1e30, -3.4028234663852886e38, 65504.0),
    *(1e-25, 1e-40, -1.4e-45, 2.0**-126, 2.0**-127, 6e-8, 2.0**-14, 5e-324),
]

Summarizer = Callable[[np.ndarray, str], np.ndarray]


def row_by(summarizer: compiled.Summarizer, array: np.ndarray, dtype_name: str) -> np.ndarray:
    row = np.full(ROW_LENGTH, 7.0)
    flat = np.ascontiguousarray(array).reshape(-1)
    real = DTYPES[dtype_name].real
    elements = flat.view(real) if real else flat
    summarizer(elements.ctypes.data, elements.size, row.ctypes.data)
    return row


def real_of(dtype_name: str) -> Dtype:
    return DTYPES[DTYPES[dtype_name].real or dtype_name]


def summarize_compiled(array: np.ndarray, dtype_name: str) -> np.ndarray:
    """By what this machine chooses: with a compiler, what that made."""
    return row_by(compiled.summarizer_of(dtype_name), array, dtype_name)


def summarize_by_numba(array: np.ndarray, dtype_name: str) -> np.ndarray:
    """As where there is no compiler."""
    kernels = compiled._kernels()
    assert kernels is not None
    return row_by(partial(compiled._by_numba, kernels, real_of(dtype_name)), array, dtype_name)


BOTH = pytest.mark.parametrize(
    "summarizer", [summarize, summarize_compiled, summarize_by_numba], ids=["reference", "compiled", "numba"]
)


def naive_bin(number: float) -> int:
    exponent = math.frexp(number)[1] - 1
    return min(max((exponent + 127) // 8, 0), 31)


def rounding(summarizer: Summarizer, dtype_name: str) -> float:
    """How far sums may be off: the kernels sum the 16 rows of a block in float32, if it holds the type exactly."""
    narrow = summarizer is not summarize and dtype_name not in ("float64", "complex128")
    return 4e-7 if narrow else 1e-12


def check_floats(row: np.ndarray, numbers: list[float], smallest_normal: float, tolerance: float) -> None:
    finite = [x for x in numbers if math.isfinite(x)]
    kept = [x for x in finite if abs(x) < 2.0**29]
    assert row[MIN] == min(finite, default=math.inf)
    assert row[MAX] == max(finite, default=-math.inf)
    size = math.fsum(map(abs, kept))
    assert row[SUM] == pytest.approx(math.fsum(kept), rel=0, abs=tolerance * size)
    assert row[ABS_SUM] == pytest.approx(size, rel=tolerance, abs=0)
    squares = float(sum(Fraction(x) ** 2 for x in kept))
    assert row[SUM_SQUARES] == pytest.approx(squares, rel=tolerance, abs=1e-320)
    assert row[NAN] == sum(map(math.isnan, numbers))
    assert row[POS_INF] == numbers.count(math.inf)
    assert row[NEG_INF] == numbers.count(-math.inf)
    assert row[SET_ASIDE] == len(numbers) - len(kept)
    assert row[ZERO] == numbers.count(0.0)
    assert row[SUBNORMAL] == sum(0 < abs(x) < smallest_normal for x in numbers)
    bins = [0] * EXPONENT_BINS
    for x in finite:
        if x != 0:
            bins[naive_bin(x)] += 1
    assert row[EXPONENTS : EXPONENTS + EXPONENT_BINS].tolist() == bins


def assert_compiled_equals_reference(array: np.ndarray, dtype_name: str) -> None:
    reference = summarize(array.copy(), dtype_name)
    for summarizer in (summarize_compiled, summarize_by_numba):
        assert_same_rows(summarizer(array, dtype_name), reference, rounding(summarizer, dtype_name))


def assert_same_rows(got: np.ndarray, reference: np.ndarray, relative: float) -> None:
    tolerance = relative * reference[ABS_SUM] + 1e-12 * abs(reference[SUM])
    exact = [MIN, MAX, *range(NAN, SKETCH)]
    assert got[exact].tolist() == reference[exact].tolist()
    assert got[DIGEST:].tobytes() == reference[DIGEST:].tobytes()
    np.testing.assert_allclose(got[SKETCH:DIGEST], reference[SKETCH:DIGEST], rtol=0, atol=tolerance)
    np.testing.assert_allclose(got[SUM], reference[SUM], rtol=0, atol=tolerance)
    np.testing.assert_allclose(got[[SUM_SQUARES, ABS_SUM]], reference[[SUM_SQUARES, ABS_SUM]], rtol=relative)


def bits_of(dtype_name: str, count: int, seed: int = 0) -> np.ndarray:
    """Random bits: nan, inf, subnormal and huge numbers among them."""
    dtype = DTYPES[dtype_name]
    top = 2 if dtype.kind is DtypeKind.BOOL else 256
    data = np.random.default_rng(seed).integers(0, top, count * dtype.item_size, dtype=np.uint8)
    return data.view(numpy_dtype(dtype_name))


def test_the_dtype_table_agrees_with_ml_dtypes() -> None:
    for name in FLOATS:
        known = ml_dtypes.finfo(numpy_dtype(name))  # type: ignore[no-untyped-call]
        dtype = DTYPES[name]
        assert dtype.item_size == numpy_dtype(name).itemsize
        assert dtype.smallest_normal == float(known.smallest_normal), name
        assert dtype.largest == float(known.max), name
        assert dtype.unit_roundoff == float(known.eps) / 2, name


@pytest.mark.parametrize("dtype_name", DTYPES)
def test_each_type_has_kernels_of_its_own_that_work(dtype_name: str) -> None:
    dtype = real_of(dtype_name)
    made = list(compiled._compiled_here(dtype))
    assert len(made) == 2 if shutil.which("g++") else 1
    assert all(compiled._agrees(summarizer, dtype) for summarizer in made)


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A machine that has none, on which nothing was compiled before."""

    def load() -> None:
        raise NoCompilerError("no C++ compiler was found")

    monkeypatch.setattr(compiled, "load", load)
    compiled.summarizer_of.cache_clear()
    yield
    compiled.summarizer_of.cache_clear()


def test_without_a_compiler_numba_answers(no_compiler: None) -> None:
    array = bits_of("float32", 5000)
    assert compiled.find_compiled() is not compiled.Found.NONE
    assert summarize_compiled(array, "float32").tobytes() == summarize_by_numba(array, "float32").tobytes()


def test_a_kernel_that_is_anothers_is_not_used(monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> None:
    """numba may link two cached kernels to one machine code, if their parts have one name."""
    from ulpscope.numerics.summaries import kernels

    monkeypatch.setattr(kernels, "form_and_table", lambda name: form_and_table("float16"))
    numbers, row = np.array([-2.5, 3.0], dtype=ml_dtypes.bfloat16), np.zeros(ROW_LENGTH)
    compiled.summarizer_of("bfloat16")(numbers.ctypes.data, 2, row.ctypes.data)
    assert (row[MIN], row[MAX]) == (-2.5, 3.0)


@BOTH
@settings(max_examples=60)
@given(st.lists(st.one_of(st.sampled_from(HOSTILE), st.floats()), max_size=60))
def test_float64_stats(summarizer: Summarizer, numbers: list[float]) -> None:
    row = summarizer(np.array(numbers, dtype=np.float64), "float64")
    check_floats(row, numbers, 2.0**-1022, 1e-12)


@BOTH
@pytest.mark.parametrize("dtype_name", FLOATS)
@settings(max_examples=25)
@given(data=st.data())
def test_float_stats(summarizer: Summarizer, dtype_name: str, data: st.DataObject) -> None:
    with np.errstate(over="ignore", invalid="ignore"):
        hostile = np.array(HOSTILE).astype(numpy_dtype(dtype_name))
    raw = data.draw(st.binary(max_size=40 * hostile.itemsize).filter(lambda raw: len(raw) % hostile.itemsize == 0))
    array = np.concatenate([hostile[: data.draw(st.integers(0, len(hostile)))], np.frombuffer(raw, hostile.dtype)])
    with np.errstate(invalid="ignore"):
        numbers = array.astype(np.float64).tolist()
    tolerance = rounding(summarizer, dtype_name)
    check_floats(summarizer(array, dtype_name), numbers, DTYPES[dtype_name].smallest_normal, tolerance)


@BOTH
@pytest.mark.parametrize("dtype_name", INTEGERS)
def test_integer_stats(summarizer: Summarizer, dtype_name: str) -> None:
    limits = np.iinfo(dtype_name)
    array = np.array([limits.min, limits.max, 0, 0, 1, 5], dtype=dtype_name)
    row = summarizer(array, dtype_name)
    assert (row[MIN], row[MAX], row[ZERO]) == (float(limits.min), float(limits.max), 2 + (limits.min == 0))
    assert row[SUM] == pytest.approx(float(limits.min + limits.max + 6), rel=0, abs=1e-15 * float(limits.max) + 0.0)
    others = [SUM_SQUARES, ABS_SUM, NAN, POS_INF, NEG_INF, SET_ASIDE, SUBNORMAL, *range(EXPONENTS, DIGEST)]
    assert not row[others].any()


@BOTH
def test_bool_stats(summarizer: Summarizer) -> None:
    row = summarizer(np.array([True, False, True, True]), "bool")
    assert (row[MIN], row[MAX], row[SUM], row[ZERO]) == (0.0, 1.0, 3.0, 1.0)


@BOTH
@pytest.mark.parametrize("dtype_name", [name for name in DTYPES if name != "complex32"])
def test_an_empty_value_has_no_range_and_no_counts(summarizer: Summarizer, dtype_name: str) -> None:
    row = summarizer(np.zeros((0, 3), dtype=numpy_dtype(dtype_name)), dtype_name)
    assert (row[MIN], row[MAX]) == (math.inf, -math.inf)
    assert not row[SUM:].any()


@BOTH
@pytest.mark.parametrize("scale", [1e-38, 1e-25, 1e-18, 1e-13, 1e-12, 1e-11])
def test_tiny_numbers_have_a_norm(summarizer: Summarizer, scale: float) -> None:
    array = np.full(5000, scale, dtype=np.float32)
    array[::2] *= np.float32(1e-4)
    exact = math.fsum(np.square(array.astype(np.float64)))
    assert summarizer(array, "float32")[SUM_SQUARES] == pytest.approx(exact, rel=4e-7)


@BOTH
def test_long_sums_stay_exact(summarizer: Summarizer) -> None:
    array = np.full(1_000_003, 0.1, dtype=np.float32)
    row = summarizer(array, "float32")
    assert row[SUM] == pytest.approx(1_000_003 * float(np.float32(0.1)), rel=1e-7)


@pytest.mark.parametrize("dtype_name", ["float32", "bfloat16"])
def test_float32_sums_of_a_block_are_as_good_as_what_a_trace_stores(dtype_name: str) -> None:
    numbers = np.random.default_rng(4).standard_normal(200_000) + 1.0
    array = numbers.astype(numpy_dtype(dtype_name))
    got, reference = summarize_compiled(array, dtype_name), summarize(array, dtype_name)
    norm = math.sqrt(reference[SUM_SQUARES])
    assert np.linalg.norm(got[SKETCH:DIGEST] - reference[SKETCH:DIGEST]) < 1e-7 * norm
    np.testing.assert_allclose(got[[SUM_SQUARES, ABS_SUM]], reference[[SUM_SQUARES, ABS_SUM]], rtol=2e-8)


@pytest.mark.parametrize("count", [1, 121, 122, 123, 1951, 1952, 1953, 1957, 1958, 3904, 3911, 50_000])
@pytest.mark.parametrize("dtype_name", [name for name in DTYPES if name != "complex32"])
def test_compiled_equals_reference(dtype_name: str, count: int) -> None:
    assert_compiled_equals_reference(bits_of(dtype_name, count), dtype_name)


@pytest.mark.parametrize("dtype_name", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1e-12, 1.0, 1e8, 1e9, 1e35])
def test_compiled_equals_reference_at_every_scale(dtype_name: str, scale: float) -> None:
    numbers = np.random.default_rng(3).standard_normal(5000) * scale
    with np.errstate(over="ignore"):
        wild = [numbers, np.abs(numbers), -np.abs(numbers), np.where(np.arange(5000) % 7, numbers, -0.0)]
        for case in wild:
            assert_compiled_equals_reference(case.astype(numpy_dtype(dtype_name)), dtype_name)


@pytest.mark.parametrize("dtype_name", ["float64", "float32", "bfloat16"])
def test_compiled_equals_reference_where_blocks_differ(dtype_name: str) -> None:
    """Each block its own scale and its own oddity, so that nothing of one block leaks into the next."""
    blocks = np.random.default_rng(8).standard_normal((8, 1952)) * 10.0 ** np.arange(-32, 0, 4)[:, None]
    blocks[1, 5:8] = [math.nan, math.inf, -math.inf]
    blocks[3] = 0.0
    blocks[4, ::3] = 2.0**30
    blocks[6] = -1.0
    for rows in (blocks, blocks[::-1]):
        assert_compiled_equals_reference(rows.reshape(-1).astype(numpy_dtype(dtype_name)), dtype_name)


def test_values_without_a_finite_number() -> None:
    for array in (np.full(3000, math.nan), np.full(3000, -math.inf), np.array([math.inf, math.nan] * 1500)):
        assert_compiled_equals_reference(array.astype(np.float32), "float32")


def test_half_complex_is_summarised_by_its_parts() -> None:
    parts = np.arange(10, dtype=np.float16)
    row = summarize_compiled(parts, "complex32")
    assert_same_rows(row, summarize(parts, "float16"), 4e-7)
    elements = parts.view([("real", np.float16), ("imag", np.float16)])
    assert_same_rows(summarize(elements, "complex32"), summarize(parts, "float16"), 0)
    assert flat_elements(elements[::2], DTYPES["complex32"]).tolist() == [0, 1, 4, 5, 8, 9]


@pytest.mark.parametrize("offset", [1, 2, 4, 6])
@pytest.mark.parametrize("dtype_name", ["float64", "float32", "bfloat16", "int16", "int8"])
def test_unaligned_and_read_only_memory(dtype_name: str, offset: int) -> None:
    data = np.random.default_rng(0).integers(0, 256, 8 * 6000 + 8, dtype=np.uint8)
    odd = data[offset : offset + 6000 * DTYPES[dtype_name].item_size].view(numpy_dtype(dtype_name))
    odd.setflags(write=False)
    assert_compiled_equals_reference(odd, dtype_name)


def test_nothing_behind_a_value_is_read() -> None:
    """Whatever lies behind the last element, in the same row of a block or in the next one."""
    memory = np.random.default_rng(1).standard_normal(6000).astype(np.float32)
    for count in (1, 100, 1952, 1953, 3904, 4000):
        before = summarize_compiled(memory[:count], "float32").tobytes()
        noisy = memory.copy()
        noisy[count:] = math.nan
        assert summarize_compiled(noisy[:count], "float32").tobytes() == before


def test_threads_do_not_disturb_each_other() -> None:
    arrays = [np.random.default_rng(seed).standard_normal(200_000).astype(np.float32) for seed in range(4)]
    expected = [summarize_compiled(array, "float32").tobytes() for array in arrays]
    got: list[list[bytes]] = [[] for _ in arrays]

    def work(index: int) -> None:
        for _ in range(20):
            got[index].append(summarize_compiled(arrays[index], "float32").tobytes())

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(arrays))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [[row] * 20 for row in expected]


def test_without_numba_the_reference_answers(monkeypatch: pytest.MonkeyPatch, no_compiler: None) -> None:
    monkeypatch.setattr(compiled, "_kernels", lambda: None)
    array = bits_of("bfloat16", 2000)
    assert summarize_compiled(array, "bfloat16").tobytes() == summarize(array, "bfloat16").tobytes()


def columns_of(array: np.ndarray, dtype_name: str) -> dict[str, object]:
    rows = summarize(array, dtype_name)[None]
    columns = rows_to_columns(rows, dtype_names=[dtype_name], shapes=[array.shape])
    return {name: column.values[0].tolist() if column.valid[0] else None for name, column in columns.items()}


def test_columns_of_a_float_value() -> None:
    array = np.array([[1.0, -3.0, 0.0], [math.nan, math.inf, 2.0**29]], dtype=np.float32)
    columns = columns_of(array, "float32")
    assert (columns["min"], columns["max"]) == (-3.0, 2.0**29)
    assert columns["mean"] == pytest.approx(-2 / 3)
    assert columns["norm"] == pytest.approx(math.sqrt(10))
    assert (columns["abs_sum"], columns["zero"], columns["subnormal"]) == (4.0, 1, 0)
    assert (columns["nan"], columns["pos_inf"], columns["neg_inf"], columns["set_aside"]) == (1, 1, 0, 3)


def test_columns_of_an_integer_value_are_null_where_undefined() -> None:
    columns = columns_of(np.array([0, 2, 7]), "int64")
    assert (columns["min"], columns["max"], columns["mean"], columns["zero"]) == (0.0, 7.0, 3.0, 1)
    nulls = ("norm", "abs_sum", "nan", "pos_inf", "neg_inf", "set_aside", "subnormal", "exponents", "sketch")
    assert {name: columns[name] for name in nulls} == dict.fromkeys(nulls)
    assert columns["sketch_rest"] is None
    assert columns["digest"] is not None


def test_the_sketch_of_doubles_is_stored_whole() -> None:
    array = np.random.default_rng(5).normal(size=3000)
    columns = columns_of(array, "float64")
    whole = np.add(columns["sketch"], columns["sketch_rest"])  # type: ignore[arg-type]
    assert whole.tolist() == summarize(array, "float64")[SKETCH:DIGEST].tolist()
    assert columns_of(array.astype(np.float32), "float32")["sketch_rest"] is None


@pytest.mark.parametrize("dtype_name", ["float32", "int64"])
def test_columns_of_an_empty_value(dtype_name: str) -> None:
    columns = columns_of(np.zeros((0, 4), dtype=dtype_name), dtype_name)
    assert (columns["min"], columns["max"], columns["mean"], columns["zero"]) == (None, None, None, 0)


def test_columns_without_finite_elements() -> None:
    columns = columns_of(np.array([math.nan, -math.inf], dtype=np.float16), "float16")
    assert (columns["min"], columns["max"], columns["mean"]) == (None, None, None)
    assert (columns["norm"], columns["neg_inf"], columns["set_aside"]) == (0.0, 1, 2)


def test_a_complex_mean_counts_both_parts() -> None:
    assert columns_of(np.array([1 + 3j, 5 + 7j], dtype=np.complex64), "complex64")["mean"] == 4.0


@pytest.mark.parametrize("dtype_name", ["float32", "int16", "complex128"])
def test_stats_say_what_columns_say(dtype_name: str) -> None:
    array = np.array([3, 0, -1, 4]).astype(dtype_name)
    stats = stats_from_row(summarize(array, dtype_name), dtype_name, array.shape)
    columns = columns_of(array, dtype_name)
    for name in ("min", "max", "mean", "norm", "abs_sum", "zero"):
        assert getattr(stats, name) == columns[name]
    for name in ("nan", "pos_inf", "neg_inf", "set_aside", "subnormal"):
        assert getattr(stats, name) == (columns[name] or 0)
    assert list(stats.exponents) == (columns["exponents"] or [])
