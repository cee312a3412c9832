"""What is left of a trace when the captured process dies, or its disk is full.

    python benchmarks/crash.py              20 deaths and a full disk
    python benchmarks/crash.py --kills 2    fewer

A 20-step capture dies at random moments (seeded) by SIGKILL, SIGSEGV and SIGABRT in turn, every second time saving
tensors, every third time with the compiled host part. Of what is left, every finished file must be readable, every
finished step whole, every value used there, saved data equal to its digest, and the reader must name what is missing.
Of the steps that ended two may not be whole: one whose end nobody has noticed yet, and one on its way to the disk.
On a full disk the script must end as without capture. The last line counts; exit code 1 if a try failed.
"""

import argparse
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import polars as pl

from ulpscope.numerics.summaries.constants import DIGEST
from ulpscope.numerics.summaries.summary import finish_digest, summarize
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import StepInfo
from ulpscope.trace.data import read_spans
from ulpscope.trace.reader import RankTrace, open_trace

KILLS = 20
STEPS = 20
SEED = 7
TIMEOUT = 180
# Room for the data of four or five steps; the first step that needs a file longer than the limit is in the middle.
DISK_BYTES = 80 * 2**20
FILE_BYTES = 20 * 2**20
# The end of a step is noticed when the next one begins, and one step may be under way to the disk.
STEPS_UNDER_WAY = 2
DEATHS = (signal.SIGKILL, signal.SIGSEGV, signal.SIGABRT)
HOSTS = ("python", "python", "compiled")
VALUES_READ = 200
MAX_STEP_SECONDS = 0.5
ULPSCOPE = (sys.executable, "-m", "ulpscope")

SCRIPT = """
import os, sys
import torch
from torch import nn
torch.set_num_threads(1)
torch.manual_seed(0)
progress = open(sys.argv[1], "w", buffering=1)

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(64), nn.Linear(64, 192), nn.Linear(64, 64)
        self.mlp = nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    def forward(self, x):
        q, k, v = (part.unflatten(-1, (4, 16)).transpose(1, 2) for part in self.qkv(self.norm(x)).chunk(3, -1))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.mlp(x)

model = nn.Sequential(nn.Embedding(100, 64), *(Block() for _ in range(4)), nn.Linear(64, 100))
optimizer = torch.optim.AdamW(model.parameters())
progress.write(f"{os.getpid()}\\n")
for step in range(%(steps)d):
    tokens = torch.randint(0, 100, (8, 33 + 2 * step))
    optimizer.zero_grad()
    logits = model(tokens[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    print(loss.item().hex())
    progress.write(f"{step}\\n")
"""


@dataclass(slots=True)
class Try:
    """One captured run that ended badly, and what is wrong with what it left."""

    name: str
    ended: str
    steps_run: int = 0
    steps_whole: int = 0
    steps_part: int = 0
    values: int = 0
    data_read: int = 0
    missing: int = 0
    problems: list[str] = field(default_factory=list)


def main(argv: Sequence[str] | None = None) -> int:
    arguments = parse(argv)
    with tempfile.TemporaryDirectory(prefix="ulpscope-crash-") as folder:
        room = Path(folder)
        script = room / "train.py"
        script.write_text(SCRIPT % {"steps": STEPS})
        tries = list(all_tries(script, room, kills=arguments.kills, seed=arguments.seed, disk=arguments.disk))
    failed = [one for one in tries if one.problems]
    print(f"{len(tries) - len(failed)} passed, {len(failed)} failed")
    return 1 if failed else 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=KILLS, help=f"how often to kill (default: {KILLS})")
    parser.add_argument("--seed", type=int, default=SEED, help=f"of the moments (default: {SEED})")
    parser.add_argument("--no-disk", dest="disk", action="store_false", help="leave the full disk out")
    return parser.parse_args(argv)


