"""Tells what a script left that ran with the switches of an NPU or with TensorFlow's debugger.

ulpscope: npu-dump: 12 dump files (3.1 MiB) in precision_data/npu/debug_0/dump
  2 graph files (104 KiB) in precision_data/npu/debug_0/graph
  1 ERROR line in the device's log below /root/ascend/log:
    plog-2891.log: [ERROR] GE(2891,python3): ...
  next: ulpscope shell precision_data
"""

import shlex
from collections.abc import Iterator
from typing import Any

from ulpscope.records.tf_runs import Collected, RunKind, ScriptRun
from ulpscope.report.record_json import answer_json, fields_of
from ulpscope.report.words.language import bytes_text, count_text, shown_name, shown_text, typed_path

LONGEST_LINE = 400
IMPORT = "import ulpscope.compat.tf_config as npu_tf_config"
PAGE = "docs/compat-tf-config.md"

_ASKS = {
    RunKind.NPU_DUMP: "config = npu_tf_config.session_dump_config(config)",
    RunKind.NPU_OVERFLOW: "config = npu_tf_config.session_dump_config(config)",
    RunKind.TF_DUMP: "sess = npu_tf_config.sess_dump(sess)",
}
"""What a script needs for each: the line of a session; the page has those of Estimator and TensorFlow 2."""
_WORDS = {RunKind.NPU_DUMP: "dump", RunKind.NPU_OVERFLOW: "overflow"}


def script_run_text(run: ScriptRun) -> str:
    """Some lines: what was collected, what the device complained of, what to do next."""
    return "\n".join(map(shown_text, _lines(run)))


def script_run_json(run: ScriptRun, **more: Any) -> dict[str, Any]:
    """The object of --json."""
    return answer_json(
        run.kind.value,
        {"script": run.command} | fields_of(run, "script_exit", "interrupted", "collected", "switched", "log"),
        next=next_step(run),
        **more,
    )


def next_step(run: ScriptRun) -> str:
    """The command that goes on from here."""
    if run.nothing_collected:
        return _missing_step(run)
    return f"ulpscope shell {shlex.quote(typed_path(run.data))}"


def _lines(run: ScriptRun) -> Iterator[str]:
    first, *others = run.collected
    name = f"ulpscope: {run.kind.value}"
    if run.nothing_collected:
        yield f"{name}: {_why_nothing(run)}"
    else:
        yield f"{name}: {_counted(first)}"
    yield from (f"  {_counted(each)}" for each in others)
    if run.script_exit:
        yield f"  the command ended with exit status {run.script_exit}"
    yield from _log_lines(run)
    yield f"  next: {next_step(run)}"


def _counted(found: Collected) -> str:
    return f"{count_text(found.files, found.what)} ({bytes_text(found.bytes)}) in {found.folder}"


def _why_nothing(run: ScriptRun) -> str:
    folder = run.collected[0].folder
    if run.looked_for_overflow:
        return f"no overflow: the script switched detection on, and the device wrote no record into {folder}"
    nothing = f"warning: nothing was collected in {folder}"
    if run.script_exit:
        return f"{nothing}: the command failed before"
    word = _WORDS.get(run.kind)
    if word in run.switched:
        return f"{nothing}: the script switched it on, but the device wrote nothing"
    what = {"dump": "a dump", "overflow": "overflow detection"}.get(word or "", "a dumped session")
    return f"{nothing}: no script of the command asked for {what}, or no graph was run"


def _missing_step(run: ScriptRun) -> str:
    if run.looked_for_overflow:
        return "nothing, if the loss is right; else dump the run: ulpscope npu-dump -- CMD"
    if run.script_exit:
        return "mend the command, and run it again"
    if _WORDS.get(run.kind) in run.switched:
        return "check that a training step of TF_DUMP_STEP was run on the NPU, and what the device's log says"
    return f"in the script: {IMPORT}; {_ASKS[run.kind]} ({PAGE})"


def _log_lines(run: ScriptRun) -> Iterator[str]:
    if not run.log.total:
        return
    where = " and ".join(run.log.folders)
    yield f"  {count_text(run.log.total, 'ERROR line')} in the device's log below {where}:"
    for line in run.log.lines:
        yield f"    {line.file}: {shown_name(line.text, longest=LONGEST_LINE)}"
    if run.log.total > len(run.log.lines):
        yield f"    and {run.log.total - len(run.log.lines):,} more"
