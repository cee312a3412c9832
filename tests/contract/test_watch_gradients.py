"""Gradients of long runs: what is recorded is what optimizers read, and nothing else of the run changes."""

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import parting
import ulpscope
from ulpscope.capture.recording.writing_process import WritingProcess
from ulpscope.compat.msprobe_config import read_config
from ulpscope.records.enums import Role
from ulpscope.trace.reader import RankTrace, open_trace
from ulpscope.trace.watched import AT_MOST, POSITIVE, kept_place
from ulpscope.workflows.convert import convert_traces

torch.set_num_threads(1)
STEPS = 12


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 2))


def trained(net: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int) -> list[dict[str, torch.Tensor]]:
    """Trains; gives the gradients of each step."""
    batches, seen = torch.Generator().manual_seed(1), []
    for _ in range(steps):
        optimizer.zero_grad()
        net(torch.randn(5, 4, generator=batches)).square().mean().backward()
        seen.append({name: one.grad.clone() for name, one in net.named_parameters()})
        optimizer.step()
    return seen


def only_rank(path: Path) -> RankTrace:
    (rank,) = open_trace(path).ranks
    assert rank.info.errors == ()
    return rank


def test_what_is_recorded_is_what_the_optimizer_reads(tmp_path: Path) -> None:
    plain = network()
    trained(plain, torch.optim.AdamW(plain.parameters(), lr=0.1), steps=3)
    net = network()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)
    with ulpscope.watch(net, optimizer, out=tmp_path / "run", bounds=(-0.1, 0.0, 0.1), signs=True):
        seen = trained(net, optimizer, steps=3)
    assert all(torch.equal(one, other) for one, other in zip(net.parameters(), plain.parameters(), strict=True))
    rank = only_rank(tmp_path / "run")
    assert rank.steps == (0, 1, 2)
    for step, gradients in enumerate(seen):
        (call,) = rank.collect(rank.calls(step).select("id"))["id"]
        uses = {(use.role, use.place): rank.value(use.value) for use in rank.uses(call)}
        assert (Role.LOSS, "loss.0") in uses
        assert (Role.PARAMETER, "model.0.weight") in uses
        for name, gradient in gradients.items():
            value = uses[Role.GRADIENT, f"model.{name}"]
            assert value.stats is not None
            assert value.stats.norm == pytest.approx(gradient.norm().item(), rel=1e-5)
            bits = rank.data(uses[Role.GRADIENT, kept_place(f"model.{name}", POSITIVE)])
            counts = rank.data(uses[Role.GRADIENT, kept_place(f"model.{name}", AT_MOST)])
            assert bits is not None
            assert counts is not None
            positive = np.unpackbits(bits, bitorder="little", count=gradient.numel())
            assert positive.tolist() == (gradient > 0).flatten().tolist()
            assert counts.tolist() == [int((gradient <= bound).sum()) for bound in (-0.1, 0.0, 0.1)]


def test_chosen_steps_and_parameters(tmp_path: Path) -> None:
    net = network()
    with ulpscope.watch(net, out=tmp_path / "run", steps="1,3", only=("2.weight",)):
        trained(net, torch.optim.SGD(net.parameters(), lr=0.1), steps=5)
    rank = only_rank(tmp_path / "run")
    assert (rank.steps, rank.missing) == ((1, 3), ())
    places = rank.collect(rank.tensors())["place"].unique().to_list()
    assert sorted(places) == ["loss.0", "model.2.weight"]


def test_a_model_that_nobody_names_is_found_and_other_optimizers_share_its_steps(tmp_path: Path) -> None:
    net, other = network(), nn.Linear(2, 2)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, other)]
    with ulpscope.watch(out=tmp_path / "run"):
        for _ in range(3):
            for optimizer in optimizers:
                optimizer.zero_grad()
            other(net(torch.ones(3, 4))).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    rank = only_rank(tmp_path / "run")
    assert rank.steps == (0, 1, 2)
    assert rank.collect(rank.calls(1)).height == 2
    assert {"model.0.weight", "Linear.weight"} <= set(rank.collect(rank.tensors())["place"])


def test_what_gradscaler_skips_is_recorded_and_says_so(tmp_path: Path) -> None:
    net = network()
    optimizer, scaler = torch.optim.SGD(net.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    with ulpscope.watch(net, optimizer, out=tmp_path / "run"):
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(net(torch.full((2, 4), 1e38 if step == 1 else 1.0)).exp().sum() * 1e30**step).backward()
            if step == 1:
                net[0].weight.grad.fill_(torch.inf)
            scaler.step(optimizer)
            scaler.update()
    rank = only_rank(tmp_path / "run")
    calls = rank.collect(rank.calls().select("step", "error").sort("step")).rows()
    assert [(step, bool(error)) for step, error in calls][:2] == [(0, False), (1, True)]


def test_closures_give_the_gradients_that_were_used(tmp_path: Path) -> None:
    net = network()
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=2)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = net(torch.ones(3, 4)).square().mean()
        loss.backward()
        return loss

    with ulpscope.watch(net, optimizer, out=tmp_path / "run"):
        optimizer.step(closure)
    rank = only_rank(tmp_path / "run")
    assert "gradient" in set(rank.collect(rank.tensors())["role"])


