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
from ulpscope.operations.names import STARTS_BACKWARD, is_collective, is_in_place, own_word
from ulpscope.operations.registry import operation
from ulpscope.operations.traits import Trait

COMPUTING_PROPERTIES = frozenset({"T", "mT", "H", "mH", "real", "imag"})

# These write into arguments without raising the version counter.
SILENT_WRITERS = ("batch_norm", "instance_norm", "fused_", "_quant", "_foreach_", "_amp_")


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
    if name in STARTS_BACKWARD:
        return Api(name, Action.BACKWARD)
    entries = operation(last), operation(name)
    if any(entry.has(Trait.EXPOSING) for entry in entries):
        return Api(name, Action.EXPOSE)
    short = own_word(name)
    if any(entry.has(Trait.METADATA) for entry in entries) or short.startswith("is_") or name.startswith("profiler."):
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
    collective = is_collective(name)
    return Api(
        name,
        Action.RECORD,
        in_place=is_in_place(name),
        may_write=collective or _may_write(name, short, function),
        may_draw=_may_draw(name),
        uninitialized=operation(name).has(Trait.UNWRITTEN),
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


def starts_collective(name: str) -> bool:
    """Whether an operator returns before its result is there."""
    functional = name.startswith("_c10d_functional.") and not name.startswith("_c10d_functional._wrap")
    return (functional or name.startswith("c10d.")) and "wait_tensor" not in name


def _may_write(name: str, short: str, function: Any) -> bool:
    if isinstance(function, _OP_TYPES) and not name.startswith("aten."):
        return True
    if not name.startswith(("torch.", "aten.")):
        return True
    return any(part in short for part in SILENT_WRITERS)


def _may_draw(name: str) -> bool:
    return operation(name).has(Trait.RANDOM_INSIDE) or own_word(name).rstrip("_") in _seeded_aten_names()


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
