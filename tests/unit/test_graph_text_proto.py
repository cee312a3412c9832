"""Protobuf's text format, read without a schema."""

import math

import pytest

from ulpscope.dialects.graphs.messages import DEEPEST, GraphFileError, Message
from ulpscope.dialects.graphs.text_proto import parse_text


def parse(text: str) -> Message:
    return parse_text(text, {})


def test_scalars_of_every_kind() -> None:
    message = parse('a: "text" b: -12 c: 1.5e3 d: true e: DT_FLOAT f: 0x1F g: -inf h: 2.5f i: false j: 0')
    assert message == {
        "a": ["text"],
        "b": [-12],
        "c": [1500.0],
        "d": [True],
        "e": ["DT_FLOAT"],
        "f": [31],
        "g": [-math.inf],
        "h": [2.5],
        "i": [False],
        "j": [0],
    }
    assert math.isnan(parse("x: nan")["x"][0])


def test_messages_in_either_kind_of_braces() -> None:
    assert parse("a { b: 1 } a: < b: 2 c { } >") == {"a": [{"b": [1]}, {"b": [2], "c": [{}]}]}


def test_separators_comments_and_blanks_of_any_kind() -> None:
    assert parse("# first\n a:1;b :  2,\r\n\tc\n{d:3}# last") == {"a": [1], "b": [2], "c": [{"d": [3]}]}
    assert parse("") == {}


def test_a_text_with_escapes_is_bytes() -> None:
    message = parse(r'a: "\344\270\255\n\"\\" b: "\x41\000\377" c: ' + "'it\\'s'")
    assert message == {"a": ['中\n"\\'.encode()], "b": [b"A\x00\xff"], "c": [b"it's"]}


def test_escapes_that_protobuf_does_not_write_stay_as_they_are() -> None:
    assert parse(r'a: "\d\?\X4g\400"') == {"a": [b"\\d?\x04g\x00"]}


def test_a_text_in_pieces_is_one() -> None:
    assert parse('a: "one" "two"\n  "\\063" b: 1') == {"a": [b"onetwo3"], "b": [1]}


def test_lists_in_brackets() -> None:
    assert parse('a: [1, -2 ,3] b: ["x", "]", "\\061"] c: [] d: 4') == {
        "a": [1, -2, 3],
        "b": ["x", "]", b"1"],
        "c": [],
        "d": [4],
    }


def test_finished_messages_are_replaced_where_their_path_says() -> None:
    text = "graph { op { id: 1 } op { id: 2 op { id: 9 } } } op { id: 3 }"
    found = parse_text(text, {"graph.op": lambda message: message["id"][0]})
    assert found == {"graph": [{"op": [1, 2]}], "op": [{"id": [3]}]}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a {\n b {\n", "ends inside of a.b"),
        ("a: 1\n}\n", "closes a message with } where none is open, in line 2"),
        ("a {\n>", "closes with > a message that began with {, in line 2"),
        ('\n\na: "x\n', "a text without its closing quote, in line 3"),
        ('a: "x\\"', "a text without its closing quote, in line 1"),
        ("a:\n", "has no value for the field a"),
        ("a: [1, 2", "has a list that holds more than texts and numbers, or does not end"),
        ("a: [1, {b: 2}]", "has a list that holds more"),
        ('"lost"', "has a text that belongs to no field"),
        ('a: 1 "lost"', "has a text that belongs to no field"),
        ("= 1", "has '=' where a field is expected"),
        ("a: 12x4", "has '12x4' where a number is expected"),
        ("a: " + "9" * 5000, "has a number of 5,000 characters"),
        ("a {" * (DEEPEST + 1), f"nests messages more than {DEEPEST} deep"),
    ],
)
def test_what_is_wrong_is_said(text: str, problem: str) -> None:
    with pytest.raises(GraphFileError) as caught:
        parse(text)
    assert problem in str(caught.value)


def test_as_deep_as_protobuf_itself_reads() -> None:
    message = parse("a {" * DEEPEST + "}" * DEEPEST)
    for _ in range(DEEPEST):
        (message,) = message["a"]
    assert message == {}


def test_many_pieces_quotes_and_backslashes_take_no_longer_than_their_length() -> None:
    # Each of these takes minutes if a step looks at all that was read before.
    pieces = parse("a: " + '"x" ' * 200_000)
    assert pieces["a"] == [b"x" * 200_000]
    assert parse('a: "' + r"\"" * 200_000 + '"')["a"] == [b'"' * 200_000]
    assert parse('a: "' + "\\\\" * 200_000 + '"')["a"] == [b"\\" * 200_000]
    assert len(parse("a: [" + '"]", ' * 100_000 + "]")["a"]) == 100_000
