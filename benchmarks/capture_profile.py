"""Where the time of a captured step goes, on the host and on the device: `capture.py --profile`."""

import cProfile
import itertools
import json
import math
import pstats
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity

from capture_tools import MODELS, Training, Ulpscope, Variant, sound_rank, synchronize
from ulpscope.numerics.dtypes import DTYPES
from ulpscope.trace.reader import RankTrace

WARM_STEPS = 2
STEPS = 3
PARTS = ("forward", "backward", "optimizer", "then waited")
DEVICE_WORK = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
"""Categories of torch's profile that take time of the device."""


@dataclass(frozen=True)
class DeviceWork:
    """What the device did under one name, a step."""

    count: float
    milliseconds: float

    def beyond(self, other: "DeviceWork | None") -> "DeviceWork":
        if other is None:
            return self
        return DeviceWork(self.count - other.count, self.milliseconds - other.milliseconds)


def device_work(step: Callable[[], None], *, device: str, steps: int) -> dict[str, DeviceWork]:
    """Kernels and copies of these steps, by name; nothing on the CPU."""
    activity = ProfilerActivity.CUDA if device == "cuda" else ProfilerActivity.CPU
    with torch.profiler.profile(activities=[activity]) as profiler:
        for _ in range(steps):
            step()
        synchronize(device)
    with tempfile.TemporaryDirectory(prefix="ulpscope-capture-") as folder:
        file = Path(folder) / "profile.json"
        profiler.export_chrome_trace(str(file))
        return by_name(json.loads(file.read_text(encoding="utf-8")), steps)


def by_name(exported: Mapping[str, Any], steps: int) -> dict[str, DeviceWork]:
    counts, micros = Counter[str](), Counter[str]()
    for event in exported["traceEvents"]:
        if event.get("cat") in DEVICE_WORK:
            counts[event["name"]] += 1
            micros[event["name"]] += event["dur"]
    return {name: DeviceWork(counts[name] / steps, micros[name] / 1e3 / steps) for name in counts}


def profile(variant: Variant, *, model: str, device: str) -> None:
    """Host and device time of a captured step against a plain one, and what it summarised."""
    torch.set_num_threads(1)
    training = Training(MODELS[model], device)
    for _ in range(WARM_STEPS):
        training.step()
    tell_host("plain", training, device)
    plain = device_work(training.step, device=device, steps=STEPS)
    with tempfile.TemporaryDirectory(prefix="ulpscope-capture-") as folder:
        tool = Ulpscope(training, variant, Path(folder))
        tool.begin()
        for _ in range(WARM_STEPS):
            tool.step()
        tell_host(variant.name, training, device)
        captured = device_work(tool.step, device=device, steps=STEPS)
        functions = profile_host(tool.step)
        tool.end()
        read = summarised(sound_rank(tool.out))
    print(f"summarised in a step: {read.values} values, {read.nbytes / 1e9:.3f} GB")
    tell_device(plain, captured, read.nbytes)
    tell_functions(functions, STEPS)


def tell_host(name: str, training: Training, device: str) -> None:
    """The host's own time of a step and its parts, without waiting for the device: the best of several."""
    parts: dict[str, list[float]] = defaultdict(list)
    for _ in range(STEPS):
        synchronize(device)
        marks = [time.perf_counter()]
        loss = training.forward()
        marks.append(time.perf_counter())
        loss.backward()
        marks.append(time.perf_counter())
        training.optimizer.step()
        marks.append(time.perf_counter())
        synchronize(device)
        marks.append(time.perf_counter())
        for part, (began, ended) in zip(PARTS, itertools.pairwise(marks), strict=True):
            parts[part].append(ended - began)
        parts["step"].append(marks[-1] - marks[0])
    print(f"host, {name:8}" + "".join(f"  {part} {min(seconds) * 1e3:.2f} ms" for part, seconds in parts.items()))


@dataclass(frozen=True)
class Summarised:
    """Values whose summary was made in one step."""

    values: int
    nbytes: int


def summarised(rank: RankTrace) -> Summarised:
    """Of the last step but one: the last may have been cut by the end of the capture."""
    info = rank.step_info(rank.steps[-2])
    if info is None:
        raise RuntimeError("the step was not finished")
    frame = rank.collect(rank.values(info.step)).drop_nulls("digest")
    made = frame.filter(frame["id"].is_between(info.first_value, info.first_value + info.values - 1))
    nbytes = sum(
        math.prod(shape) * DTYPES[dtype].item_size for shape, dtype in made.select("shape", "dtype").iter_rows()
    )
    return Summarised(made.height, nbytes)


def tell_device(plain: Mapping[str, DeviceWork], captured: Mapping[str, DeviceWork], nbytes: int) -> None:
    """Ours is what a captured step has and a plain one has not."""
    if not captured:
        return
    extra = {name: work.beyond(plain.get(name)) for name, work in captured.items()}
    model, ours = (sum(work.milliseconds for work in side.values()) for side in (plain, extra))
    launches, more = (sum(work.count for work in side.values()) for side in (plain, extra))
    speed = f"{nbytes / ours / 1e9:.2f} TB/s" if ours > 0 else "-"
    print(f"device: model {model:.2f} ms in {launches:.0f} launches; ours {ours:.2f} ms in {more:.0f}; {speed}")
    for name in sorted(extra, key=lambda name: extra[name].milliseconds, reverse=True)[:15]:
        if extra[name].count:
            print(f"{extra[name].milliseconds:10.3f} ms {extra[name].count:8.1f} times  {name[:90]}")


def profile_host(step: Callable[[], None]) -> pstats.Stats:
    """The calling thread alone: on CUDA, backward runs in a thread of autograd's."""
    profiler = cProfile.Profile()
    profiler.enable()
    for _ in range(STEPS):
        step()
    profiler.disable()
    return pstats.Stats(profiler)


def tell_functions(stats: pstats.Stats, steps: int) -> None:
    stats.sort_stats("tottime").print_stats(25)
    seconds: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for (file, _, _), (_, count, own, _, _) in stats.stats.items():  # type: ignore[attr-defined]
        name = module_of(file)
        seconds[name] += own
        calls[name] += count
    print(f"{'own time a step':>16} {'calls a step':>13}  module")
    for name in sorted(seconds, key=seconds.__getitem__, reverse=True)[:20]:
        print(f"{seconds[name] / steps * 1e3:13.2f} ms {calls[name] // steps:13}  {name}")


def module_of(file: str) -> str:
    if "/ulpscope/" in file:
        return "ulpscope/" + file.rpartition("/ulpscope/")[2]
    if "/site-packages/" in file:
        return file.rpartition("/site-packages/")[2].split("/")[0]
    return "built in" if file == "~" else "python"
