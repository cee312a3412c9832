"""The mapping file: what the user says belongs together, where the names of the two runs do not tell.

modules:                                 # reference: target; * stands for the same text on both sides
  model.encoder.layer.*: model.blocks.*
ops:
  torch.nn.functional.gelu: mylib.ops.gelu
tensors:                                 # one tensor of one call
  torch.nn.functional.linear.3 output.0: torch.Tensor.matmul.7 output.0
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ulpscope.records.errors import UlpscopeError

SECTIONS = ("modules", "ops", "tensors")


@dataclass(frozen=True, slots=True)
class NamePatterns:
    """Rules from names of the target to names of the reference."""

    rules: tuple[tuple[re.Pattern[str], str], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rules)

    def to_reference(self, name: str) -> str | None:
        """The reference's name, or none if no rule speaks of this one."""
        for pattern, template in self.rules:
            found = pattern.fullmatch(name)
            if found:
                return _fill(template, found.groups())
        return None

    def without_match(self, names: Iterable[str]) -> list[str]:
        """The patterns, as the user wrote them, that fit none of these names."""
        known = list(names)
        unused = [pattern for pattern, _ in self.rules if not any(pattern.fullmatch(name) for name in known)]
        return [pattern.pattern.replace("(.+)", "*").replace("\\", "") for pattern in unused]


@dataclass(frozen=True, slots=True)
class TensorName:
    """One tensor of one call, as a mapping file writes it: `op.N place`."""

    call: str
    place: str


@dataclass(frozen=True, slots=True)
class Mapped:
    """The contents of a mapping file."""

    modules: NamePatterns = NamePatterns()
    ops: NamePatterns = NamePatterns()
    tensors: dict[TensorName, TensorName] = field(default_factory=dict)
    """From the target's to the reference's."""


def read_mapping(path: Path) -> Mapped:
    """Read a mapping file; every mistake in it is named."""
    content = _load(path)
    unknown = [str(key) for key in content if key not in SECTIONS]
    if unknown:
        raise _bad(path, f"it has a section {unknown[0]!r}")
    sections = {name: _section(path, name, content.get(name) or {}) for name in SECTIONS}
    return Mapped(
        modules=_patterns(path, sections["modules"]),
        ops=_patterns(path, sections["ops"]),
        tensors={_tensor(path, target): _tensor(path, reference) for reference, target in sections["tensors"].items()},
    )


def _load(path: Path) -> Mapping[str, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise _bad(path, str(error).splitlines()[0]) from error
    if not isinstance(content, dict):
        raise _bad(path, f"it holds {type(content).__name__}, not a mapping")
    return content


def _section(path: Path, name: str, content: Any) -> dict[str, str]:
    if not isinstance(content, dict):
        raise _bad(path, f"its section {name} is no mapping of reference to target")
    for reference, target in content.items():
        if not (isinstance(reference, str) and isinstance(target, str)):
            raise _bad(path, f"its section {name} maps {reference!r} to {target!r}, which are not both names")
    return content


def _patterns(path: Path, section: Mapping[str, str]) -> NamePatterns:
    for reference, target in section.items():
        if reference.count("*") != target.count("*"):
            raise _bad(path, f"{reference!r} and {target!r} have not the same number of *")
    rules = [(re.compile("(.+)".join(map(re.escape, target.split("*")))), ref) for ref, target in section.items()]
    return NamePatterns(tuple(rules))


def _tensor(path: Path, text: str) -> TensorName:
    call, _, place = text.rpartition(" ")
    if not call:
        raise _bad(path, f"{text!r} in its section tensors is not `CALL PLACE`")
    return TensorName(call.strip(), place)


def _fill(template: str, texts: tuple[str, ...]) -> str:
    parts = template.split("*")
    filled = [part + text for part, text in zip(parts[:-1], texts, strict=True)]
    return "".join([*filled, parts[-1]])


def _bad(path: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"mapping file {path}: {problem}",
        expected=f"YAML with the sections {', '.join(SECTIONS)}, each `reference: target`",
        next_step="see docs/compare.md, section The mapping file",
    )
