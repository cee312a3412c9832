"""Is each backward paired exactly with its forward? Every captured call is replayed alone.

    python benchmarks/pairing.py
    python benchmarks/pairing.py --only lstm

Autograd's gradients of the replayed call must equal those captured (rtol 1e-4, atol 1e-5), and what it returns must be
what it returned. Every call through which a gradient must have flowed needs a backward. Exit code 1 if any does not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

from replaying import ByPlace, CannotReplayError, RecordedRank, Replayed, replay  # noqa: E402
from scenarios import FUNCTIONS, SCENARIOS, Scenario, Setting  # noqa: E402
from ulpscope.records.calls import Call, Value  # noqa: E402
from ulpscope.records.enums import Kind, Role  # noqa: E402
from ulpscope.trace.reader import open_trace  # noqa: E402
from ulpscope.workflows.run.python_capture import capture  # noqa: E402

RTOL, ATOL = 1e-4, 1e-5
STARTS_BACKWARD = ("torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad")
PARAMETER_ROLES = (Role.PARAMETER, Role.PARAMETER_AFTER)


@dataclass
class Score:
    """What came of replaying one trace."""

    model: str
    backwards: int = 0
    equal: int = 0
    bad: list[str] = field(default_factory=list)
    exceptions: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    reached: dict[int, str] = field(default_factory=dict)
    """Values to which a gradient must have flowed, each with the call that sent it."""
    unpaired: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.equal > 0 and not (self.bad or self.exceptions or self.unpaired or self.errors)

    def row(self) -> str:
        skipped = ", ".join(f"{reason} {count}" for reason, count in sorted(self.skipped.items()))
        return (
            f"{self.model:<24} {'ok' if self.passed else 'FAILED':<7} {self.backwards:>9} {self.equal:>6} "
            f"{len(self.bad):>5} {len(self.exceptions):>10} {len(self.unpaired):>8} {len(self.errors):>6}  {skipped}"
        )

    def details(self, most: int = 6) -> Iterator[str]:
        kinds = {"bad": self.bad, "exception": self.exceptions, "no backward": self.unpaired, "error": self.errors}
        for word, lines in kinds.items():
            yield from (f"{word}: {line}" for line in lines[:most])
            if len(lines) > most:
                yield f"{word}: and {len(lines) - most} more"


HEADER = (
    f"{'model':<24} {'result':<7} {'backwards':>9} {'equal':>6} {'bad':>5} {'exceptions':>10} {'unpaired':>8} "
    f"{'errors':>6}  skipped"
)


def score(scenario: Scenario, setting: Setting) -> Score:
    """Capture a model with its data, then replay what was captured."""
    with tempfile.TemporaryDirectory(prefix="ulpscope-") as folder:
        with capture(Path(folder) / "trace", level="api", save="tensors"):
            scenario.run(setting)
        found = open_trace(Path(folder) / "trace").ranks[0]
        result = Score(scenario.name, errors=list(found.info.errors))
        replay_all(RecordedRank(found), result)
        if scenario.interrupts and result.unpaired:
            result.skipped["beyond a backward that raised"] = len(result.unpaired)
            result.unpaired = []
        return result


def replay_all(rank: RecordedRank, result: Score) -> None:
    passes = BackwardPasses()
    for call in rank.calls.values():
        passes.see(call)
        if call.op in STARTS_BACKWARD:
            result.reached.update((value.id, call.name) for value in rank.places(call, Role.LOSS).values())
        if call.kind is not Kind.BACKWARD or call.forward is None:
            continue
        result.backwards += 1
        try:
            check_backward(rank, call, result, passes)
        except CannotReplayError as reason:
            result.skipped[str(reason)] += 1
        except Exception as error:
            text = str(error).partition("\n")[0]
            result.exceptions.append(f"{describe(call)}: {type(error).__name__}: {text}")
    result.unpaired = list(find_unpaired(rank, result.reached))


@dataclass
class BackwardPasses:
    """What is known of the backward pass that a call belongs to."""

    partial: bool = False
    """It was asked for the gradients of some tensors only."""
    creates_graph: bool = False
    differentiated: set[int] = field(default_factory=set)
    """Forwards whose gradients have a graph of their own: from there gradients enter them at places inside."""

    def see(self, call: Call) -> None:
        if call.op in STARTS_BACKWARD:
            self.partial = asks_for_some(call)
            self.creates_graph = call.arguments.get("kwargs", {}).get("create_graph") is True
        elif call.kind is Kind.BACKWARD and call.forward is not None and self.creates_graph:
            self.differentiated.add(call.forward)


def asks_for_some(call: Call) -> bool:
    """Whether a backward pass was asked for the gradients of some tensors only."""
    args, kwargs = call.arguments.get("args", []), call.arguments.get("kwargs", {})
    return call.op == "torch.autograd.grad" or kwargs.get("inputs") is not None or len(args) > 4


def check_backward(rank: RecordedRank, backward: Call, result: Score, passes: BackwardPasses) -> None:
    if backward.forward is None:
        return
    forward = rank.calls[backward.forward]
    if forward.id in passes.differentiated and not passes.creates_graph:
        raise CannotReplayError("second order")
    replayed = replay(rank, forward, FUNCTIONS)
    check_outputs(rank, forward, replayed, result)
    captured = rank.tensors(backward, Role.GRAD_INPUT)
    arriving = rank.tensors(backward, Role.GRAD_OUTPUT)
    if not arriving:
        result.bad.append(f"{describe(backward)}: no gradient arrives")
        return
    computed = replayed.gradients(arriving)
    for place in sorted(captured.keys() | computed.keys()):
        problem = difference(captured.get(place), computed.get(place), partial=passes.partial)
        if problem is None:
            result.equal += place in captured
        else:
            result.bad.append(f"{describe(backward)} {place}: {problem}")
        if computed.get(place) is not None and not passes.partial:
            result.reached[written_base(rank, forward, place).id] = backward.name


def written_base(rank: RecordedRank, forward: Call, place: str) -> Value:
    """The value at an input to which its gradient goes next: autograd sends that of a written view to the base."""
    value = rank.places(forward, Role.INPUT)[place]
    outputs = rank.places(forward, Role.OUTPUT).values()
    written = any(made.storage == value.storage and made.version != value.version for made in outputs)
    while written and value.producer in rank.calls:
        made_of = rank.places(rank.calls[value.producer], Role.INPUT).values()
        base = next(
            (given for given in made_of if (given.storage, given.version) == (value.storage, value.version)), None
        )
        if base is None or base.id == value.id:
            break
        value = base
    return value


def check_outputs(rank: RecordedRank, forward: Call, replayed: Replayed, result: Score) -> None:
    recorded: ByPlace = rank.tensors(forward, Role.OUTPUT)
    for place in sorted(recorded.keys() | replayed.outputs.keys()):
        problem = difference(recorded.get(place), replayed.outputs.get(place), partial=False)
        if problem is not None:
            result.bad.append(f"{describe(forward)} {place}: {problem}")


def difference(captured: Tensor | None, computed: Tensor | None, *, partial: bool) -> str | None:
    if captured is None:
        return None if computed is None or partial else "not captured"
    if computed is None:
        return "captured, but autograd gives none"
    if (captured.shape, captured.dtype) != (computed.shape, computed.dtype):
        return f"captured {captured.dtype} {list(captured.shape)}, computed {computed.dtype} {list(computed.shape)}"
    one, other = as_double(captured), as_double(computed)
    if torch.allclose(one, other, rtol=RTOL, atol=ATOL, equal_nan=True):
        return None
    return f"differs by {(one - other).abs().max().item():.3g} of {other.abs().max().item():.3g}"


def as_double(tensor: Tensor) -> Tensor:
    tensor = tensor.detach()
    return tensor.to(torch.complex128 if tensor.is_complex() else torch.float64)


def find_unpaired(rank: RecordedRank, reached: dict[int, str]) -> Iterator[str]:
    """Calls that made a value to which a gradient must have flowed, and have no backward themselves."""
    paired = {call.forward for call in rank.calls.values() if call.kind is Kind.BACKWARD}
    parameters = parameter_storages(rank)
    reported = set()
    for value_id, sender in reached.items():
        value = rank.values[value_id]
        producer = None if value.producer is None else rank.calls.get(value.producer)
        if producer is None or value.storage in parameters or not built_graph(rank, producer, value):
            continue
        if producer.id not in paired | reported:
            reported.add(producer.id)
            yield f"{describe(producer)}, whose output gets a gradient from {sender}"


def built_graph(rank: RecordedRank, producer: Call, value: Value) -> bool:
    """Whether the call gave this value a history; without one it is a leaf."""
    wanted = [given.requires_grad for given in rank.places(producer, Role.INPUT).values()]
    return producer.kind is Kind.API and value.requires_grad and any(wanted)


def parameter_storages(rank: RecordedRank) -> set[int]:
    return {
        rank.values[use.value].storage for uses in rank.uses.values() for use in uses if use.role in PARAMETER_ROLES
    }


def describe(call: Call) -> str:
    module = f" in {call.module}" if call.module else ""
    return f"{call.kind.value} {call.name}{module} (id {call.id}, forward {call.forward}, step {call.step})"


def main(arguments: list[str] | None = None) -> int:
    eager = [name for name, scenario in SCENARIOS.items() if scenario.trains and not scenario.compiled]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=eager, help="this model; may be given again")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--all", action="store_true", help="show every failure")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    results = []
    print(HEADER)
    for name in options.only or eager:
        result = score(SCENARIOS[name], Setting(seed=options.seed, steps=options.steps))
        results.append(result)
        print(result.row(), flush=True)
        if not result.passed:
            print(*(f"    {line}" for line in result.details(10**6 if options.all else 6)), sep="\n", flush=True)
    passed = sum(result.passed for result in results)
    print(f"{passed} passed, {len(results) - passed} failed")
    return int(passed < len(results))


if __name__ == "__main__":
    sys.exit(main())
