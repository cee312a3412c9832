"""Two runs that compute the same thing another way agree, and faults at the same places are still named."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import ulpscope
from ulpscope.records.findings import Finding, FindingKind, Outcome
from ulpscope.report.words.comparison import note_sentence
from ulpscope.workflows.compare.command import CompareResult, compare

torch.set_num_threads(1)
WIDTH, CLASSES, ROWS = 24, 7, 32


def plain_mlp(block: "Block", x: Tensor) -> Tensor:
    return block.down(functional.gelu(block.up(x)))


def chunked_mlp(block: "Block", x: Tensor) -> Tensor:
    return torch.cat([plain_mlp(block, part) for part in x.chunk(2)])


def einsum_mlp(block: "Block", x: Tensor) -> Tensor:
    wide = torch.einsum("bi,oi->bo", x, block.up.weight) + block.up.bias
    return torch.einsum("bi,oi->bo", functional.gelu(wide), block.down.weight) + block.down.bias


def scaled_mlp(block: "Block", x: Tensor) -> Tensor:
    return plain_mlp(block, x) * 1.2


def cross_entropy(made: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(made, labels)


def gathered(made: Tensor, labels: Tensor) -> Tensor:
    made = made.float()
    return (made.logsumexp(-1) - made.gather(-1, labels[:, None])[:, 0]).sum() / len(labels)


def smoothed(made: Tensor, labels: Tensor) -> Tensor:
    made = made.float()
    return gathered(made, labels) * 0.8 + 0.2 * (made.logsumexp(-1) - made.mean(-1)).mean()


def summed_first(made: Tensor, _labels: Tensor) -> Tensor:
    return (-0.5 * (made.float() ** 2 + 1.0).sum(-1)).mean() * -1.0


def halved_first(made: Tensor, _labels: Tensor) -> Tensor:
    return (-(made.float() ** 2) / 2.0 - 0.5).sum(-1).mean() * -1.0


def halved_wrongly(made: Tensor, _labels: Tensor) -> Tensor:
    return (-(made.float() ** 2) / 2.5 - 0.5).sum(-1).mean() * -1.0


@dataclass(frozen=True)
class Way:
    """How a run does what the other does, too."""

    mlp: Callable[["Block", Tensor], Tensor] = plain_mlp
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    one_more: bool = True
    """Whether a norm multiplies by 1 + w, as Gemma's does, or by w."""
    order: slice | None = None
    evaluates: bool = False
    frozen: bool = False
    autocast: bool = False


class Block(nn.Module):
    def __init__(self, way: Way) -> None:
        super().__init__()
        self.way = way
        self.scale = nn.Parameter(0.1 * torch.randn(WIDTH))
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normed = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
        normed = normed * (1.0 + self.scale if self.way.one_more else self.scale)
        return x + self.way.mlp(self, normed)


def batch(generator: torch.Generator) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(ROWS, WIDTH, generator=generator)
    return inputs, torch.randint(CLASSES, (ROWS,), generator=generator)


def train(trace: Path, way: Way) -> Path:
    torch.manual_seed(0)
    model = nn.Sequential(Block(way), Block(replace(way, one_more=True)), nn.Linear(WIDTH, CLASSES))
    model[1].up.requires_grad_(not way.frozen)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    with ulpscope.capture(trace, model=model):
        for step in range(3):
            inputs, labels = batch(torch.Generator().manual_seed(step))
            if way.order is not None:
                inputs, labels = (part[torch.arange(ROWS).flip(0)] for part in (inputs, labels))
            optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=way.autocast):
                loss = way.loss(model(inputs), labels)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            if way.evaluates:
                with torch.no_grad():
                    model(batch(torch.Generator().manual_seed(90))[0])
    return trace


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("reference") / "t", Way())


def against(reference: Path, folder: Path, way: Way) -> CompareResult:
    return compare(reference, train(folder / "t", way))


def named(reference: Path, folder: Path, way: Way) -> Finding:
    result = against(reference, folder, way)
    assert result.comparison.outcome is Outcome.DIVERGED
    return result.comparison.findings[0]


