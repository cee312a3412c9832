"""How small an error of a kernel may be, beside its twins', and still be named: with twins, and by rules alone.

    cd benchmarks && python -m sealed --packages DIR --twins 2 --only i --kind healthy --keep RUNS      runs with twins
    python twin_power.py RUNS --packages DIR                                                   wrong kernels in them

Each healthy target in another precision is captured again with kernels that are wrong (planted.py), drawn by chance:
which, and by how much. How large a fault is, is measured: the error of the first result that differs from the healthy
target's, over the error that twins have there. A fault is right if the first finding is at that call or in its module,
half if another one is.
"""

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gains import evidence_of
from sealed.__main__ import HERE, Options, ulpscope, without_twins
from ulpscope.diagnose.flow.evidence import RankEvidence, Slot
from ulpscope.diagnose.flow.twins.healthy import Twins
from ulpscope.records.enums import Kind
from ulpscope.workflows.compare.command import compare

KERNELS, ROUNDOFFS = 60, (1, 2, 4)
UNITS = {"bf16": 2.0**-8, "bfloat16": 2.0**-8, "fp16": 2.0**-11, "float16": 2.0**-11}
SIZES = (1.5, 2.0, 3.0, 5.0)


@dataclass(frozen=True)
class Fault:
    call: str
    step: int
    module: str | None
    size: float
    """Times the twins' error at its call."""


def sound_pairs(runs: Path) -> Iterator[tuple[str, Path, list[str]]]:
    for group in sorted(runs.iterdir()):
        for number, case in enumerate(json.loads((HERE / group.name / "cases.json").read_text())):
            folder = group / str(number)
            if case["kind"] == "healthy" and case["noise"] and (folder / "reference" / "twins").exists():
                yield group.name, folder, case["target"]


def wrong_target(options: Options, group: str, folder: Path, arguments: list[str], number: int) -> Path | None:
    """A capture with a wrong kernel; none where the script does not bear it."""
    drawn = random.Random(f"{group}{folder.name}{number}")
    unit = next((unit for name, unit in UNITS.items() if name in " ".join(arguments)), 2.0**-24)
    how, kernel = drawn.choice(("mixed", "coarse")), drawn.randrange(KERNELS)
    out = folder / f"wrong{number}"
    script = [str(HERE.parent / "planted.py"), how, str(kernel), str(unit * drawn.choice(ROUNDOFFS)), "train.py"]
    if not out.exists():
        ulpscope(options, group, "run", "-o", str(out), "--", sys.executable, *script, *arguments)
    return out if (out / "rank0").exists() else None


def fault_of(folder: Path, wrong: Path) -> Fault | None:
    """The first result that differs from the sound target's; none where nothing does, or no twin tells."""
    evidence = next(evidence_of(folder / "target", wrong))
    made = [slot for slot in evidence.slots if slot.makes and _differs(evidence, slot)]
    first = min(made, key=lambda slot: int(evidence.calls["id"][slot.pair]), default=None)
    if first is None:
        return None
    name, step = evidence.calls["name"][first.pair], evidence.calls["step"][first.pair]
    healthy = _twins_error(folder, name, step, first)
    return (
        None
        if healthy is None
        else Fault(name, step, evidence.calls["module"][first.pair], evidence.error(first) / healthy)
    )


def _differs(evidence: RankEvidence, slot: Slot) -> bool:
    values = evidence.values
    known = values.compared[slot.values] and not values.identical[slot.values]
    return bool(known) and evidence.calls["kind"][slot.pair] == Kind.API.value and evidence.error(slot) > 0


def _twins_error(folder: Path, name: str, step: int, of: Slot) -> float | None:
    reference = folder / "reference"
    evidence = next(evidence_of(reference, folder / "target"))
    others = [next(evidence_of(reference, reference / "twins" / number)) for number in ("1", "2")]
    errors = Twins(evidence, others, lambda _pair: ()).errors
    for slot in evidence.slots:
        calls = evidence.calls["name"][slot.pair], evidence.calls["step"][slot.pair]
        if slot.makes and calls == (name, step) and (slot.role, slot.place) == (of.role, of.place):
            return float(errors[slot.values]) if errors[slot.values] > 0 else None
    return None


def answered(reference: Path, wrong: Path, fault: Fault) -> str:
    found = [_is_at(finding.call, finding.module, fault) for finding in compare(reference, wrong).findings]
    return "agree" if not found else "right" if found[0] else "half" if any(found) else "wrong"


def _is_at(call: str | None, module: str | None, fault: Fault) -> bool:
    return call == fault.call or (module is not None and module == fault.module)


def size_of(fault: Fault) -> str:
    return next((f"below {size:g}" for size in SIZES if fault.size < size), f"{SIZES[-1]:g} and more")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--faults", type=int, default=4, help="in each target")
    args = parser.parse_args()
    options = Options(args.packages.resolve(), args.runs.resolve(), True, 2, "api")
    counts: Counter[tuple[Any, ...]] = Counter()
    for group, folder, arguments in sound_pairs(options.folder):
        for number in range(args.faults):
            wrong = wrong_target(options, group, folder, arguments, number)
            fault = None if wrong is None else fault_of(folder, wrong)
            if wrong is not None and fault is not None:
                alone = without_twins(folder / "reference", folder / "alone")
                for way, reference in (("twins", folder / "reference"), ("rules", alone)):
                    counts[size_of(fault), way, answered(reference, wrong, fault)] += 1
    for (size, way), total in sorted(Counter({key[:2]: 0 for key in counts}).items()):
        found = {answer: count for (of, by, answer), count in counts.items() if (of, by) == (size, way)}
        told = ", ".join(f"{count} {answer}" for answer, count in sorted(found.items()))
        print(f"{size:12} times the twins' error  {way}  {sum(found.values()) + total:4}  {told}")


if __name__ == "__main__":
    main()
