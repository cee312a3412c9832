"""What is not known explains nothing and accuses nobody: values made later, rows that nothing is learned from, numbers
that left torch, sums of which one run shows no maker. Each healthy pair has a fault beside it that is told."""

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.records.findings import Comparison, Finding, Outcome
from ulpscope.workflows.compare.command import compare

Step = Callable[[], Tensor]


def run(trace: Path, model: nn.Module, step: Step, *, cast: bool = False, steps: int = 2, rate: float = 1e-3) -> Path:
    """Training of a model by a step that gives the loss."""
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learned, rate)
    with ulpscope.capture(trace, model=model):
        for _ in range(steps):
            with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                loss = step()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    return trace


def told(reference: Path, target: Path) -> Comparison:
    return compare(reference, target).comparison


def first(comparison: Comparison) -> Finding:
    assert comparison.outcome is Outcome.DIVERGED
    return comparison.findings[0]


class Attention(nn.Module):
    """Left padding: the first rows may look at nothing, and nothing is learned from them."""

    def __init__(self, *, fused: bool, wrong: float = 1.0) -> None:
        super().__init__()
        self.fused, self.wrong = fused, wrong
        self.embedding = nn.Embedding(40, 32)
        self.query, self.key, self.value, self.out = (nn.Linear(32, 32) for _ in range(4))
        self.head = nn.Linear(32, 40)

    def forward(self, words: Tensor) -> Tensor:
        x, seen = self.embedding(words), (words != 0)[:, None, None]
        allowed = seen & torch.ones(words.shape[1], words.shape[1], dtype=torch.bool).tril()
        q, k, v = (net(x).unflatten(-1, (2, 16)).transpose(1, 2) for net in (self.query, self.key, self.value))
        if self.fused:
            mixed = functional.scaled_dot_product_attention(q * self.wrong, k, v, attn_mask=allowed)
        else:
            least = torch.finfo(torch.float32).min
            scores = (q @ k.transpose(-1, -2) / 4.0).float() + torch.where(allowed, 0.0, least)
            mixed = scores.softmax(-1).to(v.dtype) @ v
        made: Tensor = self.head(torch.tanh(self.out(mixed.transpose(1, 2).flatten(2))))
        return made


def read(trace: Path, *, fused: bool, cast: bool, wrong: float = 1.0) -> Path:
    torch.manual_seed(0)
    model = Attention(fused=fused, wrong=wrong)
    words = torch.randint(1, 40, (4, 12))
    words[0, :5], words[1, :3] = 0, 0
    targets = words.roll(-1, 1).masked_fill(words == 0, -100)

    def step() -> Tensor:
        return functional.cross_entropy(model(words).float().flatten(0, 1), targets.flatten())

    return run(trace, model, step, cast=cast)


def test_rows_of_padding_that_nothing_is_learned_from_are_a_note(tmp_path: Path) -> None:
    comparison = told(read(tmp_path / "r", fused=False, cast=False), read(tmp_path / "t", fused=True, cast=True))
    assert comparison.outcome is Outcome.AGREE


def test_an_attention_that_scales_otherwise_is_told_beside_padding(tmp_path: Path) -> None:
    wrong = read(tmp_path / "t", fused=True, cast=True, wrong=3.0)
    assert first(told(read(tmp_path / "r", fused=False, cast=False), wrong)).place.phase.value == "forward"


