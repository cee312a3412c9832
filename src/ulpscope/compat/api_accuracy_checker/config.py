"""msCheckerConfig: what the first API accuracy checker read from its config.yaml, with the same defaults."""

from pathlib import Path
from typing import Any

from ulpscope.compat.telling import tell
from ulpscope.records.errors import UlpscopeError

PAGE = "docs/api-accuracy-checker.md"


class CheckerConfig:
    """Where and what is captured; it may be changed until the capture begins."""

    def __init__(self) -> None:
        self.dump_path = Path("./")
        self.real_data = False
        self.target_iter = 1
        """The iteration that is captured; 0 is the first."""
        self.enable_dataloader = True
        """Iterations are counted by DataLoaders; false: set_dump_switch says what is captured."""

    def update_config(
        self,
        dump_path: str | Path | None = None,
        real_data: bool | None = None,
        target_iter: int | None = None,
        enable_dataloader: bool | None = None,
        **others: Any,
    ) -> None:
        """Change what is given. The tool's other options chose what its own commands did, and change nothing here."""
        if dump_path is not None:
            self.dump_path = Path(_checked("dump_path", dump_path, (str, Path)))
        if real_data is not None:
            self.real_data = _checked("real_data", real_data, (bool,))
        if target_iter is not None:
            self.target_iter = _iteration(target_iter)
        if enable_dataloader is not None:
            self.enable_dataloader = _checked("enable_dataloader", enable_dataloader, (bool,))
        if others:
            tell(f"msCheckerConfig.update_config: {', '.join(sorted(others))} ignored; {PAGE} tells why")


def _checked(name: str, given: Any, kinds: tuple[type, ...]) -> Any:
    if not isinstance(given, kinds):
        raise UlpscopeError(
            f"msCheckerConfig.update_config({name}={given!r})",
            expected=" or ".join(kind.__name__ for kind in kinds),
            next_step=f"{PAGE} lists the options",
        )
    return given


def _iteration(given: Any) -> int:
    if type(given) is not int or given < 0:
        raise UlpscopeError(
            f"msCheckerConfig.update_config(target_iter={given!r})",
            expected="the number of an iteration; 0 is the first",
            next_step="for several iterations: enable_dataloader=False and set_dump_switch around each",
        )
    return given
