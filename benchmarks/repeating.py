"""Scores `ulpscope repeat`: scripts that do not repeat themselves, each with the call to be named and what cures it.

    python benchmarks/repeating.py [--only race]

Each script is run as a user runs it, until it differs or 8 times at most. A script is right if the call, the reason and
the cure are (or that it repeats itself). Exit code 1 if one is not.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MODEL = """
net = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.5), nn.Linear(16, 1))
opt = torch.optim.SGD(net.parameters(), lr=0.1)
x = torch.ones(4, 8)
"""
TRAINING = """
for _ in range(2):
    opt.zero_grad()
    net(x).sum().backward()
    opt.step()
"""
HEAD = "import os, threading, time\nimport numpy as np\nimport torch\nfrom torch import nn\n"
SEED = "torch.manual_seed(0)\n"
RACE = """
def ended_first(array):
    parts, done = np.array_split(array.ravel(), 24), []
    def work(part):
        time.sleep(int.from_bytes(os.urandom(1), "little") / 20000)
        done.append(part.sum(dtype=np.float32) * np.float32(1e4))
    threads = [threading.Thread(target=work, args=(part,)) for part in parts]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    total = np.float32(0)
    for each in done:
        total += each
    return float(total)
"""
FUNCTION = """
class Racing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * ended_first(x.detach().numpy())
    @staticmethod
    def backward(ctx, gradient):
        return gradient
for _ in range(6):
    Racing.apply(torch.randn(32, 64, requires_grad=True)).sum().backward()
"""
CUSTOM_OP = """
@torch.library.custom_op("mine::racing", mutates_args=())
def racing(x: torch.Tensor) -> torch.Tensor:
    return torch.full((2,), ended_first(x.numpy()))
for _ in range(6):
    racing(torch.randn(32, 64))
"""
ATOMICS = """
torch.set_num_threads(2)
n = 600000
values = torch.randn(n, 1) * torch.logspace(-6, 6, n)[:, None]
where = torch.randint(0, 7, (n,))
for _ in range(10):
    torch.zeros(7, 1).index_put_((where,), values, accumulate=True)
"""
RANKS = """
import torch.distributed as dist, torch.multiprocessing as mp
def work(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ["PORT"])
    dist.init_process_group("gloo", rank=rank, world_size=2)
    torch.manual_seed(0)
    if rank == 1:
        torch.seed()
    x = nn.functional.dropout(torch.ones(64), 0.5)
    dist.all_reduce(x)
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""


@dataclass(frozen=True, slots=True)
class Case:
    script: str
    call: str | None
    """How the operation's name ends; None: the script repeats itself."""
    part: str = ""
    switches: tuple[str, ...] | None = None
    """What cures it; None: nothing that is tried."""
    rank: int = 0


CASES = {
    "seeded": Case(HEAD + SEED + MODEL + TRAINING, None),
    "unseeded": Case(HEAD + MODEL + TRAINING, "kaiming_uniform_", "generator", ("seed",)),
    "reseeded dropout": Case(HEAD + SEED + MODEL + "torch.seed()\n" + TRAINING, "dropout", "generator"),
    # Nobody sees numpy's array become a tensor: the call that reads it is the first that can be named.
    "unseeded numpy": Case(
        HEAD + SEED + MODEL + "x = torch.from_numpy(np.random.rand(4, 8)).float()\n" + TRAINING,
        "float", "given", ("seed",),
    ),
    "order of a set": Case(
        HEAD + SEED + MODEL + "x = torch.tensor([[float(ord(c)) for c in set('abcdefgh')]] * 4)\n" + TRAINING,
        "tensor", "argument", ("hash_seed",),
    ),
    "race in a Function": Case(HEAD + SEED + RACE + FUNCTION, "Racing", "computation"),
    "race in a custom op": Case(HEAD + SEED + RACE + CUSTOM_OP, "racing.default", "computation"),
    "atomics": Case(HEAD + SEED + ATOMICS, "index_put_", "computation", ("deterministic",)),
    "one rank of two": Case(HEAD + RANKS, "dropout", "generator", None, rank=1),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES))
    arguments = parser.parse_args()
    right = 0
    for name in arguments.only:
        with tempfile.TemporaryDirectory() as folder:
            told = _repeated(CASES[name], Path(folder))
        wrong = list(_wrong(CASES[name], told))
        right += not wrong
        cure = [f"{trial['ratio']:.2f} of the time" for trial in told["trials"] if trial["repeats"]]
        call = told["findings"][0]["call"] if told["findings"] else "repeats"
        print(
            f"{name:20} {call:40} {told['switches']!s:26} {' '.join(cure):18} {'; '.join(wrong) or 'right'}", flush=True
        )
    print(f"{right} of {len(arguments.only)} right")
    return 0 if right == len(arguments.only) else 1


def _repeated(case: Case, folder: Path) -> dict:
    script = folder / "train.py"
    script.write_text(case.script, encoding="utf-8")
    words = ["repeat", "--json", *(["--until-differs", "8"] if case.call else []), "--", sys.executable, str(script)]
    environ = {**os.environ, "OMP_NUM_THREADS": "2", "PORT": str(20000 + os.getpid() % 20000)}
    done = subprocess.run([sys.executable, "-m", "ulpscope", *words], capture_output=True, text=True, env=environ)
    try:
        return json.loads(done.stdout)
    except ValueError:
        raise SystemExit(f"no answer:\n{done.stderr[-2000:]}") from None


def _wrong(case: Case, told: dict) -> Iterator[str]:
    if case.call is None:
        if told["verdict"] != "repeats":
            yield "it repeats itself"
        return
    if told["verdict"] == "repeats":
        yield "it differs"
        return
    first = told["findings"][0]
    if not str(first["op"]).endswith(case.call):
        yield f"not {case.call}"
    if first["evidence"]["part"] != case.part:
        yield f"{first['evidence']['part']}, not {case.part}"
    if first["rank"] != case.rank:
        yield f"rank {first['rank']}"
    if told["switches"] != (None if case.switches is None else list(case.switches)):
        yield f"cured by {case.switches}"


if __name__ == "__main__":
    sys.exit(main())
