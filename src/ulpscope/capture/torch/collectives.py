"""Collectives: who takes part, and which arguments hold the result."""

from collections.abc import Mapping
from typing import Any

import torch.distributed as dist

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
