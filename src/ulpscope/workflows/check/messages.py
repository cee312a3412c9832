"""Cases and their results as JSON: between processes, and in cases.jsonl.

Everything that a report is made of went through here, so that a resumed check cannot tell other numbers than a single
one. Floats that JSON has no number for are written as text: "nan", "inf", "-inf".
"""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.records.check_runs import CheckedCase, CheckStandard
from ulpscope.records.checks import CaseId, CaseResult, DataSource, Direction, OutputResult, Variant, Verdict

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """The first line that a worker reads."""

    trace: str
    device: str
    seed: int
    standard: CheckStandard
    references: tuple[Path, ...] = ()
    failing: Path | None = None
    """Where the tensors of failing cases go."""
    figures: bool = False
    """Whether every metric is wanted, also those that no verdict needs."""

    def json(self) -> Message:
        return {
            "trace": self.trace,
            "device": self.device,
            "seed": self.seed,
            "standard": self.standard.value,
            "references": [str(path) for path in self.references],
            "failing": None if self.failing is None else str(self.failing),
            "figures": self.figures,
        }

    @classmethod
    def from_json(cls, message: Message) -> "WorkerSettings":
        return cls(
            trace=str(message["trace"]),
            device=str(message["device"]),
            seed=int(message["seed"]),
            standard=CheckStandard(message["standard"]),
            references=tuple(Path(path) for path in message["references"]),
            failing=None if message["failing"] is None else Path(message["failing"]),
            figures=bool(message["figures"]),
        )


def case_json(case: CaseId) -> Message:
    """What a worker needs to find and execute a case."""
    return {
        "process": case.process,
        "call": case.call,
        "name": case.name,
        "op": case.op,
        "variant": case.variant.value,
        "source": case.source.value,
    }


def case_from_json(message: Message) -> CaseId:
    """The case that `case_json` wrote."""
    return CaseId(
        process=str(message["process"]),
        call=int(message["call"]),
        name=str(message["name"]),
        op=str(message["op"]),
        variant=Variant(message["variant"]),
        source=DataSource(message["source"]),
    )


def checked_json(checked: CheckedCase) -> Message:
    """A result with everything that reports are made of."""
    result = checked.result
    return {
        "case": case_json(result.case),
        "device": checked.device,
        "forward": None if result.forward is None else result.forward.value,
        "backward": None if result.backward is None else result.backward.value,
        "message": result.message,
        "outputs": [_output_json(output) for output in result.outputs],
        "seconds": round(result.seconds, 6),
    }


def checked_from_json(message: Message) -> CheckedCase:
    """The result that `checked_json` wrote."""
    result = CaseResult(
        case=case_from_json(message["case"]),
        forward=_verdict(message["forward"]),
        backward=_verdict(message["backward"]),
        message=str(message["message"]),
        outputs=tuple(_output_from_json(output) for output in message["outputs"]),
        seconds=float(message["seconds"]),
    )
    return CheckedCase(result, str(message["device"]))


def _output_json(output: OutputResult) -> Message:
    return {
        "place": output.place,
        "direction": output.direction.value,
        "verdict": output.verdict.value,
        "statistic": output.statistic,
        "message": output.message,
        "dtype": output.dtype,
        "shape": list(output.shape),
        "worst": None if output.worst is None else [int(index) for index in output.worst],
        "worst_computed": _number(output.worst_computed),
        "worst_exact": _number(output.worst_exact),
        "metrics": {name: _number(figure) for name, figure in output.metrics},
    }


def _output_from_json(message: Message) -> OutputResult:
    return OutputResult(
        place=str(message["place"]),
        direction=Direction(message["direction"]),
        verdict=Verdict(message["verdict"]),
        statistic=str(message["statistic"]),
        message=str(message["message"]),
        dtype=message["dtype"],
        shape=tuple(message["shape"]),
        worst=None if message["worst"] is None else tuple(message["worst"]),
        worst_computed=_float(message["worst_computed"]),
        worst_exact=_float(message["worst_exact"]),
        metrics=tuple((name, float(figure)) for name, figure in message["metrics"].items()),
    )


def _verdict(text: str | None) -> Verdict | None:
    return None if text is None else Verdict(text)


def _number(figure: float | None) -> float | str | None:
    if figure is None:
        return None
    return float(figure) if math.isfinite(figure) else str(float(figure))


def _float(figure: float | str | None) -> float | None:
    return None if figure is None else float(figure)
