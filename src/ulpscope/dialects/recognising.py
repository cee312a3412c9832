"""What a path is, told by its content, and which command takes it: the one place that a wrong path is asked about.

wrong_kind(Path("build.vis.db"), "a run")
    build.vis.db is a graph that msprobe's graph_visualize drew (a database), not a run
    next: compare the dumps it was made of: ulpscope compare REFERENCE TARGET
"""

import re
import shlex
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from ulpscope.dialects.registry import dialect_of, is_trace
from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.environment import HEAD as ENVIRONMENT
from ulpscope.trace.files import open_file

_HEAD = 1 << 16
"""Bytes that are looked at."""
_NO_TEXT = re.compile(rb"[\x00-\x08\x0e-\x1f]")

_SUMMARY = re.compile(rb'\s*\{\s*"schema"\s*:\s*\d+,\s*"command"\s*:\s*"(\w{1,20})"')

_COMPARE_DUMPS = "compare the dumps it was made of: ulpscope compare REFERENCE TARGET"
_CAPTURE = "to compare runs, capture them: ulpscope run -o DIR -- python train.py"
_DIRECTORY = "name the directory it lies in, not the file"
_DIFF = "compare it with another one: ulpscope diff {path} OTHER"


@dataclass(frozen=True, slots=True)
class Recognised:
    """What a path is, as a clause behind `is`, and what to do with it."""

    what: str
    next_step: str

    def is_for(self, command: str) -> bool:
        """Whether this is what a command takes."""
        return f"ulpscope {command} " in self.next_step


def wrong_kind(path: Path, wanted: str, *, command: str = "") -> UlpscopeError | None:
    """What to answer if a path was to be something else; none if it is not there, or nothing is known of it.

    None, too, if it is what this command takes: then it is damaged, and the command's reader knows how.
    """
    found = recognise(path)
    if found is None or (command and found.is_for(command)):
        return None
    short = wanted.partition(":")[0]
    return UlpscopeError(f"{path} is {found.what}, not {short}", expected=wanted, next_step=found.next_step)


def recognise(path: Path) -> Recognised | None:
    """What a file or directory is, as far as its first bytes and names tell."""
    try:
        if path.is_dir():
            return _directory(path)
        if not path.is_file():
            return None
        with open_file(path) as file:
            head = file.read(_HEAD)
    except OSError:
        return None
    found = _by_magic(path, head) or _of_another_tool(path) or _by_table(path, head)
    return found or _by_graph(path) or _by_json(path, head)


def _directory(path: Path) -> Recognised | None:
    command = _command_of(path / "summary.json")
    if command is not None:
        return Recognised(f"a result of ulpscope {command}", f"see its page: ulpscope report {_quoted(path)}")
    if is_trace(path):
        return Recognised("a trace", f"ulpscope show {_quoted(path)}, or ulpscope compare {_quoted(path)} TARGET")
    return _of_another_tool(path) or _by_graph(path)


def _command_of(summary: Path) -> str | None:
    if not summary.is_file():
        return None
    with open_file(summary) as file:
        found = _SUMMARY.match(file.read(_HEAD))
    return None if found is None else found[1].decode()


def _of_another_tool(path: Path) -> Recognised | None:
    dialect = dialect_of(path)
    return None if dialect is None else Recognised(dialect.what, dialect.next_step.format(path=_quoted(path)))


def _by_magic(path: Path, head: bytes) -> Recognised | None:
    for pattern, what, next_step in _MAGIC:
        if pattern.match(head):
            return Recognised(what, next_step.format(path=_quoted(path), json=_quoted(path.with_suffix(".json"))))
    if head.startswith(b"PK\x03\x04"):
        return _archive(path)
    return Recognised("a file of tensors", _DIFF.format(path=_quoted(path))) if path.suffix == ".safetensors" else None


def _archive(path: Path) -> Recognised:
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError):
        return Recognised("an archive that was not written to its end", "copy it again")
    if any(name.startswith("xl/") for name in names):
        return Recognised("an Excel workbook", "save its table as CSV: ulpscope show opens results of msprobe as these")
    if any(name.endswith((".npy", "data.pkl")) for name in names):
        return Recognised("a file of tensors", _DIFF.format(path=_quoted(path)))
    return Recognised("a zip archive", "unpack it, and name what is in it")


def _by_table(path: Path, head: bytes) -> Recognised | None:
    from ulpscope.dialects.ascend.result_table import is_result_table
    from ulpscope.dialects.msprobe.result_tables import table_kind

    show = f"ulpscope show {_quoted(path)}"
    kind = table_kind(path)
    if kind is not None:
        return Recognised(kind.value, show)
    if is_result_table(path):
        return Recognised("a result of a comparison of a network", show)
    if head.startswith((b"vpp_stage,", b"\xef\xbb\xbfvpp_stage,")):
        return Recognised("a table of msprobe's monitor", _CAPTURE)
    return None


