"""How long `ulpscope --help` takes, whole process, best of several; exit code 1 above the bar.

python benchmarks/start.py
"""

import subprocess
import sys
import time

BAR = 0.4
TRIES = 5


def help_seconds() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-m", "ulpscope", "--help"], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def main() -> int:
    seconds = min(help_seconds() for _ in range(TRIES))
    print(f"ulpscope --help: {seconds:.3f} s, at most {BAR}: {'holds' if seconds <= BAR else 'MISSED'}")
    return 0 if seconds <= BAR else 1


if __name__ == "__main__":
    sys.exit(main())