@pytest.mark.parametrize(
    "way",
    [
        Way(mlp=chunked_mlp),
        Way(mlp=einsum_mlp),
        Way(loss=gathered),
        Way(order=slice(None)),
        Way(evaluates=True),
        Way(loss=gathered, autocast=True),
        Way(mlp=einsum_mlp, evaluates=True, autocast=True),
        Way(order=slice(None), autocast=True),
    ],
    ids=["chunks", "einsum", "loss", "order", "evaluation", "loss_bf16", "einsum_bf16", "order_bf16"],
)
def test_the_same_computed_another_way_agrees(reference: Path, tmp_path: Path, way: Way) -> None:
    assert against(reference, tmp_path, way).comparison.outcome is Outcome.AGREE


def test_a_batch_in_another_order_is_a_note(reference: Path, tmp_path: Path) -> None:
    comparison = against(reference, tmp_path, Way(order=slice(None))).comparison
    assert comparison.counts.another_way > 20
    assert comparison.counts.made_here == comparison.counts.inherited == 0
    left = [note.evidence.numbers.left for note in comparison.notes]
    assert left[0] is not None
    assert left[0] < 1e-5


def test_what_a_fault_leads_to_is_not_called_rounding(reference: Path, tmp_path: Path) -> None:
    """Clipping reads all gradients at once, and each result is made of its own."""
    table = against(reference, tmp_path, Way(mlp=scaled_mlp)).pairs.filter(pl.col("error") > 0.02)
    judgements = dict(table["judgement"].value_counts().iter_rows())
    assert judgements.pop("inherited") > 100
    assert set(judgements) == {"made_here"}


@pytest.mark.parametrize("autocast", [False, True])
def test_a_factor_beside_other_code_is_named(reference: Path, tmp_path: Path, autocast: bool) -> None:
    found = named(reference, tmp_path, Way(mlp=scaled_mlp, loss=gathered, autocast=autocast))
    assert found.evidence.one_run.only_target
    assert found.place.op == "torch.Tensor.mul"


def test_a_formula_written_otherwise_agrees_in_noise(tmp_path: Path) -> None:
    """What one run adds up is not what the other adds up; both have the same sum in the end."""
    reference = train(tmp_path / "r", Way(loss=summed_first))
    comparison = against(reference, tmp_path / "same", Way(loss=halved_first, autocast=True)).comparison
    assert comparison.outcome is Outcome.AGREE
    assert comparison.counts.another_way > 0
    assert any(note_sentence(note).endswith("what is made of it agrees again.") for note in comparison.notes)
    assert named(reference, tmp_path / "wrong", Way(loss=halved_wrongly, autocast=True)).place.module is None


def entropy(made: Tensor, _labels: Tensor) -> Tensor:
    return -(functional.softmax(made, -1) * functional.log_softmax(made, -1)).sum(-1).mean()


def entropy_of_normed(made: Tensor, _labels: Tensor) -> Tensor:
    normed = made - made.logsumexp(-1, keepdim=True)
    return -(normed * normed.exp()).sum(-1).mean()


def test_operands_that_changed_places_agree_in_noise(tmp_path: Path) -> None:
    """p log p and log p p: each operand is the other's, and their product is the same."""
    reference = train(tmp_path / "r", Way(loss=entropy))
    comparison = against(reference, tmp_path, Way(loss=entropy_of_normed, autocast=True)).comparison
    assert comparison.outcome is Outcome.AGREE


@pytest.mark.parametrize("autocast", [False, True])
def test_parts_that_are_joined_in_another_order_are_named(tmp_path: Path, autocast: bool) -> None:
    def run(trace: Path, swapped: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(8, 8)
        with ulpscope.capture(trace, model=model), torch.autocast("cpu", torch.bfloat16, enabled=swapped and autocast):
            text, empty = torch.randn(4, 8), torch.zeros(4, 8)
            first, second = model(torch.cat([text, empty] if swapped else [empty, text])).chunk(2)
            (first + 4.0 * (second - first)).tanh()
        return trace

    result = compare(run(tmp_path / "a", swapped=False), run(tmp_path / "b", swapped=True)).comparison
    assert result.outcome is Outcome.DIVERGED
    assert result.findings[0].place.op == "torch.cat"


def test_a_stage_that_reads_the_result_of_another_one_is_named_in_noise(tmp_path: Path) -> None:
    """The same calls, other connections: a little of it is left in what follows, and less in the end."""

    def run(trace: Path, stale: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 48), nn.Tanh(), nn.Linear(48, 16))
        x = torch.randn(32, 16)
        with ulpscope.capture(trace, model=model), torch.autocast("cpu", torch.bfloat16, enabled=stale):
            first = model(x)
            second = model(x + 0.2 * first)
            third = model(x + 0.2 * (first if stale else second))
            (x + 0.1 * (first + 2 * second + third)).pow(2).mean()
        return trace

    result = compare(run(tmp_path / "a", stale=False), run(tmp_path / "b", stale=True)).comparison
    assert result.outcome is Outcome.DIVERGED
    assert result.findings[0].place.op in ("torch.Tensor.__rmul__", "torch.Tensor.mul")


