"""Random calls: what their law says of many draws, and what is exact in spite of chance.

Dropout must drop its share and scale what it keeps; a generator must put its share of draws on either side of a place
known from its law: which draws fell there, and with which probability each does. Which elements these are is chance,
and is not compared.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ulpscope.numerics.dtypes import DTYPES
from ulpscope.operations.registry import Trait, operation, operation_name
from ulpscope.records.checks import Direction, OutputEvidence, Rule, ShareEvidence
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.torch.running import Feed, Ran, Recipe
from ulpscope.replay.torch.tensors import Decoder, dtype_name, to_array

Evidence = OutputEvidence | ShareEvidence

# Draws are rounded to their dtype, which moves a few across a limit; among so many that cannot be seen yet.
MOST_DRAWS = 2**16
# What alpha_dropout drops to: the lower limit of the SELU activation that it belongs to.
ALPHA = -1.7580993408473766
# Roundings that a kernel may make before it gives that number.
_MARGIN = 8.0


def random_evidence(recipe: Recipe, feed: Feed, ran: Ran) -> list[Evidence]:
    """What can be told of a random call from one execution."""
    if operation(recipe.op).has(Trait.DROPPING):
        return _dropout(recipe, feed, ran)
    drawn = ran.outputs.get("output.0")
    if drawn is None or not drawn.numel():
        raise CannotReplayError("random, and it gave nothing")
    if operation_name(recipe.op) == "randperm":
        # Every number once.
        numbers, each = drawn.detach().to("cpu").sort().values, torch.arange(len(drawn))
        return [replace(_rounded("output.0", Direction.FORWARD, numbers.double(), each.double()), rule=Rule.EXACT)]
    law = _LAWS.get(recipe.op)
    if law is None:
        raise CannotReplayError("random, and its law is not known here")
    given = {place: feed.tensors[first] for place, first in recipe.firsts.items()}
    args, kwargs = Decoder({place: _high(tensor) for place, tensor in given.items()}, device="cpu").arguments(
        recipe.arguments
    )
    happened, told = law(Draws(_high(drawn), args, kwargs))
    probable = (told if isinstance(told, Tensor) else torch.full((), told)).expand_as(happened)
    happened, probable = (each.reshape(-1)[:MOST_DRAWS] for each in (happened, probable))
    if not happened.numel():
        raise CannotReplayError("random, and no draw tells anything")
    probability = float(probable.double().mean())
    return [ShareEvidence("output.0", Direction.FORWARD, int(happened.sum()), happened.numel(), probability)]


def added(one: Evidence, other: Evidence) -> Evidence:
    """Shares over both executions; of outputs the first."""
    if not isinstance(one, ShareEvidence) or not isinstance(other, ShareEvidence):
        return one
    trials = one.trials + other.trials
    probability = (one.probability * one.trials + other.probability * other.trials) / max(trials, 1)
    return replace(one, successes=one.successes + other.successes, trials=trials, probability=probability)


@dataclass(frozen=True, slots=True)
class _Form:
    """Kept elements become `factor * x + shift`, dropped ones `fallen`."""

    factor: float
    shift: float = 0.0
    fallen: float = 0.0

    @classmethod
    def of(cls, name: str, probability: float) -> "_Form":
        if "alpha" not in name:
            return cls(0.0 if probability == 1.0 else 1.0 / (1.0 - probability))
        factor = (1.0 - probability) * (1.0 + probability * ALPHA**2)
        factor = factor**-0.5 if factor else 0.0
        shift = -factor * ALPHA * probability
        return cls(factor, shift, factor * ALPHA + shift)


def _dropout(recipe: Recipe, feed: Feed, ran: Ran) -> list[Evidence]:
    training, probability = dropout_arguments(recipe.arguments)
    source = ran.leaves["args.0"] if "args.0" in ran.leaves else ran.leaves["kwargs.input"]
    if source.is_complex():
        raise CannotReplayError("random, and complex")
    name = operation_name(recipe.op)
    form = _Form.of(name, probability) if training else _Form(1.0)
    if source.dtype != torch.float64:
        # Kernels get the factor in float32.
        form = replace(form, factor=float(torch.tensor(form.factor, dtype=torch.float32)))
    high, output = _high(source), _high(ran.outputs["output.0"])
    if_kept = high * form.factor + form.shift
    margin = _MARGIN * DTYPES[dtype_name(source.dtype)].unit_roundoff * abs(form.fallen)
    kept = (output - form.fallen).abs() > margin
    # Where the output tells whether it was.
    known = ((if_kept - form.fallen).abs() > 2 * margin) & torch.isfinite(if_kept)
    if probability == 1.0:
        known = torch.isfinite(high)
    # Where it cannot be told what happened, whatever came out stands.
    exact = torch.where(known | torch.isnan(if_kept), torch.where(kept, if_kept, form.fallen), output)
    dropped, trials = _dropped(name, known, kept)
    evidence: list[Evidence] = [
        ShareEvidence("output.0", Direction.FORWARD, dropped, trials, probability if training else 0.0),
        _rounded("output.0", Direction.FORWARD, ran.outputs["output.0"].detach(), exact),
    ]
    for place, gradient in ran.gradients.items():
        sent = torch.where(kept, _high(feed.grad_outputs["output.0"]) * form.factor, 0.0)
        back = torch.where(known, sent, _high(gradient))
        evidence.append(_rounded(f"grad.{place}", Direction.BACKWARD, gradient, back))
    return evidence


def draws(recipe: Recipe) -> bool:
    """Whether a call draws numbers; the dumps of other tools do not say so."""
    dropped = recipe.arguments.get("kwargs", {}).get("dropout_p", 0.0)
    return operation(recipe.op).has(Trait.DROPPING, Trait.RANDOM) or recipe.op in _LAWS or bool(dropped)


def dropout_arguments(arguments: Mapping[str, Any]) -> tuple[bool, float]:
    """Whether anything is dropped, and with which probability."""
    args, kwargs = arguments.get("args", []), arguments.get("kwargs", {})
    training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
    return bool(training), float(kwargs.get("p", args[1] if len(args) > 1 and args[1] is not None else 0.5))


def _dropped(name: str, known: Tensor, kept: Tensor) -> tuple[int, int]:
    """How many fell of how many that fell or stayed each by itself; in some operations whole channels do."""
    fallen, rank = known & ~kept, known.dim()
    axes = tuple(range(2, rank)) if name == "dropout2d" or "feature" in name else ()
    if name in ("dropout1d", "dropout3d"):
        # Without a batch the channels come first.
        axes = tuple(range(rank - int(name[-2]), rank))
    if axes:
        fallen, known = (fallen | ~known).all(axes) & known.any(axes), known.any(axes)
    return int(fallen.sum()), int(known.sum())


def _high(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64)


def _rounded(place: str, direction: Direction, computed: Tensor, exact: Tensor) -> OutputEvidence:
    dtype = dtype_name(computed.dtype)
    roundoff = DTYPES[dtype].unit_roundoff
    return OutputEvidence(
        place=place,
        direction=direction,
        rule=Rule.ROUNDED,
        dtype=dtype,
        computed=to_array(computed),
        exact=to_array(exact),
        reduction=1.0,
        accumulation=roundoff,
        input_roundoff=roundoff,
        sensitivity=abs(to_array(exact)),
    )


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


Told = tuple[Tensor, Tensor | float]
"""Which draws fell there, and how probable that is: for each, or for all of them."""
Law = Callable[[Draws], Told]


def _uniform(draws: Draws) -> Told:
    low, high = draws.argument(1, "from", 0.0), draws.argument(2, "to", 1.0)
    return draws.values < low + (high - low) / 4, 0.25


def _normal(place: int) -> Law:
    """torch.normal has the mean first, the method has it second."""

    def law(draws: Draws) -> Told:
        mean, deviation = draws.argument(place, "mean", 0.0), draws.argument(place + 1, "std", 1.0)
        return (draws.values - mean).abs() < _HALF_OF_NORMAL * deviation, 0.5

    return law


def _cauchy(draws: Draws) -> Told:
    median, sigma = draws.argument(1, "median", 0.0), draws.argument(2, "sigma", 1.0)
    return (draws.values - median).abs() < sigma, 0.5


def _bernoulli(draws: Draws) -> Told:
    """torch.bernoulli(x) takes x for the probabilities."""
    given = draws.argument(1, "p")
    probability = draws.argument(0, "input") if given is None else given
    return draws.values != 0, float(probability) if isinstance(probability, int) else probability


def _poisson(draws: Draws) -> Told:
    rates = draws.argument(0, "input")
    most = rates.floor()
    return draws.values <= most, torch.special.gammaincc(most + 1, rates)


def _whole(first: int) -> Law:
    """Integers from low to below high; the places before `first` hold no limits."""

    def law(draws: Draws) -> Told:
        limits = [item for item in draws.args[first:] if isinstance(item, int)]
        low = draws.kwargs.get("low", draws.kwargs.get("from", limits[0] if len(limits) > 1 else 0))
        high = draws.kwargs.get("high", draws.kwargs.get("to", limits[-1] if limits else None))
        if high is None or high <= low:
            raise CannotReplayError("random, and its limits are not known")
        middle = low + (high - low + 1) // 2
        return draws.values < middle, (middle - low) / (high - low)

    return law


def _multinomial(draws: Draws) -> Told:
    """Of each row the first draw: is it the most probable one?"""
    weights = draws.argument(0, "input")
    most = (weights / weights.sum(-1, keepdim=True)).max(-1)
    return draws.values[..., 0] == most.indices, most.values


def _rrelu(draws: Draws) -> Told:
    """Slopes below 0 are uniform."""
    source = draws.argument(0, "input")
    low, high = draws.argument(1, "lower", 1 / 8), draws.argument(2, "upper", 1 / 3)
    below = source < 0
    return draws.values[below] / source[below] < low + (high - low) / 4, 0.25


_LAWS: dict[str, Law] = {
    "torch.rand": lambda draws: (draws.values < 0.25, 0.25),
    "torch.rand_like": lambda draws: (draws.values < 0.25, 0.25),
    "torch.randn": lambda draws: (draws.values.abs() < _HALF_OF_NORMAL, 0.5),
    "torch.randn_like": lambda draws: (draws.values.abs() < _HALF_OF_NORMAL, 0.5),
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
    "torch.Tensor.log_normal_": lambda draws: (draws.values < math.exp(draws.argument(1, "mean", 1.0)), 0.5),
    "torch.Tensor.cauchy_": _cauchy,
    "torch.Tensor.exponential_": lambda draws: (draws.values < math.log(2) / draws.argument(1, "lambd", 1.0), 0.5),
    "torch.Tensor.geometric_": lambda draws: (draws.values == 1, draws.argument(1, "p")),
    "torch.Tensor.bernoulli": _bernoulli,
    # The method that writes takes a half where nothing is given.
    "torch.Tensor.bernoulli_": lambda draws: _bernoulli(Draws(draws.values, [None, draws.argument(1, "p", 0.5)], {})),
    "torch.Tensor.random_": _whole(1),
    "torch.nn.init.uniform_": _uniform,
    "torch.nn.init.normal_": _normal(1),
}
