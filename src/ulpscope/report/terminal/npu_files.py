"""Tells what files for an NPU say that were written or checked: acl.json, lists of mixed precision.

acl.json is right: an overflow of any model is recorded
  dump_path  /data/precision_data/overflow/dump
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ulpscope.dialects.ascend.acl_file import AclDump
from ulpscope.report.record_json import answer_json
from ulpscope.report.words.language import count_text, shown_name, shown_text


@dataclass(frozen=True, slots=True)
class AclView:
    """An acl.json."""

    path: str
    dump: AclDump
    written: bool
    folder_is_here: bool
    """Whether the folder that it names is on this machine, which may not be the device's host."""


def acl_text(view: AclView, *, width: int, color: bool) -> str:
    """Some lines."""
    return "".join(f"{shown_text(line)}\n" for line in _acl_lines(view))


def acl_json(view: AclView) -> dict[str, Any]:
    return answer_json(
        "npu-dump",
        file=view.path,
        written=view.written,
        dump={"dump_path": view.dump.path, "dump_list": view.dump.models, **(view.dump.others or {})},
    )


def _acl_lines(view: AclView) -> Iterator[str]:
    dump, others = view.dump, dict(view.dump.others or {})
    yield f"{shown_name(view.path)} {'is written' if view.written else 'is right'}: {_asked(dump)}"
    rows = {"dump_path": dump.path, **others}
    yield from (f"  {key:<15} {shown_name(value)}" for key, value in rows.items())
    for model in dump.models or ():
        layers = count_text(len(model.layers), "operator") if model.layers else "all operators"
        yield f"  {'model':<15} {shown_name(model.name)}: {layers}"
    if not view.folder_is_here:
        yield f"  {dump.path} is not on this machine: make it where the model runs, a device does not"
    yield f"  next: give the file to aclInit or aclmdlSetDump; then {_next(dump)}"


def _asked(dump: AclDump) -> str:
    if dump.detects_overflow:
        return "overflows are recorded"
    if dump.models:
        return f"operators of {count_text(len(dump.models), 'model')} are dumped"
    return "single operators are dumped"


def _next(dump: AclDump) -> str:
    path = shlex.quote(dump.path)
    return f"ulpscope overflow {path}" if dump.detects_overflow else f"ulpscope show {path}"


@dataclass(frozen=True, slots=True)
class MixView:
    """Lists of mixed precision."""

    path: str | None
    """What was written, or was read."""
    lists: Mapping[str, Mapping[str, tuple[str, ...]]]
    """`black-list` and so on: what is added, what is removed."""
    written: bool
    named: Mapping[str, tuple[str, ...]]
    """By the type that findings named: the operators of it."""
    left_out: Mapping[str, str]
    """Operations of findings that are no types of an NPU's operators, with where they stand."""


def mix_text(view: MixView, *, width: int, color: bool) -> str:
    """Some lines."""
    return "".join(f"{shown_text(line)}\n" for line in _mix_lines(view))


def mix_json(view: MixView) -> dict[str, Any]:
    return answer_json(
        "mixlist",
        file=view.path,
        written=view.written,
        lists=view.lists,
        operators=view.named,
        left_out=view.left_out,
    )


_MEANINGS = {
    ("black-list", "to-add"): "stay in float32",
    ("black-list", "to-remove"): "follow the operator before them, no longer float32",
    ("white-list", "to-add"): "may become float16",
    ("white-list", "to-remove"): "follow the operator before them, no longer float16 by themselves",
    ("gray-list", "to-add"): "follow the operator before them",
}


def _mix_lines(view: MixView) -> Iterator[str]:
    total = sum(len(types) for parts in view.lists.values() for types in parts.values())
    if not total:
        yield "no type of operator to keep in float32: the findings name none of an NPU's operators"
    elif view.path is not None:
        yield f"{shown_name(view.path)} {'is written' if view.written else 'is right'}: {count_text(total, 'type')}"
    else:
        yield f"{count_text(total, 'type')} of operators"
    for name, parts in view.lists.items():
        for part, types in parts.items():
            if types:
                yield f"  {name}, {part}: {', '.join(map(shown_name, types))}: {_MEANINGS[name, part]}"
    for op_type, operators in view.named.items():
        yield f"  {shown_name(op_type)}: {', '.join(map(shown_name, operators))}"
    for op, where in view.left_out.items():
        yield f"  left out {shown_name(op)} ({shown_name(where)}): no type of an NPU's operators"
    if total and view.path is not None:
        yield f"  next: atc --modify_mixlist={shlex.quote(view.path)}, or in the script:"
        yield f'  custom_op.parameter_map["modify_mixlist"].s = tf.compat.as_bytes("{view.path}")'
        yield "  with precision_mode allow_mix_precision, or precision_mode_v2 mixed_float16 or mixed_bfloat16"
    elif total:
        yield "  next: add --out ops_info.json to write them"
