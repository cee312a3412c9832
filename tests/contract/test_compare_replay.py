"""Calls executed again: faults that only this shows, whom it blames and clears, and what the ledger adds up to."""

import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from trained import other_eps, write

import ulpscope
from ulpscope.cli.main import main
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.evidence import Ledger, Maker, Replay
from ulpscope.workflows.compare.command import CompareResult
from ulpscope.workflows.convert import convert_traces

Change = Callable[[torch.Tensor], object]
FAULTS: dict[str, tuple[str, Change, str]] = {
    "scaled": ("aten::gelu", lambda output: output.mul_(1.01), "torch.nn.functional.gelu.1"),
    "column": ("aten::native_layer_norm", lambda output: output[..., 7].mul_(1.03), "torch.nn.functional.layer_norm.1"),
    "element": ("aten::gelu", lambda output: output[1, 2, 5].add_(0.04), "torch.nn.functional.gelu.1"),
}


class Fault(TorchDispatchMode):
    """Changes what one call of an operator gives; below the API level, so that its own call made the error."""

    def __init__(self, operator: str = "", change: Change = lambda output: None) -> None:
        super().__init__()
        self.operator, self.change, self.calls = operator, change, 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = function(*args, **(kwargs or {}))
        if function._schema.name == self.operator:
            if self.calls == 1:
                self.change(result[0] if isinstance(result, tuple) else result)
            self.calls += 1
        return result


def half(model: nn.Module) -> None:
    model.to(torch.bfloat16)


