"""A sample of the fault zoo; `python -m zoo` in benchmarks/ runs all of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from zoo.__main__ import ZOO, chosen_cases
from zoo.captures import Asked, Case, capture_all, missing_runs
from zoo.clean_pairs import CLEAN_PAIRS
from zoo.expectations import Fault
from zoo.faults import FAULTS
from zoo.measuring import distance
from zoo.scoring import Score, compare, names, total

SAMPLE = (
    "gpt.norm_eps fp32",
    "gpt.causal_mask bf16",
    "gpt.order_late fp32",
    "gpt.decayed_norm bf16",
    "gpt.bf16 clean",
    "gpt.sdpa clean",
    "autoencoder.backward_factor bf16",
    "autoencoder.layer_not_loaded fp32",
    "autoencoder.noise_generator fp32",
    "autoencoder.bf16 clean",
    "recommender.exponent_overflow fp32",
    "recommender.bf16 clean",
    "translator.padding_seen bf16",
    "translator.bf16_1 clean",
    "translator.fp16_scaler clean",
)


KERNELS = (
    *(f"{family}.bf16 clean" for family in "llama gpt resnet vit moe tagger unet autoencoder recommender".split()),
    "translator.bf16_1 clean",
    "gpt.norm_eps fp32",
    "gpt.norm_eps bf16",
)
"""Captured at level kernel."""


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Score]:
    return scored(SAMPLE, tmp_path_factory.mktemp("zoo"), Asked())


@pytest.fixture(scope="module")
def kernel_scores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Score]:
    return scored(KERNELS, tmp_path_factory.mktemp("kernels"), Asked(level="kernel"))


def scored(names: tuple[str, ...], work: Path, asked: Asked) -> dict[str, Score]:
    cases = {case.name: case for case in chosen_cases(ZOO, None)}
    sample = [without_baseline(cases[name]) for name in names]
    capture_all(missing_runs(sample, work), work, asked=asked, jobs=2, done=lambda run: None)
    return {case.name: compare(case, work, work / "results") for case in sample}


def without_baseline(case: Case) -> Case:
    return Case(case.subject, case.variant, case.reference, case.target)


@pytest.mark.parametrize("name", SAMPLE)
def test_the_answer_is_right(scores: dict[str, Score], name: str) -> None:
    assert scores[name].is_right, scores[name].said


@pytest.mark.parametrize("name", KERNELS)
def test_the_answer_is_right_at_level_kernel(kernel_scores: dict[str, Score], name: str) -> None:
    assert kernel_scores[name].is_right, kernel_scores[name].said


def test_a_kernel_is_named_where_it_stands_out(kernel_scores: dict[str, Score]) -> None:
    assert "aten.native_layer_norm" in kernel_scores["gpt.norm_eps fp32"].said


def test_the_zoo_is_as_large_as_it_claims() -> None:
    assert len(FAULTS) >= 36
    assert len({fault.family for fault in FAULTS}) >= 6
    assert len(CLEAN_PAIRS) >= 16
    for group in (FAULTS, CLEAN_PAIRS):
        assert len({item.name for item in group}) == len(group)


def test_a_case_has_two_different_runs() -> None:
    assert all(case.reference != case.target for case in chosen_cases(ZOO, None))


def finding(**fields: object) -> dict[str, object]:
    return {"kind": "computation", "module": "model.rotary", "phase": "forward", "rank": 0, "step": 0, **fields}


def test_an_answer_must_name_kind_module_and_phase() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "llama.rotary_base")
    assert names(fault, finding())
    assert not names(fault, finding(kind="input"))
    assert not names(fault, finding(module="model"))
    assert not names(fault, finding(phase="backward"))


def test_an_answer_must_name_rank_and_late_step() -> None:
    by_rank = next(fault for fault in FAULTS if fault.name == "parallel.rank_data")
    assert names(by_rank, finding(kind="input", rank=1))
    assert not names(by_rank, finding(kind="input", rank=0))
    late = next(fault for fault in FAULTS if fault.name == "llama.schedule_early")
    assert names(late, finding(kind="optimizer", step=1))
    assert not names(late, finding(kind="optimizer", step=0))


def test_a_case_without_an_answer_is_wrong_and_one_false_alarm_fails() -> None:
    fault, clean = (
        next(c for c in chosen_cases(ZOO, None) if isinstance(c.subject, Fault) is kind) for kind in (True, False)
    )
    assert not Score(fault, ()).is_right
    assert not Score(clean, (), "exit code 70").is_right
    assert total([Score(clean, ())]).is_passed
    assert not total([Score(clean, (json.loads("{}"),))]).is_passed


def test_distances_count_what_is_finite_in_one_run_only() -> None:
    true = np.array([3.0, 4.0, -np.inf])
    assert distance(true, np.array([3.0, 4.5, -np.inf])) == pytest.approx(0.1)
    assert distance(true, np.array([3.0, 4.0, 0.0])) == np.inf
