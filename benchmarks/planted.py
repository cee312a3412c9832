"""A script of Python, run with a kernel that is wrong: `python planted.py HOW NUMBER SHARE train.py ...`.

The NUMBER-th computing kernel of each forward gives a result that differs by SHARE of its size: a share of its
neighbour in the last axis is added (`mixed`), or it is rounded to steps so coarse (`coarse`). It lies below autograd
and all that records, as a wrong kernel does.
"""

import runpy
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

COMPUTING = (
    "mm", "addmm", "bmm", "baddbmm", "convolution", "gelu", "silu", "tanh", "sigmoid", "_softmax", "native_layer_norm",
    "mul", "add", "div", "rsqrt", "mean", "exp",
)  # fmt: skip
LEAST_ELEMENTS = 64


def mixed(made: Tensor, share: float) -> Tensor:
    return made + share * made.roll(1, -1)


def coarse(made: Tensor, share: float) -> Tensor:
    # Steps of this size leave errors of that share: what is rounded lies evenly between two of them.
    step = share * made.double().square().mean().sqrt().item() * 12.0**0.5
    return torch.round(made.double() / step).mul(step).to(made.dtype) if step > 0 else made


WAYS: Mapping[str, Callable[[Tensor, float], Tensor]] = {"mixed": mixed, "coarse": coarse}


class Wrong(TorchDispatchMode):
    def __init__(self, how: str, number: int, share: float) -> None:
        super().__init__()
        self._how, self._number, self._share = WAYS[how], number, share
        self._seen = 0

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        if torch._C._current_graph_task_id() >= 0:
            self._seen = 0
            return made
        first = made[0] if isinstance(made, tuple) else made
        if str(func).split(".")[1] not in COMPUTING or not self._is_computed(first):
            return made
        self._seen += 1
        if self._seen != self._number + 1:
            return made
        wrong = self._how(first, self._share)
        return (wrong, *made[1:]) if isinstance(made, tuple) else wrong

    @staticmethod
    def _is_computed(made: Any) -> bool:
        return isinstance(made, Tensor) and made.is_floating_point() and made.numel() >= LEAST_ELEMENTS


def main() -> None:
    how, number, share, script = sys.argv[1:5]
    sys.argv = sys.argv[4:]
    sys.path[0] = str(Path(script).resolve().parent)
    with Wrong(how, int(number), float(share)):
        runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main()
