"""What a twin's noise moves in a run of torch, and what it leaves alone."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import _disable_current_modes

from ulpscope.capture.recording.calls import ModuleScope
from ulpscope.capture.torch.host import loading
from ulpscope.capture.torch.moving import move, move_by_torch
from ulpscope.capture.torch.session import Session
from ulpscope.records.enums import Phase
from ulpscope.records.runs import CaptureSettings, Noise

BF16 = 2.0**-8


class Run:
    """A mode at work in a forward, with the scopes that it asks."""

    def __init__(self, noise: Noise, folder: Path) -> None:
        session = Session(CaptureSettings(out=folder / "trace", noise=noise))
        self.steps, self.scopes = session.steps, session.scopes
        self.steps.phase = Phase.FORWARD
        assert session.noise is not None
        self.mode = session.noise


@pytest.fixture(params=["python", "compiled"], autouse=True)
def host(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever does the mode's work, the same holds."""
    monkeypatch.setenv(loading.CHOICE, request.param)


@pytest.fixture
def run(host: None, tmp_path: Path) -> Iterator[Run]:
    made = Run(Noise(1, "bfloat16"), tmp_path)
    with made.mode:
        yield made


def error(found: torch.Tensor, truth: torch.Tensor) -> float:
    with _disable_current_modes(), torch.no_grad():
        return float((found.double() - truth.double()).norm() / truth.double().norm())


