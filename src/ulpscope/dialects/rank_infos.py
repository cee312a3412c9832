"""What a trace knows of a rank that another tool wrote down."""

from typing import Any

from ulpscope.records.enums import Level, Save
from ulpscope.records.runs import RankInfo

ASCEND, NPY, TFDBG = "ascend", "npy", "tfdbg"
"""What traces say that they were captured by, of which the calls are operators of a network."""


def is_network(info: RankInfo) -> bool:
    """Whether the calls are operators of a network's graph, and no functions that Python could call."""
    return info.capture.get("tool") in (ASCEND, NPY, TFDBG)


def foreign_rank(
    *,
    tool: str,
    rank: int = 0,
    world_size: int = 1,
    level: Level = Level.API,
    save: Save = Save.TENSORS,
    framework: str = "",
    devices: tuple[str, ...] = (),
    pid: int | None = None,
    more: dict[str, Any] | None = None,
) -> RankInfo:
    """Its number, and what was captured; `more` is what only this tool tells of that."""
    return RankInfo(
        rank=rank,
        world_size=world_size,
        process={} if pid is None else {"pid": pid},
        framework={"name": framework} if framework else {},
        versions={},
        devices=devices,
        environment={},
        seeds={},
        capture={"level": level.value, "save": save.value, "tool": tool, **(more or {})},
        started="unknown",
        closed="unknown",
    )