def test_a_disk_that_is_full_ends_the_watch_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, begin = network(), WritingProcess.__init__

    def begin_without_room(self: WritingProcess, *args: object, **options: object) -> None:
        begin(self, *args, **options)  # type: ignore[arg-type]
        resource.prlimit(self._process.pid, resource.RLIMIT_FSIZE, (500, 500))

    monkeypatch.setattr(WritingProcess, "__init__", begin_without_room)
    with pytest.warns(UserWarning, match="File too large"), ulpscope.watch(net, out=tmp_path / "run"):
        assert len(trained(net, torch.optim.SGD(net.parameters(), lr=0.1), steps=4)) == 4
    assert open_trace(tmp_path / "run").ranks[0].info.closed is None


KILLED = """
import os, signal, sys, torch, ulpscope
from torch import nn
net = nn.Linear(3, 3)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
ulpscope.watch(net, optimizer, out=sys.argv[1])
for step in range(100):
    optimizer.zero_grad()
    net(torch.ones(2, 3)).sum().backward()
    if step == 5:
        os.kill(os.getpid(), signal.SIGKILL)
    optimizer.step()
"""


def test_a_killed_run_loses_at_most_the_step_it_was_in(tmp_path: Path) -> None:
    # Its output ends when the process that writes has ended, too.
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path / "run")], check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    rank = open_trace(tmp_path / "run").ranks[0]
    assert rank.steps == (0, 1, 2, 3, 4)
    assert rank.collect(rank.calls(4)).height == 1


def compared(tmp_path: Path, fault: parting.Fault | None, *, noise: str = "none") -> dict[str, object]:
    for name, planted in (("reference", None), ("target", fault)):
        parting.train(tmp_path / name, planted, noise if name == "target" else "none", steps=STEPS)
    return ulpscope.compare(tmp_path / "reference", tmp_path / "target").json()


@pytest.mark.parametrize(
    "fault",
    [
        parting.Fault("rate", 0, ("setting",), "layers.2."),
        parting.Fault("batch", 6, ("input",)),
        parting.Fault("eps", 0, ("input",)),
        parting.Fault("flip", 7, ("changed",), "layers.1.rise.weight"),
        parting.Fault("seed", 5, ("randomness",)),
        parting.Fault("backward", 5, ("backward",), "layers.1."),
    ],
    ids=lambda fault: fault.name,
)
def test_where_trainings_part_and_why(fault: parting.Fault, tmp_path: Path) -> None:
    assert compared(tmp_path, fault)["verdict"] == "diverged"
    assert parting.judged(fault, tmp_path / "reference", tmp_path / "target") is None


@pytest.mark.parametrize("noise", parting.NOISES)
def test_rounding_is_no_parting(noise: str, tmp_path: Path) -> None:
    assert compared(tmp_path, None, noise=noise)["verdict"] == "agree"


class Attending(nn.Module):
    """Attention, which no bias of its keys changes: their gradients are nothing but rounding."""

    def __init__(self, *, split: bool) -> None:
        super().__init__()
        self.words, self.qkv, self.head = nn.Embedding(40, 32), nn.Linear(32, 96), nn.Linear(32, 40)
        self.key, self.split = nn.Linear(32, 32), split

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.words(tokens)).chunk(3, -1)
        q, k, v = (each.double() if self.split else each for each in (q, self.key(k), v))
        return self.head(functional.scaled_dot_product_attention(q, k, v).float())  # type: ignore[no-any-return]


@pytest.mark.parametrize(("split", "coarser"), [(False, "bfloat16"), (True, "float32")])
def test_weights_whose_gradients_are_nothing_but_rounding_are_no_parting(
    split: bool, coarser: str, tmp_path: Path
) -> None:
    for name in ("reference", "target"):
        torch.manual_seed(0)
        model = Attending(split=split and name == "target")
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        with ulpscope.watch(model, optimizer, out=tmp_path / name):
            for step in range(4):
                tokens = torch.randint(40, (8, 16), generator=torch.Generator().manual_seed(step))
                with torch.autocast("cpu", torch.bfloat16, enabled=name == "target" and not split):
                    scores = model(tokens)
                optimizer.zero_grad()
                functional.cross_entropy(scores.flatten(0, 1).float(), tokens.flatten()).backward()
                optimizer.step()
    told = ulpscope.compare(tmp_path / "reference", tmp_path / "target").json()
    assert told["verdict"] == "agree"
    assert told["beginnings"][0]["types"] == ["float32", coarser]


