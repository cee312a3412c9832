"""`ulpscope run` on scripts as users have them: unchanged, under torchrun, from a shell, crashing, interrupted."""

import json
import socket
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from ulpscope.trace.reader import Trace, open_trace

TRAINING = """
import torch
torch.set_num_threads(1)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters())
for step in range(4):
    optimizer.zero_grad()
    loss = model(torch.ones(3, 4)).pow(2).mean()
    loss.backward()
    optimizer.step()
    print(f"{loss.item():.9e}", flush=True)
"""

RANKS = """
import torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for step in range(2):
    optimizer.zero_grad()
    model(torch.full((3, 4), float(dist.get_rank()))).sum().backward()
    optimizer.step()
    waiting = dist.all_reduce(torch.tensor([dist.get_rank() + 1.0]), async_op=True)
    waiting.wait()
dist.barrier()
dist.destroy_process_group()
"""

SPAWNED = """
import os, torch, torch.distributed as dist, torch.multiprocessing as mp

def work(rank):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="{port}")
    model = torch.nn.Linear(2, 2)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    model(torch.ones(1, 2)).sum().backward()
    dist.barrier()
    dist.destroy_process_group()

if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""

LOADING = """
import sys, torch

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.full((4,), float(index)).mul(2)

if __name__ == "__main__":
    model = torch.nn.Linear(4, 2)
    for context in ("fork", "spawn"):
        for batch in torch.utils.data.DataLoader(Data(), 2, num_workers=1, multiprocessing_context=context):
            model(batch)