class Values(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.value, self.policy = nn.Linear(12, 24), nn.Linear(24, 1), nn.Linear(24, 6)


def test_a_summand_of_a_gradient_that_one_run_lacks_is_named(tmp_path: Path) -> None:
    def trained(trace: Path, *, detached: bool) -> Path:
        torch.manual_seed(0)
        net = Values()
        x, returns = torch.randn(16, 12), torch.randn(16)

        def step() -> Tensor:
            inner = torch.tanh(net.body(x))
            value = net.value(inner)[:, 0]
            ahead = returns - value
            gain = ahead.detach() if detached else ahead
            return (value - returns).square().mean() - (net.policy(inner).log_softmax(-1)[:, 0] * gain).mean()

        return run(trace, net, step)

    finding = first(told(trained(tmp_path / "r", detached=True), trained(tmp_path / "t", detached=False)))
    assert any("detach" in name for name in finding.evidence.one_run.only_reference)


@torch.jit.script
def scale_of(width: int, factor: int) -> Tensor:
    return torch.sqrt(torch.tensor(width * factor, dtype=torch.float))


class Scaled(nn.Module):
    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor
        self.query, self.key, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.query(x), self.key(x)
        weights = (q @ (k / scale_of(16, self.factor).to(q.dtype)).transpose(-1, -2)).softmax(-1)
        made: Tensor = self.out(weights @ x)
        return made


def test_a_value_is_not_explained_by_its_own_cast(tmp_path: Path) -> None:
    """In float32 `.to` gives back what it was given; in bfloat16 it makes a value, beside the same one."""

    def trained(trace: Path, dtype: torch.dtype, factor: int) -> Path:
        torch.manual_seed(0)
        model = Scaled(factor).to(dtype)
        x = torch.randn(6, 10, 16).to(dtype)
        return run(trace, model, lambda: model(x).float().square().mean())

    reference = trained(tmp_path / "r", torch.float32, 1)
    assert told(reference, trained(tmp_path / "t", torch.bfloat16, 1)).outcome is Outcome.AGREE
    assert "Tensor.to." in str(first(told(reference, trained(tmp_path / "w", torch.bfloat16, 9))).place.call)


def test_gradients_that_one_run_adds_up_unseen_are_as_wrong_as_its_types_make_them(tmp_path: Path) -> None:
    """One pass over all of a batch, beside two passes in bfloat16, with another model in between."""

    def trained(trace: Path, *, passes: int, cast: bool, wrong: float = 1.0) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
        before = copy.deepcopy(model).requires_grad_(False)
        x = torch.randn(16, 16)

        def step() -> Tensor:
            mine = torch.cat([model(part) for part in x.chunk(passes)])
            gain = mine.float() - before(x).float() * wrong
            return -functional.logsigmoid(gain[:8] - gain[8:]).mean()

        return run(trace, nn.ModuleDict({"mine": model, "before": before}), step, cast=cast)

    reference = trained(tmp_path / "r", passes=1, cast=False)
    assert told(reference, trained(tmp_path / "t", passes=2, cast=True)).outcome is Outcome.AGREE
    assert told(reference, trained(tmp_path / "w", passes=2, cast=True, wrong=0.5)).outcome is Outcome.DIVERGED


def test_what_python_made_of_numbers_in_noise_may_be_chosen_otherwise(tmp_path: Path) -> None:
    def trained(trace: Path, *, cast: bool, turned: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5))
        x = torch.randn(12, 16)

        def step() -> Tensor:
            scores = model(x).float()
            with torch.no_grad():
                order = (scores[:, 0] + 1.0).numpy().argsort().copy()
            if turned:
                order[0], order[1] = order[1], order[0]
            return (scores[torch.as_tensor(order), 1] * torch.arange(12.0)).square().mean()

        return run(trace, model, step, cast=cast, steps=1)

    reference = trained(tmp_path / "r", cast=False, turned=False)
    assert told(reference, trained(tmp_path / "t", cast=True, turned=True)).outcome is Outcome.AGREE
    assert told(reference, trained(tmp_path / "w", cast=False, turned=True)).outcome is Outcome.DIVERGED


@pytest.mark.parametrize(("factor", "outcome"), [(1.0, Outcome.AGREE), (1.2, Outcome.DIVERGED)])
def test_a_number_that_the_run_has_computed_is_as_wrong_as_what_it_was_made_of(
    tmp_path: Path, factor: float, outcome: Outcome
) -> None:
    def trained(trace: Path, dtype: torch.dtype, factor: float) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 5)).to(dtype)
        x, share = torch.randn(12, 16), torch.tensor(0.37075).to(dtype)

        def step() -> Tensor:
            lam = factor * share.item()
            return (lam * model(x.to(dtype)) + (1 - lam) * model(x.to(dtype)).flip(0)).float().square().mean()

        return run(trace, model, step)

    reference = trained(tmp_path / "r", torch.float32, 1.0)
    assert told(reference, trained(tmp_path / "t", torch.bfloat16, factor)).outcome is outcome


