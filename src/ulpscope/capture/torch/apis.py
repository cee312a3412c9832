"""What each torch function is called, and how capture treats it.

A function that reaches the function mode is looked up once; the answer is kept for the rest of the run.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch
from torch.overrides import resolve_name

from ulpscope.capture.interruptions import pass_on_interruption
from ulpscope.capture.torch.originals import ACCESSORS, asking_frame, torchs_own

COMPUTING_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})

# Answers about a tensor, not operations on it. Methods and functions alike, by last name.
METADATA = frozenset(
    """size dim ndimension stride storage_offset numel nelement element_size get_device requires_grad_
    retain_grad register_hook register_post_accumulate_grad_hook storage_type has_names rename_ refine_names
    result_type can_cast promote_types get_default_dtype broadcast_shapes sparse_dim dense_dim _nnz qscheme
    q_scale q_zero_point _set_grad_enabled _set_autograd_fallback_mode _has_compatible_shallow_copy_type
    _make_subclass _make_wrapper_subclass _is_view _is_zerotensor _sync _assert_async __len__ __hash__ __repr__
    __str__ __format__ __dir__ __reduce_ex__ __reduce__ __setstate__ __iter__ vmap get_rng_state set_rng_state
    manual_seed seed initial_seed device""".split()
)

EXPOSING = frozenset({"numpy", "__array__", "data_ptr", "untyped_storage", "storage", "__dlpack__", "share_memory_"})
UNINITIALIZED = frozenset(
    {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted", "new"}
)
BACKWARD = frozenset({"torch.Tensor.backward", "torch.autograd.backward", "torch.autograd.grad"})

# These write into arguments without raising the version counter.
SILENT_WRITERS = ("batch_norm", "instance_norm", "fused_", "_quant", "_foreach_", "_amp_")

# Functions written in Python that draw random numbers inside; ATen's own say so by tag.
RANDOM_PYTHON = frozenset(
    """multi_head_attention_forward gumbel_softmax fractional_max_pool2d fractional_max_pool3d
    fractional_max_pool2d_with_indices fractional_max_pool3d_with_indices dropout1d dropout2d dropout3d uniform_
    normal_ trunc_normal_ xavier_uniform_ xavier_normal_ kaiming_uniform_ kaiming_normal_ orthogonal_ sparse_
    scaled_dot_product_attention svd_lowrank pca_lowrank lobpcg""".split()
)


class Action(Enum):
    """What the function mode does with a call."""

    PASS = auto()
    """Not an operation: run it and forget it."""
    EXPOSE = auto()
    """Gives the tensor's memory away: run it, and never again trust a summary of that storage."""
    RECORD = auto()
    BACKWARD = auto()


@dataclass(frozen=True, slots=True)
class Api:
    """One torch function as capture knows it."""

    name: str
    action: Action
    in_place: bool = False
    may_write: bool = False
    """May change any of its tensor arguments without telling the version counter."""
    may_draw: bool = False
    """May consume random numbers."""
    uninitialized: bool = False
    collective: bool = False
    computed_later: bool = False
    """Its result may only be read after a wait."""
    waits: bool = False
    functional: bool = False
    """Of torch.nn.functional, where a True among the arguments may ask for a write."""
    is_plain: bool = field(init=False)
    """It reads its arguments and makes a result; at most it draws random numbers."""

    def __post_init__(self) -> None:
        special = self.in_place or self.may_write or self.uninitialized or self.collective
        object.__setattr__(self, "is_plain", not (special or self.computed_later or self.waits))


class Asked(NamedTuple):
    """What a function mode was asked for."""

    api: Api
    function: Callable[..., Any]
    """What is to be run: torch's own, whatever was handed over."""
    asker: CodeType | None
    """The Python code that asks; None if compiled code does."""


class ApiTable:
    """Looks functions up by identity, once each and for each code that asks for them."""

    def __init__(self) -> None:
        self._known: dict[Any, Asked] = {}
        self._others: dict[tuple[Any, int], Asked] = {}
        """Of functions that are asked for by several codes, by the id of the code."""

    def __len__(self) -> int:
        return len(self._known)

    def find(self, function: Callable[..., Any], caller: FrameType | None) -> Asked:
        """What is asked for by handing `function` to a mode that was called from this frame."""
        asker = asking_frame(caller)
        try:
            known = self._known.get(function)
        except TypeError:  # an unhashable callable object
            return _ask(function, asker)
        code = None if asker is None else asker.f_code
        if known is not None and known.asker is code:
            return known
        key = function, id(code)
        if key in self._others:
            return self._others[key]
        asked = _ask(function, asker)
        if code is None and asked.function is not function:
            return asked  # a method's name is told by where a wrapper stands, and that may change
        if known is None:
            self._known[function] = asked
        else:
            self._others[key] = asked
        return asked


