"""`ulpscope investigate`: the experts' workflow as one command, stage by stage, until a cause is found."""

import shlex
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

from ulpscope.diagnose.investigating import conclude, next_plan, wanted_step
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Comparison
from ulpscope.records.investigations import Done, Investigation, Plan
from ulpscope.records.pairs import Pair
from ulpscope.report.terminal.investigate import beginning_text, investigation_json, investigation_text, said_text
from ulpscope.workflows.answers import SpokenAnswer
from ulpscope.workflows.compare.command import compare
from ulpscope.workflows.investigate.sources import CommandRuns, TracesAtHand, read_note
from ulpscope.workflows.investigate.stages import Stages
from ulpscope.workflows.results import SUMMARY, occupied, prepare_result, write_json, writing
from ulpscope.workflows.run.command import executable_of, tell

STATE = "investigation.json"
"""What says whose stages a directory holds, while there is no answer yet, too."""
COMPARED = "compared"
_PREFIX = "ulpscope investigate --"


def investigate(commands: Pair[tuple[str, ...]], *, out: Path | None = None, overwrite: bool = False) -> SpokenAnswer:
    """Run both commands as often as it takes, each time captured for one question."""
    for command in commands:
        executable_of(command, prefix=_PREFIX)
    if out is not None:
        _prepare(out, commands, overwrite=overwrite)
    with _folder(out) as folder:
        source = CommandRuns(commands, Path(folder))
        stages = Stages(source) if out is None else Stages(source, _kept)
        found = replace(_go(stages, commands), is_kept=out is not None)
    return _told(found, out)


def investigate_traces(folders: Pair[Path], *, out: Path | None = None, overwrite: bool = False) -> SpokenAnswer:
    """The same of traces that were made where the commands can be run; says which ones are needed next."""
    for folder in folders:
        if not folder.is_dir():
            raise UlpscopeError(
                f"{folder} is not a directory",
                expected="a trace, or a directory of traces of one command",
                next_step="make the first one there: ulpscope run -o TRACE --watch gradients -- COMMAND",
            )
    if out is not None:
        prepare_result(out, overwrite=overwrite)
    return _told(_go(Stages(TracesAtHand(folders)), None), out)


def _told(found: Investigation, out: Path | None) -> SpokenAnswer:
    answer = SpokenAnswer(found, found.conclusion.verdict.code, investigation_text, investigation_json, has_page=False)
    if out is not None:
        with writing(out):
            write_json(out / SUMMARY, answer.json())
    return answer


def _folder(out: Path | None) -> AbstractContextManager[str]:
    return nullcontext(str(out)) if out is not None else tempfile.TemporaryDirectory(prefix="ulpscope-investigate-")


def _prepare(out: Path, commands: Pair[tuple[str, ...]], *, overwrite: bool) -> None:
    """An earlier attempt with the same commands is continued, any other one only replaced if that was asked for."""
    told = {"reference": list(commands.reference), "target": list(commands.target)}
    known = read_note(out / STATE)
    if known is not None and not overwrite:
        if {side: known.get(side) for side in told} == told:
            return
        raise occupied(out, "holds an investigation of other commands; add --overwrite to replace it")
    if known is not None:
        with writing(out):
            (out / STATE).rename(out / SUMMARY)  # whatever it holds is ours, and may go
    prepare_result(out, overwrite=overwrite)
    with writing(out):
        write_json(out / STATE, told)


def _kept(reference: Path, target: Path) -> Comparison:
    """Compare, and leave the result with its page beside the traces."""
    result, place = compare(reference, target), reference.parent / COMPARED
    shutil.rmtree(place, ignore_errors=True)
    prepare_result(place, overwrite=True)
    result.write(place)
    return result.comparison


def _go(stages: Stages, commands: Pair[tuple[str, ...]] | None) -> Investigation:
    done: list[Done] = []
    needed: Plan | None = None
    while (plan := next_plan(done, stages.environment)) is not None:
        tell(beginning_text(len(done) + 1, plan))
        each = stages.do(plan, wanted_step(done))
        if each is None:
            needed = plan
            break
        done.append(each)
        tell(said_text(len(done), each))
    conclusion = conclude(done, stages.environment)
    return Investigation(commands, tuple(done), stages.environment, conclusion, needed=needed)


def split_commands(words: Sequence[str]) -> Pair[tuple[str, ...]]:
    """`REFCMD ... --against -- TARGETCMD ...`."""
    words = tuple(words)
    border = next((at for at in range(len(words)) if words[at : at + 2] == ("--against", "--")), None)
    if border is None:
        raise UlpscopeError(
            f"one command, {shlex.join(words)}" if words else "no commands",
            expected="the reference's command and the target's",
            next_step="ulpscope investigate -- REFERENCE_COMMAND --against -- TARGET_COMMAND",
        )
    return Pair(words[:border], words[border + 2 :])
