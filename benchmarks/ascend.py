"""How fast dumps of an Ascend NPU are converted and opened.

    python benchmarks/ascend.py [--gigabytes 1] [--directory DIR] [--jobs N]

Makes dump files in a temporary directory and prints GB/s (bytes of dumps, page cache warm) of `ulpscope convert` to
npy, as the data lies and with --layout ND, as a command of its own, start included; and of opening them as a trace with
stats of all tensors. The bar is 0.3 GB/s on 2 cores.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from make_ascend_dumps import write_many

BAR = 0.3


def measure(name: str, size: int, command: list[str]) -> None:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ulpscope.cli.main", *command], check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - started
    rate = size / 1e9 / seconds
    print(f"{name:<28} {seconds:7.2f} s {rate:7.2f} GB/s  {'ok' if rate >= BAR else 'below the bar'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--directory", type=Path, default=None)
    parser.add_argument("--jobs", default="2")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.directory) as temporary:
        root = Path(temporary)
        size = write_many(root / "dumps", args.gigabytes)
        print(f"{size / 1e9:.2f} GB of dumps, {args.jobs} processes")
        for name, options in (("convert --to npy", []), ("convert --to npy --layout ND", ["--layout", "ND"])):
            command = ["convert", str(root / "dumps"), "--to", "npy", "-o", str(root / "out"), "--jobs", args.jobs]
            measure(name, size, [*command, *options])
            shutil.rmtree(root / "out")
        measure("show (stats of all tensors)", size, ["show", str(root / "dumps")])


if __name__ == "__main__":
    main()