def _ask(function: Callable[..., Any], asker: FrameType | None) -> Asked:
    own = torchs_own(function, asker)
    return Asked(classify(own), own, None if asker is None else asker.f_code)


def classify(function: Callable[..., Any]) -> Api:
    last = getattr(function, "__name__", "") or type(function).__name__
    if last in ACCESSORS:
        return _classify_property(function, last)
    name = api_name(function)
    if name in BACKWARD:
        return Api(name, Action.BACKWARD)
    short = name.rpartition(".")[2] if isinstance(function, _OP_TYPES) is False else name.split(".")[1]
    if last in EXPOSING or short in EXPOSING:
        return Api(name, Action.EXPOSE)
    if last in METADATA or short in METADATA or short.startswith("is_") or name.startswith("profiler."):
        return Api(name, Action.PASS)
    return _recorded(name, short, function)


_OP_TYPES = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


def _classify_property(function: Any, accessor: str) -> Api:
    attribute = getattr(getattr(function, "__self__", None), "__name__", "?")
    name = f"torch.Tensor.{attribute}"
    if accessor == "__get__" and attribute in COMPUTING_PROPERTIES:
        return Api(name, Action.RECORD)
    return Api(name, Action.PASS)


def _recorded(name: str, short: str, function: Any) -> Api:
    collective = _is_collective(name)
    in_place = _is_in_place(short)
    return Api(
        name,
        Action.RECORD,
        in_place=in_place,
        may_write=collective or _may_write(name, short, function),
        may_draw=_may_draw(short),
        uninitialized=short in UNINITIALIZED,
        collective=collective,
        computed_later=starts_collective(name),
        waits="wait_tensor" in name,
        functional=name.startswith("torch.nn.functional."),
    )


def api_name(function: Any) -> str:
    """The name a user would write: torch.add, torch.nn.functional.gelu, torch.Tensor.view, ns.op.overload."""
    if isinstance(function, _OP_TYPES):
        return str(function)
    return _resolved(function) or _qualified(function)


resolve_name(torch.add)  # torch's table of names is made here, once, while its own warnings are off
_name_of: Callable[[Any], Any] = inspect.unwrap(resolve_name)
"""Without the filter that torch sets around each question: Python forgets what it has warned of when filters change."""


def _resolved(function: Any) -> str | None:
    plain = getattr(function, "__name__", "")
    if getattr(torch, plain, None) is function:
        return f"torch.{plain}"  # resolve_name would give the last alias: torch.spmm for torch.mm
    try:
        name = _name_of(function)
    except Exception as error:
        pass_on_interruption(error)
        return None
    return name if isinstance(name, str) else None


def _qualified(function: Any) -> str:
    module = getattr(function, "__module__", None) or "torch"
    module = _PUBLIC_MODULES.get(module, module)
    qualified = (
        getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or type(function).__name__
    )
    return f"{module}.{qualified.rpartition('<locals>.')[2]}".replace("_VariableFunctionsClass.", "")


_PUBLIC_MODULES = {"torch._tensor": "torch", "torch.distributed.distributed_c10d": "torch.distributed"}


def _is_in_place(short: str) -> bool:
    if short == "__setitem__":
        return True
    if short.startswith("__i") and short.endswith("__"):
        return short not in ("__invert__", "__index__", "__int__")
    return short.endswith("_") and not short.endswith("__")


def starts_collective(name: str) -> bool:
    """Whether an operator returns before its result is there."""
    functional = name.startswith("_c10d_functional.") and not name.startswith("_c10d_functional._wrap")
    return (functional or name.startswith("c10d.")) and "wait_tensor" not in name


def _is_collective(name: str) -> bool:
    return name.startswith(("torch.distributed.", "_c10d_functional.", "c10d."))


def _may_write(name: str, short: str, function: Any) -> bool:
    if isinstance(function, _OP_TYPES) and not name.startswith("aten."):
        return True
    if not name.startswith(("torch.", "aten.")):
        return True
    return any(part in short for part in SILENT_WRITERS)


def _may_draw(short: str) -> bool:
    return short in RANDOM_PYTHON or short.rstrip("_") in _seeded_aten_names()


_SEEDED: frozenset[str] | None = None


def _seeded_aten_names() -> frozenset[str]:
    global _SEEDED
    if _SEEDED is None:
        _SEEDED = frozenset(_find_seeded_aten_names())
    return _SEEDED


def _find_seeded_aten_names() -> set[str]:
    names = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        if not qualified.startswith("aten::"):
            continue
        base, _, overload = qualified[len("aten::") :].partition(".")
        packet = getattr(torch.ops.aten, base, None)
        operator = getattr(packet, overload or "default", None)
        if operator is not None and torch.Tag.nondeterministic_seeded in operator.tags:
            names.add(base.rstrip("_"))
    return names
