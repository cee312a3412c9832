"""The first API accuracy checker's capture, so that a script changes by one import.

    import ulpscope.compat.api_accuracy_checker.dump        # was: import api_accuracy_checker.dump

From here on DataLoaders count iterations. The second one is captured, then the training stops. To choose another one,
or where there is no DataLoader:

    msCheckerConfig.update_config(dump_path="dump", real_data=True, enable_dataloader=False)
    set_dump_switch("ON")
    train_step(batch)
    set_dump_switch("OFF")

dump_path gets a trace, forward_info, backward_info and stack_info files; `ulpscope check dump_path` takes either.
"""

import sys

from ulpscope.compat.api_accuracy_checker.config import PAGE, msCheckerConfig
from ulpscope.compat.api_accuracy_checker.recording import Recording, TrainingStoppedAfterCapture
from ulpscope.compat.capturing import watch_batches
from ulpscope.compat.telling import tell

__all__ = ["TrainingStoppedAfterCapture", "dump", "msCheckerConfig", "set_dump_switch"]

_recording = Recording(msCheckerConfig)


def set_dump_switch(switch: str) -> None:
    """Capture from here on ("ON"), or no more until the next "ON" ("OFF")."""
    if switch == "ON":
        _recording.switch_on()
    elif switch == "OFF":
        _recording.switch_off()
    else:
        tell(f'set_dump_switch({switch!r}) has no effect: it takes "ON" or "OFF" ({PAGE})')


# Scripts have DP.dump.set_dump_switch, too: there, this was a package with a module of its own name.
dump = sys.modules[__name__]

watch_batches(before=_recording.before_batch, after=_recording.after_batch)
