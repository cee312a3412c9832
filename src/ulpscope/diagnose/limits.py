"""Every number by which diagnose decides, each with its unit and where it comes from. Those of rounding itself are in
judge.rounding.limits, those of a single call executed again in judge.soundness.limits.

"Zoo" is the fault zoo of docs/benchmarks.md, "sound kernels" the benchmark of that name there: with such a number their
healthy pairs are clean and their faults are found, and no finer measurement stands behind it. "Chosen" is what neither
tests. Errors are relative L2 distances of whole tensors.
"""

from ulpscope.judge.rounding.limits import unit_roundoff

# --- errors through the run (flow/) ---

COARSE_SKETCH = 8.0
"""Factor of rounding up to which a sketch tells it all the same. Float32's is coarser by 5.6 (SKETCH_FLOOR)."""
COARSEST_ROUNDOFF = unit_roundoff("bfloat16")
"""Relative. What is stored in fewer bits is scaled, and no type to compute in."""
HALF_ROUNDOFF = unit_roundoff("float16")
"""Relative. The finest of 16 bits."""
SAME_ERROR = 0.3
"""Share of an error. A copy in another dtype has the error of its original, give or take its own rounding. Zoo."""
PLAINLY_WRONG = 0.5
"""Error of an operand from which on it explains inf and nan. Half of the number is wrong. Chosen."""
MANY_MODULES = 8
"""Modules. Among so many layers one does not move the median of their gains, faulty or not. Chosen."""
LONGEST_GAP = 400
"""Calls that one gap may lead through. More is another program, not a difference. Chosen."""
STARTING_ERROR = 0.02
"""Error of a parameter at a first captured step after the first of the run that is a starting condition. Zoo."""

GONE = 10.0
"""How many times larger a difference inside of a step must be than any of what leaves it, to be gone there. Chosen."""
HEALED_GAIN = 2.0
"""How many times what came in the errors behind a span that is written otherwise may be. The median of sound calls is
1; with the most that each kind of call may have, faults under noise were taken for another way to write them. Zoo."""
LOSS_ROUNDOFFS = 8.0
"""Roundoffs of the coarsest type by which no sound first loss differs. Measured: 5.4 at most in 396 healthy pairs, save
those of networks that divide by deviations of few elements, or solve equations."""
LOSS_DEVIATIONS = 8.0
"""How many times what rounding usually makes of a first loss, by the step's own gradients, a sound one may be off.
Measured: 4.3 at most in 76 healthy pairs in bfloat16 and float16, 8 to 1,700 in a third of the faults beside them."""
UNSEEN_CALLS = 0.1
"""Share of a forward's calls without partners from which on their roundings may be what moves a loss. Chosen."""
IDLE_SHARE = 1 / 3
"""Of an operand's error that the gradient of what it was multiplied with has at most, if the error lies in rows that no
gradient comes back to. Measured: 1/20 to 1/5 behind rows of padding; about 1 where all rows are wrong."""
ANOTHER_NUMBER = 0.25
"""Error from which on two numbers may not be meant to be the same, whatever their calls were told. Chosen."""
EXIT_ROUNDOFFS = 4.0
"""Roundoffs of the coarsest type that losses, and gradients together, differ by at most if their steps agree. Measured:
1 to 3 in pairs that compute the same another way in bfloat16 (batches in other parts, losses by hand), 11 in one with
cells of a recurrence; 5 and 9 in two faults of a formula."""
SINGLE_GRADIENT = 10.0
SMALL_GRADIENT = 0.01
"""How many times more a single gradient may differ than all together, in noise than their median (6 at most in such
pairs, 29 and 39 in faults of a part), and the share of their norm below which it counts as so large. Chosen."""

AVERAGE_ERRORS = 2.0
LARGE_ERRORS = 4.0
"""Errors of an average element. Gradients as small as that may have the other sign: all that share their bin of
exponents, and where errors lie unevenly, as many of the larger ones as chance gives. Zoo."""
CHANCE = 3.0
"""Standard deviations of that number. Beyond it lies one of 400 by chance."""

NUMBERS_DRAWN = 4096
"""Elements that an operation is tried on before it is blamed: their root mean square scatters by 1 %."""
DRAWN_GAIN = 3.0
"""How many times what was measured on numbers like its operands' a sound operation may have: numbers that lie otherwise
among the same bins, and errors that lie where they count. Chosen."""

