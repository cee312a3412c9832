"""Opens dumps of Ascend NPUs as a trace: a whole dump path, any directory of it, or one file."""

from collections.abc import Sequence
from pathlib import Path

from ulpscope.dialects.ascend.reading import AscendRank
from ulpscope.dialects.ascend.runs import Place, entries_of, entry_of, one_run
from ulpscope.dialects.ascend.tree import DumpFolder, has_dumps
from ulpscope.dialects.rank_infos import ASCEND, foreign_rank
from ulpscope.records.enums import Save
from ulpscope.trace.frames import FrameRank
from ulpscope.trace.reader import Trace


def looks_like(path: Path) -> bool:
    """Whether this is a dump of an NPU, as far as names of files tell."""
    if path.is_file():
        return entry_of(path) is not None
    return path.is_dir() and has_dumps(path)


def open_npu_dump(path: Path) -> Trace:
    """A dump as a trace: devices are its ranks; a step is read when it is first asked for."""
    entry = entry_of(path) if path.is_file() else None
    if entry is not None:
        return Trace(path, [_rank(path, 0, {0: [entry]}, world_size=1)])
    run = one_run(path)
    devices = sorted({folder.device for folder in run.folders})
    ranks = [_rank(path, device, _by_step(run.folders, device), world_size=max(devices) + 1) for device in devices]
    return Trace(path, ranks, missing_ranks=run.left_out)


def _by_step(folders: Sequence[DumpFolder], device: int) -> dict[int, list[Place]]:
    steps: dict[int, list[Place]] = {}
    for folder in folders:
        if folder.device == device:
            steps.setdefault(folder.step, []).append(folder)
    return steps


def _rank(path: Path, device: int, steps: dict[int, list[Place]], *, world_size: int) -> FrameRank:
    has_data = any(not entry.is_stats for places in steps.values() for place in places for entry in entries_of(place))
    save = Save.TENSORS if has_data else Save.STATS
    info = foreign_rank(tool=ASCEND, rank=device, world_size=world_size, save=save, devices=(f"npu:{device}",))
    return FrameRank(
        path, name=f"device{device}", info=info, steps=sorted(steps), source=AscendRank(steps, device=device)
    )