"""


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ulpscope", "run", "-o", "trace", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        stdin=subprocess.DEVNULL,
    )


def write(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(textwrap.dedent(text))
    return name


def ops(trace: Trace, **where: Any) -> list[str]:
    frame = trace.collect(trace.calls())
    for column, wanted in where.items():
        frame = frame.filter(pl.col(column) == wanted)
    return frame.sort("id")["op"].to_list()


def test_an_unchanged_script_gives_the_same_numbers_and_its_trace(tmp_path: Path) -> None:
    script = write(tmp_path, "train.py", TRAINING)
    plain = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=True)
    done = run(tmp_path, "--save", "tensors", "--", sys.executable, script)
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    trace = open_trace(tmp_path / "trace")
    assert trace.steps == (0, 1, 2, 3)
    assert trace.missing == ()
    rank = trace.ranks[0]
    first = trace.collect(trace.calls(0)).filter(pl.col("op") == "torch.Tensor.backward")["id"][0]
    loss = rank.data(rank.value(rank.uses(first)[0].value))
    assert loss is not None
    assert f"{float(loss):.9e}" == plain.stdout.splitlines()[0]
    frame = rank.stack(rank.call(first).stack or 0)[0]
    assert (Path(frame.file).name, frame.function) == ("train.py", "<module>")


def test_only_some_steps_and_a_clean_stop(tmp_path: Path) -> None:
    script = write(tmp_path, "train.py", TRAINING)
    done = run(tmp_path, "--steps", "0,2", "--stop", "--", sys.executable, script)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == 3
    trace = open_trace(tmp_path / "trace")
    assert trace.steps == (0, 2)
    assert trace.ranks[0].info.exit == "stopped after step 2"


def test_torchrun_gives_a_directory_a_rank_with_named_collectives(tmp_path: Path) -> None:
    script = write(tmp_path, "ranks.py", RANKS)
    torchrun = str(Path(sys.executable).with_name("torchrun"))
    done = run(tmp_path, "--", torchrun, "--nproc-per-node", "2", script)
    assert done.returncode == 0, done.stderr
    trace = open_trace(tmp_path / "trace")
    assert [rank.name for rank in trace.ranks] == ["rank0", "rank1"]
    for rank in trace.ranks:
        assert rank.info.world_size == 2
        assert rank.info.errors == ()
        reduced = rank.calls(0).filter(pl.col("op") == "torch.distributed.all_reduce").collect()
        call = rank.call(reduced["id"][0])
        assert call.kind.value == "collective"
        assert call.arguments["group"]["ranks"] == [0, 1]
        values = {use.role.value: rank.value(use.value) for use in rank.uses(call.id)}
        stats = values["output"].stats
        assert stats is not None
        assert stats.max == 3.0


def test_ranks_that_python_spawns_are_told_apart(tmp_path: Path) -> None:
    script = write(tmp_path, "spawned.py", SPAWNED.replace("{port}", str(20000 + hash(str(tmp_path)) % 9000)))
    assert run(tmp_path, "--", sys.executable, script).returncode == 0
    assert [rank.name for rank in open_trace(tmp_path / "trace").ranks] == ["rank0", "rank1"]


def test_a_shell_script_with_two_pythons_gives_two_named_processes(tmp_path: Path) -> None:
    python = sys.executable
    write(tmp_path, "two.sh", f"{python} -c 'import torch; torch.ones(3).neg()'\n{python} -m package\n")
    (tmp_path / "package").mkdir()
    write(tmp_path, "package/__main__.py", "import torch; torch.ones(3).exp()")
    assert run(tmp_path, "--", "sh", "two.sh").returncode == 0
    trace = open_trace(tmp_path / "trace")
    assert [rank.name for rank in trace.ranks] == ["rank0", "rank0-p2"]
    assert "torch.Tensor.neg" in ops(trace, process="rank0")
    assert "torch.Tensor.exp" in ops(trace, process="rank0-p2")


def test_two_runs_never_write_one_trace(tmp_path: Path) -> None:
    waiting = "import os, time\nopen('began', 'w')\nwhile not os.path.exists('go'):\n    time.sleep(0.05)\n"
    slow, quick = write(tmp_path, "slow.py", waiting + TRAINING), write(tmp_path, "quick.py", TRAINING)
    command = [sys.executable, "-m", "ulpscope", "run", "-o", "trace", "--", sys.executable, slow]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as first:
        until = time.monotonic() + 60
        while not (tmp_path / "began").exists() and time.monotonic() < until:
            time.sleep(0.05)
        for options in ((), ("--overwrite",)):
            second = run(tmp_path, *options, "--", sys.executable, quick)
            assert (second.returncode, second.stdout) == (2, "")
            assert "another capture is writing into trace" in second.stderr
        (tmp_path / "go").touch()
        assert first.wait(180) == 0
    assert [rank.name for rank in open_trace(tmp_path / "trace").ranks] == ["rank0"]


def test_two_launchers_of_one_job_share_a_trace(tmp_path: Path) -> None:
    """As two hosts do; the ranks of both are there, and each run tells of its own."""
    script = write(tmp_path, "ranks.py", RANKS)
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    launcher = f"-m torch.distributed.run --nnodes=2 --nproc-per-node=1 --master-addr=127.0.0.1 --master-port={port}"
    captured = [sys.executable, "-m", "ulpscope", "run", "-o", "trace", "--", sys.executable, *launcher.split()]
    commands = [[*captured, f"--node-rank={node}", script] for node in (0, 1)]
    started = [subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) for command in commands]
    told = [process.communicate(timeout=180)[1] for process in started]
    assert [process.returncode for process in started] == [0, 0], told
    assert [rank.info.rank for rank in open_trace(tmp_path / "trace").ranks] == [0, 1]
    assert all("2 processes" not in text for text in told)


def test_data_loading_processes_are_left_alone(tmp_path: Path) -> None:
    script = write(tmp_path, "loading.py", LOADING)
    assert run(tmp_path, "--", sys.executable, script).returncode == 0
    trace = open_trace(tmp_path / "trace")
    assert [rank.name for rank in trace.ranks] == ["rank0"]
    assert "torch.Tensor.mul" not in ops(trace)
    assert ops(trace, kind="module") == ["torch.nn.modules.linear.Linear"] * 4


def test_a_crash_keeps_its_code_and_what_was_captured(tmp_path: Path) -> None:
    script = write(tmp_path, "train.py", TRAINING + "raise ValueError('too late')\n")
    done = run(tmp_path, "--", sys.executable, script)
    assert done.returncode == 1
    assert "ValueError: too late" in done.stderr
    rank = open_trace(tmp_path / "trace").ranks[0]
    assert rank.info.exit == "ValueError: too late"
    assert rank.steps == (0, 1, 2, 3)


def test_ctrl_c_closes_the_trace(tmp_path: Path) -> None:
    script = write(tmp_path, "train.py", TRAINING + "import time; time.sleep(60)\n")
    child = subprocess.Popen(
        [sys.executable, "-m", "ulpscope", "run", "-o", "trace", "--", sys.executable, script],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        start_new_session=True,
        text=True,
    )
    assert child.stdout is not None
    for _ in range(4):
        child.stdout.readline()
    time.sleep(0.5)
    subprocess.run(["pkill", "-INT", "-g", str(child.pid)], check=True)
    assert child.wait(timeout=60) == 130
    rank = open_trace(tmp_path / "trace").ranks[0]
    assert rank.info.closed is not None
    assert rank.info.exit is not None
    assert rank.info.exit.startswith("KeyboardInterrupt")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--ranks", "4"), "rank 4 asked for, but only rank 0 ran"),
        (("--steps", "7-9"), "step"),
        (("--only", "no_such_op"), "--only"),
    ],
)
def test_filters_that_match_nothing_say_so(tmp_path: Path, option: tuple[str, str], words: str) -> None:
    script = write(tmp_path, "train.py", TRAINING)
    done = run(tmp_path, *option, "--json", "--", sys.executable, script)
    assert done.returncode == 3
    assert words in done.stderr
    assert json.loads(done.stdout)


TWO_NETS = """
import torch
torch.set_num_threads(1)
maker, judge = torch.nn.Linear(2, 3), torch.nn.Linear(3, 1)
of_maker, of_judge = (torch.optim.SGD(net.parameters(), 0.1) for net in (maker, judge))
for _ in range(2):
    judge(maker(torch.ones(4, 2)).detach()).sum().backward()
    of_judge.step()
    judge(maker(torch.ones(4, 2))).sum().backward()
    of_maker.step()