def _by_graph(path: Path) -> Recognised | None:
    from ulpscope.dialects.graphs.opening import is_graph

    if not is_graph(path):
        return None
    name = _quoted(path)
    return Recognised(
        "a graph",
        f"ulpscope show {name}, or set dumps of its network beside a reference: "
        f"ulpscope compare REFERENCE DUMPS --graph {name}",
    )


def _by_json(path: Path, head: bytes) -> Recognised | None:
    if _NO_TEXT.search(head) or not head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith((b"{", b"[")):
        return None
    found = (each for each in _JSON_KINDS if each[0].search(head))
    return next((Recognised(what, next_step.format(path=_quoted(path))) for _, what, next_step in found), None)


def _keys(*names: str) -> re.Pattern[bytes]:
    """JSON in whose first bytes one of these keys stands."""
    return re.compile(b'"(?:' + "|".join(names).encode() + rb')"\s*:')


_Kinds: TypeAlias = tuple[tuple[re.Pattern[bytes], str, str], ...]
"""What a file begins with or has among its first bytes, what it is, and what to do with it."""

_DRAWN = "a graph that msprobe's graph_visualize drew"
_BESIDE_DUMP = f"name the dump.json beside it, or {_DIRECTORY.removeprefix('name ')}"

_MAGIC: _Kinds = (
    (re.compile(rb"SQLite format 3\0.*tb_nodes", re.DOTALL), f"{_DRAWN} (a database)", _COMPARE_DUMPS),
    (re.compile(rb"SQLite format 3\0.*trend_data", re.DOTALL), "a database of msprobe's monitor", _CAPTURE),
    (re.compile(rb"SQLite format 3\0"), "an SQLite database", "check the path"),
    (re.compile(rb"\x93NUMPY"), "an array", _DIFF),
    (re.compile(rb"\x89HDF\r\n"), "an HDF5 file", "write its arrays as .npy files: ulpscope diff takes these"),
    (
        re.compile(rb"IMOD"),
        "an offline model of Ascend",
        "write its graph as JSON where CANN is: atc --mode=1 --om={path} --json={json}",
    ),
    (re.compile(rb"\x1f\x8b"), "a compressed file", "unpack it (gunzip, tar xzf), and name what is in it"),
    (re.compile(rb"PAR1"), "a Parquet table, as a trace or a result holds them", _DIRECTORY),
    (re.compile(rb"\x80[\x02-\x05]"), "a pickle, of which only tensors are ever read", _DIFF),
    (
        re.compile(rb"\s*<(?:!doctype|html)", re.IGNORECASE),
        "a page",
        "open it in a browser, or name the result that it was made of",
    ),
)

_JSON_KINDS: _Kinds = (
    (ENVIRONMENT, "an environment that ulpscope env wrote", _DIFF),
    (
        _keys("graph_fusion", "ub_fusion", 'session_and_graph_id[^"]*'),
        "what an Ascend compiler fused",
        "ulpscope fusion {path}",
    ),
    (_keys("Switch"), "switches of fusion passes", "ulpscope fusion {path}"),
    (_keys("npu_path", "bench_path"), "a compare.json, which names two dumps", "ulpscope compare {path}"),
    (_keys("sketch_id", "world_size"), "a description of a trace's rank", _DIRECTORY),
    (_SUMMARY, "the summary of a result of ulpscope", _DIRECTORY),
    (_keys("NPU", "Bench", "Tooltip", "ToolTip", "MicroSteps"), f"{_DRAWN} (.vis)", _COMPARE_DUMPS),
    (
        re.compile(rb'"root"\s*:.*"node"\s*:\s*\{|"node"\s*:\s*\{.*"matched_node_link"', re.DOTALL),
        f"{_DRAWN} (.vis)",
        _COMPARE_DUMPS,
    ),
    (
        _keys("dump_path"),
        "a configuration that says what is dumped",
        "run the script with it, and name the directory that is its dump_path",
    ),
    (
        re.compile(rb'^\s*\{\s*"[^"]*(?:\.forward|\.backward|Module\.|Cell\.)[^"]*"\s*:\s*(?:"|null|\[)'),
        "a construct.json or stack.json of an msprobe dump",
        _BESIDE_DUMP,
    ),
    (re.compile(rb'^\s*\{\s*"\d+"\s*:\s*\[\s*\['), "a stack.json of an msprobe dump", _BESIDE_DUMP),
)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