def test_the_command_tells_it_and_writes_tables(tmp_path: Path) -> None:
    compared(tmp_path, parting.Fault("batch", 6, ()))
    sides = [str(tmp_path / name) for name in ("reference", "target")]
    command = [sys.executable, "-m", "ulpscope", "compare", *sides, "-o", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.startswith("PARTED at step 6: another batch")
    assert json.loads((tmp_path / "out" / "summary.json").read_text())["findings"][0]["step"] == 6
    assert len((tmp_path / "out" / "course.csv").read_text().splitlines()) == STEPS + 1
    refused = subprocess.run([*command, "--replay", "on"], capture_output=True, text=True, check=False)
    assert refused.returncode == 2


PROBED = """
import sys, torch
from torch import nn
from ulpscope.compat.msprobe import PrecisionDebugger
debugger = PrecisionDebugger(config_path=sys.argv[1], dump_path=sys.argv[2])
torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=float(sys.argv[3]))
debugger.monitor(net)
for _ in range(4):
    optimizer.zero_grad()
    net(torch.ones(3, 4)).sum().backward()
    optimizer.step()
"""


def test_grad_probe_leaves_msprobes_files(tmp_path: Path) -> None:
    probe = {"grad_level": "L2", "param_list": ["0.weight", "2.bias"], "bounds": [-1, 0, 1]}
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"task": "grad_probe", "dump_path": "x", "step": [0, 2], "grad_probe": probe}))
    for name, rate in (("one", "0.1"), ("other", "0.4")):
        arguments = [sys.executable, "-c", PROBED, str(config), str(tmp_path / name), rate]
        subprocess.run(arguments, check=True, capture_output=True)
    assert sorted(path.name for path in (tmp_path / "one" / "rank0").glob("*.csv")) == [
        "grad_summary_0.csv",
        "grad_summary_2.csv",
    ]
    header, first, *_ = (tmp_path / "one" / "rank0" / "grad_summary_0.csv").read_text().splitlines()
    assert header == 'param_name,"(-inf, -1]","(-1, 0]","(0, 1]","(1, inf)",=0,max,min,norm,shape'
    assert first.startswith("0.weight,")
    assert sum(map(float, first.split(",")[1:5])) == pytest.approx(1.0)
    assert np.load(tmp_path / "one" / "rank0" / "step2" / "0.weight.npy").shape == (8, 4)
    from ulpscope.compat.msprobe import GradComparator

    GradComparator.compare_distributed(str(tmp_path / "one"), str(tmp_path / "other"), str(tmp_path / "similar"))
    lines = (tmp_path / "similar" / "rank0" / "similarities.csv").read_text().splitlines()
    assert lines[:2] == ["step,similarity", "0,1.0"]
    convert_traces([tmp_path / "one-trace"], out=tmp_path / "again")
    again = (tmp_path / "again" / "rank0" / "grad_summary_0.csv").read_text()
    assert again == (tmp_path / "one" / "rank0" / "grad_summary_0.csv").read_text()


@pytest.mark.parametrize(("level", "signs", "bounds"), [("L0", False, ()), ("L1", True, ()), ("L2", True, (-1, 0, 1))])
def test_levels_of_grad_probe(level: str, signs: bool, bounds: tuple[float, ...]) -> None:
    config = read_config(None, {"dump_path": "x", "task": "grad_probe", "grad_level": level})
    assert config.gradients is not None
    assert (config.gradients.signs, config.gradients.bounds) == (signs, bounds)
    assert config.remarks == ()


def test_a_run_without_change_to_its_script(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        KILLED.replace("ulpscope.watch(net, optimizer, out=sys.argv[1])\n", "").replace("range(100)", "range(5)")
    )
    command = [sys.executable, "-m", "ulpscope", "run", "-o", str(tmp_path / "run"), "--watch", "gradients", "--signs"]
    done = subprocess.run([*command, "--", sys.executable, str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "steps 0-4" in done.stderr


def test_what_is_no_loss_goes_back_as_without_a_watch(tmp_path: Path) -> None:
    net, batch = network(), torch.ones(2, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with ulpscope.watch(net, optimizer, out=tmp_path / "run"):
        square = torch.func.grad(lambda row: row.square().sum())
        assert torch.equal(torch.func.vmap(square)(batch), 2 * batch)
        loss = net(batch).sum()
        torch.autograd.backward(torch.autograd.graph.get_gradient_edge(loss), (torch.ones_like(loss),))
        optimizer.step()
    rank = only_rank(tmp_path / "run")
    assert set(rank.collect(rank.tensors())["role"]) == {"gradient", "parameter"}


@pytest.mark.parametrize("reversed_", [False, True])
def test_an_optimizer_that_updates_in_one_run_only_is_no_agreement(tmp_path: Path, reversed_: bool) -> None:
    for name, until in (("whole", 4), ("lacking", 2)):
        torch.manual_seed(0)
        net, other = network(), nn.Linear(4, 2)
        optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (net, other)]
        with ulpscope.watch({"net": net, "other": other}, out=tmp_path / name):
            for step in range(4):
                (net(torch.ones(2, 4)).sum() + other(torch.ones(2, 4)).sum()).backward()
                optimizers[0].step()
                if step < until:
                    optimizers[1].step()
                for optimizer in optimizers:
                    optimizer.zero_grad()
    names = ["whole", "lacking"][:: -1 if reversed_ else 1]
    found = ulpscope.compare(*(tmp_path / name for name in names)).json()
    assert found["verdict"] == "diverged"
    first = found["findings"][0]
    assert (first["step"], first["evidence"]["cause"]) == (2, "missing")
    assert first["tensor"].startswith("other.")
