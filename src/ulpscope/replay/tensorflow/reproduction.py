"""Takes a recorded op apart for a script of its own: its tensors for a file, the rest for the text."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray
from safetensors import TensorSpec, serialize_file
from tensorflow.python.framework import op_def_registry

from ulpscope.records.checks import RECORDED, CaseId, OpReproduction, OutputEvidence, Rule
from ulpscope.replay.recorded import CannotReplayError, RecordedCall
from ulpscope.replay.registry import registered
from ulpscope.replay.tensorflow.engine import Engine, Executed
from ulpscope.replay.tensorflow.evidence import selects
from ulpscope.replay.tensorflow.ops import PREFIX, Op, op_of
from ulpscope.replay.tensorflow.references import reference_of
from ulpscope.replay.tensorflow.running import NO_KERNEL, ROWS, run_with_float64
from ulpscope.replay.tensorflow.tensors import word_of
from ulpscope.trace.reader import RankTrace

GRAD_OUTPUT = "grad_output."
EXPECTED, EXACT = "expected.", "exact."
# What a safetensors file calls the dtypes that it can hold.
STORED = {
    "float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "bool": "BOOL", "uint8": "U8",
    "int8": "I8", "int16": "I16", "uint16": "U16", "int32": "I32", "uint32": "U32", "int64": "I64", "uint64": "U64",
}  # fmt: skip


def reproduce(case: CaseId, recorded: RecordedCall, rank: RankTrace, *, seed: int = 0) -> "Reproduced":
    """Execute one op on the CPU, and tell all that a script needs."""
    op = op_of(recorded)
    if registered(recorded.call.op) is not None:
        raise CannotReplayError("it is judged by a function of your own, which a script has not")
    if not callable(getattr(tf.raw_ops, op.word, None)):
        raise CannotReplayError(f"{op.word} is made by TensorFlow's optimizer of graphs; no script can call it")
    try:
        executed = Engine("cpu", seed=seed).execute(case, recorded, rank)
        executed.refine()
    except tf.errors.OpError as error:
        raise CannotReplayError(f"TensorFlow refuses it: {error.message.splitlines()[0]}") from error
    return Reproduced(recorded, executed)


class Reproduced:
    """An op that was executed."""

    def __init__(self, recorded: RecordedCall, executed: Executed) -> None:
        self._recorded = recorded
        self._executed = executed
        self.evidence = _judgeable(executed)
        feed = executed.feed
        for array in (*feed.tensors.values(), *feed.grad_outputs.values()):
            if word_of(array) not in STORED:
                raise CannotReplayError(f"safetensors cannot hold {word_of(array)}")

    def reproduction(self, name: str, *, device: str) -> OpReproduction:
        executed = self._executed
        op, feed = executed.recipe.op, executed.feed
        arrays = (*feed.tensors.values(), *feed.grad_outputs.values(), np.zeros(0))
        return OpReproduction(
            name=name,
            function=f"{PREFIX}{op.word}",
            operands=_operands(op),
            attributes={word: _told(value) for word, value in _attributes(op).items()},
            differentiated=executed.recipe.differentiated if feed.grad_outputs else (),
            sent=tuple(feed.grad_outputs),
            places=tuple(each.place for each in self.evidence),
            several=op.outputs > 1,
            stored={STORED[word_of(array)]: word_of(array) for array in arrays},
            device=device,
            has_float64=self._has_float64,
        )

    @property
    def _has_float64(self) -> bool:
        """Whether TensorFlow itself can compute the truth."""
        recipe = self._executed.recipe
        if reference_of(recipe.name, recipe.op, on_cpu=recipe.on_cpu) is not None:
            return False
        try:
            run_with_float64(recipe, self._executed.feed)
        except NO_KERNEL:
            return False
        return True

    def write_data(self, path: Path, expected: Mapping[str, NDArray[Any]]) -> None:
        """Operands, the gradients that are sent back, and the errors that are expected."""
        feed = self._executed.feed
        arrays = {**feed.tensors, **{f"{GRAD_OUTPUT}{place}": array for place, array in feed.grad_outputs.items()}}
        arrays |= {f"{EXPECTED}{place}": np.asarray(array, np.float64) for place, array in expected.items()}
        if not self._has_float64:
            arrays |= {f"{EXACT}{each.place}": np.asarray(each.exact, np.float64) for each in self.evidence}
        kept = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
        serialize_file({name: _spec(array) for name, array in kept.items()}, path)


def _spec(array: NDArray[Any]) -> TensorSpec:
    return TensorSpec(dtype=word_of(array), shape=list(array.shape), data_ptr=array.ctypes.data, data_len=array.nbytes)


def _judgeable(executed: Executed) -> list[OutputEvidence]:
    """What a comparison of elements can judge: no choices among equals, no results of the run itself."""
    kept = [
        each
        for each in executed.evidence
        if each.rule is not Rule.NORMWISE
        and each.violation is None
        and each.exact.size
        and not each.place.startswith(RECORDED)
        and not each.place.endswith(ROWS)
        and not selects(executed.recipe.op.word, each.place)
        and not each.dtype.startswith("complex")
    ]
    if not kept:
        raise CannotReplayError("it gives nothing that can be judged element by element")
    return kept


def _operands(op: Op) -> tuple[tuple[str, tuple[str, ...] | str], ...]:
    """Names that `tf.raw_ops` has for operands, each with its place, or with several of a list."""
    definition = op_def_registry.get(op.word)
    names, waiting, found = _names(op), list(op.places), []
    for name, one in zip(names, definition.input_arg, strict=False):
        counter = one.number_attr or one.type_list_attr
        size = op.attributes[counter] if counter else 1
        length = size if isinstance(size, int) else len(size)
        taken, waiting = tuple(waiting[:length]), waiting[length:]
        found.append((name, taken if counter else taken[0]))
    return tuple(found)


def _attributes(op: Op) -> dict[str, Any]:
    """Attributes by the names that `tf.raw_ops` has for them, but for those that operands tell."""
    definition = op_def_registry.get(op.word)
    used = {word for one in definition.input_arg for word in (one.type_attr, one.number_attr, one.type_list_attr)}
    left = [one for one in definition.attr if one.name not in used]
    ordered = sorted(left, key=lambda one: one.HasField("default_value"))
    names = _names(op)[len(definition.input_arg) :]
    pairs = zip(names, ordered, strict=True)
    return {name: op.attributes[one.name] for name, one in pairs if one.name in op.attributes}


def _names(op: Op) -> list[str]:
    """Operands as the op has them, then attributes without and with a default."""
    signature = inspect.signature(getattr(tf.raw_ops, op.word))
    return [name for name in signature.parameters if name != "name"]


def _told(value: Any) -> Any:
    """An attribute as a trace tells it."""
    if isinstance(value, list):
        return [_told(one) for one in value]
    return {"$dtype": _word(value)} if isinstance(value, tf.DType) else value


def _word(dtype: Any) -> str:
    return "float16" if dtype == tf.float16 else str(dtype.name)
