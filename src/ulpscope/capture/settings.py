"""Reads what a user wrote (`0,2-4`, `10GB`) and carries capture settings to the captured processes."""

import json
import math
import re
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

from ulpscope.records.enums import Compiled, Level, Save, Watch
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import CaptureSettings, GradientWatch, IntRanges, Noise, OverflowWatch, TrainingWatch

SETTINGS_VARIABLE = "ULPSCOPE_SETTINGS"

_UNITS = {"": 1, "B": 1}
_UNITS.update({f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", start=1)})
_UNITS.update({f"{letter}IB": 1024**power for power, letter in enumerate("KMGTP", start=1)})
_UNITS.update({letter: 1000**power for power, letter in enumerate("KMGTP", start=1)})


def parse_ranges(text: str, *, option: str) -> IntRanges:
    """`0,2-4` as the numbers 0, 2, 3 and 4."""
    return IntRanges(tuple(_parse_range(part.strip(), whole=text, option=option) for part in text.split(",")))


def _parse_range(part: str, *, whole: str, option: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)(?:-(\d+))?", part, re.ASCII)
    if match is None:
        raise UlpscopeError(
            f"{option} {whole!r}: {part!r} is not a number or a range",
            expected="numbers and ranges from 0 up, separated by commas",
            next_step=f"write for example {option} 0,2-4",
        )
    low, high = int(match[1]), int(match[2] or match[1])
    if high < low:
        raise UlpscopeError(
            f"{option} {whole!r}: the range {part} ends before it begins",
            expected="the smaller number first",
            next_step=f"write {option} {high}-{low}",
        )
    return low, high


def parse_size(text: str, *, option: str) -> int:
    """`500MB` or `1.5GiB` in bytes; KB, MB, GB count in thousands, KiB, MiB, GiB in 1024s."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", text.strip(), re.ASCII)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise UlpscopeError(
            f"{option} {text!r} is not a size",
            expected="a number with a unit: B, KB, MB, GB, TB or KiB, MiB, GiB, TiB",
            next_step=f"write for example {option} 10GB",
        )
    return int(float(match[1]) * unit)


def parse_bounds(text: str, *, option: str) -> tuple[float, ...]:
    """`-1,0,1` as numbers that rise."""
    try:
        bounds = tuple(float(part) for part in text.split(","))
    except ValueError:
        bounds = ()
    if not bounds or any(not low < high for low, high in pairwise(bounds)) or not all(map(math.isfinite, bounds)):
        raise UlpscopeError(
            f"{option} {text!r} are no bounds",
            expected="numbers that rise, separated by commas",
            next_step=f"write for example {option}=-1,0,1",
        )
    return bounds


def settings_to_json(settings: CaptureSettings) -> str:
    """One line that `settings_from_json` turns back into the same settings."""
    fields = asdict(settings)
    fields["out"] = str(settings.out)
    fields["steps"] = str(settings.steps) if settings.steps else None
    fields["ranks"] = str(settings.ranks) if settings.ranks else None
    for watch in Watch:  # options of what is not watched say nothing
        if watch is not settings.watch:
            del fields[watch.value]
    return json.dumps(fields, default=str)


def settings_from_json(text: str) -> CaptureSettings:
    """Settings as a captured process finds them in its environment."""
    try:
        return _from_fields(json.loads(text))
    except (ValueError, TypeError, KeyError) as error:
        raise UlpscopeError(
            f"{SETTINGS_VARIABLE} cannot be read: {type(error).__name__}: {error}",
            expected="the JSON object that this version's `ulpscope run` puts there",
            next_step="install the same ulpscope version for `ulpscope run` and for the interpreter it starts",
        ) from error


def _from_fields(fields: dict[str, Any]) -> CaptureSettings:
    return CaptureSettings(
        out=Path(fields["out"]),
        level=Level(fields["level"]),
        save=Save(fields["save"]),
        steps=_optional_ranges(fields["steps"], option="--steps"),
        ranks=_optional_ranges(fields["ranks"], option="--ranks"),
        only=tuple(fields["only"]),
        skip=tuple(fields["skip"]),
        max_disk=fields["max_disk"],
        stop=fields["stop"],
        compiled=Compiled(fields["compiled"]),
        verify=fields["verify"],
        noise=_optional_noise(fields.get("noise")),
        configs=tuple(map(Path, fields.get("configs", ()))),
        seed=fields.get("seed"),
        in_float32=tuple(fields.get("in_float32", ())),
        on_cpu=tuple(fields.get("on_cpu", ())),
        deterministic=fields.get("deterministic", False),
        watch=None if fields.get("watch") is None else Watch(fields["watch"]),
        gradients=_gradient_watch(fields.get("gradients") or {}),
        overflow=OverflowWatch(**fields.get("overflow") or {}),
        training=_training_watch(fields.get("training") or {}),
    )


def _gradient_watch(fields: dict[str, Any]) -> GradientWatch:
    return GradientWatch(**fields | {"bounds": tuple(fields.get("bounds", ()))})


def _training_watch(fields: dict[str, Any]) -> TrainingWatch:
    return TrainingWatch(
        fields.get("every", 1), _optional_path(fields.get("control")), _optional_path(fields.get("like"))
    )


def _optional_path(text: str | None) -> Path | None:
    return None if text is None else Path(text)


def _optional_noise(fields: dict[str, Any] | None) -> Noise | None:
    if fields is None:
        return None
    table = fields["table"]
    return Noise(fields["seed"], fields["precision"], _optional_path(table))


def _optional_ranges(text: str | None, *, option: str) -> IntRanges | None:
    return None if text is None else parse_ranges(text, option=option)
