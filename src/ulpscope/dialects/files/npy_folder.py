"""Folders of reference arrays, as the makers of reference data for Ascend networks name them.

fc1_Relu.0.1767225600900010.npy       operator, output, time: names of TensorFlow, ONNX or Caffe, '/' and '.' as '_'
2841738291.npy, mapping.csv           a name that is too long for a file: its row in mapping.csv has the whole one
conv1.0.1767225600900010.quant, .pb   the same in an old form of a dump file, of quantised networks too
"""

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from ulpscope.dialects.ascend.dump_file.file import read_dump
from ulpscope.dialects.ascend.logical import logical_array, logical_form, logical_type
from ulpscope.dialects.ascend.tree import MAPPING_FILE, read_mapping
from ulpscope.dialects.files.mapped import read_npy
from ulpscope.dialects.files.stored import StoredTensor, unreadable
from ulpscope.dialects.reference import ReferenceCall, ReferenceTensor, executions, open_reference, reference_dialect
from ulpscope.dialects.tables import NPY
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.remarks import Counted, remark
from ulpscope.trace.reader import Trace

_NAME = re.compile(r"(?P<op>[.A-Za-z0-9_-]+)\.(?P<index>[0-9]{1,9})\.(?P<time>[0-9]{1,255})\.(?P<kind>npy|pb|quant)")
_NUMBERED = re.compile(r"[0-9]+\.npy")


def looks_like(path: Path) -> bool:
    """Whether this is a folder of reference arrays, as far as names tell."""
    names = _names(path)
    return any(map(_NAME.fullmatch, names)) or (MAPPING_FILE in names and any(map(_NUMBERED.fullmatch, names)))


def tensors_of(path: Path) -> list[ReferenceTensor]:
    """Every array of a folder; files of other names are left out."""
    names = _names(path)
    real_names = read_mapping(path / MAPPING_FILE) if MAPPING_FILE in names else {}
    found = (_tensor(path / name, real_names.get(name, name)) for name in names)
    return [tensor for tensor in found if tensor is not None]


def open_npy_folder(path: Path) -> Trace:
    """A folder as a trace: a call an operator, in time order."""
    tensors = tensors_of(path)
    ran = executions(tensors)
    calls = [ReferenceCall(op=outputs[0].op, name=outputs[0].op, outputs=outputs) for outputs in ran]
    told = [*_left_out(path, tensors), *_same_times(ran), *_other_counts(tensors)]
    return open_reference(path, {0: calls}, tool=NPY, framework="", missing=told)


def _names(path: Path) -> list[str]:
    try:
        return sorted(os.listdir(path)) if path.is_dir() else []
    except OSError:
        return []


def _tensor(path: Path, real_name: str) -> ReferenceTensor | None:
    match = _NAME.fullmatch(real_name)
    if match is None or not path.is_file():
        return None
    load = _load_npy if match["kind"] == "npy" else _load_dumped
    return ReferenceTensor(match["op"], int(match["index"]), int(match["time"]), path, load=load)


def _left_out(path: Path, tensors: Iterable[ReferenceTensor]) -> list[str]:
    read = {tensor.path.name for tensor in tensors}
    others = [name for name in _names(path) if name.endswith(".npy") and name not in read]
    if not others:
        return []
    return [remark("npy_names", files=Counted(len(others), "file"), example=others[0])]


def _same_times(ran: Iterable[tuple[ReferenceTensor, ...]]) -> list[str]:
    """What is told of executions between which no time tells the order."""
    by_time: dict[int, list[str]] = {}
    for outputs in ran:
        by_time.setdefault(min(tensor.timestamp for tensor in outputs), []).append(outputs[0].op)
    together = [names for names in by_time.values() if len(names) > 1]
    if not together:
        return []
    count = Counted(sum(map(len, together)), "operator")
    return [remark("npy_order", operators=count, first=together[0][0], second=together[0][1])]


def _other_counts(tensors: Iterable[ReferenceTensor]) -> list[str]:
    """What is told of operators whose outputs were not dumped equally often."""
    files: dict[str, Counter[int]] = {}
    for tensor in tensors:
        files.setdefault(tensor.op, Counter())[tensor.index] += 1
    return [
        remark("npy_executions", operator=op, counts=", ".join(str(counts[index]) for index in sorted(counts)))
        for op, counts in sorted(files.items())
        if len(set(counts.values())) > 1
    ]


def _load_npy(path: Path) -> StoredTensor:
    try:
        return read_npy(path)[""]
    except OSError as error:
        raise unreadable(path, error.strerror or str(error), expected="an array that numpy.save wrote") from error


def _load_dumped(path: Path) -> StoredTensor:
    outputs = read_dump(path).outputs
    if len(outputs) != 1:
        raise UlpscopeError(
            f"{path} holds {len(outputs)} outputs",
            expected="one, as its name says",
            next_step="write the reference data again",
        )
    output = outputs[0]
    form = logical_form(output)
    return StoredTensor(logical_type(output), form.shape, lambda: logical_array(output, form))


NPY_FOLDER = reference_dialect(recognises=looks_like, open=open_npy_folder, tensors=tensors_of)
