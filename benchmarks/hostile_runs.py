"""Cases of hostile.py: traces, results and other tools' runs, each damaged in one file and given to commands."""

import argparse
import contextlib
import io
import json
import os
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.unit.checking import checked, output
from tests.unit.msprobe_dumps import backward, forward, tensor, write_dump
from tests.unit.saved_runs import SavedRun

import watched_traces
from hostile_damages import SECRET, Damage, damage_bytes, damage_json, damage_table, mixed
from ulpscope.cli.main import main
from ulpscope.records.checks import Verdict
from ulpscope.records.enums import ExitCode
from ulpscope.trace.schema import part_name
from ulpscope.workflows.check.journal import checked_json
from ulpscope.workflows.compare.command import compare
from ulpscope.workflows.results import prepare_result

Lay = Callable[[Path], Sequence[Path]]
Read = Callable[[Path, int], str | None]

OPS = ("torch.nn.functional.linear", "torch.relu", "torch.nn.functional.layer_norm")
LEFT_OUT = "--replay off"
"""Executing calls again takes torch, which is not what is damaged here."""

TRACE_COMMANDS = (
    f"compare ref run {LEFT_OUT}",
    "show run",
    f"compare run ref {LEFT_OUT}",
    "show run --op *",
    "show run 1",
    f"compare ref run --plan {LEFT_OUT}",
    "show run torch.relu.0 --step 1",
    "show run 2 --tensor output.0",
    "overflow run",
    f"compare ref run {LEFT_OUT} --out out",
    "show run --env",
    "show run nothing.7",
    "convert run --to msprobe -o out",
    "repro run torch.relu.0 --step 0 -o out",
    "overflow ref run --json",
    "show run --coverage",
    "show run 4 --json",
    "report run --model-explorer out",
    "report run --tensorboard out",
)
WATCHED_COMMANDS = (
    "compare ref run",
    "show run",
    "compare run ref --json --out out",
    "show run --op *",
    "show run 1",
    "convert run --to msprobe -o out",
    "show run AdamW.3 --step 3",
)
RESULT_COMMANDS = ("report result", "report result --model-explorer out", "report result --tensorboard out")
CHECK_COMMANDS = ("compare ref run", "compare run ref --json", "compare ref run --out out", "report run")
RUN_COMMANDS = (
    f"compare ref run {LEFT_OUT}",
    "show run",
    "show run --op *",
    "show run 0",
    "overflow run",
    f"compare run ref {LEFT_OUT}",
    "show run 1 --tensor output.0",
)
DIFF_COMMANDS = ("diff {file} {sound}", "diff {sound} {file} --json")


def lay_traces(folder: Path) -> Path:
    """Two runs of two steps whose values are saved; the second differs a little, and in one call by much."""
    for name, noise in (("ref", 0.0), ("run", 1e-6)):
        run = SavedRun()
        weight = run.value(np.linspace(-1, 1, 12).reshape(3, 4))
        for run.step in (0, 1):
            held = np.linspace(0, 2, 12).reshape(3, 4) * (1 + noise)
            made = run.value(held)
            outer = run.call("Block", reads={"args.0": made}, kind="module", module="model", module_class="Block")
            for place, op in enumerate(OPS):
                held = held + 1 + (noise * 1e5 if op == OPS[2] else 0.0)
                reads = {"args.0": made} if op == OPS[1] else {"args.0": made, "args.1": weight}
                arguments = {"args": [{"$tensor": name} for name in reads], "kwargs": {}}
                call = run.call(
                    op, reads=reads, makes={"output.0": held}, module=f"model.{place}", module_class="Layer",
                    parent=outer, stack=place, arguments=arguments,
                )  # fmt: skip
                made = run.output(call)
            run.use(outer, "output", "output.0", made)
            forward_call = len(run.calls) - 1
            run.call(
                OPS[2], reads={"grad_output.0": made}, makes={"args.0": held / 7}, role="grad_output",
                made_role="grad_input", kind="backward", phase="backward", forward=forward_call,
            )  # fmt: skip
            makes = {"params.0": np.linspace(-1, 1, 12).reshape(3, 4) - 0.1}
            run.call("SGD", reads={"params.0": weight}, makes=makes, kind="optimizer", phase="update")
        run.write(folder / name, capture={"level": "api", "save": "tensors"})
        rows = [(stack, depth, __file__, 10 + depth, "forward") for stack in range(len(OPS)) for depth in (0, 1)]
        stacks = pl.DataFrame(rows, schema=["stack", "depth", "file", "line", "function"], orient="row")
        stacks.write_parquet(folder / name / "rank0" / part_name("stacks", 0))
    return folder / "run" / "rank0"


