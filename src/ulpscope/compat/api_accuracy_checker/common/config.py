"""msCheckerConfig: what the first API accuracy checker read from its config.yaml, with the same defaults."""

from pathlib import Path
from typing import Any

from ulpscope.compat.telling import tell

PAGE = "docs/api-accuracy-checker.md"
# Options of the tool's config.yaml that chose what its commands did.
INSTEAD = {
    "forward_path": "ulpscope check FILE takes the path",
    "backward_path": "ulpscope check FILE finds backward_info beside it",
    "jit_compile": "calls are executed as they are",
    "save_error_data": "ulpscope check FILE --out DIR --save-failing",
    "error_data_path": "ulpscope check FILE --out DIR --save-failing",
    "white_list": "ulpscope check FILE --only NAME",
    "black_list": "ulpscope check FILE --skip NAME",
    "precision": "figures are written with all their digits",
}


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
        """Change what is given; what has no meaning is said, and stays as it was.

        The tool's other options chose what its own commands did, and change nothing here.
        """
        if dump_path is not None and _is_good("dump_path", dump_path, (str, Path)):
            self.dump_path = Path(dump_path)
        if real_data is not None and _is_good("real_data", real_data, (bool,)):
            self.real_data = real_data
        if target_iter is not None and _is_iteration(target_iter):
            self.target_iter = target_iter
        if enable_dataloader is not None and _is_good("enable_dataloader", enable_dataloader, (bool,)):
            self.enable_dataloader = enable_dataloader
        for name in sorted(others):
            tell(f"msCheckerConfig.update_config: {name} ignored: {INSTEAD.get(name, 'it is not known here')}; {PAGE}")


msCheckerConfig = CheckerConfig()  # noqa: N816  the name that scripts import


def _is_good(name: str, given: Any, kinds: tuple[type, ...]) -> bool:
    if isinstance(given, kinds):
        return True
    expected = " or ".join(kind.__name__ for kind in kinds)
    tell(f"msCheckerConfig.update_config({name}={given!r}) has no effect: {expected} is expected; {PAGE}")
    return False


def _is_iteration(given: Any) -> bool:
    if type(given) is int and given >= 0:
        return True
    tell(
        f"msCheckerConfig.update_config(target_iter={given!r}) has no effect: it takes the number of an iteration, "
        "0 is the first; for several: enable_dataloader=False and set_dump_switch around each"
    )
    return False