class Adapted(nn.Module):
    """A layer with a low-rank addition, which may be folded into its weight."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.down = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 4, bias=False)
        self.up, self.folded = nn.Linear(4, WIDTH, bias=False), False

    def fold(self, share: float) -> None:
        with torch.no_grad():
            self.base.weight += self.up.weight @ self.down.weight * share
        self.folded = True

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) if self.folded else self.base(x) + self.up(self.down(x))


@pytest.mark.parametrize(("share", "outcome"), [(1.0, Outcome.AGREE), (0.9, Outcome.DIVERGED)])
def test_an_adapter_that_is_folded_into_a_weight_agrees(tmp_path: Path, share: float, outcome: Outcome) -> None:
    def run(trace: Path, folds: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(Adapted(), nn.Tanh(), nn.Linear(WIDTH, CLASSES)).eval()
        inputs = torch.randn(ROWS, WIDTH)
        with ulpscope.capture(trace, model=model), torch.no_grad():
            if folds:
                model[0].fold(share)
            model(inputs)
        return trace

    assert compare(run(tmp_path / "a", folds=False), run(tmp_path / "b", folds=True)).comparison.outcome is outcome


def test_a_copy_of_a_model_in_another_type_is_rounding(tmp_path: Path) -> None:
    """What a copy is given besides is a memory of what was copied: addresses."""

    def run(trace: Path, dtype: torch.dtype) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)).to(dtype)
        with ulpscope.capture(trace, model=model):
            again = copy.deepcopy(model)
            again(torch.ones(ROWS, WIDTH, dtype=dtype))
        return trace

    comparison = compare(run(tmp_path / "a", torch.float32), run(tmp_path / "b", torch.bfloat16)).comparison
    assert comparison.outcome is Outcome.AGREE


def test_another_loss_in_noise_is_named(reference: Path, tmp_path: Path) -> None:
    found = named(reference, tmp_path, Way(loss=smoothed, autocast=True))
    assert found.place.module is None


def test_a_missing_summand_of_a_weight_is_named(reference: Path, tmp_path: Path) -> None:
    """What reads the weight later in the same module does not explain what is made of it."""
    found = named(reference, tmp_path, Way(one_more=False))
    assert (found.place.module, found.place.op) == ("model.0", "torch.Tensor.add")


def test_a_parameter_that_one_run_does_not_train_is_named(reference: Path, tmp_path: Path) -> None:
    found = named(reference, tmp_path, Way(frozen=True))
    assert found.kind is FindingKind.OPTIMIZER
    assert found.evidence.history.without_gradient == "target"
    assert set(found.evidence.history.parameters) == {"model.1.up.weight", "model.1.up.bias"}


class Assigning(nn.Module):
    """Assigns rows to labels outside of torch, as detectors of boxes do."""

    def forward(self, scores: Tensor) -> Tensor:
        costs = scores.detach().float().numpy()
        return torch.as_tensor(np.argsort(costs, axis=None))


@pytest.mark.parametrize("wrong", [False, True])
def test_what_another_library_chose_may_flip(tmp_path: Path, wrong: bool) -> None:
    def run(trace: Path, autocast: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 64), Assigning())
        inputs = torch.randn(64, 64)
        with ulpscope.capture(trace, model=model), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            model(inputs + 0.5 if wrong and autocast else inputs)
        return trace

    result = compare(run(tmp_path / "a", autocast=False), run(tmp_path / "b", autocast=True)).comparison
    assert result.outcome is (Outcome.DIVERGED if wrong else Outcome.AGREE)
    assert wrong or result.counts.after_choice > 0


def test_masks_of_two_types_are_the_same(tmp_path: Path) -> None:
    def run(trace: Path, dtype: torch.dtype, hidden: int = 4) -> Path:
        torch.manual_seed(0)
        model = nn.Linear(8, 8).to(dtype)
        inputs = torch.randn(6, 8).to(dtype)
        with ulpscope.capture(trace, model=model):
            mask = torch.full((6, 8), torch.finfo(dtype).min)
            mask = mask.masked_fill(torch.arange(8) < hidden, 0.0).to(dtype)
            functional.softmax(model(inputs) + mask, -1)
        return trace

    reference = run(tmp_path / "ref", torch.float32)
    assert compare(reference, run(tmp_path / "same", torch.float16)).comparison.outcome is Outcome.AGREE
    assert compare(reference, run(tmp_path / "other", torch.float16, 5)).comparison.outcome is Outcome.DIVERGED


@pytest.mark.parametrize("scale", [1.0, 1e-6])
def test_gradients_that_underflow_are_rounding(tmp_path: Path, scale: float) -> None:
    """In float16 they are zeros, or next to it: the optimizer has them all the same."""

    def run(trace: Path, half: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, CLASSES))
        optimizer = torch.optim.SGD(model.parameters(), 0.1)
        with ulpscope.capture(trace, model=model):
            for step in range(2):
                inputs, labels = batch(torch.Generator().manual_seed(step))
                optimizer.zero_grad()
                with torch.autocast("cpu", torch.float16, enabled=half):
                    loss = functional.cross_entropy(model(inputs).float() * scale, labels)
                loss.backward()
                optimizer.step()
        return trace

    result = compare(run(tmp_path / "a", half=False), run(tmp_path / "b", half=True)).comparison
    assert result.outcome is Outcome.AGREE


class Scores(nn.Module):
    """Masks by the least number of a type, and divides afterwards, as CodeGen does."""

    def forward(self, x: Tensor) -> Tensor:
        scores = x @ x.transpose(-1, -2)
        hidden = torch.tensor(torch.finfo(torch.float32).min)
        kept = torch.where(torch.ones_like(scores).tril().bool(), scores, hidden.to(scores.dtype))
        return functional.softmax(kept / 4.0, -1) @ x


def spread(x: Tensor) -> Tensor:
    return (4.0 + 0.2 * x).unflatten(0, (4, -1)).var(0, correction=0).add(1e-8).sqrt()


def forces(x: Tensor) -> Tensor:
    place = x.detach().requires_grad_()
    (pull,) = torch.autograd.grad((place.tanh() * place).sum(), place, create_graph=True)
    return -pull * x


def solved(x: Tensor) -> Tensor:
    wide = x.float()
    return torch.linalg.solve(wide.T @ wide + 0.1 * torch.eye(wide.shape[1]), wide.T).T


@pytest.mark.parametrize("inner", [nn.GRU(WIDTH, WIDTH), Scores(), spread, forces, solved])
def test_what_amplifies_noise_by_nature_agrees(tmp_path: Path, inner: Any) -> None:
    def run(trace: Path, autocast: bool) -> Path:
        torch.manual_seed(0)
        layer = copy.deepcopy(inner)
        model = nn.Linear(WIDTH, WIDTH)
        with ulpscope.capture(trace, model=model), torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            made = layer(model(torch.randn(ROWS, WIDTH)))
            (made[0] if isinstance(made, tuple) else made).pow(2).mean().backward()
        return trace

    comparison = compare(run(tmp_path / "a", autocast=False), run(tmp_path / "b", autocast=True)).comparison
    assert comparison.outcome is Outcome.AGREE


def test_an_update_of_a_sparse_gradient_is_not_blamed(tmp_path: Path) -> None:
    """Nothing is recorded of such a gradient: it is unknown, not the same."""

    def run(trace: Path, autocast: bool) -> Path:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Embedding(30, WIDTH, sparse=True), nn.Linear(WIDTH, CLASSES))
        optimizer = torch.optim.SparseAdam(list(model[0].parameters()))
        with ulpscope.capture(trace, model=model):
            for _ in range(2):
                with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
                    loss = functional.cross_entropy(model(torch.arange(20)), torch.arange(20) % CLASSES)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        return trace

    comparison = compare(run(tmp_path / "a", autocast=False), run(tmp_path / "b", autocast=True)).comparison
    assert comparison.outcome is Outcome.AGREE