def train(
    out: Path, prepare: Callable[[nn.Module], object] = lambda model: None, fault: Any = None, **how: Any
) -> Path:
    with fault or Fault():
        return write(out, prepare, **{"steps": 1, "save": "tensors", **how})


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reference in float32, and runs in bfloat16: a sound one, and one a fault."""
    folder = tmp_path_factory.mktemp("runs")
    train(folder / "ref")
    train(folder / "sound", half)
    for name, (operator, change, _) in FAULTS.items():
        train(folder / name, half, Fault(operator, change))
    write(folder / "bare", half, steps=1)
    return folder


@pytest.fixture(autouse=True)
def inside(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


def ledger_of(result: CompareResult) -> Ledger:
    assert result.comparison.ledger is not None
    return result.comparison.ledger


def guilty(result: CompareResult) -> set[str]:
    return {
        entry.call
        for entry in ledger_of(result).entries
        if entry.maker in (Maker.TARGET, Maker.REFERENCE) and entry.direction.value == "forward"
    }


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_within_the_noise_of_the_dtypes_is_found(name: str) -> None:
    _, _, call = FAULTS[name]
    assert ulpscope.compare("ref", name, replay="off").verdict == "agree"
    result = ulpscope.compare("ref", name, replay="on")
    assert result.verdict == "diverged"
    assert guilty(result) == {call}
    first = result.findings[0]
    assert (first.call, first.phase) == (call, "forward")
    assert first.evidence["ledger"]["maker"] == "target"
    assert "executed again in float64 from each run's own inputs: the target made " in first.sentence
    assert "this machine's own kernel makes no such error" in first.sentence
    assert shlex.split(first.next)[:4] == ["ulpscope", "repro", name, call]


def test_the_next_command_works(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = shlex.split(ulpscope.compare("ref", "scaled", replay="on").findings[0].next)
    words[words.index("repro", 2)] = str(tmp_path / "repro")
    assert main(words[1:]) == 0
    assert "torch.nn.functional.gelu.1" in capsys.readouterr().out


def test_the_element_that_was_changed_is_named() -> None:
    result = ulpscope.compare("ref", "element", replay="on")
    (entry,) = (entry for entry in ledger_of(result).entries if entry.maker is Maker.TARGET)
    assert entry.worst == (1, 2, 5)
    assert "(at [1, 2, 5] " in result.findings[0].sentence


def test_parts_make_up_the_difference() -> None:
    """Norms of parts do not add up, but none of them is more than all others together."""
    for entry in ledger_of(ulpscope.compare("ref", "scaled", replay="on")).entries:
        parts = [entry.observed, entry.made_by_target, entry.inherited, entry.made_by_reference]
        norms = [part.norm for part in parts]
        assert 2 * max(norms) <= sum(norms) * (1 + 1e-9), entry.call


def test_contributions_add_up_to_the_final_difference() -> None:
    ledger = ledger_of(ulpscope.compare("ref", "scaled", replay="on"))
    (final,) = ledger.finals
    losses = [loss_of(Path(name)) for name in ("ref", "scaled")]
    assert final.difference == pytest.approx(losses[1] - losses[0], rel=1e-6)
    assert final.closure == pytest.approx(1.0, abs=0.01)
    told = sum(entry.contribution or 0.0 for entry in ledger.entries)
    assert told == pytest.approx(final.calls, rel=1e-9)


def loss_of(run: Path) -> float:
    rank = ulpscope.open_trace(run).ranks[0]
    losses = pl.col("op") == "torch.nn.functional.cross_entropy", pl.col("kind") == "api"
    (call,) = rank.collect(rank.calls().filter(*losses))["id"]
    (use,) = (use for use in rank.uses(call) if use.role.value == "output")
    loss = rank.data(rank.value(use.value))
    assert loss is not None
    return float(loss)


def test_a_sound_run_in_another_dtype_has_no_guilty_call() -> None:
    result = ulpscope.compare("ref", "sound", replay="on")
    assert result.verdict == "agree"
    assert guilty(result) == set()
    calls = ledger_of(result).calls
    assert f"{calls} calls executed again in float64: each within rounding of its own inputs" in result.text(width=200)


def test_the_reference_is_blamed_for_its_own_fault() -> None:
    result = ulpscope.compare("scaled", "ref", replay="on")
    first = result.findings[0]
    call = FAULTS["scaled"][2]
    assert (result.verdict, first.call, first.evidence["ledger"]["maker"]) == ("diverged", call, "reference")
    assert "the reference made " in first.sentence
    assert shlex.split(first.next)[:4] == ["ulpscope", "repro", "scaled", call]


def test_a_wrong_gradient_is_blamed_on_the_backward(tmp_path: Path) -> None:
    train(tmp_path / "t", half, Fault("aten::gelu_backward", lambda output: output.mul_(1.5)))
    first = ulpscope.compare("ref", tmp_path / "t", replay="on").findings[0]
    assert (first.phase, first.op) == ("backward", "torch.nn.functional.gelu")
    assert first.evidence["ledger"]["maker"] == "target"
    # Backwards run in the opposite order: the second is that of the first block's gelu.
    assert shlex.split(first.next)[3] == "torch.nn.functional.gelu.0"


def amplify(model: nn.Module) -> None:
    """Near zero a quotient makes much of little: nobody's fault."""

    def divide(module: nn.Module, args: object, output: torch.Tensor) -> torch.Tensor:
        return torch.addcdiv(torch.zeros_like(output), torch.ones_like(output), output)

    model.blocks[1].up.register_forward_hook(divide)


def both(*changes: Callable[[nn.Module], object]) -> Callable[[nn.Module], object]:
    return lambda model: [change(model) for change in changes]


def test_a_call_that_only_amplifies_is_cleared(tmp_path: Path) -> None:
    how: dict[str, Any] = {"steps": 1, "save": "tensors"}
    sides = [write(tmp_path / "r", amplify, **how), write(tmp_path / "t", both(half, amplify), **how)]
    (blamed, *_) = ulpscope.compare(*sides, replay="off").findings
    assert blamed.op == "torch.addcdiv"
    result = ulpscope.compare(*sides, replay="on")
    assert guilty(result) == set()
    assert result.verdict == "agree"
    (note,) = [note for note in result.notes if note.op == "torch.addcdiv"]
    assert "neither run's call is wrong by itself: the target made " in note.sentence
    assert note.next.startswith("ulpscope show ")


