"""Some wrong kernels in the place of sound ones; `python benchmarks/check_faults.py` does all."""

import pytest

from check_faults import earned
from faults.checking import Job, Outcome, do
from ulpscope.records.checks import Verdict

FAULTS = [
    Job("linear loses the tail of the tile", "bfloat16", "tensors"),
    Job("linear with tf32 operands", "float32", "stats"),
    Job("layer norm without eps", "float32", "tensors"),
    Job("silu gradient without its second term", "float16", "tensors"),
    Job("dropout does not scale", "float32", "tensors"),
    Job("embedding gradient of repeated tokens lost", "bfloat16", "stats"),
]


@pytest.mark.parametrize("job", FAULTS, ids=lambda job: f"{job.fault}, {job.dtype}, {job.save}")
def test_a_wrong_kernel_fails_and_the_sound_one_does_not(job: Job) -> None:
    unharmed = Job(job.fault, job.dtype, job.save, harmed=False)
    judged = {job: do(job)}
    controls = {unharmed: do(unharmed)}
    assert controls[unharmed].verdict in (Verdict.PASS, Verdict.WARN), controls[unharmed].told
    assert earned(judged, controls)[job].verdict is Verdict.FAIL, judged[job].told


def test_a_verdict_that_the_sound_kernel_earns_too_is_not_the_faults() -> None:
    job = FAULTS[0]
    unharmed = Job(job.fault, job.dtype, job.save, harmed=False)
    places = (("recorded output.0", Verdict.WARN), ("recorded grad.args.0", Verdict.FAIL))
    told = {job: Outcome(Verdict.FAIL, "", places)}
    controls = {unharmed: Outcome(Verdict.FAIL, "", (("recorded output.0", Verdict.PASS), places[1]))}
    assert earned(told, controls)[job].verdict is Verdict.WARN
    assert earned(told, {unharmed: Outcome(Verdict.FAIL, "", places)})[job].verdict is Verdict.PASS
