"""Pickles as plain structures: what pickle would make of plain values, and nothing of what it would call."""

import argparse
import collections
import pickle
import pickletools
from pathlib import Path
from typing import Any

import pytest

from ulpscope.dialects.files.pickles import Made, Named, PickleError, leaves, opened, read_pickle

SHARED = [1, 2]
PLAIN: list[Any] = [
    None, True, 3, -(2**70), 1.5, "text", "é\n", b"bytes", bytearray(b"more"), [], [1, [2]], (), (1,), (1, 2, 3, 4),
    {}, {"a": 1, 2: [3]}, {1, 2}, frozenset((1, 2)), [SHARED, SHARED],
]  # fmt: skip


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_values_are_what_pickle_makes_of_them(protocol: int) -> None:
    for value in PLAIN:
        found = read_pickle(pickle.dumps(value, protocol))
        if not isinstance(found, Made):  # sets and bytes of old protocols are made by a call
            assert found == value
        else:
            assert protocol < 5


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_what_it_would_call_is_named(tmp_path: Path, protocol: int) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "fired",)

    found = read_pickle(pickle.dumps({"x": Bomb()}, protocol))["x"]
    assert isinstance(found, Made)
    assert not (tmp_path / "fired").exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_known_containers_are_opened(protocol: int) -> None:
    content = {
        "ordered": collections.OrderedDict(a=1, b=2.5),
        "counted": collections.defaultdict(list, c=3),
        "args": argparse.Namespace(lr=0.1),
    }
    found = dict(leaves(read_pickle(pickle.dumps(content, protocol))))
    assert found.pop("counted.c") == 3
    assert found == {"ordered.a": 1, "ordered.b": 2.5, "args.lr": 0.1}


def test_a_class_is_not_looked_up() -> None:
    assert read_pickle(b"cno.such.module\nClass\n.") == Named("no.such.module.Class")
    made = read_pickle(b"cno\nClass\n(I1\ntR(dS'a'\nI2\nsb.")
    assert (made.name, made.arguments, made.state) == ("no.Class", (1,), {"a": 2})
    assert opened(made) is made


@pytest.mark.parametrize(
    "content",
    [b"", b"(", b"I1\n", b"\x80\x02]", b"a.", b"0.", b"}U\x01ar.", b"h\x05.", b"\x82\x01.", b"}]I1\ns.", b"not one"],
)
def test_a_damaged_one_is_refused(content: bytes) -> None:
    with pytest.raises(PickleError):
        read_pickle(content)


def test_every_cut_of_one_is_refused() -> None:
    whole = pickle.dumps({"a": [1, 2.0, ("x", None)], "b": collections.OrderedDict(c=1)})
    for length in range(len(whole)):
        with pytest.raises(PickleError):
            read_pickle(whole[:length])


def test_what_holds_itself_has_no_end() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(PickleError, match="hold themselves"):
        list(leaves(read_pickle(pickle.dumps(endless))))


def test_every_instruction_is_followed_or_refused() -> None:
    """A new one of a later Python must not be skipped in silence."""
    for opcode in pickletools.opcodes:
        if opcode.name in ("EXT1", "EXT2", "EXT4", "NEXT_BUFFER", "READONLY_BUFFER"):
            content = opcode.code.encode("latin-1") + b"\x01\0\0\0."
            with pytest.raises(PickleError, match="which no file of tensors needs"):
                read_pickle(content)


MEGABYTE = b"X" + (10**6).to_bytes(4, "little") + b"k" * 10**6
TWICE = b"2\x86"
"""A tuple of what lies on top, twice: sixty of these in a row hold more than any memory."""


@pytest.mark.parametrize(
    "body",
    [
        b"})" + TWICE * 60 + b"K\x01s.",
        b"})" + b"\x85" * 10**6 + b"K\x01s.",
        b"ccollections\nOrderedDict\n]]()" + TWICE * 60 + b"K\x01eaa\x85R.",
        b"\x8f()" + TWICE * 60 + b"\x90.",
        b"()" + TWICE * 60 + b"\x91.",
        b"]" + TWICE * 60 + b".",
        b"}" + MEGABYTE + b"](" + b"K\x01" * 20_000 + b"es.",
        b"](" + b"N" * 1000 + b"eq\x00cno\nClass\nq\x01" + b"(" + b"h\x01h\x00R" * 1000 + b"l.",
        b"(" + MEGABYTE + b"q\x00" + b"h\x00h\x00\x93" * 1000 + b"l.",
        b"}cno\nClass\n)" + TWICE * 60 + b"\x85RK\x01s.",
    ],
)
def test_parts_that_stand_for_each_other_fill_neither_time_nor_memory(body: bytes) -> None:
    try:
        found = list(leaves(read_pickle(b"\x80\x04" + body)))
    except PickleError:
        return
    assert found == [("no.Class[0]", 1)]  # a key of which nothing is told but its name


def test_keys_are_told_as_they_are_written() -> None:
    keys = ["a", 1, ("a", 1), (2,), None, True, frozenset((1,))]
    found = read_pickle(pickle.dumps(dict.fromkeys(keys, 0.5), 2))
    places = [place for place, _ in leaves(found)]
    assert places[:3] == ["a", "1", "('a', 1)"]
    assert len(set(places)) == len(found)
