"""What each torch function is called, how capture treats it, and what a collective fills.

A function that reaches the function mode is looked up once; the answer is kept for the rest of the run. Torch hands a
mode what stands under a function's public name at that moment. Where a script has put a wrapper of its own there, that
wrapper is running already, or was never called: what asks is torch's own function, which is to be run.
"""

import gc
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import cache
from types import (
    BuiltinFunctionType,
    CodeType,
    FrameType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    WrapperDescriptorType,
)
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.overrides import handle_torch_function, resolve_name

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.stacks import HIDDEN
from ulpscope.capture.torch.recorder import TORCH_FILES
from ulpscope.operations.registry import STARTS_BACKWARD, Trait, is_collective, is_in_place, operation, own_word

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
        # A Python function asks by the handler, compiled code itself.
        asker = caller.f_back if caller is not None and caller.f_code is HANDLER else None
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
        attribute = getattr(getattr(function, "__self__", None), "__name__", "?")
        computes = last == "__get__" and attribute in COMPUTING_PROPERTIES
        return Api(f"torch.Tensor.{attribute}", Action.RECORD if computes else Action.PASS)
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


def _recorded(name: str, short: str, function: Any) -> Api:
    collective = is_collective(name)
    return Api(
        name,
        Action.RECORD,
        in_place=is_in_place(name),
        may_write=collective or _may_write(name, short, function),
        may_draw=operation(name).has(Trait.RANDOM_INSIDE) or short.rstrip("_") in _seeded_aten_names(),
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


@cache
def _seeded_aten_names() -> set[str]:
    """Operators of aten that draw random numbers."""
    names = set()
    for qualified in torch._C._dispatch_get_all_op_names():
        if not qualified.startswith("aten::"):
            continue
        name, _, overload = qualified.partition(".")
        # Not by torch.ops: that takes a RuntimeError of a signal's handler for an operator that is not there.
        found = torch._C._get_operation_overload(name, overload)
        if found is not None and torch.Tag.nondeterministic_seeded in found[2]:
            names.add(name.removeprefix("aten::").rstrip("_"))
    return names


HANDLER = handle_torch_function.__code__
_NOT_THE_USERS = (*HIDDEN, TORCH_FILES)
_BASE = torch._C.TensorBase
_DESCRIPTORS = (MethodDescriptorType, WrapperDescriptorType, GetSetDescriptorType)
ACCESSORS = ("__get__", "__set__", "__delete__")


def torchs_own(function: Callable[..., Any], asker: FrameType | None) -> Callable[..., Any]:
    """The function to run where `function` was handed to the mode."""
    if asker is None:
        return _own_method(function)
    code = asker.f_code
    if type(function) is FunctionType and function.__code__ is code:
        return function
    namespace, methods = asker.f_globals, vars(torch.Tensor)
    # Under which the function stands now.
    names = {name for name in code.co_names if namespace.get(name) is function or methods.get(name) is function}
    if not names or (_is_torchs(function) and getattr(function, "__name__", None) in names):
        return function
    return _find_own(code, names, namespace) or function


def _is_torchs(function: Callable[..., Any]) -> bool:
    """By its type: an object may claim the name, the code and the class of what it wraps."""
    if type(function) is FunctionType:
        return function.__code__.co_filename.startswith(_NOT_THE_USERS)
    return type(function) in (BuiltinFunctionType, *_DESCRIPTORS)


def _find_own(code: CodeType, names: Iterable[str], namespace: dict[str, Any]) -> Callable[..., Any] | None:
    """The function that runs this code, if one of the names is its own; else torch's function of such a name.

    Nothing of torch's leads to a function whose place is taken, but it is alive: it is running.
    """
    asks_for_itself, module = code.co_name in names, namespace["__name__"]

    def is_named(one: FunctionType) -> bool:
        return one.__name__ in names and one.__module__ == module and _is_torchs(one)

    for thing in gc.get_objects():
        if type(thing) is FunctionType and (thing.__code__ is code if asks_for_itself else is_named(thing)):
            return thing
    return None


def _own_method(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method or accessor of Tensor that compiled code asks for; functions of namespaces stay as they are."""
    accessor: str = getattr(function, "__name__", "")
    is_accessor = accessor in ACCESSORS
    held: Any = getattr(function, "__self__", None) if is_accessor else function
    if _is_torchs(held):
        return function
    names = [name for name, value in vars(torch.Tensor).items() if value is held and hasattr(_BASE, name)]
    if not names:
        return function
    plain = getattr(held, "__name__", None)
    own: Any = getattr(_BASE, plain if plain in names else names[0])
    found: Callable[..., Any] = getattr(own, accessor) if is_accessor else own
    return found


SENDING = ("send", "isend", "barrier", "monitored_barrier")


def written_by(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """The argument that a torch.distributed function fills."""
    short = name.rpartition(".")[2]
    if short in SENDING:
        return None
    if short == "gather":
        return args[1] if len(args) > 1 else kwargs.get("gather_list")
    if args:
        return args[0]
    for key in ("tensor", "output", "output_tensor", "tensor_list", "output_tensor_list", "tensors"):
        if key in kwargs:
            return kwargs[key]
    return None


def describe_group(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any] | None:
    """Ranks, name and backend of the group that takes part."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    given = kwargs.get("group")
    if given is None:
        given = next((item for item in args if isinstance(item, dist.ProcessGroup)), None)
    group = given if isinstance(given, dist.ProcessGroup) else dist.group.WORLD
    if group is None:
        return None
    return {
        "ranks": dist.get_process_group_ranks(group),
        "name": str(getattr(group, "group_name", "")),
        "backend": str(dist.get_backend(group)),
    }
