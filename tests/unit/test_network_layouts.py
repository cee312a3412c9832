"""Tensors of a device laid out as their partners are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes, tiled
from ulpscope.align.network.pairs import Stated, comparable_form, in_form, is_flat
from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.dump_file.records import DumpTensor


def dumped(folder: Path, tensor: Tensor) -> DumpTensor:
    path = folder / f"Relu.a.1.0.{FIRST_TIME}"
    path.write_bytes(file_bytes("a", outputs=[tensor]))
    return read_dump(path).outputs[0]


def numbers(*shape: int) -> NDArray[Any]:
    return np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape)


def five_axes(nhwc: NDArray[Any]) -> NDArray[Any]:
    n, h, w, c = nhwc.shape
    padded = np.zeros((n, h, w, -(-c // 16) * 16), nhwc.dtype)
    padded[..., :c] = nhwc
    return padded.reshape(n, h, w, -1, 16).transpose(0, 3, 1, 2, 4)


def test_tiles_become_the_order_that_the_graph_states(tmp_path: Path) -> None:
    nhwc = numbers(2, 6, 6, 6)
    tensor = dumped(tmp_path, Tensor(five_axes(nhwc), "NC1HWC0", (2, 6, 6, 6)))
    form = comparable_form(tensor, Stated("NHWC"), (2, 6, 6, 6))

    assert form.layout == "NHWC"
    assert np.array_equal(in_form(tensor, form), nhwc)


def test_a_reference_of_another_framework_has_another_order(tmp_path: Path) -> None:
    """The graph says NHWC, the reference was made by a network with pictures as NCHW."""
    nhwc = numbers(2, 5, 7, 3)
    tensor = dumped(tmp_path, Tensor(five_axes(nhwc), "NC1HWC0", (2, 5, 7, 3)))
    form = comparable_form(tensor, Stated("NHWC", (2, 5, 7, 3)), (2, 3, 5, 7))

    assert np.array_equal(in_form(tensor, form), nhwc.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(("stated", "partner"), [("NCHW", (2, 3, 5, 7)), (None, (2, 3, 5, 7)), ("NHWC", (2, 3, 5, 7))])
def test_plain_pictures_are_put_in_the_order_of_their_partner(
    tmp_path: Path, stated: str | None, partner: tuple[int, ...]
) -> None:
    nhwc = numbers(2, 5, 7, 3)
    tensor = dumped(tmp_path, Tensor(nhwc, "NHWC", (2, 5, 7, 3)))
    form = comparable_form(tensor, Stated(stated), partner)

    assert np.array_equal(in_form(tensor, form), nhwc.transpose(0, 3, 1, 2))


def test_a_partner_of_other_size_is_not_cut_out_of_the_tiles(tmp_path: Path) -> None:
    matrix = numbers(2, 10)
    padded = np.zeros((16, 16), np.float32)
    padded[:2, :10] = matrix
    tensor = dumped(tmp_path, Tensor(tiled(padded), "FRACTAL_NZ", (2, 10)))

    assert comparable_form(tensor, Stated("ND", (2, 10)), (1,)).shape == (2, 10)
    assert np.array_equal(in_form(tensor, comparable_form(tensor, Stated(), (20,))).reshape(2, 10), matrix)


def test_without_an_original_shape_the_graph_states_it(tmp_path: Path) -> None:
    matrix = numbers(20, 40)
    padded = np.zeros((32, 48), np.float32)
    padded[:20, :40] = matrix
    tensor = dumped(tmp_path, Tensor(tiled(padded), "FRACTAL_NZ"))

    assert np.array_equal(in_form(tensor, comparable_form(tensor, Stated("ND", (20, 40)))), matrix)


def test_what_msaccucmp_tells_in_one_row(tmp_path: Path) -> None:
    flat = dumped(tmp_path, Tensor(numbers(2, 10), "ND"))
    assert is_flat(flat, comparable_form(flat, Stated("ND"), (2, 10)))
    picture = dumped(tmp_path, Tensor(numbers(2, 5, 7, 3), "NHWC"))
    assert not is_flat(picture, comparable_form(picture, Stated("NHWC"), (2, 5, 7, 3)))
    bias = dumped(tmp_path, Tensor(numbers(6), "NHWC"))
    assert is_flat(bias, comparable_form(bias, Stated("NHWC"), (6,)))
