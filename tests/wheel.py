"""Whether a wheel holds all of ulpscope, and works away from this checkout: `python tests/wheel.py dist`.

The environment is new but for the packages that ulpscope needs: those are taken from the environment that runs this.
"""

import hashlib
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

SOURCES = Path(__file__).parents[1] / "src"
LEFT_BEHIND = ("__pycache__", ".egg-info")

LOOK = """
from pathlib import Path
import sys
import ulpscope
from ulpscope.operations.registry import operation
from ulpscope.phrases import phrase_table
from ulpscope.numerics.summaries.compiled import load
assert Path(ulpscope.__file__).is_relative_to(sys.prefix), ulpscope.__file__
assert operation("torch.nn.functional.linear").family is not None
assert all(phrase_table(language) for language in ("en", "zh"))
load()
"""


def main(folder: Path) -> None:
    [wheel] = folder.glob("*.whl")
    check_sum(wheel)
    check_files(wheel)
    with tempfile.TemporaryDirectory() as home:
        check_commands(install(wheel, Path(home) / "fresh"), Path(home))
    print(f"{wheel.name} is whole, and works in a fresh environment")


def check_sum(wheel: Path) -> None:
    found = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert (wheel.parent / "SHA256SUMS").read_text(encoding="utf-8") == f"{found}  {wheel.name}\n"


def check_files(wheel: Path) -> None:
    """The wheel holds every file of the sources, and nothing that is not there."""
    names = {str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*") if path.is_file()}
    ours = {name for name in names if not any(left in name for left in LEFT_BEHIND)}
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert packed == ours, f"missing: {sorted(ours - packed)}; not in src: {sorted(packed - ours)}"


def install(wheel: Path, fresh: Path) -> Path:
    """The folder of the fresh environment's programs."""
    venv.create(fresh, symlinks=True)
    programs = fresh / "bin"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(programs / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-deps", "--no-index", str(wheel)], check=True)
    [packages] = fresh.glob("lib/python*/site-packages")
    (packages / "needed.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")
    return programs


def check_commands(programs: Path, home: Path) -> None:
    """Each in an empty folder, with an empty cache."""
    environment = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"XDG_CACHE_HOME": str(home / "cache"), "PATH": f"{programs}:{environment['PATH']}"}
    empty = home / "empty"
    empty.mkdir()
    for command in (["python", "-c", LOOK], ["ulpscope", "--help"], ["ulpscope", "demo"]):
        done = subprocess.run([programs / command[0], *command[1:]], cwd=empty, env=environment, capture_output=True)
        assert done.returncode == 0, f"{command}: {done.stdout.decode()}\n{done.stderr.decode()}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
