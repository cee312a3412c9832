"""Compiled noise moves the same results by the same bits as the Python code, which is its definition."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import ulpscope
from ulpscope.capture.torch.host import loading
from ulpscope.capture.torch.watching.calls import CallWatcher
from ulpscope.records.runs import Noise
from ulpscope.trace.reader import open_trace

Work = Callable[[], list[Tensor]]
"""Gives what the run leaves behind."""

BF16 = Noise(1, "bfloat16")


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    loading.load()


class Block(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8, dtype=dtype)
        self.first, self.second = nn.Linear(8, 12, dtype=dtype), nn.Linear(12, 8, dtype=dtype)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.act(self.first(self.norm(x))).split(6, dim=1)
        joined = torch.cat([right * 0.5, left], dim=1).view(2, -1, 12).transpose(0, 1)
        return x + self.second(joined.reshape(-1, 12))


def trained(dtype: torch.dtype = torch.float32, **options: Any) -> list[Tensor]:
    model = nn.Sequential(Block(dtype), Block(dtype))
    optimizer = torch.optim.AdamW(model.parameters(), 0.01, **options)
    for _ in range(3):
        optimizer.zero_grad()
        functional.mse_loss(model(torch.randn(4, 8, dtype=dtype)), torch.ones(4, 8, dtype=dtype)).backward()
        optimizer.step()
    return [*model.parameters(), *model.buffers()]


def autocast() -> list[Tensor]:
    model, x = nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Linear(6, 2)), torch.randn(3, 6)
    with torch.autocast("cpu", torch.bfloat16):
        made = model(x)
    made.float().pow(2).mean().backward()
    return [made, *(gradient_of(parameter) for parameter in model.parameters())]


def views_and_writes() -> list[Tensor]:
    layer, x = nn.Linear(6, 6), torch.randn(4, 6)
    hidden = layer(x)
    hidden[1:3].mul_(2.0).t().add_(1.0)
    strided = torch.empty(6, 8)[:, ::2]
    torch.matmul(hidden.detach().t(), hidden.detach()[:, :4], out=strided)
    grown = torch.zeros(3, 6).index_add_(0, torch.tensor([0, 2, 0, 1]), hidden.detach())
    copied = torch.empty_like(hidden).copy_(hidden).clone().expand(2, 4, 6)
    hidden.sum().backward()
    return [hidden, strided, grown, copied, gradient_of(layer.weight)]


def other_layers() -> list[Tensor]:
    convolution, recurrent = nn.Conv2d(1, 2, 3), nn.LSTM(5, 4)
    made = convolution(torch.randn(2, 1, 6, 6)).to(memory_format=torch.channels_last).relu()
    states, _ = recurrent(torch.randn(3, 2, 5))
    query = torch.randn(1, 2, 4, 8, requires_grad=True)
    attended = functional.scaled_dot_product_attention(query, query, query, is_causal=True)
    (made.sum() + states.sum() + attended.sum()).backward()
    found = [made, states, attended, gradient_of(query), gradient_of(convolution.weight)]
    return [*found, gradient_of(recurrent.weight_ih_l0)]


def inference() -> list[Tensor]:
    model = nn.Sequential(nn.Linear(8, 8), Block()).eval()
    with torch.inference_mode():
        return [model(torch.randn(4, 8)), torch.einsum("ij,kj->ik", torch.randn(3, 4), torch.randn(5, 4))]


def sparse() -> list[Tensor]:
    layer, x = nn.Embedding(6, 4, sparse=True), torch.eye(4).to_sparse()
    made = torch.sparse.mm(x, layer(torch.tensor([1, 1, 3, 5])))
    made.sum().backward()
    return [made, gradient_of(layer.weight).to_dense()]


def recomputed() -> list[Tensor]:
    block, x = Block(), torch.randn(4, 8, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    return [gradient_of(x), *(gradient_of(parameter) for parameter in block.parameters())]


def twice_backward() -> list[Tensor]:
    layer, x = nn.Linear(4, 4), torch.randn(4, 4, requires_grad=True)
    (gradient,) = torch.autograd.grad(layer(x).tanh().sum(), x, create_graph=True)
    gradient.pow(2).sum().backward()
    return [gradient, gradient_of(x), gradient_of(layer.weight)]


def transformed() -> list[Tensor]:
    def loss(weight: Tensor, x: Tensor) -> Tensor:
        return (x @ weight).sin().sum()

    made = nn.Linear(4, 4)(torch.randn(3, 4))
    weight, x = torch.randn(4, 4), torch.randn(3, 1, 4)
    return [made, torch.func.vmap(torch.func.grad(loss), (None, 0))(weight, x)]


class Looking(TorchDispatchMode):
    """A mode of the run's own."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def below_another_mode() -> list[Tensor]:
    layer = nn.Linear(6, 6)
    with Looking():  # type: ignore[no-untyped-call]
        made = layer(torch.randn(4, 6)).softmax(-1)
    made.sum().backward()
    return [made, gradient_of(layer.weight)]


