"""How often `ulpscope compare` is right on pairs that nobody tuned it to: prints figures, and nothing of the pairs.

    cd benchmarks && python -m sealed --packages DIR             the sealed sets, from summaries
    python -m sealed --packages DIR --twins 2                    the reference with so many noise twins
    python -m sealed --packages DIR --level kernel --only h      one set, at another level
    python -m sealed --packages DIR --kind healthy               one kind of pairs
    python -m sealed --packages DIR --keep RUNS                  runs stay in RUNS, and are not captured again

Sets h and k were written without knowledge of the rules, and are not looked at while these are worked on: so only
figures are printed. The others were such ones, and have been opened since: what is wrong there is worked on.
DIR has what their requirements.txt name, made by `pip install --no-deps --target DIR -r ...`.
A fault is right if the first finding is at one of the modules, or of one of the operations, that its case accepts; half
if another finding is.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SEALED, OPENED = ("h", "k"), ("a", "b", "c", "d", "e", "f", "g", "i", "j", "l")
MARKED = re.compile("^[ri](?=(true|floor)?div$|(add|sub|mul|matmul|pow|mod)$)")
KINDS = ("healthy", "same precision", "on noise")
SECONDS = 300


@dataclass(frozen=True)
class Options:
    packages: Path
    folder: Path
    keeps: bool
    twins: int
    level: str

    @property
    def environment(self) -> dict[str, str]:
        source = HERE.parents[1] / "src"
        quiet = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
        path = f"{source}{os.pathsep}{self.packages}"
        return {**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **quiet, "PYTHONPATH": path}


def ulpscope(options: Options, group: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ulpscope", *words]
    return subprocess.run(
        command,
        cwd=HERE / group,
        env=options.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )


def captured(options: Options, group: str, arguments: Sequence[str], out: Path, *more: str) -> Path:
    if (out / "twins" if more else out).exists():
        return out
    words = ("run", "--level", options.level, *more, "-o", str(out), "--", sys.executable, "train.py", *arguments)
    done = ulpscope(options, group, *words)
    if done.returncode:
        raise RuntimeError(f"a run ended with {done.returncode}")
    return out


def compared(options: Options, group: str, number: int, case: dict[str, Any]) -> dict[str, Any]:
    folder = options.folder / group / str(number)
    target = captured(options, group, case["target"], folder / "target")
    twins = ("--twins", str(options.twins), "--like", str(target)) if options.twins else ()
    reference = captured(options, group, case["reference"], folder / "reference", *twins)
    if not twins and (reference / "twins").exists():
        reference = without_twins(reference, folder / "alone")
    done = ulpscope(options, group, "compare", str(reference), str(target), "--json")
    if options.keeps:
        (folder / "answer.json").write_text(done.stdout)
    else:
        shutil.rmtree(folder)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def without_twins(trace: Path, alone: Path) -> Path:
    """The same trace, as if it had none."""
    alone.mkdir(exist_ok=True)
    for part in trace.iterdir():
        if part.name != "twins" and not (alone / part.name).exists():
            (alone / part.name).symlink_to(part)
    return alone


def is_accepted(finding: dict[str, Any], expect: dict[str, Any]) -> bool:
    evidence, modules, ops = finding.get("evidence", {}), expect.get("modules") or [], expect.get("ops") or []
    if not modules and not ops:
        return not expect.get("phases") or finding["phase"] in expect["phases"]
    paths = [finding.get("module") or "", *(evidence.get("parameters") or [])]
    if any(module in path for module in modules for path in paths):
        return True
    alone = [
        name.rpartition(".")[0]
        for side in ("only_reference", "only_target", "moved")
        for name in evidence.get(side) or []
    ]
    made = {last_word(name) for name in (finding.get("op") or "", *alone)}
    optimizes = finding["kind"] == "optimizer"
    return any(last_word(op) in made or (optimizes and "optim" in op) for op in ops)


def last_word(op: str) -> str:
    """What an operation is called, whichever way round and in whichever place Python asks for it: 1 / x is a div."""
    word = op.rpartition(".")[2].strip("_").lower()
    return MARKED.sub("", word).replace("truediv", "div")


def kind_of(case: dict[str, Any]) -> str:
    return "healthy" if case["kind"] == "healthy" else "on noise" if case["noise"] else "same precision"


def scored(options: Options, group: str, number: int, case: dict[str, Any]) -> tuple[str, str]:
    """What kind of pair it is, and how it was answered."""
    kind = kind_of(case)
    try:
        answer = compared(options, group, number, case)
    except (RuntimeError, ValueError, subprocess.TimeoutExpired):
        return kind, "not run"
    findings = answer["findings"]
    if kind == "healthy":
        return kind, "alarm" if findings else "right"
    if not findings:
        return kind, "agree"
    accepted = [is_accepted(finding, case["expect"]) for finding in findings]
    return kind, "right" if accepted[0] else "half" if any(accepted) else "wrong"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--twins", type=int, default=0)
    parser.add_argument("--level", default="api")
    parser.add_argument("--only", choices=(*OPENED, *SEALED), action="append")
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(args.jobs) as workers:
        runs = args.keep.resolve() if args.keep else Path(folder)
        options = Options(args.packages.resolve(), runs, bool(args.keep), args.twins, args.level)
        cases = [
            (options, group, number, case)
            for group in args.only or SEALED
            for number, case in enumerate(json.loads((HERE / group / "cases.json").read_text()))
            if kind_of(case) in (args.kind or KINDS)
        ]
        counts = Counter(workers.map(lambda case: scored(*case), cases))
    for kind in args.kind or KINDS:
        found = {answer: count for (of, answer), count in counts.items() if of == kind}
        print(f"{kind:15} {sum(found.values()):4}  {', '.join(f'{n} {word}' for word, n in sorted(found.items()))}")


if __name__ == "__main__":
    main()
