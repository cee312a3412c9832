"""The one registry of operations, whichever framework makes them: their names taken apart, and one entry each.

torch.Tensor.__iadd__, torch.add, torch.Tensor.add_, aten.add.Tensor  ->  add
aten._softmax.default, torch.softmax                                  ->  softmax
MatMulV2 (a type of GE, TensorFlow or ONNX)                           ->  MatMulV2

Entries are read from the tables beside this file. A table is a CSV file, a row an operation: its name, its family, what
it chooses, places of operands that are only added, data that stresses it, its traits, and another operation that it is
like: whose traits it has beside its own, and whose entry it takes where its own is empty. Names are those of
`operation_name`, or with the marks of one form (`set_`) where that form differs. `torch.csv` has torch's functions,
methods and kernels (aten), which MindSpore and others mostly share, `ge.csv` types of GE, the compiler of Ascend, which
many ops of TensorFlow share, `tensorflow.csv` the others of TensorFlow.
"""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from functools import cache
from importlib import resources

from ulpscope.records.checks import Variant

# Libraries of registered operators, whose names end with an overload: aten.add.Tensor.
LIBRARIES = frozenset("aten prims prim c10d _c10d_functional quantized quantized_decomposed inductor".split())
_FRAMEWORKS = ("torch", "torch_npu")

TENSORFLOW_OP = "tf.raw_ops."
"""How the names of TensorFlow's ops begin in calls: by these names it lets anybody execute one."""

# Python's operators that have a reflected and an in-place form: __radd__, __iadd__.
_MARKED = frozenset("add sub mul matmul div truediv floordiv mod divmod pow and or xor lshift rshift".split())

LEAVES_GRADIENTS = frozenset(("torch.Tensor.backward", "torch.autograd.backward"))
"""They leave parameters with gradients."""

STARTS_BACKWARD = LEAVES_GRADIENTS | {"torch.autograd.grad"}
"""They run the backwards of other calls."""

ASKS_FOR_GRADIENTS = STARTS_BACKWARD | {"tf.GradientTape.gradient"}
"""The same in any framework: none of them computes anything itself."""


@cache
def operation_name(op: str) -> str:
    """The operation's own word: `add` of torch.Tensor.__iadd__, torch.add_ and aten.add.Tensor."""
    word = own_word(op)
    if word.startswith("__") and word.endswith("__"):
        inner = word[2:-2]
        return inner[1:] if inner[:1] in ("i", "r") and inner[1:] in _MARKED else inner
    return word.strip("_") or word


_REWRITTEN = re.compile(r"_Mkl(?:Native)?(\w+?)(?:WithBias)?")
"""TensorFlow's operations as oneDNN computes them: _MklMatMul, _MklNativeFusedConv2D."""


def plain_word(op: str) -> str:
    """The operation's own word, whichever library computes it: MaxPool of _MklNativeMaxPool."""
    rewritten = _REWRITTEN.fullmatch(own_word(op))
    return operation_name(op) if rewritten is None else rewritten[1]


FUSED = "Fused"
"""In the names of TensorFlow's operations that compute several."""
_FUSED_LAST = re.compile(r'"fused_ops":\["(?:[^"]*",")*(\w+)"\]')


def last_word(op: str, arguments: str | None) -> str:
    """The operation whose result it gives: of several that are fused, the last, as TensorFlow tells in an attribute."""
    fused = _FUSED_LAST.search(arguments) if arguments is not None and FUSED in op else None
    return plain_word(op) if fused is None else fused[1]


def is_fused(op: str, arguments: str | None) -> bool:
    """Whether it computes several operations, of which its arguments tell."""
    return arguments is not None and FUSED in op and _FUSED_LAST.search(arguments) is not None


_GRADIENT = re.compile(r"(\w+)_backward(?:_data|_input|_weight|_overrideable)?")


def gradient_of(name: str) -> str | None:
    """The operation whose gradient a kernel of this name computes: `softmax` for `softmax_backward_data`."""
    found = _GRADIENT.fullmatch(name)
    return None if found is None else found[1]


def own_word(op: str) -> str:
    """The same with the marks of its form: `__iadd__`, `add_`."""
    parts = op.split(".")
    overloaded = len(parts) == 3 and (parts[0] in LIBRARIES or parts[-1] == "default")
    return parts[-2] if overloaded else parts[-1]


def is_in_place(op: str) -> bool:
    """Whether its name says that it writes into its first argument."""
    word = own_word(op)
    if word.startswith("__") and word.endswith("__"):
        return word == "__setitem__" or (word[2] == "i" and word[3:-2] in _MARKED)
    return word.endswith("_")


def only_writes(op: str, place: str) -> bool:
    """Whether it reads nothing of what it finds at this place of its arguments, as an initialiser does."""
    return (place == "args.0" and _overwrites(op)) or place.startswith("kwargs.out")


