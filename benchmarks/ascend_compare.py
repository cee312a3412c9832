"""How fast a network's dumps are compared with a reference, beside msaccucmp of mindstudio-probe.

    python benchmarks/ascend_compare.py [--gigabytes 1] [--jobs 2] [--msprobe-python PYTHON] [--rounds 3]

Makes a graph, dumps in float16 (half of the operators in FRACTAL_NZ, half in NC1HWC0; each reads what the one before it
made, as dumps of a real network do) and a float32 reference, all in a temporary directory. Prints GB/s (bytes of
dumps, page cache warm) of the whole command, start included: our own verdict alone; with result_*.csv, which has
msaccucmp's ten metrics; the same with inputs that are no copies of outputs, so that nothing is measured once for two.
With the Python of an environment that has mindstudio-probe, also msaccucmp's own compare on the same data, turn by
turn, best of several. The bars: 0.3 GB/s on 2 cores, and 5 times msaccucmp.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from make_ascend_dumps import FIRST_TIME, Tensor, file_bytes, tiled

BAR = 0.3
TIMES = 5
NETWORK = "ge_default_20260101000000_11"
EDGE = 2896 // 16 * 16
"""Of a matrix of about 16 MB in float16."""
PICTURES = (32, 128, 128, 16)
"""NHWC, of about as much."""


@dataclass(frozen=True)
class Data:
    """Where the two sides are, and how much was dumped."""

    dumps: Path
    reference: Path
    graph: Path
    size: int


def attribute(key: str, **value: Any) -> dict[str, Any]:
    return {"key": key, "value": value}


def operator(number: int, *, name: str, kind: str, source: str | None, layout: str, shape: list[int]) -> dict[str, Any]:
    described = [
        attribute("_datadump_origin_name", s=name),
        attribute("_datadump_origin_output_index", i=0),
        attribute("_datadump_origin_format", s=layout),
        attribute("origin_shape", list={"i": shape}),
    ]
    desc = {"attr": described, "dtype": "DT_FLOAT16", "layout": layout, "shape": {"dim": shape}}
    found = {"name": name, "type": kind, "id": number, "output_desc": [desc], "attr": []}
    return found | ({"input": [f"{source}:0"], "input_desc": [desc]} if source else {})


def on_device(array: np.ndarray, layout: str) -> np.ndarray:
    if layout == "ND":
        return tiled(array)
    count, height, width, channels = array.shape
    return np.ascontiguousarray(array.reshape(count, height, width, channels // 16, 16).transpose(0, 3, 1, 2, 4))


def make_data(root: Path, gigabytes: float, *, copies: bool) -> Data:
    dumps, reference = root / f"20260101000000/0/{NETWORK}/1/0", root / "reference"
    for folder in (dumps, reference):
        folder.mkdir(parents=True)
    random, operators, size, number = np.random.default_rng(5), [], 0, 0
    for layout, device, shape in (("ND", "FRACTAL_NZ", (EDGE, EDGE)), ("NHWC", "NC1HWC0", PICTURES)):
        values = random.standard_normal(shape, np.float32)
        name = f"{device.lower()}/data"
        operators.append(operator(number, name=name, kind="Data", source=None, layout=layout, shape=list(shape)))
        np.save(reference / f"{name.replace('/', '_')}.0.{FIRST_TIME}.npy", values)
        number, end, made = number + 1, size + gigabytes * 0.5e9, values.astype(np.float16)
        while size < end:
            source, name = name, f"{device.lower()}/op_{number}"
            # A turn by an odd number of places: other values in every place, nothing to compute.
            values, read = np.roll(values, 1 + 2 * number), made
            made = values.astype(np.float16)
            if not copies:
                read = read.copy()
                read.reshape(-1)[0] += np.float16(0.5)
            operators.append(operator(number, name=name, kind="Relu", source=source, layout=layout, shape=list(shape)))
            tensors = [Tensor(on_device(each, layout), device, tuple(shape)) for each in (read, made)]
            content = file_bytes(name, inputs=tensors[:1], outputs=tensors[1:])
            (dumps / f"Relu.{name.replace('/', '_')}.{number}.0.{FIRST_TIME + number}").write_bytes(content)
            np.save(reference / f"{name.replace('/', '_')}.0.{FIRST_TIME + number}.npy", values)
            size, number = size + len(content), number + 1
    graph = root / "graph.json"
    graph.write_text(json.dumps({"name": NETWORK, "graph": [{"name": NETWORK, "op": operators}]}))
    return Data(dumps, reference, graph, size)


def timed(command: list[str], usual: tuple[int, ...]) -> float:
    started = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    seconds = time.perf_counter() - started
    if done.returncode not in usual:
        sys.exit(f"{' '.join(command)}\n{done.stderr[-2000:]}")
    return seconds


def ours(data: Data, jobs: str, *, out: Path | None = None) -> float:
    command = [sys.executable, "-m", "ulpscope.cli.main", "compare", str(data.reference), str(data.dumps)]
    written = ["--out", str(out), "--overwrite"] if out is not None else []
    return timed([*command, "--graph", str(data.graph), "--jobs", jobs, *written], (0, 1))


def theirs(data: Data, python: Path, out: Path) -> float:
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir()
    runner = Path(__file__).with_name("msaccucmp_runner.py")
    words = [str(python), str(runner), "compare", "-m", str(data.dumps), "-g", str(data.reference)]
    # 2: some operators, here those of type Data, were not dumped.
    seconds = timed([*words, "-f", str(data.graph), "-out", str(out)], (0, 2))
    lines = sum(path.read_text().count("\n") for path in out.glob("result_*.csv"))
    assert lines > 2, "msaccucmp compared nothing"
    return seconds


def tell(name: str, data: Data, seconds: list[float], beside: float | None = None) -> None:
    rate = data.size / 1e9 / min(seconds)
    ratio = "" if beside is None else f"  {beside / min(seconds):6.1f} times msaccucmp"
    print(f"{name:<44} {min(seconds):8.2f} s {rate:7.3f} GB/s{ratio}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--msprobe-python", type=Path, default=None)
    args = parser.parse_args()
    os.umask(0o027)
    with tempfile.TemporaryDirectory(dir=args.directory) as temporary:
        root = Path(temporary)
        plain, changed = (
            make_data(root / word, args.gigabytes, copies=word == "copies") for word in ("copies", "other")
        )
        print(f"{plain.size / 1e9:.2f} GB of dumps, {args.jobs} processes, best of {args.rounds}", flush=True)
        seconds: dict[str, list[float]] = {}
        for _ in range(args.rounds):
            seconds.setdefault("verdict", []).append(ours(plain, args.jobs))
            seconds.setdefault("csv", []).append(ours(plain, args.jobs, out=root / "out"))
            seconds.setdefault("changed", []).append(ours(changed, args.jobs, out=root / "out"))
            if args.msprobe_python is not None:
                seconds.setdefault("msaccucmp", []).append(theirs(plain, args.msprobe_python, root / "theirs"))
        beside = min(seconds["msaccucmp"]) if "msaccucmp" in seconds else None
        tell("verdict and findings", plain, seconds["verdict"], beside)
        tell("with result_*.csv", plain, seconds["csv"], beside)
        tell("with result_*.csv, no copies", changed, seconds["changed"], beside)
        if beside is not None:
            tell("msaccucmp compare", plain, seconds["msaccucmp"])
        print(f"bars: {BAR} GB/s, {TIMES} times msaccucmp")


if __name__ == "__main__":
    main()
