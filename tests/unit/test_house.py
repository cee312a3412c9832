"""Rules of the house that no linter checks: small files, links that lead somewhere, one version."""

import re
from importlib.metadata import version
from pathlib import Path

import pytest

import ulpscope

ROOT = Path(__file__).parents[2]
LONGEST_FILE = 600
READMES = ("README.md", "README.zh-CN.md")
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_no_source_file_grows_too_long() -> None:
    lengths = {path.relative_to(ROOT): len(read(path).splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST_FILE} == {}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", read(page))
    broken = [link for link in links if "://" not in link and not (page.parent / link).exists()]
    assert broken == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_paths_in_pages_exist(page: Path) -> None:
    paths = re.findall(r"`((?:src|docs|tests|benchmarks|examples)/[\w./-]+)`", read(page))
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_modules_on_the_map_exist() -> None:
    """Also those that architecture.md names without their room, or with a part of their path."""
    files = [f"/{path.relative_to(ROOT)}" for room in ("src", "benchmarks") for path in (ROOT / room).rglob("*")]
    names = re.findall(r"`([\w./]+\.(?:py|js|h|cpp))`", read(ROOT / "docs/architecture.md"))
    assert names
    assert [name for name in names if not any(file.endswith(f"/{name}") for file in files)] == []


def test_pictures_are_small() -> None:
    pictures = sorted((ROOT / "docs/pictures").glob("*.webp"))
    assert [picture.name for picture in pictures] == ["answer.webp", "run.webp"]
    assert all(picture.stat().st_size < 100_000 for picture in pictures)


def test_both_readmes_have_the_same_shape() -> None:
    english, chinese = (re.findall(r"^(#+ |```|\|)", read(ROOT / name), re.MULTILINE) for name in READMES)
    assert english == chinese


def test_there_is_one_version() -> None:
    assert version("ulpscope") == ulpscope.__version__
    releases = re.findall(r"^## (.*)$", read(ROOT / "CHANGELOG.md"), re.MULTILINE)
    releases = [release for release in releases if release != "Unreleased"]
    assert all(re.fullmatch(r"\d+\.\d+\.\d+ \(\d{4}-\d\d-\d\d\)", release) for release in releases)
    assert releases[0].split()[0] == ulpscope.__version__
