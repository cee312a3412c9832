"""Config files that a user names to be kept with a run."""

from collections.abc import Sequence
from pathlib import Path

from ulpscope.records.errors import UlpscopeError


def readable_configs(configs: Sequence[Path]) -> Sequence[Path]:
    """The same files; refused where one cannot be kept."""
    for path in configs:
        if not path.is_file():
            raise UlpscopeError(
                f"there is no file {path}" if not path.exists() else f"{path} is not a file",
                expected="a config file of the script: yaml, json, toml or any other",
                next_step="check the path behind --config",
            )
    return configs
