"""Every number by which a watched training is found to be unlike itself, with its unit and where it comes from.

"Monitoring" is the benchmark of that name in docs/benchmarks.md: with such a number its healthy trainings are silent
and its planted anomalies are found, and no finer measurement stands behind it. Half of its trainings were not looked at
when the numbers were set. "Chosen" is what it does not test. Sizes are root mean squares; their noise is that of
logarithms.
"""

REMEMBERED = 32
"""Steps by which a number's own noise is told: more would not follow a schedule, fewer scatter themselves. Chosen."""
RECENT = 5
"""Steps whose median is where a number is expected next: one or two odd ones do not move it. Chosen."""
LEAST_KNOWN = 12
"""Steps that a number must have been seen in before it can jump: the first ones fall fast. Monitoring."""
STEPS_OF_LARGEST = 64
"""Steps of which the largest departure of all numbers is remembered, to tell how far healthy ones reach. Chosen."""
CHANCE = 1.0e-2
"""Of a false alarm by noise, in all steps of a run together. Chosen."""
LEAST_STEPS = 1000
"""Steps that a run is taken to have, at least: an alarm at step 20 must be as rare as one later. Chosen."""
HEAVIEST_TAIL = 1.0
"""Deviations by which the largest departures of steps exceed their median on average, at least: so few steps cannot
show a lighter tail. Monitoring."""
LEAST_NOISE = 0.02
"""Noise of a logarithm that any number is granted. Monitoring."""
LEAST_RISE, LEAST_FALL = 3.0, 10.0
"""Times above or, for CONFIRMED_RUN steps, below all that is remembered: less is no jump. Monitoring."""

USUAL_RUN = 8
"""Steps in a row that make a habit: moving, being finite, not being zero. Chosen."""
CONFIRMED_RUN = 2
"""Steps in a row that end it. One batch may leave a unit out. Monitoring."""
LEAST_ELEMENTS = 16
"""Elements: fewer may all be zero by chance. Chosen."""
DEAD_SHARE, ALIVE_SHARE = 0.99, 0.9
"""Share of zeros from which on an output is dead, and below which it is alive. Chosen."""
FADED, OTHERS_FADED = 1.0e6, 1.0e3
"""Times by which a gradient has shrunk since the first steps, while the median of all has shrunk by less. Chosen."""
STUCK_RATE, ALL_STUCK_RATE = 1.0e-3, 0.1
"""Share of its highest learning rate below which a parameter may stand still; and all of them together. Chosen."""
WRITTEN_TIMES = 3.0
"""Times its largest recent update by which a parameter must have been changed past the optimizer. Chosen."""
QUIET_STEPS = 8
"""Steps without anything odd after which the next odd number is another anomaly. Chosen."""
MOST_SKIPS = 17
"""Updates that a GradScaler skips in a row because of its scale: it begins at 2^16 and is halved each time."""

PARTED_LOSS = 1.0e-3
"""Relative: what two losses differ by at first that were identical so far, by more than rounding. Chosen."""
PARTED_NOISE = 15.0
"""Deviations of the pair's own scatter by which a loss leaves the earlier one's at once. As jumps. Monitoring."""
PARTED_LEAST = 0.1
"""Relative: less is no parting at once, in noise. Chosen."""
DRIFTED, DRIFT_STEPS = 0.05, 16
"""Relative, the median of so many steps: a loss that has slowly left the earlier one. Chosen."""
DRIFT_NOISE = 6.0
"""Deviations of such a median. Chosen."""
LEAST_PAIR_NOISE = 0.005
"""Relative scatter that a pair of losses is granted. Chosen."""
AGREED_UPDATES = 2
"""Updates after which a parameter that is still the same on two ranks is one that they have in common. Chosen."""