def product_of(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Exactly, whoever watches."""
    with _disable_current_modes(), torch.no_grad():
        return one.double() @ other.double()


def exact_tanh(number: torch.Tensor) -> torch.Tensor:
    with _disable_current_modes(), torch.no_grad():
        return number.double().tanh()


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_a_product_and_what_is_made_of_it_are_moved_like_bfloat16(run: Run) -> None:
    one, other = numbers(32, 32), numbers(32, 32, seed=1)
    product = one @ other
    truth = product_of(one, other)
    assert 0.5 * BF16 < error(product, truth) < 2 * BF16
    assert error(torch.relu(product), torch.relu(product)) == 0.0
    small = product * 0.1
    assert 0.2 * BF16 < error(torch.tanh(small), exact_tanh(small)) < BF16


def test_the_operands_stay_as_they_are(run: Run) -> None:
    one = numbers(16, 16)
    kept = one.clone()
    _ = one @ one
    assert torch.equal(one, kept)


def test_without_a_product_numbers_keep_their_own_precision(run: Run) -> None:
    one = numbers(64, 64)
    assert error(one.exp(), one.double().exp()) < 2.0**-22


def test_set_up_is_not_moved(run: Run) -> None:
    run.steps.phase = Phase.SETUP
    one = numbers(16, 16)
    product = one @ one
    run.steps.phase = Phase.FORWARD
    assert error(product, product_of(one, one)) < 2.0**-20


def test_masks_integers_views_and_drawn_numbers_are_not_moved(run: Run) -> None:
    product = numbers(8, 8) @ numbers(8, 8)
    mask = torch.full((8, 8), torch.finfo(torch.float32).min).triu(1)
    masked = product + mask
    assert torch.isfinite(masked).all()
    assert bool((masked.triu(1)[mask != 0] == torch.finfo(torch.float32).min).all())
    kept = product.clone()
    assert torch.equal(product.view(64).view(8, 8).transpose(0, 1), kept.transpose(0, 1))
    assert torch.equal(product, kept)
    assert torch.equal(torch.arange(5) * 2, torch.tensor([0, 2, 4, 6, 8]))
    torch.manual_seed(0)
    drawn = torch.rand(8)
    torch.manual_seed(0)
    assert torch.equal(drawn, torch.rand(8))


def test_gradients_are_moved_like_bfloat16(run: Run) -> None:
    layer, given = nn.Linear(32, 32, bias=False), numbers(16, 32).requires_grad_()
    made = layer(given)
    run.steps.phase = Phase.BACKWARD
    sent = numbers(16, 32, seed=2)
    made.backward(sent)
    assert given.grad is not None
    assert layer.weight.grad is not None
    assert 0.5 * BF16 < error(given.grad, product_of(sent, layer.weight)) < 2 * BF16
    assert 0.5 * BF16 < error(layer.weight.grad, product_of(sent.T, given)) < 2 * BF16


def test_a_table_says_what_each_module_gives(tmp_path: Path) -> None:
    file = tmp_path / "precision.json"
    rows = [["model.low", "contraction", "bfloat16"], ["model.high", "contraction", "float32"]]
    file.write_text(json.dumps({"coarsest": "bfloat16", "results": rows}))
    run = Run(Noise(1, None, file), tmp_path)
    one = numbers(32, 32)
    truth = product_of(one, one)
    found = {}
    for module in ("model.low", "model.high"):
        run.scopes.modules.append(ModuleScope(module, "Linear"))
        with run.mode:
            found[module] = error(one @ one, truth)
    assert found["model.low"] > 0.5 * BF16
    assert found["model.high"] < 2.0**-20


def test_a_product_is_written_where_the_run_wants_it(run: Run) -> None:
    one, other = numbers(16, 16), numbers(16, 16, seed=1)
    truth = product_of(one, other)
    written = torch.empty(16, 16)
    torch.mm(one, other, out=written)
    assert 0.5 * BF16 < error(written, truth) < 2 * BF16
    added = torch.zeros(16, 16).addmm_(one, other)
    assert 0.5 * BF16 < error(added, truth) < 2 * BF16


def test_sparse_tensors_pass(run: Run) -> None:
    layer = nn.Embedding(6, 4, sparse=True)
    made = torch.sparse.mm(torch.eye(4).to_sparse(), layer(torch.tensor([1, 1, 3, 5])))
    made.sum().backward()
    assert layer.weight.grad is not None
    assert layer.weight.grad.is_sparse


def test_what_a_program_writes_down_is_not_what_lay_there_before(run: Run) -> None:
    product = numbers(16, 16) @ numbers(16, 16, seed=1)
    written_down = torch.ops.aten.lift_fresh(product)  # as if torch.tensor had got this memory
    assert error(written_down.tanh(), written_down.double().tanh()) < 2.0**-22


def test_two_twins_move_otherwise(tmp_path: Path) -> None:
    one, found = numbers(16, 16), []
    for seed in (1, 2):
        with Run(Noise(seed, "bfloat16"), tmp_path).mode:
            found.append(one @ one)
    assert not torch.equal(*found)


def test_torchs_own_operations_move_as_far_as_compiled_noise() -> None:
    one = numbers(100, 100)
    for precision, unit in (("bfloat16", BF16), ("float16", 2.0**-11)):
        found = one.clone()
        move_by_torch(found, precision, 7)
        rounded = one.to(getattr(torch, precision)).double()
        assert error(found, one) == pytest.approx(error(rounded, one.double()), rel=0.05), unit
    held = one.bfloat16().float()
    found = held.clone()
    move_by_torch(found, "bfloat16", 7)
    assert torch.equal(found, held)
    mask = torch.tensor([float("-inf"), 0.0, torch.finfo(torch.float32).min])
    found = mask.clone()
    move_by_torch(found, "bfloat16", 7)
    assert torch.equal(found, mask)
    own = one.clone()
    move_by_torch(own, "float32", 7)
    steps = own.view(torch.int32) - one.view(torch.int32)
    assert set(steps.unique().tolist()) == {-1, 0, 1}


def test_results_that_follow_each_other_draw_other_numbers() -> None:
    """Sorted, the draws of two neighbouring seeds would be the same ones."""
    drawn = [torch.ones(64, 64) * 1.3 for _ in range(2)]
    for seed, tensor in enumerate(drawn):
        move(tensor, "float32", seed)
    assert not torch.equal(*(tensor.flatten().sort().values for tensor in drawn))


def test_a_rounding_is_the_same_wherever_it_is_made(run: Run) -> None:
    weight, given = numbers(32, 32), numbers(16, 32, seed=1)
    assert torch.equal(given @ weight, given.clone() @ weight.clone())
    doubled = torch.cat([given, given]) @ weight
    assert torch.equal(doubled[:16], doubled[16:])


@pytest.mark.parametrize(("scale", "underflows"), [(0, True), (20, False)])
def test_gradients_that_the_other_run_scales_do_not_underflow(
    scale: int, underflows: bool, host: None, tmp_path: Path
) -> None:
    results = [["", "contraction", "float16"]]
    table = tmp_path / "precision.json"
    table.write_text(json.dumps({"coarsest": "float16", "results": results, "loss_scale": scale}))
    made = Run(Noise(1, table=table), tmp_path)
    weight, given = numbers(16, 16).requires_grad_(), numbers(16, 16, seed=1)
    with made.mode:
        product = given @ weight
        made.steps.phase = Phase.BACKWARD
        product.backward(torch.full((16, 16), 1e-9))
    assert weight.grad is not None
    truth = product_of(given.T, torch.full((16, 16), 1e-9))
    assert (error(weight.grad, truth) > 2.0**-10) is underflows
