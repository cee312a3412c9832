"""The lines of README and docs/ as a reader pastes them: each does what the page says, none is refused."""

import contextlib
import io
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from tests.e2e.doc_lines import ROOT, doc_lines

from ulpscope.cli.main import main
from ulpscope.judge.soundness.limits import LIMITS

ASCEND = ROOT / "tests/data/ascend"
DUMP = "npu/debug_0/dump"
GRAPH = "npu/debug_0/graph/ge_proto_00000_Build.txt"
# Lines of docs/extending.md need the package that it tells how to write: tests/unit/test_dialects.py does both.
NAMES = sorted({page.name for page in (ROOT / "docs").glob("*.md")} - {"extending.md"})
PAGES = [f"docs/{name}" for name in NAMES if doc_lines(f"docs/{name}")]
# Until Ctrl-C.
ENDLESS = "--serve"


def typed(line: str, folder: Path) -> tuple[int, str]:
    """Exit code and output of a command in a folder; a device that is not here is the CPU."""
    words = shlex.split(line.lstrip("!"))[1:]
    if "--device" in words:
        words[words.index("--device") + 1] = "cpu"
    # Pages are read in any order, and several write to the same place.
    if {"-o", "--out"} & set(words) and words[0] not in ("convert", "report") and not line.startswith("!"):
        words[1:1] = ["--overwrite"]
    out, before = io.StringIO(), Path.cwd()
    os.chdir(folder)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out), pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.stdin", io.StringIO())
            return main(words), out.getvalue()
    finally:
        os.chdir(before)


@pytest.fixture(scope="module", autouse=True)
def same_python() -> Any:
    """`python` is the interpreter that has torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all that the pages speak of."""
    folder = tmp_path_factory.mktemp("stage")
    shutil.copy(ROOT / "src/ulpscope/demo_script/train.py", folder)
    for name, options in (("ref", ""), ("target", " --fault")):
        run = f"ulpscope run -o runs/{name} --save tensors -- python train.py{options}"
        assert typed(run, folder)[0] == 0
    shutil.copytree(folder / "runs/ref", folder / "ulpscope-demo/reference")
    shutil.copytree(folder / "runs/target", folder / "ulpscope-demo/target")
    shutil.copytree(folder / "runs/ref", folder / "runs/gan")
    assert typed("ulpscope compare runs/ref runs/target --out result", folder)[0] == 1
    for dump in ("dump_path", "gpu/dump_path", "npu/dump_path"):
        assert typed(f"ulpscope convert runs/ref --to msprobe -o {dump}", folder)[0] == 0
    _lay_out_ascend(folder)
    _lay_out_tensors(folder)
    (folder / "names.yaml").write_text("modules:\n  model.blocks.0: model.blocks.0\n", encoding="utf-8")
    paths = {"npu_path": "./npu/dump_path", "bench_path": "./gpu/dump_path"}
    (folder / "compare.json").write_text(json.dumps(paths), encoding="utf-8")
    (folder / "train.yaml").write_text("lr: 0.1\n", encoding="utf-8")
    for name in ("here.json", "there.json"):
        assert typed(f"ulpscope env -o {name}", folder)[0] == 0
    (folder / "mine.py").write_text("import ulpscope\n", encoding="utf-8")
    return folder


