"""What a recorder has to know of torch: its tensors, which of their contents are known, where steps begin.

And the recorder as torch's watchers know it: compiled code may do some of their work (host/).
"""

import gc
import itertools
import os
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ulpscope.capture.exceptions import pass_on_interruption
from ulpscope.capture.recording.recorder import Recorder, Surroundings
from ulpscope.capture.recording.steps import Steps
from ulpscope.capture.recording.tensors import Copies, Key, Tensors
from ulpscope.capture.recording.values import ValueTable
from ulpscope.capture.torch.summaries.device import RowPool, TorchCopies
from ulpscope.capture.torch.tensors import (
    COMPLEX,
    ORDINARY,
    describe_opaque,
    find_tensors,
    is_transformed,
    local_tensor,
    may_be_stale,
    shard_of,
    unsummarizable_reason,
    version_of,
    word_of,
)

TORCH_FILES = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep

# Torch hands it on to autograd's own threads; host/passes.h knows it, too.
_PASS = "ulpscope.pass"
_PASSES = itertools.count()

_KEY = "ulpscope"

# So many may be dead before they are looked for.
LEAST_PRUNED = 64


class _Token:
    """Lives as long as the node that holds it."""


def _node(tensor: torch.Tensor) -> Any:
    """The node of autograd's graph by which gradients come back to a tensor, if there is one."""
    if not tensor.requires_grad or is_transformed(tensor):
        return None
    # To ask such a view would make a node; its base has one that lives as long.
    source = tensor._base if may_be_stale(tensor) else tensor
    return None if source is None else source.grad_fn


class TorchSteps(Steps):
    """Steps of a run of torch: autograd's graphs tell whether a backward may still come."""

    def __init__(self) -> None:
        super().__init__()
        self._tokens: list[weakref.ref[_Token]] = []
        """Of graphs that forwards have built, and that may still be gone back through."""
        self._prune_at = LEAST_PRUNED

    @property
    def builds_graphs(self) -> bool:
        return torch.is_grad_enabled()

    def note_graph(self, result: Any) -> None:
        for _, tensor in find_tensors(result, "output"):
            node = _node(tensor)
            if node is not None:
                token = node.metadata[_KEY] = _Token()
                self._tokens.append(weakref.ref(token))
        if len(self._tokens) > self._prune_at:  # a run with an optimizer that never steps
            self.any_graph_alive()  # which drops the others
            self._prune_at = max(LEAST_PRUNED, 2 * len(self._tokens))

    def any_graph_alive(self) -> bool:
        self._tokens = [token for token in self._tokens if token() is not None]
        return bool(self._tokens)

    def forget_graphs(self) -> None:
        self._tokens.clear()

    @property
    def backward_pass(self) -> int | None:
        running: int | None = torch._C._get_obj_in_tls(_PASS) if torch._C._is_key_in_tls(_PASS) else None
        return running

    def begin_pass(self) -> int:
        running = next(_PASSES)
        torch._C._stash_obj_in_tls(_PASS, running)
        return running

    def end_pass(self) -> None:
        torch._C._stash_obj_in_tls(_PASS, None)


def optimizer_exists() -> bool:
    """Whether the process has made an optimizer already."""
    kinds = set(map(type, gc.get_objects()))  # of hundreds of thousands of objects
    return any(issubclass(kind, torch.optim.Optimizer) for kind in kinds)


