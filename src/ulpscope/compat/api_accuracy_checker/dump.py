"""The first API accuracy checker's capture, so that a script changes by one import.

    import ulpscope.compat.api_accuracy_checker.dump        # was: import api_accuracy_checker.dump

From here on DataLoaders count iterations. The second one is captured, then the training stops. To choose another one,
or where there is no DataLoader:

    from ulpscope.compat.api_accuracy_checker.dump import msCheckerConfig, set_dump_switch

    msCheckerConfig.update_config(dump_path="dump", real_data=True, enable_dataloader=False)
    set_dump_switch("ON")
    train_step(batch)
    set_dump_switch("OFF")

dump_path gets a trace, forward_info, backward_info and stack_info files; `ulpscope check dump_path` takes either.
"""

import functools
from collections.abc import Callable
from typing import Any

from torch.utils.data import dataloader

from ulpscope.compat.api_accuracy_checker.config import PAGE, CheckerConfig
from ulpscope.compat.api_accuracy_checker.recording import Recording, TrainingStoppedAfterCapture
from ulpscope.records.errors import UlpscopeError

__all__ = ["TrainingStoppedAfterCapture", "msCheckerConfig", "set_dump_switch"]

msCheckerConfig = CheckerConfig()  # noqa: N816  the name that scripts import
_recording = Recording(msCheckerConfig)


def set_dump_switch(switch: str) -> None:
    """Capture from here on ("ON"), or no more until the next "ON" ("OFF")."""
    if switch not in ("ON", "OFF"):
        raise UlpscopeError(
            f"set_dump_switch({switch!r})", expected='"ON" or "OFF"', next_step=f"{PAGE} shows a script"
        )
    if switch == "ON":
        _recording.switch_on()
    else:
        _recording.switch_off()


def _counted(fetch: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @functools.wraps(fetch)
    def fetch_and_count(batches: Any) -> Any:
        _recording.before_batch()
        batch = fetch(batches)
        _recording.after_batch()
        return batch

    return fetch_and_count


dataloader._BaseDataLoaderIter.__next__ = _counted(dataloader._BaseDataLoaderIter.__next__)  # type: ignore[assignment,method-assign]
