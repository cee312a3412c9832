"""Numbers that decide in this room, each with its unit and where it comes from."""

RECORDS = 2**19
"""Results that are kept until they are taken; a row has 1 kB. Far above the results of a step (a Keras transformer of
12 layers makes 4,000); a session that is asked for many steps at once may pass it, which is counted."""

DATA_BYTES = 2**31
"""Bytes of saved elements that wait to be taken; more are not saved, which is counted."""

MAX_DIMS = 12
"""Dimensions of a tensor that a record can tell. TensorFlow's kernels take 8 at most."""

KEPT_CONSTANT_BYTES = 1024
"""A larger constant's content is not kept with the graph: it is a result like others, and was read."""

PLANS = 64
"""Ways in which graphs have run whose plans are kept: each about 1 MB for a step of 700 nodes. A training has two or
three; one whose loops turn, or whose branches go, in more ways has plans made anew."""

PLANS_OF_A_KIND = 4
"""Plans of runs that execute the same after other graphs of the step: the first of several calls of a function has none
before it, all others have."""
