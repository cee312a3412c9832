"""What is done to a sound file: bytes, JSON and tables are edited, or something else is put in its place.

A damage changes the file at a path; the generator that it draws from makes it the same each time.
"""

import copy
import json
import math
import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

Damage = Callable[[Path, np.random.Generator], None]

EXTREMES = (0, 1, 2**7 - 1, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
SECRET = "not of a program"
"""The first line of secret.txt beside the damaged files: no answer may show it."""

INTEGERS = (None, -1, 0, 1, 7, 2**31, 2**53, 2**63 - 1, -(2**63))
FLOATS = (None, 0.0, -0.0, 1e-320, 1e308, math.nan, math.inf, -math.inf)
TEXTS = (
    None, "", "x", "\x1b[31mred\x1b]0;t\x07", "a\nb\u2028c", "../../../secret.txt", "secret.txt", "[bold]x[/bold]",
    "\u202e", "x" * 5000, "{" * 3000, f'{{"args": {"[" * 900}{"]" * 900}}}',
    '{"args": [{"$tensor": 7}]}', "float32", "object", "step0/data-999.safetensors",
    "nan", "0",
)  # fmt: skip
LISTS = (None, [], [0], [-1], [1], [2**62, 4], [2**31, 2**31], [None], [1] * 100, [3, 1])
JSON = (
    None, True, -1, 0, 10**30, -(10**30), 2**63, 1.5, math.nan, math.inf, "", "x" * 5000, "\ud800", "\x1b[31m",
    "secret.txt", "../../../secret.txt", [], {}, [[]], {"a": None}, [1, "x", None],
)  # fmt: skip
DEEP = 100_000
"""Levels of a nest that Python's parsers do not follow."""
HUGE = 64 * 2**30
"""Bytes of a file with a hole: more than the machine has memory."""


def damage_bytes(path: Path, random: np.random.Generator) -> None:
    path.write_bytes(damaged(path.read_bytes(), random))


def damaged(content: bytes, random: np.random.Generator) -> bytes:
    """Some damages of some kinds, one after the other."""
    damage = bytearray(content)
    for _ in range(int(random.integers(1, 5))):
        DAMAGES[int(random.integers(len(DAMAGES)))](damage, random)
    return bytes(damage)


def _at(damage: bytearray, random: np.random.Generator, width: int = 1) -> int:
    """A place, more often near the beginning, where lengths and types are."""
    room = max(len(damage) - width, 1)
    return int(room * random.random() ** 3)


def flip_bit(damage: bytearray, random: np.random.Generator) -> None:
    if damage:
        damage[_at(damage, random)] ^= 1 << int(random.integers(8))


def set_byte(damage: bytearray, random: np.random.Generator) -> None:
    if damage:
        damage[_at(damage, random)] = int(random.choice([0, 1, 0x7F, 0x80, 0xFF, 0x5A, ord("{"), ord('"')]))


def set_number(damage: bytearray, random: np.random.Generator) -> None:
    width = int(random.choice([4, 8]))
    if len(damage) > width:
        place = _at(damage, random, width)
        number = EXTREMES[int(random.integers(len(EXTREMES)))] % 2 ** (8 * width)
        damage[place : place + width] = number.to_bytes(width, "little")


def cut_off(damage: bytearray, random: np.random.Generator) -> None:
    del damage[int(random.integers(len(damage) + 1)) :]


def cut_out(damage: bytearray, random: np.random.Generator) -> None:
    place = _at(damage, random)
    del damage[place : place + int(random.integers(1, 32))]


def repeat(damage: bytearray, random: np.random.Generator) -> None:
    place = _at(damage, random)
    part = damage[place : place + int(random.integers(1, 64))]
    damage[place:place] = part * int(random.choice([1, 2, 50]))


def insert_varint(damage: bytearray, random: np.random.Generator) -> None:
    length = int(random.integers(1, 12))
    damage[_at(damage, random) : 0] = bytes([0xFF] * (length - 1) + [int(random.integers(256))])


def append(damage: bytearray, random: np.random.Generator) -> None:
    damage += random.bytes(int(random.integers(1, 200)))


DAMAGES = (flip_bit, flip_bit, set_byte, set_number, cut_off, cut_out, repeat, insert_varint, append)


def damage_json(path: Path, random: np.random.Generator) -> None:
    """Some values of a file, or of one of its lines, are other ones."""
    lines = path.read_bytes().splitlines() if path.suffix == ".jsonl" else [path.read_bytes()]
    line = int(random.integers(len(lines)))
    content = [json.loads(lines[line])]
    for _ in range(int(random.integers(1, 4))):
        _change_json(content, random)
    text = json.dumps(content[0])
    if random.random() < 0.03:
        place = text.find(":") + 1
        text = f'{text[:place]}{"[" * DEEP}{"]" * DEEP}, "rest": {text[place:]}'
    lines[line] = text.encode()
    path.write_bytes(b"\n".join(lines))


def _change_json(content: list[Any], random: np.random.Generator) -> None:
    places = list(_json_places(content))
    container, key = places[int(random.integers(len(places)))]
    other, other_key = places[int(random.integers(len(places)))]
    deed = int(random.integers(6))
    if deed == 0 and container is not content:
        del container[key]
    elif deed == 1:
        container[key] = json.loads(json.dumps(other[other_key]))
    elif deed == 2 and isinstance(container, dict):
        container[_pick(TEXTS[1:], random)] = container.pop(key)
    else:
        container[key] = copy.deepcopy(_pick(JSON, random))


def _json_places(content: Any) -> Any:
    keys = range(len(content)) if isinstance(content, list) else list(content)
    for key in keys:
        yield content, key
        if isinstance(content[key], list | dict):
            yield from _json_places(content[key])


def damage_table(path: Path, random: np.random.Generator) -> None:
    """Some cells, columns or rows of a Parquet file are other ones."""
    table = pl.read_parquet(path)
    for _ in range(int(random.integers(1, 4))):
        table = _pick((_set_cell, _set_cell, _set_cell, _set_cell, _set_column, _set_rows), random)(table, random)
    table.write_parquet(path)


def _set_cell(table: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    if table.is_empty():
        return table
    name = _pick(table.columns, random)
    cells = table[name].to_list()
    row = int(random.integers(len(cells)))
    cells[row] = _pick((_extreme(table.schema[name], random), cells[int(random.integers(len(cells)))]), random)
    return table.with_columns(pl.Series(name, cells, dtype=table.schema[name], strict=False))


def _set_column(table: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    if not table.columns:
        return table
    name = _pick(table.columns, random)
    kind = table.schema[name]
    changed = (
        lambda: table.drop(name),
        lambda: table.with_columns(pl.lit(None, dtype=kind).alias(name)),
        lambda: table.with_columns(pl.Series(name, [_extreme(kind, random)] * table.height, dtype=kind, strict=False)),
        lambda: table.with_columns(pl.lit(7 if kind == pl.String else "x").alias(name)),
        lambda: table.with_columns(pl.col(name).shuffle(seed=int(random.integers(1000)))),
        lambda: table.rename({name: "extra"}) if "extra" not in table.columns else table,
    )  # fmt: skip
    return _pick(changed, random)()


def _set_rows(table: pl.DataFrame, random: np.random.Generator) -> pl.DataFrame:
    changed = (
        lambda: table.clear(),
        lambda: pl.concat([table, table.head(1)]),
        lambda: table.reverse(),
        lambda: table.head(table.height // 2),
        lambda: pl.concat([table] * 50),
    )
    return _pick(changed, random)()


def _extreme(kind: pl.DataType, random: np.random.Generator) -> Any:
    if kind.is_integer():
        number = _pick(INTEGERS, random)
        return None if number is None or (kind.is_unsigned_integer() and number < 0) else number
    if kind.is_float():
        return _pick(FLOATS, random)
    if kind == pl.Boolean:
        return _pick((None, True, False), random)
    if isinstance(kind, pl.Array):
        return _pick((None, [_extreme(kind.inner, random)] * kind.size), random)
    return _pick(LISTS if isinstance(kind, pl.List) else TEXTS, random)


def damage_place(path: Path, random: np.random.Generator) -> None:
    """Something else is there: a fifo, a device, a link, a directory, a file without end, nothing."""
    content = path.read_bytes()
    path.unlink()
    deeds = (
        lambda: os.mkfifo(path),
        lambda: path.symlink_to("/dev/zero"),
        lambda: path.symlink_to("/dev/tty"),
        lambda: path.symlink_to(path.name),
        lambda: path.symlink_to(path.parent),
        lambda: path.symlink_to(path.parent / "nothing"),
        lambda: path.symlink_to("/etc/passwd"),
        lambda: path.mkdir(),
        lambda: path.touch(),
        lambda: None,
        lambda: _with_hole(path, b""),
        lambda: _with_hole(path, content),
        lambda: _listen(path),
    )
    _pick(deeds, random)()


def _with_hole(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    os.truncate(path, HUGE)


def _listen(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        folder = os.getcwd()
        os.chdir(path.parent)  # a socket's path may have 108 characters
        listening.bind(path.name)
        os.chdir(folder)


def mixed(edit: Damage) -> Damage:
    """Mostly this edit; sometimes other bytes, or something else in its place."""

    def damage(path: Path, random: np.random.Generator) -> None:
        chance = random.random()
        (edit if chance < 0.8 else damage_bytes if chance < 0.93 else damage_place)(path, random)

    return damage


def restore(path: Path, content: bytes) -> None:
    """The sound file, whatever was put in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    path.write_bytes(content)


def _pick(choices: Any, random: np.random.Generator) -> Any:
    return choices[int(random.integers(len(choices)))]
