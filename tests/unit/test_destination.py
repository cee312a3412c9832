import os
import platform
import subprocess
from pathlib import Path

import pytest

from ulpscope.records.errors import UlpscopeError
from ulpscope.trace.writer import claim_rank_directory
from ulpscope.workflows.results import held_destination, prepare_destination


def make_trace(out: Path) -> Path:
    (out / "rank0").mkdir(parents=True)
    (out / "rank0" / "rank.json").write_text("{}")
    return out


def test_a_new_directory_is_made(tmp_path: Path) -> None:
    prepare_destination(tmp_path / "a" / "b", overwrite=False)
    assert list((tmp_path / "a" / "b").iterdir()) == []


def test_a_trace_is_kept_unless_overwrite_is_given(tmp_path: Path) -> None:
    out = make_trace(tmp_path / "ref")
    with pytest.raises(UlpscopeError, match="already holds a trace") as caught:
        prepare_destination(out, overwrite=False)
    assert "--overwrite" in caught.value.next_step
    assert (out / "rank0" / "rank.json").exists()
    prepare_destination(out, overwrite=True)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("overwrite", [False, True])
def test_other_files_are_never_removed(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(UlpscopeError, match=r"no trace \(thesis.tex\)"):
        prepare_destination(tmp_path, overwrite=overwrite)
    assert (tmp_path / "thesis.tex").exists()


def test_overwrite_refuses_before_it_removes(tmp_path: Path) -> None:
    out = make_trace(tmp_path / "ref")
    (out / "rank1").mkdir()
    (out / "rank1" / "thesis.tex").write_text("precious")
    with pytest.raises(UlpscopeError, match="rank1"):
        prepare_destination(out, overwrite=True)
    assert (out / "rank1" / "thesis.tex").exists()
    assert (out / "rank0" / "rank.json").exists()


def test_overwrite_does_not_follow_links(tmp_path: Path) -> None:
    elsewhere = make_trace(tmp_path / "elsewhere")
    out = tmp_path / "ref"
    out.mkdir()
    (out / "rank0").symlink_to(elsewhere / "rank0")
    prepare_destination(out, overwrite=True)
    assert (elsewhere / "rank0" / "rank.json").exists()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_not_a_destination(tmp_path: Path, overwrite: bool) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("precious")
    with pytest.raises(UlpscopeError, match="is not a directory"):
        prepare_destination(file, overwrite=overwrite)
    with pytest.raises(UlpscopeError, match="cannot write to"):
        prepare_destination(file / "below", overwrite=overwrite)
    assert file.read_text() == "precious"


def test_a_rank_looks_at_its_own_part_only(tmp_path: Path) -> None:
    for name in ("rank0", "rank1", "rank10"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "rank.json").write_text("{}")
    with pytest.raises(UlpscopeError, match="rank1"):
        prepare_destination(tmp_path, overwrite=False, rank=1)
    prepare_destination(tmp_path, overwrite=False, rank=2)
    prepare_destination(tmp_path, overwrite=True, rank=1)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank0", "rank10"]


def test_a_second_capture_is_refused_while_the_first_has_written_nothing_yet(tmp_path: Path) -> None:
    out = tmp_path / "t"
    with held_destination(out, shared=False):
        prepare_destination(out, overwrite=False)
        for shared in (False, True):
            with (
                pytest.raises(UlpscopeError, match="another capture is writing into"),
                held_destination(out, shared=shared),
            ):
                pass
    assert not out.exists()
    with held_destination(out, shared=False):
        prepare_destination(out, overwrite=False)


def test_captures_that_bring_ranks_of_one_job_share_a_directory(tmp_path: Path) -> None:
    with held_destination(tmp_path, shared=True):
        with held_destination(tmp_path, shared=True):
            prepare_destination(tmp_path, overwrite=False)
        with pytest.raises(UlpscopeError, match="another capture"), held_destination(tmp_path, shared=False):
            pass
    assert os.listdir(tmp_path) == []


def test_the_mark_of_a_capture_that_was_killed_keeps_nobody_out(tmp_path: Path) -> None:
    (tmp_path / f".ulpscope-run-{platform.node()}").touch()
    with held_destination(tmp_path, shared=False):
        prepare_destination(tmp_path, overwrite=False)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("alive", [False, True])
def test_what_a_dead_process_took_and_never_filled_is_free_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alive: bool
) -> None:
    dead = subprocess.Popen(["true"])
    dead.wait()
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: os.getppid() if alive else dead.pid)
        (claim_rank_directory(tmp_path, 0, run="x") / "rank.json").write_text("{}")
    if alive:
        with pytest.raises(UlpscopeError, match="already holds a trace"):
            prepare_destination(tmp_path, overwrite=False)
    else:
        prepare_destination(tmp_path, overwrite=False)
        assert os.listdir(tmp_path) == []


def test_what_another_capture_tries_to_write_with_is_none_of_the_users_files(tmp_path: Path) -> None:
    (tmp_path / ".ulpscope-x1y2z3").touch()  # two launchers of one job begin at once
    prepare_destination(tmp_path, overwrite=False)
