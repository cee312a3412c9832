"""Did a random call do what it does as often as stated?"""

import math

from ulpscope.judge.soundness import results as words
from ulpscope.judge.soundness.limits import LIMITS
from ulpscope.records.checks import OutputResult, ShareEvidence, Verdict

# Above this variance the normal tail at the limit is within a factor of 10 of the exact one.
_NORMAL_VARIANCE = 400.0
# Terms of a binomial tail after which nothing is left of it, at smaller variances.
_TAIL_TERMS = 1000


def judge_share(evidence: ShareEvidence) -> OutputResult:
    """A two-sided binomial test."""
    z = _deviation(evidence.successes, evidence.trials, evidence.probability)
    extremes = (_deviation(count, evidence.trials, evidence.probability) for count in (0, evidence.trials))
    if evidence.trials == 0 or max(extremes) <= LIMITS.share_z:
        return _result(evidence, Verdict.UNTESTED, "few_trials", z)
    return _result(evidence, Verdict.FAIL if z > LIMITS.share_z else Verdict.PASS, "share", z)


def _result(evidence: ShareEvidence, verdict: Verdict, statistic: str, z: float) -> OutputResult:
    facts = {
        "successes": evidence.successes,
        "trials": evidence.trials,
        "observed": evidence.successes / max(evidence.trials, 1),
        "probability": evidence.probability,
        "z": z,
        "z_limit": LIMITS.share_z,
    }
    return OutputResult(
        place=evidence.place,
        direction=evidence.direction,
        verdict=verdict,
        statistic=statistic,
        message=words.sentence(statistic, facts),
        metrics=tuple((name, float(fact)) for name, fact in facts.items()),
    )


def _deviation(successes: int, trials: int, probability: float) -> float:
    """How unlikely the count is, as standard deviations of a normal distribution."""
    expected = trials * probability
    variance = expected * (1.0 - probability)
    if variance <= 0:
        return 0.0 if successes == round(expected) else math.inf
    if variance >= _NORMAL_VARIANCE:
        return max(abs(successes - expected) - 0.5, 0.0) / math.sqrt(variance)
    return _normal_deviation(2.0 * _tail(successes, trials, probability))


def _tail(successes: int, trials: int, probability: float) -> float:
    """Probability of this count or one farther from the expected, on its side."""
    step = 1 if successes >= trials * probability else -1
    last = min(trials, successes + _TAIL_TERMS) if step > 0 else max(0, successes - _TAIL_TERMS)
    return math.fsum(_mass(count, trials, probability) for count in range(successes, last + step, step))


def _mass(count: int, trials: int, probability: float) -> float:
    ways = math.lgamma(trials + 1) - math.lgamma(count + 1) - math.lgamma(trials - count + 1)
    return math.exp(ways + count * math.log(probability) + (trials - count) * math.log1p(-probability))


def _normal_deviation(chance: float) -> float:
    """The deviation that a normal variable exceeds, on either side, with that chance."""
    if chance >= 1:
        return 0.0
    low, high = 0.0, 38.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if math.erfc(middle / math.sqrt(2)) > chance else (low, middle)
    return low
