"""`ulpscope env`: what of this interpreter and this machine can change numbers, as every trace has it of its run."""

import importlib
import importlib.util
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ulpscope._version import __version__
from ulpscope.capture.recording import environment
from ulpscope.capture.recording.config_files import config_files
from ulpscope.capture.recording.environment import About
from ulpscope.records.enums import ExitCode
from ulpscope.report.terminal.environment import environment_json, environment_text
from ulpscope.workflows.answers import SpokenAnswer
from ulpscope.workflows.results import write_new
from ulpscope.workflows.run.configs import readable_configs

_ABOUT = {"torch": "about_torch", "tensorflow": "about_tensorflow"}
"""By framework, the function in its room that tells of it; the first that is installed is asked."""


def tell_environment(configs: Sequence[Path] = ()) -> SpokenAnswer:
    """The environment as an answer; files that cannot be read are refused."""
    found = describe(readable_configs(configs))
    return SpokenAnswer(found, ExitCode.OK, environment_text, environment_json, has_page=False)


def write_environment(answer: SpokenAnswer, out: Path, *, overwrite: bool) -> None:
    """As JSON, for `ulpscope diff`."""
    write_new(out, json.dumps(answer.json(), allow_nan=False, indent=1) + "\n", overwrite=overwrite)


def describe(configs: Sequence[Path]) -> dict[str, Any]:
    """The fields of rank.json that tell of a process, without those that only a run has."""
    about = _about()
    return {
        "ulpscope": __version__,
        "framework": about.framework,
        "versions": environment.versions(about.packages),
        "devices": list(about.devices),
        "environment": environment.surroundings(about, config_files(configs)),
        "seeds": {},
        "process": {},
    }


def _about() -> About:
    for framework, function in _ABOUT.items():
        if importlib.util.find_spec(framework) is not None:
            found: About = getattr(importlib.import_module(f"ulpscope.capture.{framework}.about"), function)()
            return found
    return About({}, ("numpy",))
