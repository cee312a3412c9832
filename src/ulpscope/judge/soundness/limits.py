"""The numbers of the verdict on an executed call, each with where it comes from."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SoundnessLimits:
    """Limits in units of what a sound kernel is expected to do; docs/check.md tells the rule in words."""

    half_ulp: float = 0.505
    """Error of a correctly rounded result, in ulp: a half, and what the sum inside may add to it."""
    evaluation: float = 0.75
    """RMS error of evaluating a function, in roundoffs of the precision it is computed in: libraries promise 1 ulp."""
    worst_evaluation: float = 8.0
    """The same for the worst element: published errors of sound float32 special functions, rounded up."""
    floor: float = 0.35
    """RMS error near zero, in roundoffs of the largest element, that constants leave in the likes of 1 + erf(x)."""
    drift: float = 0.5
    """Worst error of a sum, in roundoffs of the result, a term: terms of one sign, all rounded to one side."""
    longest_drift: float = 1024.0
    """Terms that a kernel may add up one by one; longer sums are blocked."""
    spread: float = 6.0
    """How many times its expected size the error of a single element may be, of all that are tested."""
    bound_spread: float = 9.0
    """The same, for roundings of stored intermediate results that are not known: short sums in storage, too."""
    near_spread: float = 4.0
    """The same, for roundings of stored intermediate results, before it is told."""
    lost: float = 0.5
    """Share of a result of subnormal numbers that intermediate results may lose by underflow: fused float16 attention
    without a loss scale, on a GPU, loses a tenth."""
    underflow: float = 1.5
    """Error, in smallest numbers of the dtype, of intermediate results that were stored and underflowed."""
    noise_warn: float = 2.0
    """RMS error over the expected one: 2 is one bit lost."""
    noise_fail: float = 5.0
    storage_warn: float = 0.6
    """RMS error over that of a kernel which rounds one intermediate result to storage: a half for one that does."""
    storage_fail: float = 2.0
    """The same: four such roundings leave 1."""
    noise_scatter: float = 3.0
    """Standard deviations by which an RMS of few elements may exceed its limit."""
    least_bin: int = 32
    """Elements of a binade that are judged apart."""
    bias_warn: float = 0.25
    """Mean signed error, in expected rms errors; truncation has 1.7."""
    bias_unit: float = 0.5
    """Of another sound kernel's mean error: what it exceeds of this widens the limits."""
    bias_fail: float = 1.5
    """The same as `bias_warn` where sums are more precise than the result: channels that share a stored factor each."""
    bias_sided_fail: float = 1.0
    """The same where nearly all errors are to one side: a factor of 1.004 has 2.5 in bfloat16."""
    bias_shared_fail: float = 3.0
    """The same where all elements may share one stored factor, such as a norm: one that is rounded makes up to 2.5."""
    bias_elements: int = 512
    """Fewer elements may do so."""
    bias_cancelled: float = 0.2
    """The same in errors of a stored intermediate result: below it, one that nearly cancels explains any bias."""
    bias_stored_fail: float = 1.25
    """The same with a stored intermediate result: one that all elements share makes up to 1."""
    bias_z: float = 8.0
    """Standard errors of the mean that make a bias certain, over every tensor of a run and errors that are related."""
    bias_scatter: float = 1.0
    """Least scatter of errors, in expected rms errors: few elements may look alike by chance."""
    one_sided: float = 0.95
    """Share of errors towards one side from which the rounding is directed; nearest has a half."""
    one_sided_elements: int = 50
    one_ulp: float = 1.02
    """Largest error of a directed rounding, in ulp."""
    directed_ulp: float = 0.4
    """Mean error of a directed rounding, in ulp: a half; of one to nearest a quarter."""
    structure: float = 1.5
    """Mean error of one index of an axis, in expected rms errors with a stored intermediate."""
    structure_rms: float = 3.0
    """RMS error of one index of an axis over the same."""
    structure_z: float = 8.0
    structure_elements: int = 16
    """Fewer elements of one index say nothing about it."""
    lone: float = 2.0
    """Size of single errors, in what stored intermediate results explain, that needs all others to be noisy too."""
    lone_share: float = 0.01
    overflow_margin: float = 4.0
    """Distance from the largest number, in roundoffs, within which overflowing and not overflowing are both sound."""
    widest_margin: float = 0.25
    """The same as a share of the largest number, however sensitive the element is."""
    sloppy: float = 8.0
    """Error beside the largest element, in accumulator roundoffs, that is poor near zero but not wrong."""
    sloppy_share: float = 0.1
    """Share of elements that may be poor near zero by a rounding of the largest element to storage."""
    sloppy_elements: int = 2
    """Elements that may be so, however few there are."""
    ordinary: float = 4.0
    """How many times another sound kernel's worst error in the binade is still explained."""
    rounded_ulp: float = 0.6
    """Errors of another sound kernel, in ulp, that explain nothing: it rounded once."""
    ordinary_ratio: float = 3.0
    """The same for means."""
    smoothing: float = 0.25
    """Share of its binade's rms that a sensitivity has at least: few runs underestimate some elements."""
    saturated: float = 0.5
    """Movement, in ulp, of an output whose inputs change by their own size, below which it is saturated."""
    norm_warn: float = 16.0
    """Error of an invariant over sqrt(n) roundoffs of the norm; test suites of linear algebra accept 30."""
    norm_fail: float = 100.0
    share_z: float = 5.0
    """Standard deviations of a share: one false alarm in 1.7 million tests."""
    normal_variance: float = 400.0
    """Variance of a count from which on the normal tail at the limit is within a factor of 10 of the exact one."""
    tail_terms: int = 1000
    """Terms of a binomial tail after which nothing is left of it, at smaller variances."""
    truth_roundoff: float = 2.0**-53
    """High precision has a roundoff too, which shows where the condition is bad or the output itself is float64."""
    inner_underflow: float = 2.0**-134
    """Products of what is small underflow inside a kernel: below float32's smallest normal number little is kept."""
    uniform: float = 1.0 / math.sqrt(12.0)
    """RMS of errors that are uniform within half an ulp, in ulp."""
    steady_walk: float = 3.0
    """How many times sqrt(terms) roundoffs of its result is more than the rms error of a sum term by term that grows
    steadily to it."""
    script_one_sided: float = 0.4
    """Surplus of errors to one side, as a share of all elements, in a script of its own: directed rounding puts half of
    all elements off by one ulp to the same side, rounding to nearest none."""
    script_none: float = 1e-9
    """Expected error, in ulp or units, where nothing but the rounded truth is right: one error exceeds every limit."""
    script_clearly: float = 1.5
    """How far beyond its limit a fault is told by the script that shows it."""


LIMITS = SoundnessLimits()
