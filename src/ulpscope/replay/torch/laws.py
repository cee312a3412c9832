"""What is known of random draws: how often they fall on one side of a place, by operation.

A law gives, for draws of one call, which of them fell there and with which probability each does.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ulpscope.replay.recorded import CannotReplayError

# Half of the draws of a normal distribution are within this many standard deviations.
_HALF_OF_NORMAL = 0.6744897501960817


@dataclass(frozen=True, slots=True)
class Draws:
    """What a random call gave, and what it was given; tensors are float64."""

    values: Tensor
    args: list[Any]
    kwargs: Mapping[str, Any]

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        given = self.kwargs.get(name, self.args[place] if len(self.args) > place else None)
        return default if given is None else given


Law = Callable[[Draws], tuple[Tensor, Tensor]]
"""Which draws fell there, and how probable that is for each."""


def has_law(op: str) -> bool:
    return op in _LAWS


def law_of(name: str) -> Law:
    law = _LAWS.get(name)
    if law is None:
        raise CannotReplayError("random, and its law is not known here")
    return law


def _same(happened: Tensor, probability: float) -> tuple[Tensor, Tensor]:
    return happened, torch.full((), probability).expand_as(happened)


def _unit(draws: Draws) -> tuple[Tensor, Tensor]:
    return _same(draws.values < 0.25, 0.25)


def _uniform(draws: Draws) -> tuple[Tensor, Tensor]:
    low, high = draws.argument(1, "from", 0.0), draws.argument(2, "to", 1.0)
    return _same(draws.values < low + (high - low) / 4, 0.25)


def _standard_normal(draws: Draws) -> tuple[Tensor, Tensor]:
    return _same(draws.values.abs() < _HALF_OF_NORMAL, 0.5)


def _normal(place: int) -> Law:
    """torch.normal has the mean first, the method has it second."""

    def law(draws: Draws) -> tuple[Tensor, Tensor]:
        mean, deviation = draws.argument(place, "mean", 0.0), draws.argument(place + 1, "std", 1.0)
        return _same((draws.values - mean).abs() < _HALF_OF_NORMAL * deviation, 0.5)

    return law


def _log_normal(draws: Draws) -> tuple[Tensor, Tensor]:
    return _same(draws.values < math.exp(draws.argument(1, "mean", 1.0)), 0.5)


def _cauchy(draws: Draws) -> tuple[Tensor, Tensor]:
    median, sigma = draws.argument(1, "median", 0.0), draws.argument(2, "sigma", 1.0)
    return _same((draws.values - median).abs() < sigma, 0.5)


def _exponential(draws: Draws) -> tuple[Tensor, Tensor]:
    return _same(draws.values < math.log(2) / draws.argument(1, "lambd", 1.0), 0.5)


def _geometric(draws: Draws) -> tuple[Tensor, Tensor]:
    return _same(draws.values == 1, draws.argument(1, "p"))


def _bernoulli(draws: Draws) -> tuple[Tensor, Tensor]:
    given = draws.argument(1, "p")
    # torch.bernoulli(x) takes x for the probabilities; the method without any takes a half.
    probability = draws.argument(0, "input") if given is None else given
    if isinstance(probability, float | int):
        return _same(draws.values != 0, float(probability))
    return draws.values != 0, probability.expand_as(draws.values)


def _bernoulli_method(draws: Draws) -> tuple[Tensor, Tensor]:
    given = draws.argument(1, "p", 0.5)
    return _bernoulli(Draws(draws.values, [None, given], {}))


def _poisson(draws: Draws) -> tuple[Tensor, Tensor]:
    rates = draws.argument(0, "input")
    most = rates.floor()
    return draws.values <= most, torch.special.gammaincc(most + 1, rates)


def _whole(first: int) -> Law:
    """Integers from low to below high; the places before `first` hold no limits."""

    def law(draws: Draws) -> tuple[Tensor, Tensor]:
        limits = [item for item in draws.args[first:] if isinstance(item, int)]
        low = draws.kwargs.get("low", draws.kwargs.get("from", limits[0] if len(limits) > 1 else 0))
        high = draws.kwargs.get("high", draws.kwargs.get("to", limits[-1] if limits else None))
        if high is None or high <= low:
            raise CannotReplayError("random, and its limits are not known")
        middle = low + (high - low + 1) // 2
        return _same(draws.values < middle, (middle - low) / (high - low))

    return law


def _multinomial(draws: Draws) -> tuple[Tensor, Tensor]:
    """Of each row the first draw: is it the most probable one?"""
    weights = draws.argument(0, "input")
    most = (weights / weights.sum(-1, keepdim=True)).max(-1)
    return draws.values[..., 0] == most.indices, most.values


def _rrelu(draws: Draws) -> tuple[Tensor, Tensor]:
    """Slopes below 0 are uniform."""
    source = draws.argument(0, "input")
    low, high = draws.argument(1, "lower", 1 / 8), draws.argument(2, "upper", 1 / 3)
    below = source < 0
    slopes = draws.values[below] / source[below]
    return _same(slopes < low + (high - low) / 4, 0.25)


_LAWS: dict[str, Law] = {
    "torch.rand": _unit,
    "torch.rand_like": _unit,
    "torch.randn": _standard_normal,
    "torch.randn_like": _standard_normal,
    "torch.normal": _normal(0),
    "torch.bernoulli": _bernoulli,
    "torch.poisson": _poisson,
    "torch.multinomial": _multinomial,
    "torch.Tensor.multinomial": _multinomial,
    "torch.randint": _whole(0),
    "torch.randint_like": _whole(1),
    "torch.nn.functional.rrelu": _rrelu,
    "torch.rrelu": _rrelu,
    "torch.Tensor.uniform_": _uniform,
    "torch.Tensor.normal_": _normal(1),
    "torch.Tensor.log_normal_": _log_normal,
    "torch.Tensor.cauchy_": _cauchy,
    "torch.Tensor.exponential_": _exponential,
    "torch.Tensor.geometric_": _geometric,
    "torch.Tensor.bernoulli": _bernoulli,
    "torch.Tensor.bernoulli_": _bernoulli_method,
    "torch.Tensor.random_": _whole(1),
    "torch.nn.init.uniform_": _uniform,
    "torch.nn.init.normal_": _normal(1),
}