SCALE_NEARNESS = 0.1
SCALE_SPREAD = 0.6
"""Binary exponents: how near a power of two the usual ratio of gradients must be, and how near that a scaled value.
Zoo (gpt.fp16_scaler)."""
COUNT_NEARNESS = 0.02
"""Relative: how near a whole number the usual ratio of gradients must be to be a number of micro-steps or ranks. Noise
moves the median of many gradients' norms by less than half a percent. Chosen."""
SCALED_SHARE = 0.5
"""Share of the gradients that a loss scale is on: most of them."""
LEAST_UNANNOUNCED_SCALE = 6
"""Binary exponents. A loss that is not divided by 2 is no loss scale: without a GradScaler in sight it is a large
one. torch's GradScaler begins at 16."""

# --- what a difference is (detectors/) ---

MASK_SIZE = 1.0e4
"""Size from which on a number among the arguments is a mask's: -10000 (BERT) is the smallest that networks use."""
LAST_BITS = 1e-5
"""Relative. What numbers that were computed differently may differ by: float32 has 6e-8, and a few operations."""
LEFTOVER_NEAR = 0.1
LEFTOVER_NEAR_OF_FEW = 1e-4
LEFTOVER_FEW = 16
"""Of its norm: how near a gradient's surplus must come to the earlier gradient. Between dtypes it has their noise
(zoo: stale_gradients); of fewer elements than the third number so much could be chance."""
LEFTOVERS_TRIED = 4
"""Earlier contents: as the backward left it, as clipping left it, and those of a step before."""
SIBLINGS = 3
"""Layers of one kind, from which on one that differs is the odd one."""
FEW_PAIRED = 1 / 3
"""Share of the calls, in the run that makes fewer, below which two runs are not of one model. Two runs of one model
pair nine tenths and more, two of different models a quarter at most (measured)."""

# --- which differences are told (findings, comparing) ---

STANDS_OUT = 10.0
"""Times more than explained: so much stands out of what the first fault left behind. Zoo."""
CLEAN_INPUT = 0.02
"""Error of the inputs of such a second fault at most. Zoo."""
NAMES_LISTED = 6
"""Names of calls or parameters in one finding; a line's worth."""
SETTINGS_QUOTED = 3
"""Differences of the environments beside a finding: whoever wants more asks diff."""
COMPUTED_NOISE = 8.0
"""Roundoffs of the coarsest type within which a number among the arguments may be one that the run computed. Chosen."""
WRITTEN_DIGITS = 7
"""Characters that a number has which somebody wrote; one that was computed has more. Chosen."""
LONGEST_ARGUMENT = 60
"""Characters of an argument's text."""
BEFORE_SHOWN = 3
"""Calls before the answer."""

# --- calls executed again (ledger, replaying) ---

NEAREST_REPLAYED = 24
"""Pairs of calls beside those of findings: the ones whose errors come nearest to what is explained. Chosen."""
REPLAY_BATCH = 256
"""Pairs of calls that are read at a time."""
SWEPT_UNASKED = 2000
"""Calls of a rank up to which each call's share of the final difference is told unasked. Chosen."""
TELLING_ARGUMENT = 1 / 32
"""Roundoffs of the output. Below, an argument's effect drowns even in the mean of many elements. Chosen."""
ALIKE = 2.0
"""Factor within which the errors of two kernels are alike. Sound kernels."""
AS_GOOD = 1.25
"""Factor within which a run's error is that of this machine's own kernel. Sound kernels."""
WORSE = 3.0
MUCH_WORSE = 8.0
"""Factors by which this machine's kernel must do better for a run to be wrong although a stored rounding could explain
it: in norm, and in the worst element, of which there is one among many. Sound kernels."""
LARGEST_ROUNDING = 3.0**0.5
"""Errors of rounding to nearest are at most so many times their rms."""
FEW_STRANGE = 0.01
"""Share of the elements. A rounding that is stored hits many. Chosen."""
MANY_ELEMENTS = 64
"""Elements. Of fewer no statistic says how they came about. Chosen."""
LOST_BY_UNDERFLOW = 0.5
"""Share of a result's norm. More is not lost by underflow alone. Chosen."""

SAME_FUNCTION = 1e-6
"""Relative. Plain numbers reach kernels in float32 (6e-8), through a few operations; all else is float64. Chosen."""
SPAN_CALLS, SPAN_VALUES, SPANS_TRIED = 64, 16, 16
"""Calls of a run that lead to the end of a span that is written otherwise, values inside of it, and such spans of a
rank, at most. More is another program. Chosen."""

# --- networks of devices (network, advice) ---

QUANTISED_ROUNDOFF = 8 / 2**8
"""Half a step of 8 bits beside numbers whose largest is eight times their root mean square, as of calibrated layers."""
ACCEPTABLE_COSINE = 0.99
"""MindStudio's measure of an acceptable tensor."""
CUSTOM_IMPLEMENTATIONS = (0, 1, 2)
"""fe::OpImplType: EN_IMPL_CUSTOM_CONSTANT_CCE, EN_IMPL_CUSTOM_TIK, EN_IMPL_CUSTOM_TBE."""
OPERATORS_NAMED = 3
"""Operators that are named in a piece of advice, at most."""

