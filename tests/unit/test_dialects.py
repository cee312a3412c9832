"""Dialects of other packages: the recipe of docs/extending.md, as it stands there, installed beside ulpscope."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

RECIPE = (Path(__file__).parents[2] / "docs" / "extending.md").read_text(encoding="utf-8").partition("## A dialect")[2]

Run = subprocess.CompletedProcess[str]


def block(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```$", RECIPE, re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


def install(site: Path, source: str) -> None:
    """What pip leaves of a package with this module and the entry point of the recipe."""
    words = re.search(r'^(\w+) = "([\w:]+)"$', block("toml"), re.MULTILINE)
    assert words is not None
    site.mkdir(parents=True)
    (site / f"{words[2].partition(':')[0]}.py").write_text(source)
    described = site / "toy_dialect-1.0.dist-info"
    described.mkdir()
    (described / "METADATA").write_text("Metadata-Version: 2.1\nName: toy-dialect\nVersion: 1.0\n")
    (described / "entry_points.txt").write_text(f"[ulpscope.dialects]\n{words[1]} = {words[2]}\n")


def ulpscope(site: Path, *words: object) -> Run:
    paths = [str(site), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    command = [sys.executable, "-m", "ulpscope", *map(str, words)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)


def dump(path: Path, *outputs: list[float]) -> Path:
    lines = [json.loads(line) for line in block("").splitlines()]
    told = [{**line, "output": output} for line, output in zip(lines, outputs, strict=True)]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in told))
    return path


def test_the_recipe_opens_its_dumps_as_runs(tmp_path: Path) -> None:
    install(tmp_path / "site", block("python"))
    reference = dump(tmp_path / "reference.toy", [1.0, 2.0], [1.0, 2.0])
    target = dump(tmp_path / "target.toy", [1.0, 2.0], [1.0, 2.5])
    shown = ulpscope(tmp_path / "site", "show", reference, "Relu.0", "--json")
    assert shown.returncode == 0, shown.stderr
    assert json.loads(shown.stdout)["call"]["module"] == "fc1/Relu"

    compared = ulpscope(tmp_path / "site", "compare", reference, target, "--json")
    assert compared.returncode == 1, compared.stderr
    found = json.loads(compared.stdout)
    assert [finding["call"] for finding in found["findings"]] == ["Relu.0"]
    assert found["counts"]["identical"] == 2
    assert ulpscope(tmp_path / "site", "report", reference).returncode == 0


def test_a_path_of_another_dialect_is_called_what_it_is(tmp_path: Path) -> None:
    install(tmp_path / "site", block("python"))
    path = dump(tmp_path / "run.toy", [1.0], [1.0])
    told = ulpscope(tmp_path / "site", "fusion", path)
    assert told.returncode == 2
    assert f"{path} is a dump of toy, not a fusion_result.json" in told.stderr


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise RuntimeError('no licence')", "cannot be loaded (RuntimeError: no licence)"),
        ("DIALECT = 3", "is of the type int"),
        (
            "from ulpscope.dialects.registry import Dialect\n"
            "DIALECT = Dialect('a toy', 'show it', recognises=lambda path: 1 / 0, open=None)",
            "fails with",
        ),
    ],
)
def test_a_broken_dialect_of_another_package_is_named_and_ours_go_on(tmp_path: Path, source: str, problem: str) -> None:
    install(tmp_path / "site", source)
    unknown = dump(tmp_path / "run.toy", [1.0], [1.0])
    told = ulpscope(tmp_path / "site", "show", unknown)
    assert told.returncode == 2
    assert f"the dialect toy of another package {problem}" in told.stderr

    ours = tmp_path / "arrays"
    ours.mkdir()
    np.save(ours / "fc1_Relu.0.1767225600900010.npy", np.ones(2, np.float32))
    assert ulpscope(tmp_path / "site", "show", ours).returncode == 0