class TorchTensors(Tensors):
    """torch's tensors. A storage's address is that of its C++ object, which a weak reference keeps from reuse."""

    def address(self, tensor: torch.Tensor) -> int:
        address: int = tensor.untyped_storage()._cdata
        return address

    def hold(self, tensor: torch.Tensor) -> tuple[Any, bool]:
        storage = tensor.untyped_storage()
        # Memory from outside (numpy, shared memory) cannot be resized, and can be written by its other owner.
        return storage._weak_ref(), storage.resizable()

    def is_gone(self, held: Any) -> bool:
        return bool(torch.UntypedStorage._expired(held))

    def let_go(self, held: Any) -> None:
        torch.UntypedStorage._free_weak_ref(held)

    local = staticmethod(local_tensor)
    shard = staticmethod(shard_of)
    why_unreadable = staticmethod(unsummarizable_reason)

    def key(self, tensor: torch.Tensor) -> Key:
        dtype = tensor.dtype
        lazy = tensor.is_neg() if dtype not in COMPLEX else (tensor.is_neg(), tensor.is_conj())
        where = tensor.storage_offset(), tensor.shape, tensor.stride()
        return version_of(tensor), *where, dtype, lazy, tensor.requires_grad

    describe = staticmethod(describe_opaque)
    dtype_word = staticmethod(word_of)

    def device_word(self, tensor: torch.Tensor) -> str:
        return word_of(tensor.device)

    def nbytes(self, tensor: torch.Tensor) -> int:
        return tensor.numel() * tensor.element_size()

    def storage_bytes(self, tensor: torch.Tensor) -> int:
        return tensor.untyped_storage().nbytes()

    def make_rows(self) -> RowPool:
        return RowPool()

    def make_copies(self) -> Copies:
        return TorchCopies()


class TorchValues(ValueTable):
    """Values of torch's tensors."""

    def observe(self, tensor: torch.Tensor, producer: int | None = None) -> int:
        """As ValueTable does, written out for the tensors that most are: this runs several times a call."""
        if type(tensor) not in ORDINARY or torch.is_inference_mode_enabled():
            return super().observe(tensor, producer)
        # Most tensors were met before. Whatever cannot be read has no entry to be found, but for memory that was freed
        # under its tensor.
        try:
            address = tensor.untyped_storage()._cdata
            state = self.states.get(address)
            dtype = tensor.dtype
            lazy = tensor.is_neg() if dtype not in COMPLEX else (tensor.is_neg(), tensor.is_conj())
            offset, shape, strides = tensor.storage_offset(), tensor.shape, tensor.stride()
            key = (tensor._version, offset, shape, strides, dtype, lazy, tensor.requires_grad)
        except RuntimeError as error:  # it has no storage, no version or no sizes
            pass_on_interruption(error)
            return super().observe(tensor, producer)
        if state is not None:
            known = state.values.get(key)
            if known is not None and tensor.data_ptr():
                if self._verify:
                    return self._reuse(tensor, state, known)
                self.counts.reused += 1
                return known
        reason = unsummarizable_reason(tensor)
        if reason is not None:
            return self._add_opaque(tensor, producer, reason)
        return self._find_or_add(tensor, state or self.add(tensor, address), key, producer, None)


class TorchRecorder(Recorder):
    """The recorder as torch's watchers know it. This one is in Python: compiled code does nothing for them."""

    records_modules = False
    """Whether begin_module is worth asking."""

    def make_values(self, around: Surroundings) -> ValueTable:
        return TorchValues(around.tensors, saver=around.saver, verify=around.settings.verify)

    def serve(self, mode: Any, *, records_calls: bool) -> None:
        """Answer for a function mode where that is possible."""

    def serve_noise(self, mode: Any) -> None:
        """Answer for a twin's dispatch mode where that is possible."""

    def add_api(self, function: Callable[..., Any], asked: Any) -> None:
        """From now on this function is known where the same code asks for it."""

    def begin_module(self, *about: Any) -> Any:
        """About a module: class name, path, training, args, kwargs, parameters, buffers, frame.

        Gives number and stack of the call and what end_module wants, in a capsule; or NotImplemented.
        """
        return NotImplemented

    def end_module(self, begun: Any, number: int, result: Any) -> None:
        """With a number for the module and what it gave."""

    def fail_module(self, begun: Any, error: str) -> None: ...

    def begin_backward(self, roots: Any, gradients: Any) -> None:
        """With the tensors that it begins from and their gradients; None for one of which nothing is known."""

    def end_backward(self) -> None:
        """The engine has ended."""

    def finish_backward(self) -> None:
        """A backward pass has ended, perhaps by an exception."""

    def current_parent(self, forward: int) -> int | None:
        """The backward call that is running; None if its forward call has a lower number than the given one."""
        return None

    def take_ran(self) -> list[tuple[int, int]]:
        """Numbers of modules whose backward has run, each with its backward call."""
        return []

    def use_gradients(self, call: int, role: str, parameters: Mapping[str, torch.Tensor | None]) -> None:
        """A call uses, in a role, the gradients of these parameters."""
