"""What a page carries: packed columns, read back here by their own rules."""

import base64
import gzip
import json
import math
import re
import struct
from typing import Any

import numpy as np
import polars as pl

from ulpscope.report.page import Content, assemble, pack


def unpacked(text: str) -> tuple[dict[str, Any], bytes]:
    raw = gzip.decompress(base64.b64decode(text))
    (length,) = struct.unpack("<I", raw[:4])
    begin = math.ceil((4 + length) / 8) * 8
    return json.loads(raw[4 : 4 + length]), raw[begin:]


def numbers(data: bytes, column: dict[str, Any], length: int) -> np.ndarray[Any, Any]:
    dtype = np.dtype("int32" if column["type"] == "words" else column["type"])
    planes = np.frombuffer(data, np.uint8, length * dtype.itemsize, column["begin"])
    return np.ascontiguousarray(planes.reshape(dtype.itemsize, length).T).view(dtype)[:, 0]


def packed_column(column: pl.Series) -> tuple[dict[str, Any], list[Any]]:
    header, data = unpacked(pack(Content({}, {"one": column.to_frame("name")})))
    table = header["tables"]["one"]
    assert table["length"] == len(column)
    found = table["columns"]["name"]
    return found, [] if found["type"] == "empty" else numbers(data, found, len(column)).tolist()


def test_meta_comes_back_as_it_was() -> None:
    meta = {"kind": "compare", "text": "误差 </script>\u2028\ud800", "list": [1, None]}
    assert unpacked(pack(Content(meta, {})))[0]["meta"] == meta


def test_whole_numbers() -> None:
    found, values = packed_column(pl.Series([3, -7, 2**31 - 1]))
    assert (found["type"], values) == ("int32", [3, -7, 2**31 - 1])


def test_large_whole_numbers_stay_whole() -> None:
    found, values = packed_column(pl.Series([2**40, 1]))
    assert (found["type"], values) == ("float64", [2**40, 1])


def test_a_missing_whole_number_is_nan() -> None:
    _, values = packed_column(pl.Series([1, None, 2]))
    assert values[0] == 1
    assert math.isnan(values[1])


def test_floats_are_as_fine_as_shown() -> None:
    found, values = packed_column(pl.Series([0.1, None, math.inf]))
    assert found["type"] == "float32"
    assert values[0] == np.float32(0.1)
    assert math.isnan(values[1])
    assert values[2] == math.inf


def test_floats_that_float32_would_lose_are_kept_wide() -> None:
    assert packed_column(pl.Series([1e-60, 1.0]))[0]["type"] == "float64"
    assert packed_column(pl.Series([1e300, 1.0]))[0]["type"] == "float64"


def test_words_are_kept_once() -> None:
    found, codes = packed_column(pl.Series(["b", None, "a", "b"]))
    assert found["words"] == ["b", "a"]
    assert codes == [0, -1, 1, 0]


def test_shapes_are_words() -> None:
    found, codes = packed_column(pl.Series([[2, 12], [], [2, 12]], dtype=pl.List(pl.Int64)))
    assert [found["words"][code] for code in codes] == ["[2, 12]", "[]", "[2, 12]"]


def test_a_column_of_nothing_takes_no_room() -> None:
    assert packed_column(pl.Series([None, None], dtype=pl.Float64))[0] == {"type": "empty"}


def test_the_same_content_gives_the_same_text() -> None:
    content = Content({"kind": "compare"}, {"one": pl.DataFrame({"a": [1.5, 2.5]})})
    assert pack(content) == pack(content)


def test_names_do_not_leave_their_place_in_the_page() -> None:
    name = "</script><script>hit()</script>{{content}}<!--"
    page = assemble(Content({"kind": "compare", "name": name}, {}), title=name)
    assert "hit()" not in page.replace("&lt;script&gt;hit()&lt;/script&gt;", "")
    assert page.count("<script") == page.count("</script>") == 7


def test_a_page_may_ask_for_nothing_a_served_one_its_server() -> None:
    policy = re.compile(r'Content-Security-Policy" content="([^"]+)"')
    content = Content({"kind": "compare"}, {})
    alone = policy.search(assemble(content, title="t"))
    served = policy.search(assemble(content, title="t", served=True))
    assert alone is not None
    assert served is not None
    assert "connect-src 'none'" in alone[1]
    assert "connect-src 'self'" in served[1]
    for found in (alone[1], served[1]):
        assert found.startswith("default-src 'none'")
        assert "http" not in found