def gradient_of(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None
    return tensor.grad


CASES: dict[str, Work] = {
    "foreach": lambda: trained(foreach=True),
    "fused": lambda: trained(fused=True),
    "one by one": lambda: trained(foreach=False),
    "float64": lambda: trained(torch.float64),
    "bfloat16": lambda: trained(torch.bfloat16),
    "autocast": autocast,
    "views and writes": views_and_writes,
    "other layers": other_layers,
    "inference": inference,
    "recomputed": recomputed,
    "sparse": sparse,
    "twice backward": twice_backward,
    "transformed": transformed,
    "below another mode": below_another_mode,
}


def left_by(folder: Path, host: str, work: Work, noise: Noise | None, monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    monkeypatch.setenv(loading.CHOICE, host)
    torch.manual_seed(0)
    capture = ulpscope.capture(folder / host, overwrite=True)
    capture.settings = replace(capture.settings, noise=noise)
    with capture:
        left = work()
    return [bytes(tensor.detach().clone().reshape(-1).contiguous().view(torch.uint8).numpy()) for tensor in left]


def digests(folder: Path, host: str) -> pl.DataFrame:
    """Of all values that the trace holds, by use."""
    assert not open_trace(folder / host).ranks[0].info.errors
    tables = {}
    for name in ("values", "tensors"):
        files = sorted((folder / host / "rank0").glob(f"step*/{name}-*.parquet"), key=lambda path: path.parts)
        tables[name] = pl.concat([pl.read_parquet(path) for path in files])
    uses = tables["tensors"].join(tables["values"], left_on="value", right_on="id")
    columns = ("call", "role", "place", "digest")
    return uses.select(columns).sort(columns)


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_for_the_same_seed(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {host: left_by(tmp_path, host, CASES[case], BF16, monkeypatch) for host in ("python", "compiled")}
    assert found["compiled"] == found["python"]
    assert digests(tmp_path, "compiled").equals(digests(tmp_path, "python"))
    assert left_by(tmp_path, "python", CASES[case], None, monkeypatch) != found["python"]


def test_the_same_bits_where_a_table_tells_precisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [["Sequential.0.first", "contraction", "float16"], ["", "parameters", "bfloat16"]]
    table = tmp_path / "precision.json"
    table.write_text(json.dumps({"coarsest": "bfloat16", "results": rows}))
    told, untold = Noise(1, None, table), Noise(1, None)
    found = {host: left_by(tmp_path, host, CASES["foreach"], told, monkeypatch) for host in ("python", "compiled")}
    assert found["compiled"] == found["python"]
    assert left_by(tmp_path, "compiled", CASES["foreach"], untold, monkeypatch) != found["compiled"]


def test_an_error_of_an_operator_reaches_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> list[Tensor]:
        layer = nn.Linear(6, 6)
        made = layer(torch.randn(4, 6))
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            layer(torch.randn(4, 5))
        return [made]

    found = [left_by(tmp_path, host, fail, BF16, monkeypatch) for host in ("python", "compiled")]
    assert found[0] == found[1]


def test_calls_above_noise_are_recorded_by_compiled_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    watch, slow = CallWatcher.watch, list[str]()

    def noted(watcher: CallWatcher, api: Any, *rest: Any) -> Any:
        slow.append(api.name)
        return watch(watcher, api, *rest)

    def work() -> list[Tensor]:
        layer, x = nn.Linear(4, 4), torch.randn(2, 4)
        for _ in range(2):
            slow.clear()  # a function that is met for the first time is left to Python
            made = torch.tanh(layer(x))
        return [made]

    monkeypatch.setattr(CallWatcher, "watch", noted)
    left_by(tmp_path, "compiled", work, BF16, monkeypatch)
    assert slow == []
