"""Dumps that msprobe itself wrote; tests/data/msprobe/README.md says what each is."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest
from tests.unit.msprobe_dumps import ARCHIVES, unpack

from ulpscope.dialects.opening import open_run
from ulpscope.records.enums import Phase
from ulpscope.trace.query import find_call
from ulpscope.trace.reader import Trace
from ulpscope.workflows.show.command import show

NAMES = sorted(archive.name.removesuffix(".tar.gz") for archive in ARCHIVES.glob("*.tar.gz"))
# Calls and values of step 0 of the first rank, and what the summaries are.
FOUND = {
    "cnn_L0_statistics_ref": (18, 41, "msprobe-stats"),
    "cnn_L1_md5_ref": (112, 144, "msprobe-md5"),
    "ddp_ref": (398, 489, "msprobe-stats"),
    "debug": (2, 3, "msprobe-stats"),
    "lm_L1_tensor_ref": (329, 425, "msprobe-stats"),
    "lm_mix_statistics_ref": (369, 431, "msprobe-stats"),
    "mindspore_L1_tensor": (29, 41, "msprobe-stats"),
    "mindspore_mix_statistics": (39, 41, "msprobe-stats"),
    "nan_mix": (369, 740, "msprobe-stats"),
    "structure": (403, 0, "msprobe-stats"),
    "xor": (329, 530, "msprobe-xor"),
}


def count_phases(trace: Trace) -> dict[str, int]:
    return dict(trace.collect(trace.calls().group_by("phase").len()).iter_rows())


@pytest.mark.parametrize("name", NAMES)
def test_every_dump_is_whole(tmp_path: Path, name: str) -> None:
    trace = open_run(unpack(name, tmp_path))
    calls, values, uses = (trace.collect(frame) for frame in (trace.calls(), trace.values(), trace.tensors()))
    assert not calls.select("process", "step", "phase", "name", "kind").is_duplicated().any()
    for rank in trace.ranks:
        own = calls.filter(process=rank.name)
        assert own["id"].to_list() == list(range(own.height))
        assert set(uses.filter(process=rank.name)["value"]) == set(values.filter(process=rank.name)["id"])
        assert set(uses.filter(process=rank.name)["call"]) <= set(own["id"])
        assert set(own["parent"].drop_nulls()) | set(own["forward"].drop_nulls()) <= set(own["id"])
        assert set(values.filter(process=rank.name)["producer"].drop_nulls()) <= set(own["id"])


@pytest.mark.parametrize("name", sorted(FOUND))
def test_what_a_dump_holds(tmp_path: Path, name: str) -> None:
    rank = open_run(unpack(name, tmp_path)).ranks[0]
    info = rank.step_info(0)
    assert info is not None
    assert (info.calls, info.values, rank.summary_id) == FOUND[name]


def test_phases_of_a_training_step(tmp_path: Path) -> None:
    assert count_phases(open_run(unpack("lm_mix_statistics_ref", tmp_path))) == {
        "forward": 54,
        "backward": 54,
        "update": 261,
    }
    assert count_phases(open_run(unpack("mindspore_mix_statistics", tmp_path))) == {"forward": 44, "backward": 34}


def test_a_call_of_a_real_dump(tmp_path: Path) -> None:
    trace = open_run(unpack("lm_mix_statistics_bug", tmp_path))
    found = find_call(trace, "torch.nn.functional.layer_norm.3", phase=Phase.FORWARD)
    call, rank = found.call, found.rank_trace
    assert (call.module, call.module_class, call.step) == ("model.blocks.1.ln2", "LayerNorm", 0)
    assert call.arguments["args"][4] == 0.1
    assert call.stack is not None
    assert str(rank.stack(call.stack)[0]) == "/home/user/runs/scripts/models.py:38 in forward"
    output = rank.value(rank.uses(call.id)[-1].value)
    assert output.producer == call.id
    assert output.stats is not None
    assert output.stats.norm == pytest.approx(27.0696, abs=1e-4)
    assert "torch.Tensor.__add__.3" in show(trace.path, call=call.id).text()


def test_ranks_of_a_distributed_run(tmp_path: Path) -> None:
    trace = open_run(unpack("ddp_ref", tmp_path))
    assert [(rank.name, rank.info.rank, rank.info.world_size) for rank in trace.ranks] == [
        ("rank0", 0, 2),
        ("rank1", 1, 2),
    ]
    collectives = trace.collect(trace.calls().filter(pl.col("kind") == "collective"))
    assert set(collectives["op"]) == {"torch.distributed.all_reduce"}


def test_a_planted_inf_is_told_where_it_appears(tmp_path: Path) -> None:
    rank = open_run(unpack("nan_mix", tmp_path)).ranks[0]
    linear = find_call(open_run(tmp_path / "nan_mix"), "torch.nn.functional.linear.6", phase=Phase.FORWARD).call
    stats = [rank.value(use.value).stats for use in rank.uses(linear.id)]
    assert [(s.nan, s.pos_inf) for s in stats if s is not None] == [(0, 0), (0, 1), (0, 0), (1, 0)]


def test_data_of_mindspore(tmp_path: Path) -> None:
    trace = open_run(unpack("mindspore_L1_tensor", tmp_path))
    assert trace.missing == ()
    found = find_call(trace, "mindspore.ops.matmul.0", phase=Phase.FORWARD)
    rank = found.rank_trace
    left, right, output = [rank.data(rank.value(use.value)) for use in rank.uses(found.call.id)]
    assert left is not None
    assert right is not None
    assert output is not None
    assert np.allclose(left @ right, output, rtol=1e-5)


def test_data_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    trace = open_run(unpack("lm_L1_tensor_bug", tmp_path))
    found = find_call(trace, "torch.nn.functional.layer_norm.3", phase=Phase.FORWARD)
    rank = found.rank_trace
    values = {use.place: rank.value(use.value) for use in rank.uses(found.call.id)}
    x, output = rank.data(values["args.0"]), rank.data(values["output.0"])
    assert x is not None
    assert output is not None
    centred = x - x.mean(-1, keepdims=True)
    assert np.allclose(output, centred / np.sqrt(x.var(-1, keepdims=True) + 0.1), atol=1e-5)
    assert "286 tensor files are not there" in trace.missing[0]
