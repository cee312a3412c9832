"""Forwards without gradients: they begin steps of their own, but part no forward from its backward or its update."""

import copy
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest
import torch
from torch import nn
from watched import Watched, watch

from ulpscope.capture.torch.recorder import TorchSteps

X = torch.ones(2, 3)


def without_gradients(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        result: torch.Tensor = model(X)
        return result


def steps_of(watched: Watched, op: str = "Linear") -> list[int]:
    calls = watched.calls
    return calls.filter(calls["op"].str.ends_with(op) & (calls["kind"] == "module"))["step"].to_list()


def parted(watched: Watched) -> int:
    """How many backwards lie in another step than their forward."""
    calls = watched.calls.select("id", "step", "forward")
    pairs = calls.join(calls.select(pl.col("id").alias("forward"), pl.col("step").alias("of_forward")), on="forward")
    assert pairs.height > 0
    return pairs.filter(pl.col("step") != pl.col("of_forward")).height


def student_first(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    out = model(X)
    loss = (out - without_gradients(model) - 1).pow(2).sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def teacher_first(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    teacher = without_gradients(model)
    (model(X) - teacher - 1).pow(2).sum().backward()
    optimizer.step()


def accumulation_with_a_teacher(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for _ in range(2):
        teacher = without_gradients(model)
        (model(X) - teacher - 1).pow(2).sum().backward()
    optimizer.step()


def several_before_one_backward(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    losses = [(model(X) - without_gradients(model) - 1).pow(2).sum() for _ in range(2)]
    sum(losses, torch.zeros(())).backward()
    optimizer.step()


def nothing_kept_but_the_loss(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    loss = model(X).relu().sum()
    without_gradients(model)
    loss.backward()
    optimizer.step()


@pytest.mark.parametrize(
    ("iteration", "forwards"),
    [
        (student_first, 2),
        (teacher_first, 2),
        (accumulation_with_a_teacher, 4),
        (several_before_one_backward, 4),
        (nothing_kept_but_the_loss, 2),
    ],
)
def test_an_iteration_stays_whole_from_the_first_on(
    tmp_path: Path, iteration: Callable[[nn.Module, torch.optim.Optimizer], None], forwards: int
) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def work() -> None:
        for _ in range(3):
            iteration(model, optimizer)

    watched = watch(tmp_path, work)
    assert steps_of(watched) == [step for step in range(3) for _ in range(forwards)]
    assert parted(watched) == 0


def test_an_average_of_the_weights_is_another_module_of_the_same_step(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def work() -> None:
        for _ in range(2):
            out = model(X)
            (out - without_gradients(average) - 1).pow(2).sum().backward()
            optimizer.step()
            with torch.no_grad():
                average.weight.lerp_(model.weight, 0.1)

    watched = watch(tmp_path, work)
    assert steps_of(watched) == [0, 0, 1, 1]
    assert parted(watched) == 0


def test_a_generator_that_runs_without_gradients_does_not_part_the_discriminator_from_its_backward(
    tmp_path: Path,
) -> None:
    generator, discriminator = nn.Linear(3, 3), nn.Linear(3, 1)
    optimizer = torch.optim.SGD(discriminator.parameters(), 0.01)

    def work() -> None:
        for _ in range(2):
            scores = [discriminator(without_gradients(generator)).sum() for _ in range(2)]
            (scores[0] - scores[1].pow(2)).backward()
            optimizer.step()

    watched = watch(tmp_path, work)
    assert steps_of(watched) == [0, 0, 0, 0, 1, 1, 1, 1]
    assert parted(watched) == 0


def test_evaluation_before_training_has_a_step_a_batch(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def work() -> None:
        model(X)  # as scripts do to see shapes: its graph is gone at once
        for _ in range(3):
            without_gradients(model)
        for _ in range(2):
            model(X).sum().backward()
            optimizer.step()

    watched = watch(tmp_path, work)
    assert steps_of(watched) == [0, 1, 2, 3, 3, 4]
    assert parted(watched) == 0


def test_gradients_inside_of_an_evaluation_are_no_sign_of_an_update_to_come(tmp_path: Path) -> None:
    class Forces(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.energy = nn.Linear(3, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.enable_grad():
                x = x.clone().requires_grad_()
                return torch.autograd.grad(self.energy(x).sum(), x)[0]

    model = Forces()
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def work() -> None:
        for _ in range(3):
            without_gradients(model)

    assert steps_of(watch(tmp_path, work), "Forces") == [0, 1, 2]
    assert optimizer.state == {}


def test_updates_by_hand_keep_an_iteration_whole(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)

    def work() -> None:
        for _ in range(3):
            out = model(X)
            (out - without_gradients(model) - 1).pow(2).sum().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= 0.01 * parameter.grad
                    parameter.grad = None

    watched = watch(tmp_path, work)
    assert steps_of(watched) == [0, 0, 1, 1, 2, 2]
    assert parted(watched) == 0


@pytest.mark.parametrize(("is_kept", "expected"), [(False, [0, 1, 2, 3]), (True, [0, 0, 1, 2])])
def test_inference_has_a_step_a_forward_after_a_warm_up_with_gradients(
    tmp_path: Path, is_kept: bool, expected: list[int]
) -> None:
    model = nn.Linear(3, 3)

    def work() -> None:
        out = model(X)
        if not is_kept:
            del out
        with torch.inference_mode():
            for _ in range(3):
                out = model(X)
        assert out.shape == (2, 3)

    assert steps_of(watch(tmp_path, work)) == expected


def test_steps_that_are_not_captured_are_told_apart_alike(tmp_path: Path) -> None:
    model = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def work() -> None:
        for _ in range(3):
            student_first(model, optimizer)

    watched = watch(tmp_path, work, steps="1")
    assert steps_of(watched) == [1, 1]
    assert parted(watched) == 0


def test_graphs_that_are_gone_are_forgotten() -> None:
    graphs, weight = TorchSteps(), torch.ones(2, requires_grad=True)
    kept = [weight * 2 for _ in range(5)]
    for result in kept:
        graphs.note_graph(result)
    for _ in range(1000):
        graphs.note_graph(weight * 2)
    assert len(graphs._tokens) < 200
    assert graphs.any_graph_alive()
    assert len(graphs._tokens) == 5
    graphs.forget_graphs()
    assert not graphs.any_graph_alive()


def test_looking_at_a_graph_makes_no_node() -> None:
    base = torch.ones(12, requires_grad=True) * 2
    view = base.view(3, 4)
    base.mul_(3)  # whoever asks this view for its node makes one now, and its age decides the order of sums
    graphs, number = TorchSteps(), torch._C._autograd._get_sequence_nr()
    graphs.note_graph((view, {"other": base}))
    assert torch._C._autograd._get_sequence_nr() == number
    assert graphs.any_graph_alive()
    assert view.grad_fn is not None
    assert torch._C._autograd._get_sequence_nr() > number
    del base, view
    assert not graphs.any_graph_alive()