@pytest.mark.parametrize("weighs", [True, False])
def test_a_call_is_not_cleared_of_what_came_with_an_operand_of_one_run(tmp_path: Path, *, weighs: bool) -> None:
    logits, clicks = torch.linspace(-2, 2, 12), torch.arange(12.0) % 2
    for name, weight in (("one", None), ("other", torch.full((12,), 3.0) if weighs else None)):
        with ulpscope.capture(tmp_path / name, save="tensors"):
            nn.functional.binary_cross_entropy_with_logits(logits, clicks, pos_weight=weight)
    result = ulpscope.compare(tmp_path / "one", tmp_path / "other")
    found = [finding.place.op for finding in result.comparison.findings]
    assert found == (["torch.nn.functional.binary_cross_entropy_with_logits"] if weighs else [])


def test_another_argument_is_told_by_what_it_made(tmp_path: Path) -> None:
    first = ulpscope.compare("ref", train(tmp_path / "t", other_eps), replay="on").findings[0]
    assert "the arguments that differ made " in first.sentence
    entry = first.evidence["ledger"]
    assert entry["by_arguments"]["norm"] > 100 * entry["made_by_target"]["norm"]
    assert entry["inherited"]["norm"] == 0.0


def test_other_parameters_are_the_start_of_the_difference(tmp_path: Path) -> None:
    def nudged(model: nn.Module) -> None:
        with torch.no_grad():
            model.head.bias[3] += 0.01

    result = ulpscope.compare("ref", train(tmp_path / "t", nudged), replay="on")
    (final,) = ledger_of(result).finals
    assert final.start / final.difference == pytest.approx(1.0, abs=0.01)
    assert guilty(result) == set()


def test_dropout_is_executed_with_the_mask_that_was_drawn(tmp_path: Path) -> None:
    sides = [train(tmp_path / "r", dropout=0.3), train(tmp_path / "t", half, dropout=0.3)]
    result = ulpscope.compare(*sides, replay="on")
    ledger = ledger_of(result)
    dropped = [entry for entry in ledger.entries if entry.op.endswith("dropout")]
    assert result.verdict == "agree"
    assert {entry.maker for entry in dropped} == {Maker.NEITHER}
    assert dict(ledger.left).get("random") is None


def test_autocast_blames_nobody(tmp_path: Path) -> None:
    result = ulpscope.compare("ref", train(tmp_path / "t", autocast=True), replay="on")
    assert result.verdict == "agree"
    assert guilty(result) == set()


def test_every_step_has_its_end(tmp_path: Path) -> None:
    sides = [train(tmp_path / name, prepare, steps=2) for name, prepare in (("r", lambda model: None), ("t", half))]
    result = ulpscope.compare(*sides, replay="on")
    assert [final.step for final in ledger_of(result).finals] == [0, 1]
    assert "cross_entropy.0 (step 1) differs by " in result.text(width=200)


def test_auto_executes_fewer_calls_than_on() -> None:
    ledgers = {mode: ledger_of(ulpscope.compare("ref", "sound", replay=mode)) for mode in ("auto", "on")}
    assert 0 < ledgers["auto"].calls < ledgers["on"].calls
    assert ledgers["auto"].replay is Replay.AUTO
    assert "(--replay on: every call)" in ulpscope.compare("ref", "sound").text(width=200)


def test_off_executes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "ref", "scaled", "--replay", "off", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["ledger"] is None
    assert "ledger" not in ulpscope.compare("ref", "scaled", replay="off").text()


