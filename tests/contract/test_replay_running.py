"""Recorded calls executed again: the same arguments, the same results, the same gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from replayed import case_of, outputs, record, replay

import ulpscope
from ulpscope.records.check_runs import CheckOptions
from ulpscope.records.checks import DataSource, Direction, Rule, Variant
from ulpscope.replay import memory
from ulpscope.replay.planning import plan_cases
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.torch.engine import Engine
from ulpscope.replay.torch.tensors import Decoder


def test_keyword_tensors_have_gradients(tmp_path: Path) -> None:
    x, weight = torch.tensor([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[2.0, -1.0]], requires_grad=True)
    bias = torch.tensor([0.5], requires_grad=True)
    found = outputs(
        replay(tmp_path, lambda: torch.nn.functional.linear(x, weight, bias=bias).sum().backward(), "linear")
    )
    assert found["grad.args.1"].exact.tolist() == [[4.0, 7.0]]
    assert found["grad.kwargs.bias"].exact.tolist() == [2.0]
    assert found["grad.kwargs.bias"].direction is Direction.BACKWARD


def test_nested_arguments_are_rebuilt(tmp_path: Path) -> None:
    parts = [torch.tensor([float(n)]) for n in range(3)]
    found = outputs(replay(tmp_path, lambda: torch.cat([parts[0], parts[1], parts[2]], dim=0), "cat"))
    assert found["output.0"].computed.tolist() == [0.0, 1.0, 2.0]
    assert found["output.0"].rule is Rule.EXACT


def test_a_tensor_that_is_given_twice_is_one(tmp_path: Path) -> None:
    x = torch.tensor([3.0, 4.0], requires_grad=True)
    found = outputs(replay(tmp_path, lambda: torch.mul(x, x).sum().backward(), "mul"))
    assert found["grad.args.0"].computed.tolist() == [6.0, 8.0]
    assert "grad.args.1" not in found


def test_writing_in_place_leaves_the_data_alone(tmp_path: Path) -> None:
    def work() -> None:
        x = torch.tensor([1.0, 2.0], requires_grad=True) * 1
        x.mul_(3).sum().backward()

    executed = replay(tmp_path, work, "mul_")
    found = outputs(executed)
    assert found["output.0"].computed.tolist() == [3.0, 6.0]
    assert found["grad.args.0"].computed.tolist() == [3.0, 3.0]
    assert executed.feed.tensors["args.0"].tolist() == [1.0, 2.0]


def test_running_statistics_are_outputs_too(tmp_path: Path) -> None:
    x, mean, variance = torch.tensor([[1.0], [3.0]]), torch.zeros(1), torch.ones(1)
    found = outputs(
        replay(
            tmp_path,
            lambda: torch.nn.functional.batch_norm(x, mean, variance, training=True, momentum=0.5),
            "batch_norm",
        )
    )
    assert found["written.args.1"].computed.tolist() == [1.0]
    # Unbiased: ((1 - 2)^2 + (3 - 2)^2) / 1 = 2, half of it and of 1.
    assert found["written.args.2"].exact.tolist() == [1.5]


def test_out_is_written_whatever_it_held(tmp_path: Path) -> None:
    x = torch.tensor([1.0, 2.0])

    def work() -> None:
        torch.add(x, x, out=torch.empty(2))

    recorded, rank = record(tmp_path, work, "add")
    plan = plan_cases(rank, CheckOptions(only=("torch.add",)))
    assert [case.op for case in plan.cases] == ["torch.add"]
    found = outputs(Engine("cpu").execute(plan.cases[0], recorded, rank))
    assert found["output.0"].computed.tolist() == [2.0, 4.0]


def test_reading_memory_that_nobody_wrote_is_left(tmp_path: Path) -> None:
    _, rank = record(tmp_path, lambda: torch.empty(2) + 1, "add")
    assert {left.reason for left in plan_cases(rank, CheckOptions()).left} == {
        "its result is not defined by its arguments",
        "it reads uninitialized memory",
    }


def test_plain_numbers_are_those_of_the_kernel(tmp_path: Path) -> None:
    """0.1 is not a float32: a kernel multiplies with the nearest one."""
    x = torch.tensor([3.0])
    found = outputs(replay(tmp_path, lambda: x * 0.1, "mul"))["output.0"]
    assert found.exact.tolist() == [3.0 * float(np.float32(0.1))]
    half = x.to(torch.bfloat16) * 0 + float(torch.tensor(0.1, dtype=torch.bfloat16))
    assert outputs(replay(tmp_path / "2", lambda: half > 0.1, "gt"))["output.0"].exact.tolist() == [False]


def test_what_depends_on_the_dtype_is_computed_in_it(tmp_path: Path) -> None:
    x = torch.tensor([1.0])
    found = outputs(replay(tmp_path, lambda: torch.nextafter(x, x + 1), "nextafter"))["output.0"]
    assert found.exact.tolist() == [1.0 + 2.0**-23]
    bits = outputs(replay(tmp_path / "2", lambda: x.view(torch.int32), "view"))["output.0"]
    assert bits.exact.tolist() == [0x3F800000]


def test_autocast_rounds_what_the_kernel_sees(tmp_path: Path) -> None:
    x = torch.tensor([[1.0 + 2.0**-12]])

    def work() -> None:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            torch.mm(x, x)

    found = outputs(replay(tmp_path, work, "mm"))["output.0"]
    assert (found.dtype, found.exact.tolist()) == ("bfloat16", [[1.0]])


def test_complex_numbers_are_pairs(tmp_path: Path) -> None:
    z = torch.tensor([3.0 + 4.0j])
    assert outputs(replay(tmp_path, lambda: z * z, "mul"))["output.0"].exact.tolist() == [[-7.0, 24.0]]
    length = outputs(replay(tmp_path / "2", lambda: torch.abs(z), "abs"))["output.0"]
    assert (length.rule, length.exact.tolist()) == (Rule.ROUNDED, [5.0])


def test_a_reference_stands_for_the_operation(tmp_path: Path) -> None:
    @ulpscope.reference_for("torch.nn.functional.softplus")
    def softplus(x: torch.Tensor) -> torch.Tensor:
        return torch.log1p(torch.exp(x)) + 1

    x = torch.zeros(1)
    found = outputs(replay(tmp_path, lambda: torch.nn.functional.softplus(x), "softplus"))["output.0"]
    np.testing.assert_allclose(found.exact, [1 + np.log(2)], rtol=1e-15)
    np.testing.assert_allclose(found.computed, [np.log(2)], rtol=1e-7)


def test_what_does_not_fit_is_refused_by_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded, rank = record(tmp_path, lambda: torch.ones(1024) + 1, "add")
    monkeypatch.setattr(memory, "free_memory", lambda: 2**16)
    with pytest.raises(CannotReplayError, match=r"needs about .* GiB of memory"):
        Engine("cpu").execute(case_of(recorded, rank, DataSource.REAL), recorded, rank)


def test_free_memory_is_what_the_system_says() -> None:
    assert 2**20 < memory.free_memory() < 2**50


def test_random_data_depends_on_the_case_alone(tmp_path: Path) -> None:
    def work() -> None:
        torch.exp(torch.linspace(0, 1, 64))
        torch.sin(torch.linspace(0, 1, 64))

    recorded, rank = record(tmp_path, work, "sin", save="stats")
    other, _ = record(tmp_path / "2", work, "exp", save="stats")
    case = case_of(recorded, rank, DataSource.RANDOM)
    first = Engine("cpu").execute(case, recorded, rank)
    warmed = Engine("cpu")
    warmed.execute(case_of(other, rank, DataSource.RANDOM), other, rank)
    torch.rand(7)
    again = warmed.execute(case, recorded, rank)
    assert torch.equal(first.feed.tensors["args.0"], again.feed.tensors["args.0"])
    seeded = Engine("cpu", seed=1).execute(case, recorded, rank)
    assert not torch.equal(first.feed.tensors["args.0"], seeded.feed.tensors["args.0"])


@pytest.mark.parametrize(
    ("op", "work"),
    [
        ("linear", lambda: torch.nn.functional.linear(torch.ones(3, 40, 8), torch.ones(500, 8), torch.ones(500))),
        ("matmul", lambda: torch.matmul(torch.ones(2, 3, 40, 8), torch.ones(2, 3, 8, 50))),
        ("softmax", lambda: torch.softmax(torch.rand(5, 40, 8), -1)),
        ("sum", lambda: torch.rand(5, 40, 8).sum()),
        ("mean", lambda: torch.rand(5, 40, 8).mean(dim=-1, keepdim=True)),
    ],
)
def test_longer_sums_have_small_operands(tmp_path: Path, op: str, work: object) -> None:
    executed = replay(tmp_path, work, op, source=DataSource.RANDOM, variant=Variant.LONG)  # type: ignore[arg-type]
    first = executed.feed.tensors["args.0"]
    assert first.shape[-1] == 4096
    assert sum(tensor.numel() for tensor in executed.feed.tensors.values()) < 2**18
    assert executed.evidence


def test_arguments_that_cannot_be_rebuilt_are_named() -> None:
    decoder = Decoder({}, device="cpu")
    with pytest.raises(CannotReplayError, match=r"an argument is a callable my\.function"):
        decoder.decode({"$callable": "my.function"})
    with pytest.raises(CannotReplayError, match=r"an argument is an object os\.PathLike"):
        decoder.decode({"$object": "os.PathLike", "fields": {"$dict": []}})
    with pytest.raises(CannotReplayError, match=r"this torch has no dtype float7"):
        decoder.decode({"$dtype": "float7"})


def test_the_closed_encoding_is_decoded() -> None:
    decoder = Decoder({"args.0": torch.ones(2)}, device="cpu")
    encoded = {
        "args": [{"$tuple": [1, {"$slice": [None, 3, None]}]}, {"$ellipsis": True}, {"$float": "-inf"}, {"$size": [2]}],
        "kwargs": {"z": {"$complex": [1.0, -2.0]}, "d": {"$dtype": "bfloat16"}, "t": [{"$tensor": "args.0"}]},
    }
    args, kwargs = decoder.arguments(encoded)
    assert args == [(1, slice(None, 3, None)), Ellipsis, float("-inf"), torch.Size([2])]
    assert (kwargs["z"], kwargs["d"], kwargs["t"][0].tolist()) == (1 - 2j, torch.bfloat16, [1.0, 1.0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_an_input_may_be_empty(dtype: torch.dtype, tmp_path: Path) -> None:
    def work() -> None:
        torch.zeros(2, 3, dtype=dtype)[0, 3:] = torch.ones(0, dtype=dtype)

    found = outputs(replay(tmp_path, work, "__setitem__", source=DataSource.RANDOM))
    assert found["output.0"].computed.tolist() == [[0, 0, 0], [0, 0, 0]]


def test_gradients_that_a_scaler_unscales_are_judged(tmp_path: Path) -> None:
    gradients = [torch.tensor([8.0, 3.0]), torch.tensor([1.0])]

    def work() -> None:
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, torch.zeros(()), torch.tensor(0.5))

    found = outputs(replay(tmp_path, work, "_amp_foreach_non_finite_check_and_unscale_"))
    assert found["written.args.0.0"].exact.tolist() == [4.0, 1.5]
    assert found["written.args.0.1"].computed.tolist() == [0.5]
    assert found["written.args.1"].exact.tolist() == 0.0


def cast_away(lower: torch.dtype) -> None:
    with torch.autocast("cpu", dtype=lower):
        hidden = torch.nn.functional.linear(torch.randn(4, 8), torch.randn(6, 8, requires_grad=True))
        torch.nn.functional.conv1d(hidden[None], torch.randn(2, 4, 3, requires_grad=True)).float().sum().backward()


@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("op", ["linear", "conv1d"])
def test_autocast_that_nobody_recorded_shows_in_what_was_given(tmp_path: Path, lower: torch.dtype, op: str) -> None:
    """From float32 alone, and from a half activation with a float32 weight, which no call takes without it."""
    executed = replay(tmp_path, lambda: cast_away(lower), op, autocast=None)
    assert executed.recipe.autocast == lower
    found = outputs(executed)
    assert {found["output.0"].dtype, found["grad.args.1"].dtype} == {str(lower).removeprefix("torch.")}


@pytest.mark.parametrize(
    ("op", "work"),
    [
        ("to", lambda: torch.randn(4).to(torch.bfloat16)),
        ("softmax", lambda: torch.nn.functional.softmax(torch.randn(4), -1, dtype=torch.bfloat16)),
        ("add_", lambda: torch.randn(4).bfloat16().add_(torch.randn(4))),
        ("mul", lambda: torch.mul(torch.randn(4).bfloat16(), torch.randn(4))),
    ],
)
def test_types_that_a_call_gives_by_itself_are_no_autocast(tmp_path: Path, op: str, work: Callable[[], Any]) -> None:
    assert replay(tmp_path, work, op).recipe.autocast is None
