"""`ulpscope report`: the page of a result, made from the files of its directory; or of a single run.

Every command that writes a result with a page writes it here.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import polars as pl

from ulpscope.align.plan import Plan, RankPlan
from ulpscope.dialects.opening import open_run
from ulpscope.dialects.recognising import wrong_kind
from ulpscope.dialects.registry import dialect_of
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.findings import Comparison, Place
from ulpscope.records.pairs import ALWAYS_KNOWN, COUNTS, PAIR_COLUMNS, SHAPES, TEXTS
from ulpscope.report.page import (
    PARTS,
    Content,
    Sources,
    assemble,
    check_content,
    compare_content,
    overflow_content,
    stack_line,
    told_json,
    told_once,
    trace_content,
)
from ulpscope.report.record_json import to_json
from ulpscope.report.words.language import Language, shown_name
from ulpscope.trace.files import LARGEST_DUMP, check_file, read_json
from ulpscope.trace.overview import module_trends, training_trends
from ulpscope.trace.schema import wrong_size
from ulpscope.workflows.results import REPORT, SUMMARY, with_page, write_json, writing

TOLD = "told.json"
PLAN = "plan.json"
SCHEMA = 1

NEEDED = {"verdict", "findings"}
NEEDED_OF_RUNS = {"notes", "counts", "scope", "neighbours"}
PAIR_COLUMNS_NEEDED = {
    "rank", "step", "phase", "op", "module", "call_reference", "call_target", "id_reference", "id_target", "role",
    "place", "value_target", "judgement", "error",
}  # fmt: skip

JsonObject = dict[str, Any]


class Answer(Protocol):
    """A result that tells itself in a language."""

    def json(self, language: Language) -> JsonObject: ...


@dataclass(frozen=True, slots=True)
class PageKind:
    """How the page of one command's results is made."""

    tables: tuple[str, ...]
    """Files of the result that must be there: .parquet or .csv."""
    content: Callable[[Sources], Content]


KINDS: Mapping[str, PageKind] = {
    "compare": PageKind(("pairs.parquet",), compare_content),
    "check": PageKind(("details.csv",), check_content),
    "overflow": PageKind((), overflow_content),
}
"""By the `command` of summary.json."""


def write_result(
    out: str | Path,
    answer: Answer,
    write_tables: Callable[[Path], None],
    *,
    language: Language,
    stacks: Sequence[Sequence[JsonObject]] = (),
    next_step: str = "choose another directory for --out",
) -> Path:
    """Make a directory of a result: its tables, summary.json and its page, which it gives."""
    out = Path(out)
    with writing(out, next_step=next_step):
        out.mkdir(parents=True, exist_ok=True)
        write_tables(out)
        write_json(out / SUMMARY, with_page(answer.json(language)))
        write_json(out / TOLD, told_json(answer.json, [list(stack) for stack in stacks]))
    return make_report(out)


def make_report(result: Path, *, page: Path | None = None) -> Path:
    """Make the page of a result or trace anew, at its usual place or elsewhere."""
    page = page or usual_page(result)
    text = page_text(result)
    with writing(page, next_step="choose another file: --out FILE"):
        # A folder's name may be no text: its bytes must not keep the page from being written.
        page.write_text(text, encoding="utf-8", errors="replace")
    return page


def usual_page(result: Path) -> Path:
    """report.html of a result; of a trace, which stays as it is, a file beside it."""
    if (result / SUMMARY).is_file():
        return result / REPORT
    whole = result.resolve()
    return result.parent / f"{whole.name}.html" if result.name == whole.name else whole.with_name(f"{whole.name}.html")


