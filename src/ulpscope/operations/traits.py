"""What may be known of an operation."""

from dataclasses import dataclass
from enum import Enum

from ulpscope.records.checks import Variant


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
    COMPUTED_IF_COMPLEX = "computed_if_complex"
    """Exact, but of complex numbers it gives lengths and directions, which are computed."""
    PASSING_ON = "passing_on"
    """Its gradient is what was sent, or 0, element by element."""
    KINKED = "kinked"
    """Its backward chooses by comparison: an operand that moves across the kink moves a whole gradient."""
    GRADIENT = "gradient"
    """A kernel that computes a gradient, of what its first operand is to the result."""
    BIAS_FIRST = "bias_first"
    """A contraction whose first operand is what is added to it."""
    OVER_LAST_AXIS = "over_last_axis"
    """Sums over the last axis."""
    SHAPE_KEPT = "shape_kept"
    """Sums over an axis, and its result has the shape of what it is given."""
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
