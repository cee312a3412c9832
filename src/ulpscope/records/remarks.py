"""What is told beside an answer: what is missing, what was left out, what is not known.

A remark is a text, English, to all who hand it on; it also knows its phrase and what stands in it, so that it can be
told in another language (`src/ulpscope/report/words/remarks.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

_VERBS = {"are": ("is", "are"), "have": ("has", "have")}

PHRASES: Mapping[str, str] = {
    "within": "{place}: {remark}",
    "problem": "{problem}",
    # Traces of any tool.
    "not_closed": "not closed: the process is still running or was killed",
    "no_rank_file": "{name}: no {file}, it is not read",
    "stacks_missing": "{file} is missing: calls made there have no stack",
    "step_unfinished": "step {step} is unfinished: {parts} flushed",
    "step_parts": "step {step} has {found} of its {parts}",
    "part_unread": "part {part} of step {step} was not finished and is not read: no calls file",
    "part_incomplete": "part {part} of step {step} is incomplete: {tables} file missing",
    "half_written": "{file} was left behind half-written and is not read",
    "not_of_a_trace": "{file} is not a file of a trace and is not read",
    "unused_module": "the mapping file speaks of the module {rule}, which the target has not",
    "unused_operation": "the mapping file speaks of the operation {rule}, which the target has not",
    "unused_tensor": "the mapping file speaks of the tensor of {call}, which the target has not",
    "sigill": "the CPU's bfloat16 matrix product dies of SIGILL here; checked with {setting}",
    "step": "step {step}: {remark}",
    "tensor_files": "{files:are} not there, such as {example}",
    "type_not_read": "{tensors} of {dtype} not read: not a type that is compared",
    "lines_again": "{lines} of {file} not read: the same tensors of the same calls once more",
    "no_dump_json": "{directory} has no dump.json and is not read",
    "process_not_compared": "{name} is a further process of its rank and not compared",
    "without_data": "{pairs} compared without their data: {problem}",
    "other_masks": (
        "{tensors} compared without what an attention mask sets aside: the mask is {reference} in the reference and "
        "{target} in the target"
    ),
    "rank_steps": "rank {rank}: step {steps} is not in both traces",
    # Reference dumps.
    "npy_names": "{files} not read, such as {example}: the name is not OPERATOR.OUTPUT.TIMESTAMP.npy",
    "npy_order": (
        "the order of {operators} is not known, because their files have the same time, such as {first} and {second}: "
        "they stand in the order of their names"
    ),
    "npy_executions": (
        "which outputs of {operator} were made together is not known: there are {counts} files of them; the first of "
        "each are taken together, then the second"
    ),
    "tfdbg_graph": "types and inputs of operators are not known: {problem}",
    # Dumps of an NPU.
    "dumps_older": "dumps of {older} are not read; the newest is, {newest}",
    "records_older": "overflow records of {older} in {place} are not read; the newest are",
    "dumps_unnamed": "{files:are} not named in {mapping}, such as {example}",
    "stats_only": "not compared: {operators} of which only stats were dumped, such as {example}",
    "dumps_unreadable": "{files:are} not readable, or not all of it: {problem}",
    "overflowing": (
        "overflow in {elements} of {operators}; what the device made of these is not judged: ulpscope overflow {path}"
    ),
    # Networks.
    "device_chosen": "device {others} of the dumps is not compared; device {taken} is",
    "step_chosen": "step {others} of the dumps is not compared; step {taken} is",
    "other_network": "the dumps are of {model}, the graph is {graph}",
    "other_time": "the dumps are of {model}, the graph is {graph}: made at different times",
    "no_dumps_of_graph": "{path}: no dumps of {graph}",
    "not_dumped": "not dumped: {operators}, such as {example}",
    "not_in_graph": "not compared, because the graph does not have them: {operators} of the dumps, such as {example}",
    "shared_dumps": (
        "not compared: {operators}, such as {names}: their dump files have the same name, and neither the head of a "
        "file nor types and shapes tell whose it is"
    ),
    "shared_references": (
        "not compared: {tensors}, such as {example}: reference files of {names} have the same name, and shapes do not "
        "tell whose they are"
    ),
    "no_partner": "{tensors:have} no partner in the reference, such as {example}",
    "not_whole": "{tensors:have} no whole data inside of an L1 fusion: {example}",
    "integers": "not compared, because computed in integers: {operators}, such as {example}",
    "sizes_differ": "{tensor} has {target:,} elements, {reference:,} in the reference",
    "not_measured": "{tensors:have} not been compared: {problem}",
}


@dataclass(frozen=True, slots=True)
class Counted:
    """`1 tensor`, `12 tensors`; with a verb, `1 tensor has`, `12 tensors have`."""

    number: int
    noun: str

    def __format__(self, verb: str) -> str:
        several = self.number != 1
        words = f"{self.number:,} {self.noun}{'s' if several else ''}"
        return f"{words} {_VERBS[verb][several]}" if verb else words


class Remark(str):
    """A sentence without an end, with what it was made of."""

    key: str
    parts: Mapping[str, object]


def remark(key: str, **parts: object) -> str:
    """The remark of a phrase."""
    told = Remark(PHRASES[key].format_map(parts))
    told.key, told.parts = key, parts
    return told


def within(place: object, text: str) -> str:
    """A remark about something inside of a place: a path, a process."""
    return remark("within", place=str(place), remark=text)
