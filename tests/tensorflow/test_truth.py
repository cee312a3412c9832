"""A sample of the faults in runs of TensorFlow; `python -m zoo_tf` in benchmarks/ scores all of them."""

import pytest

from zoo.__main__ import chosen_cases
from zoo.captures import Asked, capture_all, missing_runs
from zoo.scoring import Score, compare
from zoo_tf.__main__ import ZOO

SAMPLE = (
    "lenet.norm_eps.graph fp32",
    "lenet.pooling.graph bf16",
    "lenet.weight_changed.graph fp32",
    "lenet.dropout_seed.graph fp32",
    "lenet.bf16 clean",
)


@pytest.fixture(scope="module")
def scores(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Score]:
    work = tmp_path_factory.mktemp("zoo")
    cases = [case for case in chosen_cases(ZOO, None) if case.name in SAMPLE]
    capture_all(missing_runs(cases, work), work, asked=Asked(), jobs=2, done=lambda run: None, prepared=ZOO.prepared)
    return {case.name: compare(case, work, work / "results") for case in cases}


@pytest.mark.parametrize("name", SAMPLE)
def test_the_answer_is_right(scores: dict[str, Score], name: str) -> None:
    assert scores[name].is_right, scores[name].said


def test_half_of_the_faults_are_under_mixed_precision() -> None:
    variants = [variant for fault in ZOO.faults for variant in fault.variants]
    assert len(variants) >= 24
    assert variants.count("bf16") * 2 >= len(variants) - 4
    assert len({fault.family for fault in ZOO.faults}) >= 4
    assert len(ZOO.clean_pairs) >= 10
    assert all(case.reference != case.target for case in chosen_cases(ZOO, None))
