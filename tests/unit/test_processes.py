import pytest

from ulpscope.capture.processes import rank_and_world_size, why_left_alone


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, (0, 1)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, (3, 8)),
        ({"RANK": "3"}, (0, 1)),
        ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (1, 2)),
        ({"RANK": "0", "WORLD_SIZE": "2", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (0, 2)),
        ({"RANK": "x", "WORLD_SIZE": "2"}, (0, 1)),
    ],
)
def test_rank(environ: dict[str, str], expected: tuple[int, int]) -> None:
    assert rank_and_world_size(environ) == expected


@pytest.mark.parametrize(
    "command_line",
    [
        "python train.py torchrun",
        "python -u -W error train.py -m pip",
        "python -m train",
        "python -um pkg.torchrun_like",
        "python -X dev -mtrain",
        "python -c import_torch",
        "python -c spawn_main(tracker_fd=5) --multiprocessing-fork",
        "python --check-hash-based-pycs never train.py",
        "python",
    ],
)
def test_programs_that_compute_are_captured(command_line: str) -> None:
    assert why_left_alone(command_line.split()) is None


@pytest.mark.parametrize(
    ("command_line", "reason"),
    [
        ("python /env/bin/torchrun --nproc-per-node 2 train.py", "a launcher of ranks"),
        ("python -m torch.distributed.run train.py", "a launcher of ranks"),
        ("python -um torch.distributed.launch train.py", "a launcher of ranks"),
        ("python -X dev -mtorch.distributed.run train.py", "a launcher of ranks"),
        ("python -u /site/torch/distributed/run.py train.py", "a launcher of ranks"),
        ("python /env/bin/accelerate launch train.py", "a launcher of ranks"),
        ("python /site/torch/_inductor/compile_worker/__main__.py --kind=fork", "a compile worker"),
        ("python -m pip install x", "pip"),
        ("python -c from_multiprocessing.forkserver_import_main", "multiprocessing's fork server"),
    ],
)
def test_programs_that_only_serve_are_left_alone(command_line: str, reason: str) -> None:
    assert why_left_alone(command_line.split()) == reason
