"""What a pair of runs is, and what `ulpscope compare` ought to say about it."""

from __future__ import annotations

from dataclasses import dataclass

Flags = tuple[str, ...]

OUTSIDE = ""
"""Stands for the module of a call that runs in no module."""
ANY = ("*",)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer that is right: a kind, the modules and the phases in which the faulty operation runs."""

    kind: str
    modules: tuple[str, ...] = ANY
    phases: tuple[str, ...] = ANY

    def fits(self, *, kind: str, module: str | None, phase: str) -> bool:
        in_module = self.modules == ANY or (module or OUTSIDE) in self.modules
        return kind == self.kind and in_module and (self.phases == ANY or phase in self.phases)

    def __str__(self) -> str:
        places = "" if self.modules == ANY else " " + "|".join(name or "(no module)" for name in self.modules)
        return self.kind + places + ("" if self.phases == ANY else " " + "|".join(self.phases))


@dataclass(frozen=True, slots=True)
class Fault:
    """A fault in a family's script, and the answers that name it."""

    family: str
    fault: str
    answers: tuple[Answer, ...]
    flags: Flags = ()
    """Options of both runs."""
    ranks: tuple[int, ...] = (0, 1)
    step: int | None = None
    """The step in which it begins, where that is not the first."""
    variants: Flags = ("fp32", "bf16")
    """Precisions of the target; the reference is always in fp32."""
    label: str | None = None

    @property
    def name(self) -> str:
        return f"{self.family}.{self.label or self.fault}"


@dataclass(frozen=True, slots=True)
class CleanPair:
    """Two runs that differ and have nothing wrong."""

    family: str
    label: str
    target: Flags
    reference: Flags = ()

    @property
    def name(self) -> str:
        return f"{self.family}.{self.label}"


def computation(*modules: str, phases: Flags = ("forward",)) -> Answer:
    return Answer("computation", modules, phases)


def backward(*modules: str) -> Answer:
    return Answer("computation", modules, ("backward",))


def between(*modules: str) -> Answer:
    """Wrong arithmetic after the backward and before the optimizer has stepped, in any module or in one of these."""
    return Answer("computation", modules or ANY, ("backward", "update", "other"))


def parameter(*modules: str) -> Answer:
    return Answer("parameter", modules)


def structure(*modules: str) -> Answer:
    return Answer("structure", modules or ANY)


def overflow(*modules: str) -> Answer:
    return Answer("overflow", modules)


OPTIMIZER = Answer("optimizer")
INPUT = Answer("input")
RANDOMNESS = Answer("randomness")
