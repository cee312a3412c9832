"""Device layouts: where each element must lie, by the definition of the layout; and back."""

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from ulpscope.numerics.layouts import Block, Conversion, convert_layout, plain_layouts
from ulpscope.records.errors import UlpscopeError

sizes = st.integers(1, 20)
blocks = st.sampled_from([4, 8, 16])


def numbered(*shape: int) -> NDArray[np.int64]:
    """No element is zero, so that padding is told from them."""
    return np.arange(1, 1 + int(np.prod(shape))).reshape(shape)


def tiles_of(length: int, block: int) -> int:
    return (length + block - 1) // block


def fractal_z(weight: NDArray[Any], groups: int, c0: int, n0: int) -> NDArray[Any]:
    """Element by element: the definition that CANN's group convolution documents."""
    filters, channels, height, width = weight.shape
    per_group = filters // groups
    shared = min(np.lcm(np.lcm(channels, c0) // channels, np.lcm(per_group, n0) // per_group), groups)
    c1, n1 = tiles_of(shared * channels, c0), tiles_of(shared * per_group, n0)
    tiles = np.zeros((tiles_of(groups, shared) * c1 * height * width, n1, n0, c0), weight.dtype)
    for n, c, y, x in np.ndindex(weight.shape):
        group, filter_of_group = divmod(n, per_group)
        at_c = group % shared * channels + c
        at_n = group % shared * per_group + filter_of_group
        first = (group // shared) * c1 * height * width + at_c // c0 * height * width + y * width + x
        tiles[first, at_n // n0, at_n % n0, at_c % c0] = weight[n, c, y, x]
    return tiles


@given(n=st.integers(1, 3), c=sizes, h=st.integers(1, 4), w=st.integers(1, 4), c0=blocks)
def test_nc1hwc0_has_each_channel_in_its_tile(n: int, c: int, h: int, w: int, c0: int) -> None:
    picture = numbered(n, c, h, w)
    expected = np.zeros((n, tiles_of(c, c0), h, w, c0), picture.dtype)
    for i, k, y, x in np.ndindex(picture.shape):
        expected[i, k // c0, y, x, k % c0] = picture[i, k, y, x]
    tiles = convert_layout(picture, Conversion("NCHW", "NC1HWC0", block=Block(c0=c0)))
    np.testing.assert_array_equal(tiles, expected)
    for layout, order in (("NCHW", "nchw"), ("NHWC", "nhwc"), ("HWCN", "hwcn"), ("CHWN", "chwn")):
        plain = np.einsum(f"nchw->{order}", picture)
        found = convert_layout(tiles, Conversion("NC1HWC0", layout, plain.shape))
        np.testing.assert_array_equal(found, plain)
        assert layout in plain_layouts("NC1HWC0", tiles.shape, plain.shape)


@given(lead=st.lists(st.integers(1, 3), max_size=2), m=sizes, k=sizes, m0=blocks, k0=blocks)
def test_fractal_nz_has_each_element_in_its_tile(lead: list[int], m: int, k: int, m0: int, k0: int) -> None:
    matrix = numbered(*lead, m, k)
    expected = np.zeros((*lead, tiles_of(k, k0), tiles_of(m, m0), m0, k0), matrix.dtype)
    for *rest, i, j in np.ndindex(matrix.shape):
        expected[(*rest, j // k0, i // m0, i % m0, j % k0)] = matrix[(*rest, i, j)]
    tiles = convert_layout(matrix, Conversion("ND", "FRACTAL_NZ", block=Block(c0=k0, n0=m0)))
    np.testing.assert_array_equal(tiles, expected)
    np.testing.assert_array_equal(convert_layout(tiles, Conversion("FRACTAL_NZ", "ND", matrix.shape)), matrix)


def test_a_vector_is_one_row_of_fractal_nz() -> None:
    tiles = convert_layout(numbered(40), Conversion("ND", "FRACTAL_NZ"))
    assert tiles.shape == (3, 1, 16, 16)
    np.testing.assert_array_equal(convert_layout(tiles, Conversion("FRACTAL_NZ", "ND", (40,))), numbered(40))


@given(n=sizes, c=sizes, h=st.integers(1, 3), w=st.integers(1, 3), c0=blocks, n0=blocks)
def test_fractal_z_has_each_weight_in_its_tile(n: int, c: int, h: int, w: int, c0: int, n0: int) -> None:
    weight = numbered(n, c, h, w)
    tiles = convert_layout(weight, Conversion("NCHW", "FRACTAL_Z", block=Block(c0=c0, n0=n0)))
    np.testing.assert_array_equal(tiles, fractal_z(weight, 1, c0, n0))
    for layout, order in (("NCHW", "nchw"), ("HWCN", "hwcn"), ("NHWC", "nhwc")):
        plain = np.einsum(f"nchw->{order}", weight)
        np.testing.assert_array_equal(convert_layout(tiles, Conversion("FRACTAL_Z", layout, plain.shape)), plain)


@pytest.mark.parametrize(
    ("filters", "channels", "groups", "shared"),
    [(8, 3, 4, 4), (32, 1, 32, 16), (48, 16, 3, 1), (40, 2, 20, 8), (12, 5, 3, 3), (6, 4, 2, 2)],
)
def test_fractal_z_in_groups(filters: int, channels: int, groups: int, shared: int) -> None:
    weight = numbered(filters, channels, 3, 2)
    expected = fractal_z(weight, groups, 16, 16)
    # Worked out by hand: lcm(lcm(c, 16)/c, lcm(n/g, 16)/(n/g)), at most the groups.
    assert expected.shape[0] == -(-groups // shared) * -(-shared * channels // 16) * 6
    tiles = convert_layout(weight, Conversion("NCHW", "FRACTAL_Z", groups=groups))
    np.testing.assert_array_equal(tiles, expected)
    assert np.count_nonzero(tiles) == weight.size
    hwcn = weight.transpose(2, 3, 1, 0)
    found = convert_layout(tiles, Conversion("FRACTAL_Z", "HWCN", hwcn.shape, groups=groups))
    np.testing.assert_array_equal(found, hwcn)
    assert "HWCN" in plain_layouts("FRACTAL_Z", tiles.shape, hwcn.shape, groups=groups)


@given(n=st.integers(1, 18), c=sizes, d=st.integers(1, 3), h=st.integers(1, 3), w=st.integers(1, 3))
def test_volumes(n: int, c: int, d: int, h: int, w: int) -> None:
    volume = numbered(n, c, d, h, w)
    tiles = convert_layout(volume, Conversion("NCDHW", "NDC1HWC0"))
    weights = convert_layout(volume, Conversion("NCDHW", "FRACTAL_Z_3D"))
    c1 = tiles_of(c, 16)
    for i, k, z, y, x in np.ndindex(volume.shape):
        assert tiles[i, z, k // 16, y, x, k % 16] == volume[i, k, z, y, x]
        assert weights[((z * c1 + k // 16) * h + y) * w + x, i // 16, i % 16, k % 16] == volume[i, k, z, y, x]
    ndhwc = volume.transpose(0, 2, 3, 4, 1)
    np.testing.assert_array_equal(convert_layout(tiles, Conversion("NDC1HWC0", "NDHWC", ndhwc.shape)), ndhwc)
    np.testing.assert_array_equal(convert_layout(weights, Conversion("FRACTAL_Z_3D", "NDHWC", ndhwc.shape)), ndhwc)


def test_volumes_in_groups_are_refused_and_not_guessed() -> None:
    """8 filters of 4 channels in 2 groups take as many tiles as 8 filters of 8 channels, but lie otherwise."""
    tiles, shape = np.zeros((1, 1, 16, 16)), (8, 4, 1, 1, 1)
    assert plain_layouts("FRACTAL_Z_3D", tiles.shape, shape) == ["NCDHW"]
    assert plain_layouts("FRACTAL_Z_3D", tiles.shape, shape, groups=2) == []
    for source, target, array in (("FRACTAL_Z_3D", "NCDHW", tiles), ("NCDHW", "FRACTAL_Z_3D", np.zeros(shape))):
        with pytest.raises(UlpscopeError, match="FRACTAL_Z_3D of 2 groups is not known"):
            convert_layout(array, Conversion(source, target, groups=2))


def test_plain_layouts_are_permutations() -> None:
    picture = numbered(2, 3, 4, 5)
    for source, target in itertools.permutations(("NCHW", "NHWC", "HWCN", "CHWN"), 2):
        expected = np.einsum(f"{source.lower()}->{target.lower()}", picture)
        np.testing.assert_array_equal(convert_layout(picture, Conversion(source, target)), expected)


def test_padding_is_kept_if_no_shape_is_known() -> None:
    tiles = convert_layout(numbered(1, 2, 1, 1), Conversion("NCHW", "NC1HWC0"))
    assert convert_layout(tiles, Conversion("NC1HWC0", "NHWC")).shape == (1, 1, 1, 16)


def test_which_layouts_a_shape_can_be_in() -> None:
    assert plain_layouts("NC1HWC0", (2, 1, 12, 12, 16), (2, 12, 12, 6)) == ["NHWC"]
    assert plain_layouts("NC1HWC0", (2, 1, 12, 12, 16), (2, 6, 12, 12)) == ["NCHW"]
    assert plain_layouts("NC1HWC0", (2, 1, 12, 12, 16), (2, 12, 12, 12)) == ["NCHW", "NHWC"]
    assert plain_layouts("NC1HWC0", (2, 2, 12, 12, 16), (2, 12, 12, 12)) == [], "the second tile would be empty"
    assert plain_layouts("FRACTAL_NZ", (3, 1, 16, 16), (2, 40)) == ["ND"]
    assert plain_layouts("FRACTAL_NZ", (3, 1, 16, 16), (2, 32)) == [], "the third tile would be empty"
    assert plain_layouts("FRACTAL_NZ", (3, 1, 16, 16), (2, 2, 40)) == []
    assert plain_layouts("ND", (2, 40), (2, 40)) == []


@pytest.mark.parametrize(
    ("shape", "wanted", "told"),
    [
        ((3, 1, 16, 16), Conversion("FRACTAL_NZ", "ND", (2, 32)), "FRACTAL_NZ [3, 1, 16, 16] as ND [2, 32]"),
        ((3, 16), Conversion("FRACTAL_NZ", "ND", (2, 40)), "at least 4 axes"),
        ((2, 1, 4, 16), Conversion("NC1HWC0", "NCHW", (2, 6, 4, 4)), "NC1HWC0 has 5 axes, the tensor is [2, 1, 4, 16]"),
        ((2, 1, 4, 4, 16), Conversion("NC1HWC0", "NCHW", (2, 17, 4, 4)), "as NCHW [2, 17, 4, 4]"),
        # A shape that would cut off more than padding.
        (
            (2, 1, 4, 4, 16),
            Conversion("NC1HWC0", "NHWC", (2, 3, 4, 6)),
            "NC1HWC0 [2, 1, 4, 4, 16] as NHWC [2, 3, 4, 6]",
        ),
        ((2, 2, 4, 4, 16), Conversion("NC1HWC0", "NCHW", (2, 16, 4, 4)), "as NCHW [2, 16, 4, 4]"),
        ((9, 2, 16, 16), Conversion("FRACTAL_Z", "HWCN", (3, 3, 6, 16)), "as HWCN [3, 3, 6, 16]"),
        ((2, 3, 4, 5), Conversion("NCHW", "NHWC", (2, 4, 5, 2)), "is NHWC [2, 4, 5, 3], not [2, 4, 5, 2]"),
        ((25, 1, 16, 16), Conversion("FRACTAL_Z", "HWCN", (3, 5, 1, 6)), "FRACTAL_Z [25, 1, 16, 16] as HWCN [3,"),
        ((25, 1, 16, 16), Conversion("FRACTAL_Z", "HWCN"), "without a shape"),
        ((25, 1, 16, 16), Conversion("FRACTAL_Z", "HWCN", (0, 5, 1, 6)), "as HWCN [0, 5, 1, 6]"),
        ((6, 1, 16, 16), Conversion("FRACTAL_Z", "NCHW", (7, 3, 3, 2), groups=4), "of 4 groups as NCHW [7, 3, 3, 2]"),
        ((7, 3, 3, 2), Conversion("NCHW", "FRACTAL_Z", groups=4), "7 filters in 4 groups"),
        ((2, 3), Conversion("NCHW", "NHWC"), "NCHW has 4 axes"),
        ((), Conversion("ND", "FRACTAL_NZ"), "a scalar"),
        ((2, 3), Conversion("ND", "YUV"), "no way from ND to YUV"),
        ((2, 1, 4, 4, 16), Conversion("NC1HWC0", "NCDHW"), "no way from NC1HWC0 to NCDHW"),
    ],
)
def test_what_does_not_fit_is_refused(shape: tuple[int, ...], wanted: Conversion, told: str) -> None:
    with pytest.raises(UlpscopeError) as caught:
        convert_layout(np.zeros(shape), wanted)
    assert told in caught.value.seen
    assert caught.value.expected
    assert "--" in caught.value.next_step or "layout" in caught.value.next_step


def test_a_converter_of_the_users_own_comes_first() -> None:
    own = {("YUV", "NCHW"): lambda array, wanted: array.reshape(wanted.shape) + 1}
    found = convert_layout(np.zeros(4), Conversion("YUV", "NCHW", (1, 1, 2, 2)), own)
    np.testing.assert_array_equal(found, np.ones((1, 1, 2, 2)))