def lay_watched(folder: Path) -> Path:
    """Two trainings of which gradients were watched, with another batch in one step."""
    sizes = argparse.Namespace(steps=12, parameters=2, single=False)
    for name in ("ref", "run"):
        watched_traces.make(folder / name, sizes, is_target=name == "run")
    return folder / "run" / "rank0"


def inside(lay: Callable[[Path], Path], *names: str) -> Lay:
    """Some files of what is laid there."""

    def files(folder: Path) -> list[Path]:
        directory = lay(folder)
        return [directory / name for name in names]

    return files


def lay_result(folder: Path) -> Path:
    lay_traces(folder)
    found = compare(folder / "ref", folder / "run")
    out = folder / "result"
    prepare_result(out, overwrite=False)
    found.write(out)
    return out


def lay_checks(folder: Path) -> list[Path]:
    quiet = {"rmse": 1e-2, "max_rel": 1e-2, "mean_rel": 1e-2, "small_value_ratio": 0.0, "error_balance": 0.0}
    for name, device in (("ref", "cpu"), ("run", "cuda:0")):
        out = folder / name
        out.mkdir()
        lines = [json.dumps({"command": "check"})]
        for number, op in enumerate(("softmax", "exp", "silu")):
            made = output(Verdict.PASS, metrics=tuple(quiet.items()))
            case = replace(checked(op, Verdict.PASS, number=number, outputs=(made,)), device=device)
            lines.append(json.dumps(checked_json(case)))
        (out / "cases.jsonl").write_text("\n".join(lines) + "\n")
        summary = {"command": "check", "trace": "runs/ref", "scope": {"devices": [device]}}
        (out / "summary.json").write_text(json.dumps(summary))
    return [folder / "run" / name for name in ("cases.jsonl", "cases.jsonl", "summary.json")]


def lay_msprobe(folder: Path) -> list[Path]:
    """A module, two calls in it, their backward; stacks; saved tensors."""
    for name, noise in (("ref", 0.0), ("run", 0.01)):
        saved = {"data_name": "Functional.relu.0.forward.output.0.npy"}
        data = {
            "Module.act.ReLU.forward.0": forward([tensor()], [tensor(2.5 + noise)]),
            "Functional.relu.0.forward": forward([tensor()], [tensor(2.5 + noise) | saved]),
            "Functional.linear.0.forward": forward([tensor(), {"type": "int", "value": 3}], [tensor(3.5)]),
            "Functional.relu.0.backward": backward([tensor(0.5)], [tensor(0.25)]),
        }
        stack = {"0": [["Functional.relu.0.forward"], ["File secret.txt, line 1, in f, \n x()"]]}
        construct = dict.fromkeys(data) | {"Functional.relu.0.forward": "Module.act.ReLU.forward.0"}
        made = write_dump(folder / name, data, task="tensor", stack=stack, construct=construct, dump_data_dir=None)
        (made / "dump_tensor_data").mkdir()
        np.save(made / "dump_tensor_data" / saved["data_name"], np.full((2, 3), 2.5 + noise, np.float32))
    return [made / "dump.json", made / "dump.json", made / "stack.json", made / "construct.json"]


def lay_api_checker(folder: Path) -> list[Path]:
    given = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 2.0, "Min": -1.0}
    call = {
        "args": [given, {"type": "slice", "value": [0, 2, None]}],
        "kwargs": {"x": {"type": "bool", "value": False}},
    }
    contents = {
        "forward": {"Functional*silu*0": call, "Functional*relu*0": call},
        "backward": {"Functional*silu*0": [given]},
        "stack": {"Functional*silu*0": ["File /home/user/model.py, line 54, in forward, \n x = silu(x)"]},
    }  # fmt: skip
    for name in ("ref", "run"):
        (folder / name).mkdir()
        for part, content in contents.items():
            (folder / name / f"{part}_info_0.json").write_text(json.dumps(content))
    return [folder / "run" / f"{part}_info_0.json" for part in contents]