"""


def test_the_summary_tells_steps_and_networks_apart(tmp_path: Path) -> None:
    script = write(tmp_path, "two.py", TWO_NETS)
    done = run(tmp_path, "--", sys.executable, script)
    assert "captured steps 0-3" in done.stderr
    assert "2 optimizers took steps: an iteration where two do so in turn is two steps" in done.stderr
    assert "modules: model is Linear (4 calls, first two.py:7); Linear (4 calls, first two.py:7)" in done.stderr


def test_a_crash_inside_of_modules_prints_the_scripts_own_traceback(tmp_path: Path) -> None:
    model = "torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(4, 2)))"
    script = write(tmp_path, "crash.py", f"import torch\n{model}(torch.ones(1, 3))\n")
    plain = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, check=False)
    done = run(tmp_path, "--", sys.executable, script)
    assert "Traceback" in plain.stderr
    assert plain.stderr in done.stderr
    assert done.returncode == plain.returncode


def test_what_a_killed_run_says_of_its_coverage_is_unknown(tmp_path: Path) -> None:
    ending = """
        if step == 3:
            import os, time
            while not os.path.exists("trace/rank0/step2/step.json"):
                time.sleep(0.1)
            os._exit(9)
        print("""
    script = write(
        tmp_path, "killed.py", TRAINING.replace("    print(", textwrap.indent(textwrap.dedent(ending), "    "))
    )
    done = run(tmp_path, "--json", "--", sys.executable, script)
    told = json.loads(done.stdout)["ranks"][0]
    assert (told["closed"], told["stepping"]["updates"], told["roots"]) == (False, 0, [])
    assert told["calls"] == len(ops(open_trace(tmp_path / "trace"))) > 0
    command = [sys.executable, "-m", "ulpscope", "show", "trace"]
    shown = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "unknown: calls are counted when a trace is closed" in " ".join(shown.split())
