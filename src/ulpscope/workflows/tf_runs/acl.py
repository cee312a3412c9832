"""`ulpscope npu-dump --acl FILE`: the file that makes inference on an NPU dump, written, or checked if it is there."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ulpscope.dialects.ascend.acl_file import AclDump, DumpedModel, are_steps, read_acl
from ulpscope.records.enums import ExitCode
from ulpscope.records.errors import UlpscopeError
from ulpscope.report.terminal.npu_files import AclView, acl_json, acl_text
from ulpscope.workflows.answers import Answer
from ulpscope.workflows.results import write_new
from ulpscope.workflows.tf_runs.settings import Settings


@dataclass(frozen=True, slots=True)
class AclWishes:
    """What the file is to say."""

    model: str | None = None
    layers: tuple[str, ...] = ()
    mode: str | None = None
    steps: str | None = None
    overflow: bool = False
    dump_path: Path | None = None

    @property
    def is_any(self) -> bool:
        return self != AclWishes()


def acl(path: Path, wishes: AclWishes, settings: Settings, *, overwrite: bool) -> Answer:
    """Write a file as wished; check the one that is there if nothing is wished."""
    if path.exists() and not wishes.is_any:
        return _answer(path, read_acl(path), written=False)
    _check(wishes)
    dump = _wished(wishes, settings)
    write_new(path, dump.text(), overwrite=overwrite, option="--acl")
    # What was written is what a device would read.
    return _answer(path, read_acl(path), written=True)


def _wished(wishes: AclWishes, settings: Settings) -> AclDump:
    key = "NPU_OVERFLOW_DUMP_DIR" if wishes.overflow else "DEFAULT_NPU_DUMP_DIR"
    folder = str((wishes.dump_path or settings.folder(key)).absolute())
    if wishes.overflow:
        return AclDump(folder, None, {"dump_debug": "on"})
    others = {"dump_mode": wishes.mode or "all", **({"dump_step": wishes.steps} if wishes.steps else {})}
    return AclDump(folder, (DumpedModel(wishes.model or "", wishes.layers),), others)


def _check(wishes: AclWishes) -> None:
    if wishes.overflow and (wishes.model or wishes.layers or wishes.mode or wishes.steps):
        raise UlpscopeError(
            "--overflow with --model, --layers, --mode or --steps",
            expected="one of both: overflow detection dumps what overflows, in whole",
            next_step="leave out --overflow, or the others",
        )
    if not wishes.overflow and not wishes.model:
        raise UlpscopeError(
            "--acl without --model",
            expected="the name of the model: of its file without .om, or the outermost name in the JSON that atc made",
            next_step="add --model NAME, or --overflow, which needs none",
        )
    if wishes.steps is not None and not are_steps(wishes.steps):
        raise UlpscopeError(
            f"--steps {wishes.steps!r}", expected="steps as the device reads them", next_step="write e.g. '0|3-5|10'"
        )


def _answer(path: Path, dump: AclDump, *, written: bool) -> Answer:
    view: Any = AclView(str(path), dump, written, Path(dump.path).is_dir())
    return Answer(view, ExitCode.OK, acl_text, acl_json)