def assigns(op: str) -> bool:
    """Whether it puts numbers that it is given into memory that there is, and computes nothing."""
    return _overwrites(op) and operation(op).has(Trait.MOVING)


def _overwrites(op: str) -> bool:
    return operation(op).has(Trait.OVERWRITING) and (is_in_place(op) or is_tensorflows(op))


def is_collective(op: str) -> bool:
    """Whether ranks take part in it together."""
    return op.startswith(("torch.distributed.", "_c10d_functional.", "c10d."))


def is_torchs_own(op: str) -> bool:
    """Whether a script that imports torch has this operation; one of the user's own it has not."""
    return op.partition(".")[0] in (*_FRAMEWORKS, "aten", "prims")


def is_tensorflows(op: str) -> bool:
    """Whether TensorFlow executes it: `tf.raw_ops.MatMul`."""
    return op.startswith("tf.")


class Family(str, Enum):
    """What an operation does with errors."""

    SUM = "sum"
    """The output is a signed sum of the operands: absolute errors add up."""
    PRODUCT = "product"
    CONTRACTION = "contraction"
    CONVOLUTION = "convolution"
    REDUCTION = "reduction"
    AVERAGE = "average"
    EXPONENTIAL = "exponential"
    """Absolute errors of the operands become relative ones."""
    LOGARITHM = "logarithm"
    """Relative errors of the operand become absolute ones."""
    ATTENTION = "attention"
    DIVISION = "division"
    NORMALIZATION = "normalization"
    DIFFERENCE_LOSS = "difference_loss"
    RECURRENT = "recurrent"
    """Error goes around a loop."""
    SOLUTION = "solution"
    """Solves equations, or takes a matrix apart: errors grow by its condition number."""
    SELECTION = "selection"
    """The output is a part of the operand: its error may lie all in that part."""
    OTHER = "other"


SUMMING = frozenset((
    Family.CONTRACTION, Family.CONVOLUTION, Family.REDUCTION, Family.AVERAGE, Family.NORMALIZATION, Family.ATTENTION,
    Family.EXPONENTIAL, Family.DIFFERENCE_LOSS, Family.RECURRENT,
))  # fmt: skip
"""Families whose outputs are sums of many terms."""


class Choosing(str, Enum):
    """What an operation makes of real numbers."""

    EXTREME = "extreme"
    """The place of the largest or smallest."""
    ORDER = "order"
    """Places by rank: sorted."""
    LARGEST = "largest"
    """Places of the k largest, which some give in any order."""
    COMPARISON = "comparison"
    WHOLE = "whole"
    """The numbers themselves, without their fractions."""


