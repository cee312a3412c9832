"""Is an output what a sound kernel gives, or what no rounding explains? Pure functions from evidence to a verdict.

PASS      the errors of a kernel that rounds its result once and adds up in its accumulator's precision
WARN      explained by intermediate results rounded to the precision of storage, by flushing subnormal numbers to
          zero, or poor near zero only
FAIL      no rounding explains it
UNTESTED  nothing in the output could have shown a fault
"""

from ulpscope.judge.soundness.arithmetic import judge_rounded
from ulpscope.judge.soundness.exact import judge_exact, judge_norm
from ulpscope.judge.soundness.results import result_of
from ulpscope.judge.soundness.share import judge_share
from ulpscope.records.checks import OutputEvidence, OutputResult, Rule, Verdict

__all__ = ["judge_output", "judge_share"]


def judge_output(evidence: OutputEvidence) -> OutputResult | None:
    """The verdict; none if it takes the sensitivity to decide."""
    if evidence.violation is not None:
        return result_of(evidence, Verdict.FAIL, "violation", {"violation": evidence.violation})
    if evidence.computed.shape != evidence.exact.shape:
        shapes = {"computed_shape": str(evidence.computed.shape), "exact_shape": str(evidence.exact.shape)}
        return result_of(evidence, Verdict.FAIL, "shape", shapes)
    if evidence.exact.size == 0:
        return result_of(evidence, Verdict.UNTESTED, "empty", {})
    if evidence.rule is Rule.EXACT or evidence.exact.dtype.kind in "biu":
        return judge_exact(evidence)
    if evidence.rule is Rule.NORMWISE:
        return judge_norm(evidence)
    return judge_rounded(evidence)
