"""What compiled noise asks of Python: the answers that noise.py's own mode finds for itself, each once."""

from collections.abc import Callable
from types import MethodType
from typing import Any

import torch
from torch import Tensor

from ulpscope.capture.torch.moving import MOVED, move
from ulpscope.capture.torch.noise import NoiseMode, kernel_of
from ulpscope.capture.torch.summaries import launching
from ulpscope.capture.torch.summaries.kernels import Kernel, launch_address
from ulpscope.numerics.dtypes import DTYPES, FLOATING
from ulpscope.numerics.machine_code import NotCompiledError
from ulpscope.numerics.noise import NoiseParameters, noise_address, noise_parameters
from ulpscope.records.enums import Phase
from ulpscope.trace.twins import precision_key

PRECISIONS = tuple(sorted(FLOATING))
"""By number, as the core knows them."""
_NUMBERS: dict[str | None, int | None] = {None: None, **{name: number for number, name in enumerate(PRECISIONS)}}


def answer_for(mode: NoiseMode, core: Any) -> None:
    """Let the core do the mode's work."""
    dtypes = {name: dtype for dtype, name in MOVED.items()}
    core.set_noise(
        mode,
        NoiseBridge(),
        {key: _NUMBERS[precision] for key, precision in mode.results.items()},
        Phase.SETUP,
        Phase.FORWARD,
        _NUMBERS[mode.autocast],
        _NUMBERS[mode.parameters],
        mode.first_seed,
        Phase.BACKWARD,
        mode.loss_scale,
        tuple((DTYPES[name].unit_roundoff, dtypes.get(name)) for name in PRECISIONS),
    )
    # torch wants a method of the mode's own.
    mode.__torch_dispatch__ = MethodType(core.disturb, mode)  # type: ignore[method-assign]


class NoiseBridge:
    """Methods here are called by name from C++, inside of the mode."""

    def operator(self, func: Any) -> tuple[bool, bool, bool, frozenset[int | str], str, Callable[..., Any]]:
        kernel = kernel_of(func)
        key = precision_key(kernel.operation)
        # A plain operator's own __call__ is a method in Python that does nothing but call this.
        run = func._op if type(func) is torch._ops.OpOverload else func
        return kernel.touched, kernel.computes, kernel.contracts, kernel.written, key, run

    def parameters(self, own: int, precision: int) -> tuple[bool, int, int, int, float]:
        how: NoiseParameters = noise_parameters(PRECISIONS[own], PRECISIONS[precision])
        return how.jitters, how.staying, how.kept, how.lowest, how.largest

    def address(self, own: int, precision: int) -> int:
        """Of the function for the memory of the CPU; 0 where there is no compiler."""
        try:
            return noise_address(PRECISIONS[own], PRECISIONS[precision])
        except NotCompiledError:
            return 0

    def place(self, tensor: Tensor) -> tuple[int, int]:
        """The current stream of a device, and what launches there; 0 where no kernel of ours runs."""
        if not launching.usable(tensor.device):
            return 0, 0
        return torch.cuda.current_stream(tensor.device).cuda_stream, launch_address()

    def kernel(self, tensor: Tensor) -> Kernel | None:
        try:
            return launching.noise_kernel(tensor.device, tensor.element_size())
        except NotCompiledError:
            return None

    def move(self, tensor: Tensor, precision: int, seed: int, scale: int) -> None:
        move(tensor, PRECISIONS[precision], seed, scale=scale)