def page_text(result: Path, *, served: bool = False) -> str:
    """The page as text; a served one may ask its own server for more."""
    is_run = result.is_dir() or dialect_of(result) is not None
    if is_run and not (result / SUMMARY).is_file():
        trace = open_run(result)
        stats = pl.concat([training_trends(trace), module_trends(trace)])
        content = trace_content(str(result), stats, trace.missing)
        return assemble(content, title=f"trace: {result.resolve().name} - ulpscope", served=served)
    summary = read_summary(result)
    kind = KINDS[summary["command"]]
    # Modes of check ask other questions than a check does, and have no table of its kind.
    files = () if "mode" in summary else kind.tables
    tables = {Path(name).stem: read_table(result / name) for name in files}
    if "pairs" in tables and (lacking := sorted(PAIR_COLUMNS_NEEDED - set(tables["pairs"].columns))):
        raise _unreadable(result / "pairs.parquet", f"it has no column {', '.join(lacking)}")
    plan = _read_json(result / PLAN) if (result / PLAN).is_file() else None
    sources = Sources(summary, _told(result, summary), tables, plan)
    title = f"{summary['command']}: {summary['verdict']} - {result.resolve().name} - ulpscope"
    with understanding(result):
        return assemble(kind.content(sources), title=title, served=served)


def read_summary(result: Path) -> JsonObject:
    """summary.json of a result that a page can be made of."""
    if not (result / SUMMARY).is_file():
        raise wrong_kind(result, "a result or a run") or UlpscopeError(
            f"{result} {'holds no ' + SUMMARY if result.is_dir() else 'does not exist'}",
            expected="the directory of a result, as ulpscope compare, check or overflow write it with --out",
            next_step=f"ulpscope compare REFERENCE TARGET --out {shlex.quote(str(result))}",
        )
    summary = _read_json(result / SUMMARY)
    if summary.get("schema") != SCHEMA:
        raise UlpscopeError(
            f"{result / SUMMARY} has schema {summary.get('schema')!r}",
            expected=f"schema {SCHEMA}",
            next_step="make the result again with this version of ulpscope",
        )
    if summary.get("command") not in list(KINDS) or not summary.keys() >= NEEDED:
        raise UlpscopeError(
            f"{result / SUMMARY} is of a command or kind that has no page: {summary.get('command')!r}",
            expected=f"a result of {', '.join(KINDS)}",
            next_step="give the result of one of these; of comparisons, one of two runs",
        )
    if summary["command"] == "compare" and not summary.keys() >= NEEDED_OF_RUNS:
        raise UlpscopeError(
            f"{result / SUMMARY} compares something else than two runs",
            expected="a comparison of two runs: one of two checks, of several networks or of one tensor has no page",
            next_step=f"see the tables in {shlex.quote(str(result))}; each check and each network has its own page",
        )
    for part in PARTS:
        if not _is_told(summary.get(part, [])):
            raise _unreadable(result / SUMMARY, f"{part} is no list of objects with a sentence")
    missing = summary.get("missing", [])
    if not (isinstance(missing, list) and all(isinstance(each, str) for each in missing)):
        raise _unreadable(result / SUMMARY, "missing is no list of sentences")
    return summary


def _is_told(part: Any) -> bool:
    return isinstance(part, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("sentence"), str) for entry in part
    )


def _told(result: Path, summary: JsonObject) -> JsonObject:
    """Sentences in every language; results of earlier versions have only one."""
    path = result / TOLD
    if not path.is_file():
        return told_once(summary)
    told, usual = _read_json(path), told_once(summary)
    fits = all(isinstance(told.get(part), list) and len(told[part]) == len(usual[part]) for part in PARTS)
    return told if fits and isinstance(told.get("stacks"), list) else usual


def _read_json(path: Path) -> JsonObject:
    try:
        content = read_json(path, limit=LARGEST_DUMP)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except ValueError as error:
        raise _unreadable(path, str(error)) from error
    if not isinstance(content, dict):
        raise _unreadable(path, f"it holds a {type(content).__name__}, not an object")
    checked: JsonObject = to_json(content)
    return checked


@contextmanager
def understanding(result: Path) -> Iterator[None]:
    """While something is made of a result's files: those that were changed tell other things than it asks for."""
    try:
        yield
    except (LookupError, TypeError, ValueError, AttributeError, pl.exceptions.PolarsError) as error:
        problem = f"its fields are not those of a result ({type(error).__name__}: {shown_name(str(error))})"
        raise _unreadable(result, problem) from error