def test_on_without_data_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    for words, problem in ((["ref", "bare"], "the target"), (["bare", "ref"], "the reference")):
        assert main(["compare", *words, "--replay", "on"]) == 2
        told = capsys.readouterr()
        assert f"--replay on, but {problem} has no saved data" in told.err
        assert "\n  next: capture both runs again with --save tensors" in told.err
        assert told.out == ""
    with pytest.raises(UlpscopeError, match="replay='always'"):
        ulpscope.compare("ref", "sound", replay="always")


def test_on_without_api_calls_is_an_error(tmp_path: Path) -> None:
    sides = [write(tmp_path / name, steps=1, save="tensors", level="module") for name in ("r", "t")]
    with pytest.raises(UlpscopeError, match="no pair of API calls"):
        ulpscope.compare(*sides, replay="on")
    assert ulpscope.compare(*sides).verdict == "agree"


def test_auto_says_why_nothing_was_executed() -> None:
    told = ulpscope.compare("ref", "bare").text(width=200)
    assert "ledger     no call executed again: the target has no saved data\n" in told
    assert ulpscope.compare("bare", "bare").comparison.ledger is None


def test_the_ledger_is_written(tmp_path: Path) -> None:
    out = tmp_path / "result"
    assert main(["compare", "ref", "scaled", "--replay", "on", "--out", str(out)]) == 1
    told = json.loads((out / "summary.json").read_text(encoding="utf-8"))["ledger"]
    frame = pl.read_parquet(out / "ledger.parquet")
    assert frame.height == told["entries"] == pl.read_csv(out / "ledger.csv", infer_schema_length=None).height
    assert frame.select("rank", "id_target").unique().height == told["calls"]
    assert told["top"][0]["call"] == FAULTS["scaled"][2]
    assert told["finals"][0]["closure"] == pytest.approx(1.0, abs=0.01)
    blamed = frame.filter(pl.col("maker") == "target", pl.col("direction") == "forward")
    assert blamed["call_target"].to_list() == [FAULTS["scaled"][2]]
    # The truth beside bfloat16 is at most half an ulp off, one that is scaled by 1.01 more.
    assert blamed["made_by_target_ulp"][0] > 0.5
    rest = frame.filter(pl.col("maker") == "neither", pl.col("direction") == "forward")
    assert rest["share"].is_not_null().any()


@pytest.mark.parametrize(("mode", "code"), [("off", 0), ("auto", 0), ("on", 2)])
def test_torch_is_needed_for_executing_only(mode: str, code: int) -> None:
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from ulpscope.cli.main import main\n"
        f"sys.exit(main(['compare', 'ref', 'sound', '--replay', {mode!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert ("no call executed again: torch is not installed here" in done.stdout) == (mode == "auto")
    assert ("--replay on, but torch is not installed here" in done.stderr) == (mode == "on")


@pytest.mark.parametrize("share", [0.0625, 1 / 3])
def test_any_share_of_dropout_is_executed_with_its_mask(tmp_path: Path, share: float) -> None:
    def drop(model: nn.Module) -> None:
        model.blocks[0].up.register_forward_hook(lambda module, args, output: torch.dropout(output, share, True))

    sides = [train(tmp_path / "r", drop), train(tmp_path / "t", both(half, drop))]
    result = ulpscope.compare(*sides, replay="on")
    assert guilty(result) == set()


def test_a_masked_score_does_not_spoil_the_sum(tmp_path: Path) -> None:
    def mask(model: nn.Module) -> None:
        def masked(module: nn.Module, args: Any, output: torch.Tensor) -> torch.Tensor:
            hidden = torch.zeros_like(output).masked_fill(torch.arange(output.shape[-1]) > 5, float("-inf"))
            return torch.softmax(output + hidden, -1)

        model.blocks[0].up.register_forward_hook(masked)

    sides = [train(tmp_path / "r", mask), train(tmp_path / "t", both(half, mask))]
    (final,) = ulpscope.compare(*sides, replay="on").json()["ledger"]["finals"]
    assert final["closure"] == pytest.approx(1.0, abs=0.1)