def _lay_out_ascend(folder: Path) -> None:
    data = folder / "precision_data"
    shutil.copytree(ASCEND / "precision_data", data)
    shutil.copytree(data / DUMP, folder / "npu/dump")
    for place in ("npu/debug_0/dump", "dump", "good/dump", "on/dump", "off/dump"):
        shutil.copytree(data / DUMP, folder / place)
    shutil.copytree(data / "overflow/dump", folder / "overflow/dump")
    shutil.copytree(data / "tf/dump", folder / "tf/dump")
    shutil.copytree(ASCEND / "debug_1/dump", folder / "bad/dump")
    shutil.copytree(ASCEND / "tf_debug_real", folder / "tf_debug")
    shutil.copytree(ROOT / "tests/data/tfdbg/functions", folder / "tf_debug2")
    graphs = "ge_proto_00000_Build.txt graphs/ge_proto_00000_Build.txt debug_0/graph/ge_proto_00000_Build.txt"
    others = "debug_1/graph/ge_proto_00000_Build.txt ON_Build.txt OFF_Build.txt on_Build.txt off_Build.txt"
    for place in f"{graphs} {others}".split():
        (folder / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(data / GRAPH, folder / place)
    shutil.copy(ASCEND / "fusion/fusion_result.list.json", folder / "fusion_result.json")
    shutil.copy(ASCEND / "fusion/fusion_switch.cfg", folder)
    shutil.copy(ASCEND / "expected/msaccucmp_2025-09_native/cmp_npu_npu.csv", folder / "result_20260101000000.csv")
    for file in [*folder.glob("npu/dump/**/Relu.fc1_Relu.21.*"), *folder.glob("tf/dump/**/fc1_Relu.0.*.npy")]:
        shutil.copy(file, folder)


def _lay_out_tensors(folder: Path) -> None:
    values = np.linspace(-1.0, 1.0, 24, dtype=np.float32).reshape(4, 6)
    for name in ("reference.npy", "a.npy", "b.npy", "gpu/arrays/a.npy", "npu/arrays/a.npy"):
        (folder / name).parent.mkdir(exist_ok=True)
        np.save(folder / name, values)
    for name, key in (("a.npz", "x"), ("b.npz", "y")):
        np.savez(folder / name, **{key: values})
    for name in ("target.pt", "b.pt"):
        torch.save(
            {"model.norm.weight": torch.from_numpy(values)} if name == "b.pt" else torch.from_numpy(values),
            folder / name,
        )
    tensors = {"model.norm.weight": values}
    for name in ("a", "step10", "step20", "checkpoint-10/model", "checkpoint-20/model"):
        (folder / name).parent.mkdir(exist_ok=True)
        save_file(tensors, folder / f"{name}.safetensors")


@pytest.mark.parametrize("page", PAGES)
def test_the_lines_of_a_page_work(page: str, stage: Path) -> None:
    for line in doc_lines(page):
        if ENDLESS in line:
            continue
        code, said = typed(line, stage)
        expected = (2,) if line.startswith("!") else (0, 1)
        assert code in expected, f"{line}\n{said}"


def test_the_lines_of_readme_work_in_an_empty_folder(tmp_path: Path) -> None:
    shutil.copy(ROOT / "src/ulpscope/demo_script/train.py", tmp_path)
    _lay_out_ascend(tmp_path)
    runs = sorted(doc_lines("README.md"), key=lambda line: not line.startswith("ulpscope run"))
    for line in runs:
        if ENDLESS in line:
            continue
        fault = " --fault" if "-o runs/target" in line else ""
        code, said = typed(line + fault, tmp_path)
        assert code in (0, 1), f"{line}\n{said}"
    told = (ROOT / "README.md").read_text(encoding="utf-8").split("```")[1].splitlines()[2:]
    assert "\n".join(told).strip() in typed("ulpscope compare runs/ref runs/target", tmp_path)[1]


def test_both_readmes_have_the_same_lines() -> None:
    assert doc_lines("README.md") == doc_lines("README.zh-CN.md")


def test_the_page_of_repro_states_the_limits_of_its_scripts() -> None:
    rows = [
        line.split("|") for line in (ROOT / "docs/repro.md").read_text(encoding="utf-8").splitlines() if "|" in line
    ]
    limits = {cells[1].strip(): cells[3].split()[0].strip(",") for cells in rows if len(cells) == 5}
    stated = [float(limits[name]) for name in ("largest", "rms", "one-sided")]
    assert stated == [LIMITS.spread, LIMITS.storage_fail, LIMITS.script_one_sided]


def test_the_python_of_the_pages_works(stage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = [block.split("```")[0] for block in page.split("```python\n")[1:]]
    monkeypatch.chdir(stage)
    for written in ("result", "repro"):
        shutil.rmtree(written, ignore_errors=True)
    names: dict[str, Any] = {"model": torch.nn.Linear(2, 2), "data": [torch.ones(1, 2)] * 2}
    names["train_step"] = lambda batch: names["model"](batch).sum().backward()
    blocks[0] = blocks[0].replace("runs/ref", "runs/small")
    for block in blocks:
        exec(block, names)
    assert json.loads(Path("result/summary.json").read_text())["verdict"]