def test_a_number_that_only_python_reads_leaves_the_run(tmp_path: Path) -> None:
    """The model gives the same in both; what is printed is made of it otherwise."""

    def read_out(trace: Path, penalty: float) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(16, 8).eval()
        x = torch.randn(4, 16)
        with ulpscope.capture(trace, model=model), torch.no_grad():
            scores = model(x)
            if penalty != 1.0:
                scores = torch.where(scores < 0, scores * penalty, scores)
            scores.log_softmax(-1).amax(-1).sum().item()
        return trace

    assert told(read_out(tmp_path / "r", 1.0), read_out(tmp_path / "t", 1.3)).outcome is Outcome.DIVERGED
    assert told(read_out(tmp_path / "s", 1.0), read_out(tmp_path / "u", 1.0)).outcome is Outcome.AGREE


def test_an_update_of_gradients_below_an_optimizers_eps_is_noise(tmp_path: Path) -> None:
    """Of a key's bias softmax feels nothing: its gradient is rounding, next to nothing beside Adam's eps in float32."""

    class Keyed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.out = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

        def forward(self, x: Tensor) -> Tensor:
            scores = self.query(x)[..., :12] @ self.key(x)[..., :12].transpose(-1, -2)
            made: Tensor = self.out(scores.softmax(-1) @ x) + 0.3 * self.key(x)[..., 12:].sum(-1, keepdim=True)
            return made

    def trained(trace: Path, *, cast: bool, rate: float = 1e-3) -> Path:
        torch.manual_seed(0)
        model = Keyed()
        x = torch.randn(6, 10, 16)
        return run(trace, model, lambda: (model(x).float() - x.flip(-1)).square().mean(), cast=cast, rate=rate)

    reference = trained(tmp_path / "r", cast=False)
    assert told(reference, trained(tmp_path / "t", cast=True)).outcome is Outcome.AGREE
    assert first(told(reference, trained(tmp_path / "w", cast=True, rate=3e-3))).kind.value == "optimizer"


@pytest.mark.parametrize(("wrong", "outcome"), [(1.0, Outcome.AGREE), (1.6, Outcome.DIVERGED)])
def test_steps_that_agree_in_noise_may_be_computed_in_other_parts(
    tmp_path: Path, wrong: float, outcome: Outcome
) -> None:
    """All of a batch in float32, beside two halves of it in bfloat16 whose gradients are added up."""

    class Net(nn.Module):
        def __init__(self, wrong: float) -> None:
            super().__init__()
            self.first, self.second, self.wrong = nn.Linear(24, 48), nn.Linear(48, 12), wrong
            self.last = nn.Linear(12, 6)

        def forward(self, x: Tensor) -> Tensor:
            made: Tensor = self.last(functional.gelu(self.second(functional.gelu(self.first(x))) * self.wrong))
            return made

    def trained(trace: Path, *, parts: int, cast: bool, wrong: float) -> Path:
        torch.manual_seed(0)
        model = Net(wrong)
        optimizer = torch.optim.Adam(model.parameters(), 1e-3)
        x, y = torch.randn(32, 24), torch.randint(0, 6, (32,))
        with ulpscope.capture(trace, model=model):
            for _ in range(2):
                for part, answers in zip(x.chunk(parts), y.chunk(parts), strict=True):
                    with torch.autocast("cpu", torch.bfloat16, enabled=cast):
                        loss = functional.cross_entropy(model(part).float(), answers) / parts
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return trace

    reference = trained(tmp_path / "r", parts=1, cast=False, wrong=1.0)
    assert told(reference, trained(tmp_path / "t", parts=2, cast=True, wrong=wrong)).outcome is outcome
