"""Lets msprobe's own commands read traces that `ulpscope convert --to msprobe` wrote.

    python benchmarks/msprobe_roundtrip.py --msprobe MSPROBE_ENV/bin/python

MSPROBE_ENV is an environment with mindstudio-probe==26.2.0 and torch. The demo's script is captured with and without
its planted fault, once with statistics and once with data; both are converted and given to `msprobe compare`, whose
table must have a row for every tensor and scalar of the dump, all matched, and must mark the LayerNorm whose eps is
wrong.
`msprobe graph_visualize` must find every entry. The last line counts; exit code 1 if a check failed.
"""

import argparse
import contextlib
import csv
import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).parents[1] / "src" / "ulpscope" / "demo_script" / "train.py"
ULPSCOPE = (sys.executable, "-m", "ulpscope")
TIMEOUT = 600
STEP = 0
EPS = "Functional.layer_norm.2.forward.input.eps"
OUTPUT = "Functional.layer_norm.2.forward.output.0"
MODULE_OUTPUT = "Module.blocks.1.norm1.LayerNorm.forward.0.output.0"

Row = dict[str, str]


@dataclass(frozen=True)
class Dumps:
    """A sound and a faulty run in msprobe's layout."""

    save: str
    sound: Path
    faulty: Path


@dataclass(frozen=True)
class Check:
    what: str
    holds: bool
    seen: str


def run(command: list[str], folder: Path) -> str:
    # msprobe refuses files that others may write.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16"}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=TIMEOUT, umask=0o027, check=False
    )
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def make_dumps(folder: Path, save: str) -> Dumps:
    """Capture and convert both runs."""
    places = []
    for name, options in (("sound", []), ("faulty", ["--fault"])):
        trace, dump = folder / f"{name}-{save}", folder / f"{name}-{save}-msprobe"
        run([*ULPSCOPE, "run", "-o", str(trace), "--save", save, "--", sys.executable, str(SCRIPT), *options], folder)
        print(run([*ULPSCOPE, "convert", str(trace), "--to", "msprobe", "-o", str(dump)], folder), end="")
        places.append(dump / f"step{STEP}" / "rank0")
    return Dumps(save, *places)


def compare(msprobe: Path, dumps: Dumps, folder: Path) -> list[Row]:
    """The table of `msprobe compare`."""
    out = folder / f"compared-{dumps.save}"
    target, golden = (str(place / "dump.json") for place in (dumps.faulty, dumps.sound))
    run([str(msprobe), "compare", "-tp", target, "-gp", golden, "-o", str(out)], folder)
    (table,) = out.glob("compare_result_*.csv")
    with table.open(newline="", encoding="utf-8-sig") as file:
        return list(csv.DictReader(file))


def expected_rows(dump: Path) -> int:
    """Tensors, scalars and nulls of a dump: msprobe has a row for each."""
    data = json.loads((dump / "dump.json").read_text(encoding="utf-8"))["data"]
    return sum(_leaves(part) for entry in data.values() for part in entry.values())


def _leaves(part: Any) -> int:
    if isinstance(part, list):
        return sum(map(_leaves, part))
    if isinstance(part, dict) and not isinstance(part.get("type"), str):
        return sum(map(_leaves, part.values()))
    return 1


def judge(rows: list[Row], dumps: Dumps) -> Iterator[Check]:
    """What the table must say."""
    results = {row["NPU Name"]: row["Result"] for row in rows}
    expected = expected_rows(dumps.faulty)
    unmatched = sum(row["Bench Name"] == "N/A" for row in rows)
    yield Check("a row for every tensor and scalar", len(rows) == expected, f"{len(rows)} of {expected}")
    yield Check("every row is matched", unmatched == 0, f"{unmatched} unmatched")
    yield Check("the wrong eps is an error", results.get(EPS) == "error", str(results.get(EPS)))
    yield Check("the table tells stacks", any(row["NPU_Stack_Info"] not in ("", "N/A") for row in rows), "")
    if dumps.save == "tensors":
        for name in (OUTPUT, MODULE_OUTPUT):
            yield Check(f"{name} is an error", results.get(name) == "error", str(results.get(name)))
        # Only memory that nobody has written yet (torch.empty) has neither statistics nor data.
        tensors = [row for row in rows if row["NPU Dtype"].startswith("torch.") and row["NPU max"] != "None"]
        unread = sum("'-1'" in row["Data_name"] for row in tensors)
        yield Check("data of every written tensor is read", unread == 0, f"{unread} of {len(tensors)} without")
    print(f"{dumps.save}: {dict(Counter(results.values()))}")


def visualize(msprobe: Path, dumps: Dumps, folder: Path) -> Check:
    """Whether `msprobe graph_visualize` has a node for every entry."""
    out = folder / "graph"
    command = [str(msprobe), "graph_visualize", "-tp", str(dumps.faulty), "-gp", str(dumps.sound), "-o", str(out)]
    run(command, folder)
    (database,) = out.glob("*.vis.db")
    with contextlib.closing(sqlite3.connect(database)) as connection:
        nodes = {name for (name,) in connection.execute("SELECT node_name FROM tb_nodes WHERE data_source = 'NPU'")}
    entries = set(json.loads((dumps.faulty / "construct.json").read_text(encoding="utf-8")))
    return Check("the graph has every entry", entries <= nodes, f"{len(entries - nodes)} of {len(entries)} missing")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--msprobe", type=Path, required=True, help="Python of an environment with mindstudio-probe")
    arguments = parser.parse_args()
    msprobe = arguments.msprobe.absolute().parent / "msprobe"
    folder = Path(tempfile.mkdtemp(prefix="ulpscope-msprobe-"))
    try:
        statistics, tensors = (make_dumps(folder, save) for save in ("stats", "tensors"))
        checks = [*judge(compare(msprobe, statistics, folder), statistics)]
        checks += judge(compare(msprobe, tensors, folder), tensors)
        checks.append(visualize(msprobe, statistics, folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    for check in checks:
        print(f"{'ok    ' if check.holds else 'FAILED'} {check.what}{f' ({check.seen})' if check.seen else ''}")
    failed = sum(not check.holds for check in checks)
    print(f"{len(checks) - failed} of {len(checks)} checks hold")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
