"""Names of operations, taken apart: the one way from what a trace calls a call to the operation that it executes.

torch.Tensor.__iadd__, torch.add, torch.Tensor.add_, aten.add.Tensor  ->  add
aten._softmax.default, torch.softmax                                  ->  softmax
MatMulV2 (a type of GE, TensorFlow or ONNX)                           ->  MatMulV2
"""

import re
from functools import cache

# Libraries of registered operators, whose names end with an overload: aten.add.Tensor.
LIBRARIES = frozenset("aten prims prim c10d _c10d_functional quantized quantized_decomposed inductor".split())
_FRAMEWORKS = ("torch", "torch_npu")

# Python's operators that have a reflected and an in-place form: __radd__, __iadd__.
_MARKED = frozenset("add sub mul matmul div truediv floordiv mod divmod pow and or xor lshift rshift".split())

STARTS_BACKWARD = frozenset(("torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"))
"""They run the backwards of other calls."""


@cache
def operation_name(op: str) -> str:
    """The operation's own word: `add` of torch.Tensor.__iadd__, torch.add_ and aten.add.Tensor."""
    word = own_word(op)
    if word.startswith("__") and word.endswith("__"):
        inner = word[2:-2]
        return inner[1:] if inner[:1] in ("i", "r") and inner[1:] in _MARKED else inner
    return word.strip("_") or word


_GRADIENT = re.compile(r"(\w+)_backward(?:_data|_input|_weight|_overrideable)?")


def gradient_of(name: str) -> str | None:
    """The operation whose gradient a kernel of this name computes: `softmax` for `softmax_backward_data`."""
    found = _GRADIENT.fullmatch(name)
    return None if found is None else found[1]


def own_word(op: str) -> str:
    """The same with the marks of its form: `__iadd__`, `add_`."""
    parts = op.split(".")
    overloaded = len(parts) == 3 and (parts[0] in LIBRARIES or parts[-1] == "default")
    return parts[-2] if overloaded else parts[-1]


def is_in_place(op: str) -> bool:
    """Whether its name says that it writes into its first argument."""
    word = own_word(op)
    if word.startswith("__") and word.endswith("__"):
        return word == "__setitem__" or (word[2] == "i" and word[3:-2] in _MARKED)
    return word.endswith("_")


def is_collective(op: str) -> bool:
    """Whether ranks take part in it together."""
    return op.startswith(("torch.distributed.", "_c10d_functional.", "c10d."))


def is_torchs_own(op: str) -> bool:
    """Whether a script that imports torch has this operation; one of the user's own it has not."""
    return op.partition(".")[0] in (*_FRAMEWORKS, "aten", "prims")
