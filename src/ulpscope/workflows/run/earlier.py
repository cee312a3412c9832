"""The earlier training whose loss a watched one should have."""

from pathlib import Path

from ulpscope.records.errors import UlpscopeError


def earlier_training(path: Path | None) -> Path | None:
    """The same path, absolute; refused where it holds no losses."""
    if path is None:
        return None
    from ulpscope.trace.reader import open_trace
    from ulpscope.trace.trainings.course import losses_of

    if not any(losses_of(rank) for rank in open_trace(path).ranks):
        raise UlpscopeError(
            f"{path} holds no losses",
            expected="a trace of a training: captured, or watched as this one is",
            next_step=f"capture the earlier training with: ulpscope run -o {path} --watch training -- CMD",
        )
    return path.absolute()
