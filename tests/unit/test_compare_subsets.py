"""Any part of two runs can be compared: steps and ranks that either has, and those that are asked for."""

from itertools import combinations
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.handmade import HandmadeRun

from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import IntRanges
from ulpscope.workflows.compare.command import CompareOptions, compare

STEPS, RANKS = range(4), range(3)
MUL, LINEAR = "torch.mul", "torch.nn.functional.linear"
Numbers = frozenset[int]


def ranges(numbers: Numbers) -> IntRanges:
    return IntRanges(tuple((number, number) for number in sorted(numbers)))


class Training:
    """What a run computes; of it a trace holds the steps that were captured.

    Every step reads what earlier ones made: weight and momentum, and a table that step 0 makes by a call of its own.
    """

    def __init__(self, *, another_way: bool = False, factor: float = 1.0, faulty: int | None = None) -> None:
        self.another_way = another_way
        self.factor = factor
        self.faulty = faulty

    def write(self, out: Path, steps: Numbers, *, rank: int = 0) -> None:
        run = HandmadeRun()
        weight, momentum = np.linspace(-1, 1, 8, dtype=np.float32), np.zeros(8, dtype=np.float32)
        table = np.linspace(0.5, 1.5, 8, dtype=np.float32)
        kept: dict[str, int] = {}
        for step in STEPS:
            run.step = step
            recorded = step in steps
            if recorded and step == 0:
                kept["table"] = self._make_table(run, table)
            factor = np.float32(self.factor if step == self.faulty else 1.0)
            gradient = (table * np.float32(step + 1) * factor).astype(np.float32)
            momentum_after = (momentum * np.float32(0.9) + gradient).astype(np.float32)
            after = (weight - np.float32(0.1) * momentum_after).astype(np.float32)
            if recorded:
                for name, content in (("weight", weight), ("momentum", momentum), ("table", table)):
                    kept.setdefault(name, run.value(content, storage=1000 + len(name)))
                kept["weight"], kept["momentum"] = self._step(run, kept, weight, gradient, momentum_after, after)
            else:
                kept = {name: value for name, value in kept.items() if name == "table"}
            weight, momentum = after, momentum_after
        run.write(out, rank=rank)

    def _make_table(self, run: HandmadeRun, table: np.ndarray) -> int:
        if not self.another_way:
            return run.output(run.call("torch.linspace", makes={"output.0": table}, phase="setup"))
        halves = run.call("torch.arange", makes={"output.0": table * np.float32(2)}, phase="setup")
        return run.output(
            run.call("torch.div", reads={"args.0": run.output(halves)}, makes={"output.0": table}, phase="setup")
        )

    def _step(
        self,
        run: HandmadeRun,
        kept: dict[str, int],
        weight: np.ndarray,
        gradient: np.ndarray,
        momentum: np.ndarray,
        after: np.ndarray,
    ) -> tuple[int, int]:
        net = run.call("Net", kind="module", module="model", module_class="Net")
        run.use(net, "parameter", "weight", kept["weight"])
        inside = {"parent": net, "module": "model", "module_class": "Net"}
        product = run.call(
            MUL, reads={"args.0": kept["weight"], "args.1": kept["table"]}, makes={"output.0": weight * 2}, **inside
        )
        run.use(net, "output", "output.0", run.output(product))
        backward = run.call(MUL, kind="backward", phase="backward", forward=product, module="model")
        run.use(backward, "grad_output", "grad_output.0", run.value(np.ones(8, dtype=np.float32)))
        made = run.value(gradient, producer=backward)
        run.use(backward, "grad_input", "args.0", made)
        update = run.call("SGD", kind="optimizer", phase="update")
        run.use(update, "gradient", "model.weight", made)
        run.use(update, "parameter", "model.weight", kept["weight"])
        run.use(update, "state", "model.weight.momentum_buffer", kept["momentum"])
        new = run.value(after, producer=update), run.value(momentum, producer=update)
        run.use(update, "parameter_after", "model.weight", new[0])
        run.use(update, "state_after", "model.weight.momentum_buffer", new[1])
        return new


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Traces by what they hold: `plain-012`, `other-012` (step 0 makes its table another way)."""
    folder = tmp_path_factory.mktemp("traces")
    for name, training in (("plain", Training()), ("other", Training(another_way=True))):
        for count in range(1, len(STEPS) + 1):
            for steps in combinations(STEPS, count):
                training.write(folder / f"{name}-{''.join(map(str, steps))}", frozenset(steps))
    return folder


def named(folder: Path, name: str, steps: Numbers) -> Path:
    return folder / f"{name}-{''.join(map(str, sorted(steps)))}"


some_steps = st.frozensets(st.sampled_from(STEPS), min_size=1)


@settings(max_examples=40)
@given(
    reference=some_steps, target=some_steps, wanted=st.none() | some_steps, sides=st.permutations(["plain", "other"])
)
def test_every_subset_of_steps_agrees_or_says_that_there_is_none(
    traces: Path, reference: Numbers, target: Numbers, wanted: Numbers | None, sides: list[str]
) -> None:
    paths = named(traces, sides[0], reference), named(traces, sides[1], target)
    options = CompareOptions(steps=ranges(wanted) if wanted is not None else None)
    common = reference & target & (wanted if wanted is not None else frozenset(STEPS))
    if not common:
        with pytest.raises(UlpscopeError) as caught:
            compare(*paths, options)
        assert caught.value.code is ExitCode.NOTHING
        return
    result = compare(*paths, options)
    assert result.verdict == "agree", result.findings
    assert result.comparison.scope.steps == tuple(sorted(common))


def test_what_one_run_lacks_is_counted_and_may_be_required(traces: Path) -> None:
    whole, part = (named(traces, "plain", frozenset(steps)) for steps in ({0, 1, 2}, {0, 2}))
    result = compare(whole, part)
    assert (result.verdict, result.json()["extent"]["steps"]) == ("agree", {"compared": 2, "of": 3})
    assert "2 of 3 steps" in result.text(width=200).splitlines()[0]
    required = CompareOptions(require_all=True)
    assert (compare(whole, part, required).verdict, compare(whole, part, required).code) == ("incomplete", 1)
    assert compare(whole, whole, required).verdict == "agree"


def test_a_run_beside_itself_or_its_own_rank_is_told(traces: Path) -> None:
    whole, other = named(traces, "plain", frozenset(STEPS)), named(traces, "plain", frozenset({0, 1}))
    assert compare(whole, whole).comparison.scope.same_run
    assert compare(whole, whole / "rank0").comparison.scope.same_run
    assert not compare(whole, other).comparison.scope.same_run


@settings(max_examples=8)
@given(wanted=some_steps)
def test_a_fault_is_found_in_every_subset_that_has_its_step(traces: Path, wanted: Numbers) -> None:
    faulty = 2
    with TemporaryDirectory() as folder:
        target = Path(folder) / "target"
        Training(factor=1.5, faulty=faulty).write(target, frozenset(STEPS))
        result = compare(named(traces, "plain", frozenset(STEPS)), target, CompareOptions(steps=ranges(wanted)))
    before = all(step < faulty for step in wanted)
    assert result.verdict == ("agree" if before else "diverged")
    if faulty in wanted:
        assert (result.findings[0].call, result.findings[0].step) == (f"{MUL}.0", faulty)


@settings(max_examples=12)
@given(
    reference=st.dictionaries(st.sampled_from(RANKS), some_steps, min_size=1),
    target=st.dictionaries(st.sampled_from(RANKS), some_steps, min_size=1),
    wanted=st.none() | st.frozensets(st.sampled_from(RANKS), min_size=1),
)
def test_every_subset_of_ranks_with_steps_of_their_own(
    reference: dict[int, Numbers], target: dict[int, Numbers], wanted: Numbers | None
) -> None:
    with TemporaryDirectory() as folder:
        paths = Path(folder) / "reference", Path(folder) / "target"
        for path, ranks in zip(paths, (reference, target), strict=True):
            for rank, steps in ranks.items():
                Training().write(path, steps, rank=rank)
        options = CompareOptions(ranks=ranges(wanted) if wanted is not None else None)
        wanted_ranks = frozenset(RANKS) if wanted is None else wanted
        pairs = [(steps, target[rank]) for rank, steps in reference.items() if rank in target.keys() & wanted_ranks]
        if wanted is None and not pairs and len(reference) == len(target) == 1:
            pairs = [(*reference.values(), *target.values())]
        if not any(one & other for one, other in pairs):
            with pytest.raises(UlpscopeError) as caught:
                compare(*paths, options)
            assert caught.value.code is ExitCode.NOTHING
            return
        result = compare(*paths, options)
        assert result.verdict == "agree", result.findings
        assert set(result.comparison.scope.steps) == {step for one, other in pairs for step in one & other}