def test_a_dump_that_does_not_record_autocast_agrees(tmp_path: Path) -> None:
    """What an autocast run gave is explained by its casts, though a dump of msprobe's does not tell of them."""
    folders = []
    for name, autocast in (("ref", False), ("target", True)):
        trace = write(tmp_path / name, autocast=autocast, steps=1, save="tensors")
        convert_traces([trace], out=tmp_path / f"{name}_dump")
        folders.append(tmp_path / f"{name}_dump")
    result = ulpscope.compare(*folders, replay="on")
    assert result.findings == ()
    ledger = result.comparison.ledger
    assert ledger is not None
    assert {entry.maker for entry in ledger.entries} <= {Maker.NEITHER, Maker.KERNEL, Maker.BOTH}


class Casts(TorchDispatchMode):
    """A sound call below which operands are cast, and what is made of them is stored in the type that they had."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function._schema.name not in ("aten::addmm", "aten::mm"):
            return function(*args, **(kwargs or {}))
        return function(*(arg.bfloat16() for arg in args), **(kwargs or {})).float()


@pytest.mark.parametrize("elsewhere", [True, False])
def test_casts_that_no_dump_records_are_tried_before_a_call_is_accused(tmp_path: Path, *, elsewhere: bool) -> None:
    """In a run that holds something in bfloat16; in another one nobody has asked for casts."""
    torch.manual_seed(1)
    x, weight, bias = torch.randn(64, 48), torch.randn(32, 48), torch.randn(32)
    for name, mode in (("r", Fault()), ("t", Casts())):
        with ulpscope.capture(tmp_path / name, save="tensors"), mode:
            torch.tanh(nn.functional.linear(x, weight, bias))
            if elsewhere:
                torch.relu(x.bfloat16())
        convert_traces([tmp_path / name], out=tmp_path / f"{name}_dump")
    told = ulpscope.compare(tmp_path / "r", tmp_path / "t", replay="on")
    assert guilty(told) == {"torch.nn.functional.linear.0"}
    dumped = ulpscope.compare(tmp_path / "r_dump", tmp_path / "t_dump", replay="on")
    assert len(guilty(dumped)) == (0 if elsewhere else 1)
    assert dumped.verdict == ("agree" if elsewhere else "diverged")


class Looker(nn.Module):
    """A convolution in front of attention, whose keys have a bias that softmax does not feel: its gradient is noise."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1)
        self.look = nn.MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.relu(self.conv(x)).flatten(2).transpose(1, 2)
        return rows + self.look(rows, rows, rows)[0]


def looked(out: Path, *, autocast: bool = False, moved: float = 0.0) -> Path:
    """Two steps of Adam as msprobe would dump them; `moved` is what happens to a bias between them."""
    torch.manual_seed(0)
    model = Looker()
    bias = model.look.in_proj_bias.detach().numpy()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    with ulpscope.capture(out / "trace", model=model, save="tensors"):
        for _ in range(2):
            with torch.autocast("cpu", enabled=autocast):
                loss = model(torch.randn(2, 3, 6, 6)).pow(2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            bias[32:] += moved  # which torch does not see
    convert_traces([out / "trace"], out=out / "dump")
    return out / "dump"


def test_an_update_of_noise_that_no_dump_records_agrees(tmp_path: Path) -> None:
    result = ulpscope.compare(looked(tmp_path / "r"), looked(tmp_path / "t", autocast=True))
    assert (result.verdict, result.findings) == ("agree", ())


def test_a_bias_that_its_gradient_does_not_explain_is_found(tmp_path: Path) -> None:
    result = ulpscope.compare(looked(tmp_path / "r"), looked(tmp_path / "t", moved=1e-3))
    assert result.verdict == "diverged"
    found = result.json()["findings"][0]
    assert (found["module"], found["tensor"]) == ("model.look", "in_proj_bias")