def read_table(path: Path, columns: list[str] | None = None) -> pl.DataFrame:
    """A table of a result, .parquet or .csv; all of its columns, or some."""
    if not path.exists():
        raise _unreadable(path, "it is not there")
    problem = wrong_size([path]) if path.suffix == ".parquet" else None
    if problem is not None:
        raise _unreadable(path, problem.partition("\n")[0])
    try:
        check_file(path)
        # A folder may be called `run[1]`, which polars would take for a pattern.
        if path.suffix == ".parquet":
            table = pl.read_parquet(path, columns=columns, glob=False)
            _check_pairs(path, table)
            return table
        return pl.read_csv(path, columns=columns, infer_schema_length=None, glob=False)
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (ValueError, pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise _unreadable(path, str(error).partition("\n")[0]) from error


def _check_pairs(path: Path, table: pl.DataFrame) -> None:
    """Refuse a table of pairs whose columns hold something else than they are called."""
    for name, kind in table.select(name for name in PAIR_COLUMNS if name in table.columns).schema.items():
        if kind != pl.Null and not _fits(name, kind):
            raise _unreadable(path, f"its column {name} holds {kind}")
        if name in ALWAYS_KNOWN and table[name].null_count():
            raise _unreadable(path, f"its column {name} is empty in some row")
        if name in COUNTS and kind != pl.Null and (table[name] < 0).any():
            raise _unreadable(path, f"its column {name} is negative in some row")


def _fits(name: str, kind: pl.DataType) -> bool:
    if name in TEXTS:
        return kind == pl.String
    if name in SHAPES:
        return kind == pl.List(pl.Int64)
    return kind.is_integer() if name in COUNTS else kind.is_numeric()


def _unreadable(path: Path, problem: str) -> UlpscopeError:
    return UlpscopeError(
        f"{path} cannot be read: {problem}",
        expected="a whole result, as it was written with --out",
        next_step="make the result again, with --overwrite",
    )


PAIRS = "pairs.parquet"


def is_result(path: Path) -> bool:
    """Whether this is the directory of a result; a trace has no summary."""
    return (path / SUMMARY).is_file()


def read_pairs(result: Path) -> pl.DataFrame:
    """All pairs of tensors; UlpscopeError for a result of something else than two traces."""
    command = read_summary(result)["command"]
    if command != "compare" or not (result / PAIRS).is_file():
        raise UlpscopeError(
            f"{result} is a result of {command} without {PAIRS}",
            expected="a trace, or the result of comparing two traces",
            next_step="export the trace itself, or compare: ulpscope compare REFERENCE TARGET --out DIR",
        )
    return read_table(result / PAIRS, list(PAIR_COLUMNS))


def located(path: str, result: Path) -> Path:
    """Where a trace is: as it was named when it was compared, from here or from a directory above the result."""
    given = Path(path)
    places = [given, *(above / given for above in result.resolve().parents)]
    return next((place for place in places if place.exists()), given)


def finding_stacks(comparison: Comparison, plan: Plan) -> list[list[dict[str, Any]]]:
    """For each finding the lines that led to its call, the innermost first; none where no stack was recorded."""
    ranks = {rank.rank: rank for rank in plan.ranks}
    return [_stack(finding.place, ranks.get(finding.place.rank)) for finding in comparison.findings]


def _stack(place: Place, plan: RankPlan | None) -> list[dict[str, Any]]:
    if plan is None or place.call is None:
        return []
    in_target = place.call_id is not None
    calls, trace = (
        (plan.calls.target, plan.traces.target) if in_target else (plan.calls.reference, plan.traces.reference)
    )
    found = calls.filter(
        pl.col("name") == place.call, pl.col("step") == place.step, pl.col("phase") == place.phase.value
    )["stack"].drop_nulls()
    return [] if found.is_empty() else [stack_line(frame) for frame in trace.stack(found[0])]