def lay_tensor_file(ending: str) -> Lay:
    def lay(folder: Path) -> list[Path]:
        arrays = {"a.weight": np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4), "b": np.arange(5)}
        for name in ("run", "ref"):
            write_arrays(folder / f"{name}{ending}", arrays)
        return [folder / f"run{ending}"]

    return lay


def write_arrays(path: Path, arrays: dict[str, np.ndarray]) -> None:
    if path.suffix == ".npy":
        np.save(path, arrays["a.weight"])
    elif path.suffix == ".npz":
        np.savez_compressed(path, **arrays)
    elif path.suffix == ".safetensors":
        from safetensors.numpy import save_file

        save_file(arrays, path)
    else:
        import torch

        torch.save({name: torch.from_numpy(array) for name, array in arrays.items()}, path)


def commands(*words: str) -> Read:
    """One of some commands, in the folder of the case: any answer but our own fault, and nothing that steers."""

    def read(path: Path, number: int) -> str | None:
        folder = next(parent for parent in path.parents if (parent / "secret.txt").is_file())
        shutil.rmtree(folder / "out", ignore_errors=True)
        here = os.getcwd()
        os.chdir(folder)
        try:
            names = {"file": path.name, "sound": path.name.replace("run", "ref")}
            return run_command(words[number % len(words)].format(**names).split(" "))
        finally:
            os.chdir(here)

    return read


def run_command(argv: list[str]) -> str | None:
    told, complained = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(told), contextlib.redirect_stderr(complained):
        code = main(["--debug", *argv])
    text = told.getvalue() + complained.getvalue()
    if code == ExitCode.OWN_FAULT:
        raise AssertionError(f"{' '.join(argv)}: {complained.getvalue()[-1500:]}")
    problems = {
        "an error that says too little": code == ExitCode.USAGE and "next:" not in text,
        "a line of a file that is no program's": SECRET in text,
        "characters that steer a terminal": "\x1b" in text or "\x07" in text,
    }
    for problem, found in problems.items():
        if found:
            raise AssertionError(f"{' '.join(argv)}: {problem}: {text[-600:]!r}")
    return "error" if code == ExitCode.USAGE else None


TABLE = mixed(damage_table)
DESCRIPTION = mixed(damage_json)
ELEMENTS = mixed(damage_bytes)


def in_trace(damage: Damage, *names: str) -> tuple[Lay, Damage, Read]:
    return inside(lay_traces, *names), damage, commands(*TRACE_COMMANDS)


def in_watched(damage: Damage, *names: str) -> tuple[Lay, Damage, Read]:
    return inside(lay_watched, *names), damage, commands(*WATCHED_COMMANDS)


def in_result(damage: Damage, *names: str) -> tuple[Lay, Damage, Read]:
    return inside(lay_result, *names), damage, commands(*RESULT_COMMANDS)


RUN_CASES: dict[str, tuple[Lay, Damage, Read]] = {
    "calls": in_trace(TABLE, "step0/calls-000.parquet", "step1/calls-000.parquet"),
    "values": in_trace(TABLE, "step0/values-000.parquet", "step1/values-000.parquet"),
    "tensors": in_trace(TABLE, "step0/tensors-000.parquet", "step1/tensors-000.parquet"),
    "stacks": in_trace(TABLE, "stacks-000.parquet"),
    "rank.json": in_trace(DESCRIPTION, "rank.json"),
    "step.json": in_trace(DESCRIPTION, "step0/step.json", "step1/step.json"),
    "saved data": in_trace(ELEMENTS, "step0/data-000.safetensors", "step1/data-000.safetensors"),
    "blocks": in_watched(TABLE, *(f"steps-000/{name}-000.parquet" for name in ("calls", "values", "tensors"))),
    "steps.json": in_watched(DESCRIPTION, "steps-000/steps.json"),
    "pairs": in_result(TABLE, "pairs.parquet"),
    "result.json": in_result(DESCRIPTION, "summary.json", "plan.json", "told.json"),
    "check results": (lay_checks, DESCRIPTION, commands(*CHECK_COMMANDS)),
    "msprobe": (lay_msprobe, DESCRIPTION, commands(*RUN_COMMANDS)),
    "api_checker": (lay_api_checker, DESCRIPTION, commands(*RUN_COMMANDS)),
    **{
        ending: (lay_tensor_file(ending), ELEMENTS, commands(*DIFF_COMMANDS))
        for ending in (".npy", ".npz", ".safetensors", ".pt")
    },
}