# --- twins (flow/twins.py) ---

SURE_CHANCE, SURE_DEVIATIONS = 1e-6, 4.75
"""A sound call is further off once in a million, which are so many standard deviations."""
INDEPENDENT_ELEMENTS = 64.0
"""Elements whose errors are independent, at most: those of a sum's rows have much in common, and a sketch has as many
numbers."""
FACTOR_DEVIATIONS, FACTOR_SHARE = 13.0, 0.7
"""A factor that a call made is so many times what its operands' and chance explain, and that share of the error. Sound
calls: at most 12.3, where all rows of an operand moved together, in 400 healthy pairs; a kernel that is 2 % off: 24."""
FACTOR_ELEMENTS, FACTOR_NOISE = 32.0, 0.1
"""Fewer elements, or larger errors, say nothing about a factor."""
SAME_PRECISION, OTHER_PRECISION = 0.9, 0.2
"""Share of the parameters that have the same types in both runs if these are in one precision, and of values that have
others, at most. Measured: 5 and 7 % where a single place lost its type, 21 % under autocast. Chosen."""
CHANGED_ROUNDOFFS, NEARLY_SAME, CHANGED_SHARE = 4.0, 0.3, 0.5
"""Calls that only one run makes change a value a little if it is so many roundoffs of its own further, and less than
that share of it. The other run lacks the change if it has less than the third number of it. Chosen."""
LEAST_SCATTER = 0.05
"""Of logarithms of ratios, beyond what few draws explain: 1.27 times more, once in a million. Measured: 1.12 at most in
14,900 outputs of 24 healthy pairs, save sums that are made in a coarse type."""
SOUND_SHARE, SOUND_DEVIATIONS = 0.95, 1.645
"""Share of a run's calls that are sound, whatever is wrong, and where it ends in standard deviations."""

# --- two trainings (trainings/) ---

VALUES_AT_ONCE = 32_768
"""Values of one run that are read together, but for those of a step that has more: 30 MB, and as much while they are
measured. A hundred times fewer take three times as long."""
SMALLEST_ERROR = 1e-12
"""Below it, logarithms of errors say nothing: no sketch resolves it."""
STEPS_REMEMBERED = 8
"""Steps before one, whose largest error its own is set against."""
JUMP_SCATTERS, LEAST_JUMP = 6.0, 8.0
"""A parting moves the logarithm of errors so many times as far as they scatter from step to step in the same pair, and
the error so many times at least. Healthy pairs (fp32 beside bf16, beside one whose noise is that of fp32) of 200 steps
have at most 3.1 times (benchmarks/parting.py)."""
STEPS_OF_NOISE = 3
"""Steps before one, without which nobody knows how errors scatter."""
FIRST_ERROR = 0.25
"""Relative distance of gradients of the same weights in the first step, where a forward holds numbers in 16 bits:
bfloat16 leaves 0.05, other batches 0.5 and more (benchmarks/parting.py)."""
FIRST_GRADIENTS = 1024.0
"""Roundoffs, the same where it holds them in finer types. Measured: 7 between float32 and sums in another order, 1,300
and more where an epsilon is 1e-3 in the place of 1e-5 (benchmarks/parting.py)."""
FIRST_LOSS = 64.0
"""Roundoffs of the coarsest type by which the losses of a first step differ at most: eight times LOSS_ROUNDOFFS, since
a watch does not see what excuses a sound loss that is further off. Chosen."""
PEERS_APART = 64.0
"""How many times the error of its peers a single gradient has, in steps of which no noise is known. Chosen."""
SAME_DIRECTION = 1e-3
"""Of 1 - cosine: gradients that are scaled."""
UPDATES_APART = 2.6
"""How far apart two updates are at most, in lengths of the reference's: twice that, where they go into opposite
directions, and the scatter of a sketch at three standard deviations."""
DRIFT_SHARE, DRIFT_STEPS = 0.5, 3
"""Directions have drifted apart where the median gradient differs by that share of what two batches do, for so many
steps. Chosen."""
UNREPEATED = 0.25
"""Share of the distance of two runs' losses by which one command's own loss of that step moves when it is run again:
from there on that command's chance may be all that the runs differ by. Chosen."""
RECOVERED, PARTLY_RECOVERED = 0.1, 0.5
"""Share of the distance to the reference's loss that is left at most where running the suspect elsewhere mends the
loss, and where it mends a part of it. Chosen."""
PARAMETERS_NAMED = 5
"""Parameters that a parting names, at most."""
