"""Functions behind recorded names: what torch lets be called is found, what merely lies in its modules is not."""

import math

import pytest
import torch

import ulpscope
from ulpscope.replay.recorded import CannotReplayError
from ulpscope.replay.torch.functions import find_function, find_reference

INF, NAN = math.inf, math.nan
ONE = torch.tensor([[1.0, -2.0], [3.0, 4.0]])


@pytest.mark.parametrize(
    ("op", "arguments", "expected"),
    [
        ("torch.add", (ONE, 1), ONE + 1),
        ("torch.nn.functional.relu", (ONE,), ONE.clamp(min=0)),
        ("torch.Tensor.t", (ONE,), torch.tensor([[1.0, 3.0], [-2.0, 4.0]])),
        ("torch.Tensor.T", (ONE,), torch.tensor([[1.0, 3.0], [-2.0, 4.0]])),
        ("torch.Tensor.__rsub__", (ONE, 10), torch.tensor([[9.0, 12.0], [7.0, 6.0]])),
        ("torch.Tensor.__getitem__", (ONE, 1), torch.tensor([3.0, 4.0])),
        ("torch.linalg.det", (ONE,), torch.tensor(10.0)),
        ("torch.fft.fft", (torch.tensor([1.0, 1.0]),), torch.tensor([2.0 + 0j, 0.0 + 0j])),
        ("torch.special.expit", (torch.zeros(1),), torch.tensor([0.5])),
        ("torch._C._nn.relu6", (ONE,), ONE.clamp(min=0)),
        ("torch._foreach_add", ([ONE], 1), [ONE + 1]),
        ("torch.zeros", (2,), torch.tensor([0.0, 0.0])),
        ("torch.nn.init.ones_", (torch.zeros(2),), torch.tensor([1.0, 1.0])),
        ("aten.mul.Tensor", (ONE, ONE), torch.tensor([[1.0, 4.0], [9.0, 16.0]])),
        ("aten.mul", (ONE, 2), torch.tensor([[2.0, -4.0], [6.0, 8.0]])),
    ],
)
def test_operations_are_found(op: str, arguments: tuple[object, ...], expected: object) -> None:
    torch.testing.assert_close(find_function(op)(*arguments), expected)


@pytest.mark.parametrize(
    "op",
    """torch.load torch.save torch.os.system torch.hub.load torch.from_file aten.from_file.default torch.frombuffer
    torch.compile torch.manual_seed torch.jit.load torch.nn.init.math torch.nn.functional.warnings
    torch.nn.functional.boolean_dispatch torch.distributed.all_reduce builtins.eval eval os.system __import__
    torch.Tensor.__init_subclass__ torch.set_default_device torch.utils.cpp_extension.load subprocess.run""".split(),
)
def test_anything_else_is_refused(op: str) -> None:
    with pytest.raises(CannotReplayError):
        find_function(op)


def test_an_operation_of_another_version_is_named() -> None:
    with pytest.raises(CannotReplayError, match=r"this torch has no torch\.addd"):
        find_function("torch.addd")


def test_own_functions_are_registered_by_the_end_of_their_name() -> None:
    def tripled(x: torch.Tensor) -> torch.Tensor:
        return 3 * x

    @ulpscope.reference_for("kernels.triple", function=tripled)
    def reference(x: torch.Tensor) -> torch.Tensor:
        return x + x + x

    assert find_function("library.kernels.triple") is tripled
    assert find_reference("library.kernels.triple") is reference
    with pytest.raises(CannotReplayError, match="reference_for"):
        find_function("library.kernels.quadruple")


def test_a_reference_without_the_function_under_test_is_told() -> None:
    ulpscope.reference_for("__main__.Half")(lambda x: x / 2)
    with pytest.raises(
        CannotReplayError, match=r"not what to execute: ulpscope\.reference_for\('__main__\.Half', function="
    ):
        find_function("__main__.Half")


@pytest.mark.parametrize("gradients", [[[1.0, -6.0], [2.0]], [[1.0, INF], [2.0]], [[NAN, 1.0], [INF]]])
def test_what_unscales_gradients_has_a_reference_that_does_the_same(gradients: list[list[float]]) -> None:
    op = "torch._amp_foreach_non_finite_check_and_unscale_"
    given = [([torch.tensor(each) for each in gradients], torch.zeros(()), torch.tensor(0.25)) for _ in range(2)]
    for function, arguments in zip((find_function(op), find_reference(op)), given, strict=True):
        function(*arguments)
    (computed, found, _), (exact, expected, _) = given
    assert found.item() == expected.item() == float(not all(math.isfinite(x) for each in gradients for x in each))
    for one, other in zip(computed, exact, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(("tracker", "found"), [(0, 0.0), (1, 0.0), (1, 1.0)])
@pytest.mark.parametrize("scale", [64.0, 2.0**127])
def test_what_updates_a_scale_has_a_reference_that_does_the_same(scale: float, tracker: int, found: float) -> None:
    op = "torch._amp_update_scale_"
    given = [(torch.tensor(scale), torch.tensor(tracker, dtype=torch.int32), torch.tensor(found)) for _ in range(2)]
    for function, arguments in zip((find_function(op), find_reference(op)), given, strict=True):
        function(*arguments, 2.0, 0.5, 2)
    assert [each.item() for each in given[0]] == [each.item() for each in given[1]]


@pytest.mark.parametrize("op", ["aten.save", "prim.Print", "torch.Tensor.__reduce_ex__", "torch.Tensor.register_hook"])
def test_what_reaches_out_is_refused(op: str) -> None:
    with pytest.raises(CannotReplayError):
        find_function(op)