def all_tries(script: Path, room: Path, *, kills: int, seed: int, disk: bool) -> Iterator[Try]:
    chance = random.Random(seed)
    saves = ("stats", "tensors")
    print(f"{'try':27}{'ended':>22}{'run':>5}{'whole':>7}{'part':>6}{'values':>8}{'data':>6}{'missing':>9}  problems")
    for number in range(kills):
        save = saves[number % 2]
        moment = chance.uniform(0.0, STEPS)
        death, host = DEATHS[number // 2 % len(DEATHS)], HOSTS[number % len(HOSTS)]
        yield shown(killed_try(script, room / str(number), save=save, moment=moment, death=death, host=host))
        shutil.rmtree(room / str(number))
    if disk:
        plain = run_plain(script, room)
        yield shown(full_disk_try("file too large", run_with_size_limit, script, room / "limit", plain))
        if can_mount():
            yield shown(full_disk_try("disk full (tmpfs)", run_on_small_disk, script, room / "full", plain))


def shown(one: Try) -> Try:
    problems = "; ".join(one.problems) or "-"
    print(
        f"{one.name:27}{one.ended:>22}{one.steps_run:5}{one.steps_whole:7}{one.steps_part:6}"
        f"{one.values:8}{one.data_read:6}{one.missing:9}  {problems}",
        flush=True,
    )
    return one


def start_captured(
    script: Path, room: Path, *, save: str, host: str = "python", before: Callable[[], None] | None = None
) -> subprocess.Popen[str]:
    command = [*ULPSCOPE, "run", "-o", str(room / "trace"), "--save", save, "--"]
    return subprocess.Popen(
        [*command, sys.executable, str(script), str(room / "progress")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        preexec_fn=before,
        env=environment() | {"ULPSCOPE_HOST": host},
    )


def environment() -> dict[str, str]:
    return {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE_BF16", **os.environ, "OMP_NUM_THREADS": "1"}


def wait_for_moment(process: subprocess.Popen[str], progress: Path, moment: float) -> int:
    """Wait until so many steps of the training are done, and a part of the next; gives the training's process id."""
    began = None
    until = time.monotonic() + TIMEOUT
    while time.monotonic() < until and process.poll() is None:
        lines = progress.read_text().splitlines() if progress.is_file() else []
        began = began or (time.monotonic() if lines else None)
        if began is not None and len(lines) > int(moment):
            step_seconds = (time.monotonic() - began) / max(1, len(lines) - 1)
            time.sleep(min(step_seconds, MAX_STEP_SECONDS) * (moment % 1))
            return int(lines[0])
        time.sleep(0.002)
    raise SystemExit(f"crash: the training did not come to step {moment:.0f}: {process.communicate()[1]}")


def killed_try(script: Path, room: Path, *, save: str, moment: float, death: signal.Signals, host: str) -> Try:
    room.mkdir()
    process = start_captured(script, room, save=save, host=host)
    os.kill(wait_for_moment(process, room / "progress", moment), death)
    _, told = process.communicate(timeout=TIMEOUT)
    name = f"{death.name}, {save}, {host}"
    one = Try(name, ended=f"step {moment:.2f}, exit {process.returncode}", steps_run=steps_run(room))
    if process.returncode != 128 + death:
        one.problems.append(f"run gave exit code {process.returncode}, expected {128 + death}")
    if f"ended by {death.name}" not in told or "ended abruptly in step" not in told:
        one.problems.append(f"run does not say what happened: {told[-300:]!r}")
    check_left_over(room / "trace", one, expected_sentence="not closed")
    if one.steps_whole < one.steps_run - STEPS_UNDER_WAY:
        one.problems.append(f"{one.steps_run} steps had ended, {one.steps_whole} are whole")
    return one


def steps_run(room: Path) -> int:
    return max(0, (room / "progress").read_text().count("\n") - 1)


def run_plain(script: Path, room: Path) -> str:
    """What the script prints without capture."""
    command = [sys.executable, str(script), str(room / "plain-progress")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=TIMEOUT, env=environment())
    return done.stdout


def full_disk_try(
    name: str,
    run: Callable[[Path, Path], "subprocess.CompletedProcess[str]"],
    script: Path,
    room: Path,
    plain: str,
) -> Try:
    """The same script with room for some of its steps only."""
    room.mkdir()
    done = run(script, room)
    one = Try(name, ended=f"exit {done.returncode}", steps_run=steps_run(room))
    if done.returncode != 0:
        one.problems.append(f"exit code {done.returncode}, expected 0: {done.stderr[-300:]}")
    if done.stdout != plain:
        one.problems.append("the losses are not those of the plain run")
    if not any(word in done.stderr for word in ("No space left", "File too large")):
        one.problems.append(f"the message does not say what happened: {done.stderr[-300:]!r}")
    check_left_over(room / "trace", one, expected_sentence=None)
    if not 0 < one.steps_whole < STEPS:
        one.problems.append(f"{one.steps_whole} whole steps: the disk was not filled in between")
    return one


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        tried = subprocess.run(
            ["unshare", "-rm", "mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", folder],
            capture_output=True,
            check=False,
        )
    return tried.returncode == 0


def run_on_small_disk(script: Path, room: Path) -> subprocess.CompletedProcess[str]:
    """Capture onto a tmpfs that only this run sees; what it holds at the end is copied out."""
    disk = room / "disk"
    disk.mkdir()
    shell = (
        'mount -t tmpfs -o size="$1" tmpfs "$2" || exit 99; shift; disk="$1"; shift; target="$1"; shift; '
        '"$@"; code=$?; cp -a "$disk/trace" "$target"; exit $code'
    )
    training = [sys.executable, str(script), str(room / "progress")]
    command = [*ULPSCOPE, "run", "-o", str(disk / "trace"), "--save", "tensors", "--", *training]
    return subprocess.run(
        ["unshare", "-rm", "sh", "-c", shell, "sh", str(DISK_BYTES), str(disk), str(room / "trace"), *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
        env=environment(),
    )


def run_with_size_limit(script: Path, room: Path) -> subprocess.CompletedProcess[str]:
    """Where nothing can be mounted: no file may grow beyond a size that only later steps need."""

    def before() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES, FILE_BYTES))

    process = start_captured(script, room, save="tensors", before=before)
    stdout, stderr = process.communicate(timeout=TIMEOUT)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def check_left_over(path: Path, one: Try, *, expected_sentence: str | None) -> None:
    """Note what is there and every broken promise about it."""
    if not path.exists() or not any(path.glob("*/rank.json")):
        return
    try:
        trace = open_trace(path)
        for rank in trace.ranks:
            check_rank(rank, one)
        one.missing = len(trace.missing)
        if expected_sentence is not None and not any(expected_sentence in sentence for sentence in trace.missing):
            one.problems.append(f"the reader does not say {expected_sentence!r}: {trace.missing}")
    except (UlpscopeError, pl.exceptions.PolarsError, OSError, ValueError) as error:
        one.problems.append(f"{type(error).__name__}: {str(error).splitlines()[0]}")


def check_rank(rank: RankTrace, one: Try) -> None:
    check_files(rank, one)
    finished = [info for step in rank.steps if (info := rank.step_info(step)) is not None]
    one.steps_whole += len(finished)
    one.steps_part += len(rank.steps) - len(finished)
    if [info.step for info in finished] != list(range(len(finished))):
        one.problems.append(f"whole steps are {[info.step for info in finished]}")
    for info in finished:
        check_step(rank, info, one)
    check_references(rank, [info.step for info in finished], one)
    check_data(rank, one)
    check_missing(rank, {info.step for info in finished}, one)


def check_files(rank: RankTrace, one: Try) -> None:
    """Every file that was put in place can be read to its end."""
    for file in sorted(rank.directory.rglob("*")):
        reads = {".parquet": pl.read_parquet, ".safetensors": read_spans}.get(file.suffix)
        if reads is None or file.name.startswith("."):
            continue
        try:
            reads(file)
        except (UlpscopeError, pl.exceptions.PolarsError, OSError) as error:
            one.problems.append(f"{file.name} cannot be read: {str(error).splitlines()[0]}")
    one.values += rank.collect(rank.values()).height


def check_step(rank: RankTrace, info: StepInfo, one: Try) -> None:
    written = rank.directory / f"step{info.step}"
    values = sum(pl.read_parquet(file, columns=["id"]).height for file in written.glob("values-*.parquet"))
    found = (rank.collect(rank.calls(info.step)).height, values, rank.collect(rank.tensors(info.step)).height)
    stated = (info.calls, info.values, info.tensors)
    if found != stated:
        one.problems.append(f"step {info.step} has {found} calls, values, tensors; its step.json states {stated}")
    if not info.calls and info.step != rank.steps[-1]:
        one.problems.append(f"step {info.step} is empty")


def check_references(rank: RankTrace, finished: Sequence[int], one: Try) -> None:
    """What whole steps point to is there: values, calls, parents, forwards, stacks."""
    calls = rank.collect(rank.calls())
    uses = rank.collect(rank.tensors()) if not finished else pl.concat(rank.collect(rank.tensors(s)) for s in finished)
    whole = calls.filter(pl.col("step").is_in(list(finished)))
    known = {
        "value": rank.collect(rank.values())["id"],
        "call": calls["id"],
        "stack": rank.collect(rank.stacks())["stack"],
    }
    pointers = (("value", uses["value"]), ("call", uses["call"]), ("call", whole["parent"]), ("call", whole["forward"]))
    for kind, column in (*pointers, ("stack", whole["stack"])):
        absent = column.drop_nulls().unique().is_in(known[kind].implode()).not_().sum()
        if absent and (finished or kind == "value"):
            one.problems.append(f"{absent} references ({column.name}) to a {kind} that is not there")


def check_data(rank: RankTrace, one: Try) -> None:
    """Saved data of values has the digest that was computed when it was captured."""
    saved = rank.collect(rank.values().filter(pl.col("data_file").is_not_null()))["id"]
    chosen = saved.sample(min(VALUES_READ, len(saved)), seed=SEED)
    for value in rank.find_values(chosen.to_list()).values():
        data = rank.data(value)
        row = None if data is None else summarize(data, value.dtype)
        one.data_read += 1
        if row is None or finish_digest(int(row.view("uint64")[DIGEST]), value.dtype, value.shape) != value.digest:
            one.problems.append(f"data of value {value.id} is not what was captured")
    if rank.info.capture["save"] == "tensors" and one.steps_whole and not one.data_read:
        one.problems.append("whole steps, and no data")


def check_missing(rank: RankTrace, finished: set[int], one: Try) -> None:
    said = " ".join(rank.missing)
    for folder in sorted(rank.directory.glob("step*")):
        if int(folder.name[4:]) not in finished and f"step {folder.name[4:]} is unfinished" not in said:
            one.problems.append(f"nothing is said about the unfinished {folder.name}")
    for file in rank.directory.rglob(".*"):
        if file.name not in said:
            one.problems.append(f"nothing is said about {file.name}")


if __name__ == "__main__":
    sys.exit(main())