class Trait(str, Enum):
    """Something that is true of an operation, by the word that stands in the tables."""

    # What it does with numbers.
    MOVING = "moving"
    """Only moves or casts numbers, or writes them one by one."""
    VIEW = "view"
    """Hands on what it reads in another form: who made it made this."""
    EXACT = "exact"
    """Gives elements of its inputs, or the correctly rounded truth: no arithmetic that rounds more than once."""
    ADDING_UP = "adding_up"
    """Adds up a list; frameworks put it where gradients meet."""
    COMMUTING = "commuting"
    """Its operands may stand in any order."""
    COMPUTED_IF_COMPLEX = "computed_if_complex"
    """Exact, but of complex numbers it gives lengths and directions, which are computed."""
    PASSING_ON = "passing_on"
    """Its gradient is what was sent, or 0, element by element."""
    KINKED = "kinked"
    """Its backward chooses by comparison: an operand that moves across the kink moves a whole gradient."""
    GRADIENT = "gradient"
    """A kernel that computes a gradient, of what its first operand is to the result."""
    GRADIENT_LAST = "gradient_last"
    """The same, of what its last operand is: what the forward read and made comes first."""
    BIAS_FIRST = "bias_first"
    """A contraction whose first operand is what is added to it."""
    OVER_LAST_AXIS = "over_last_axis"
    """Sums over the last axis."""
    SHAPE_KEPT = "shape_kept"
    """Sums over an axis, and its result has the shape of what it is given."""
    ROUNDING_INSIDE = "rounding_inside"
    """Made of several products, which autocast rounds inside, whatever type its result has."""
    OF_OWN_DTYPE = "of_own_dtype"
    """What it gives depends on the numbers that a dtype has: there is no higher precision to compute it in."""

    # What it chooses.
    FLIPPING = "flipping"
    """Makes integers or bools of floats, or picks by them: a choice, which rounding may flip."""
    EXACT_COMPARISON = "exact_comparison"
    """A comparison that a last bit may turn everywhere."""
    COMPARING = "comparing"
    """Compares elements with a number that was rounded to the elements' own dtype."""
    SELECTING = "selecting"
    """Gives places of elements, in its second output or (arg...) in its only one."""
    PERMUTING = "permuting"
    """Gives each place once."""
    PICKING = "picking"
    """Picks rows out of data: a batch."""
    PLACING = "placing"
    """Puts a number of its arguments into its result as it is."""

    # What it draws.
    RANDOM = "random"
    """Draws: two runs make other numbers, and nobody computed wrong."""
    RANDOM_INSIDE = "random_inside"
    """Written in Python, may draw random numbers inside; ATen's own operators say so by tag."""
    DROPPING = "dropping"
    """Sets elements to zero by chance."""

    # What it writes, and what it is made of.
    CONSTANT = "constant"
    """Makes what is written in the program: no data comes with it."""
    UNWRITTEN = "unwritten"
    """Hands out memory that nobody has written."""
    OVERWRITING = "overwriting"
    """Writes the whole of its first argument and reads nothing of it."""
    RUNNING_STATS = "running_stats"
    """Writes its second and third argument."""

    # How it is called and executed again.
    METADATA = "metadata"
    """Answers about a tensor, or sets something: not an operation on numbers."""
    EXPOSING = "exposing"
    """Gives the tensor's memory away."""
    WITHOUT_RESULT = "without_result"
    """Its contents are undefined, or nothing is computed: not executed again."""
    REACHING_OUT = "reaching_out"
    """Reaches for memory, files or hooks: never executed out of a trace."""
    MAKER = "maker"
    """Executed again although torch lets nobody override it."""
    SIZED_BY_NUMBERS = "sized_by_numbers"
    """Sizes of its outputs are computed from plain numbers, which stay as they are."""

    # Types of operators in a device's graph.
    CASTING = "casting"
    """Hands on what it reads, output k what input k was, in another type or order."""
    WITHOUT_TASK = "without_task"
    """Computes nothing that a device would dump."""
    INSERTED = "inserted"
    """A compiler puts it in and takes it out as it likes, or it holds no computation."""
    NETWORK_INPUT = "network_input"
    STORED = "stored"
    """Holds a parameter or a constant of the network."""
    FILTERING = "filtering"
    """Its second input is a filter that slides over the first."""


@dataclass(frozen=True, slots=True)
class Operation:
    """All that is known of one operation; of one that no table has, its name."""

    name: str
    family: Family = Family.OTHER
    traits: frozenset[Trait] = frozenset()
    chooses: Choosing | None = None
    """None: that it flipped tells nothing."""
    added: frozenset[str] = frozenset()
    """Places of operands that are only added to its result."""
    stress: tuple[Variant, ...] = ()
    """Data that provokes what ordinary data hides."""

    def has(self, *traits: Trait) -> bool:
        """Whether one of these is true of it."""
        return not self.traits.isdisjoint(traits)


TABLES = ("torch.csv", "ge.csv", "tensorflow.csv")


@cache
def operation(op: str) -> Operation:
    """The entry of what a call executes, by any of its names."""
    name = operation_name(op)
    known = _entries().get(own_word(op)) or _entries().get(name)
    if known is not None:
        return known
    rewritten = _REWRITTEN.fullmatch(own_word(op))
    if rewritten is not None:
        plain = (f"{mark}{rewritten[1]}" for mark in ("", "_"))
        known = next((_entries()[word] for word in plain if word in _entries()), Operation(name))
        return replace(known, name=name)
    differentiated = gradient_of(name)
    if differentiated is None:
        return Operation(name)
    known = operation(differentiated)
    return replace(known, name=name, traits=known.traits | {Trait.GRADIENT})


def names_with(trait: Trait) -> frozenset[str]:
    """Names of all operations of which this is true."""
    return frozenset(name for name, entry in _entries().items() if trait in entry.traits)


@cache
def _entries() -> dict[str, Operation]:
    rows = {row["operation"]: row for table in TABLES for row in _rows(table)}
    return {name: _entry(name, rows) for name in rows}


def _rows(table: str) -> Iterator[dict[str, str]]:
    text = resources.files("ulpscope.operations").joinpath(table).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())


def _entry(name: str, rows: dict[str, dict[str, str]]) -> Operation:
    row = rows[name]
    known = _entry(row["like"], rows) if row["like"] else Operation(name)
    return replace(
        known,
        name=operation_name(name),
        family=Family(row["family"]) if row["family"] else known.family,
        chooses=Choosing(row["chooses"]) if row["chooses"] else known.chooses,
        added=frozenset(row["added"].split()) or known.added,
        stress=tuple(map(Variant, row["stress"].split())) or known.stress,
        traits=known.traits | frozenset(map(Trait, row["traits"].split())),
    )
