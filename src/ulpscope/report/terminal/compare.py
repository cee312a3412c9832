"""Tells what `ulpscope compare` found, as text and as JSON.

DIVERGED at step 0, forward, in model.layers.2.input_layernorm

  torch.Tensor.add.17   variance = variance + eps   modeling.py:66
  Its inputs agree within bfloat16 rounding (1.0e-3), its output differs by 5.9, 5,900 times what came in.
  An argument differs: args.1 is 1e-06 in the reference, 1e-02 in the target.

  anchor     first inputs, parameters and embedding output: identical bits
  before it  model.layers.1.mlp.down_proj    linear  in 7.0e-3  out 7.2e-3  rounding
  here       model.layers.2.input_layernorm  add     in 1.0e-3  out 5.9     made here
  after it   683 calls carry this error on; none stands out.

`compare_json` is also summary.json; docs/compare.md tells its keys.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.cells import cell_len
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ulpscope.diagnose.environment.differences import quoted
from ulpscope.records.evidence import Ledger, evidence_json
from ulpscope.records.findings import Comparison, Finding, FindingKind, Nearness, Neighbour, Outcome, extent_of
from ulpscope.records.pairs import Judgement
from ulpscope.report.program import head_line
from ulpscope.report.record_json import answer_json, fields_of, finding_entry
from ulpscope.report.tables import BAD, OUTCOME_STYLES, answer_text, plain
from ulpscope.report.terminal.compare_lines import (
    COLUMNS,
    anchor_lines,
    closure_lines,
    counts_line,
    executed_lines,
    extent_parts,
    is_guilty,
    ledger_object,
    ledger_rows,
    next_commands,
    scope_lines,
    verdict,
)
from ulpscope.report.terminal.environment import difference_json, difference_sentence
from ulpscope.report.words.comparison import (
    advice_sentence,
    has_several_ranks,
    next_command,
    note_sentence,
    sentence,
    statements,
)
from ulpscope.report.words.language import (
    NAMES_SHOWN,
    Language,
    Phrases,
    number_text,
    phrases,
    ranges_text,
    remark_texts,
    shown_name,
)

FINDINGS_SHOWN = 5
NOTES_SHOWN = 5
LONGEST_MISSING = 400
LONGEST_OP = 24
NARROWEST_TABLE = 72
NARROWEST_LEDGER = 92
_STYLES = {Judgement.MADE_HERE.value: BAD, Judgement.INHERITED.value: "yellow"}


def compare_text(
    comparison: Comparison, *, width: int = 80, color: bool = False, language: Language = Language.EN
) -> str:
    """The answer as text of this width."""
    words, outcome = phrases(language), verdict(comparison)
    heading = plain(heading_of(words, comparison), style=OUTCOME_STYLES[outcome])
    blocks = blocks_of(comparison, words, width=width)
    gap, commands = "\n" if outcome is Outcome.NOTHING_COMPARED else "", next_commands(comparison)
    return answer_text(words, heading, blocks, commands, gap=gap, width=width, color=color)


def blocks_of(comparison: Comparison, words: Phrases, *, width: int) -> list[Iterable[RenderableType]]:
    """What is said below the heading."""
    outcome = verdict(comparison)
    first = comparison.findings[:1] if outcome is Outcome.DIVERGED else ()
    answer = [part for finding in first for part in _answer(finding, comparison, words)]
    ending = [counts_line(comparison, words)] if outcome is not Outcome.NOTHING_COMPARED else []
    if comparison.scope.standard != "rounding":
        ending.append(words.say("standard", standard=shown_name(comparison.scope.standard)))
    return [answer, _tables(comparison, words, width=width), ending]


def heading_of(words: Phrases, comparison: Comparison) -> str:
    """The first line of the answer."""
    outcome = verdict(comparison)
    if outcome is Outcome.NOTHING_COMPARED:
        paths = {"reference": shown_name(comparison.reference), "target": shown_name(comparison.target)}
        return words.say("heading.nothing", **paths)
    if outcome in (Outcome.AGREE, Outcome.INCOMPLETE):
        return _agreement(words, comparison)
    if not comparison.findings:
        return words.say("heading.unexplained")
    return _divergence(words, comparison.findings[0], several_ranks=has_several_ranks(comparison))


def _agreement(words: Phrases, comparison: Comparison) -> str:
    counts, scope = comparison.counts, comparison.scope
    what = words.say("heading.step" if len(scope.steps) == 1 else "heading.steps", steps=ranges_text(scope.steps))
    if has_several_ranks(comparison):
        what = words.say("heading.ranks", steps=what, ranks=ranges_text(scope.ranks))
    numbers = {"calls": words.count(counts.matched, "call"), "tensors": words.count(counts.tensors_compared, "tensor")}
    key = "heading.incomplete" if comparison.outcome is Outcome.INCOMPLETE else "heading.agree"
    parts = extent_parts(comparison, words)
    return words.say(f"{key}_in" if parts else key, what=what, parts=words.listed(parts), **numbers)


def _divergence(words: Phrases, finding: Finding, *, several_ranks: bool) -> str:
    place = finding.place
    told = words.say("heading.diverged", step=place.step, phase=words.say(f"phase.{place.phase.value}"))
    if several_ranks or place.rank:
        told = words.say("heading.rank", heading=told, rank=place.rank)
    if place.module:
        told = _in_module(words, finding, told, shown_name(place.module))
    if finding.kind is FindingKind.COMPUTATION:
        return told
    return words.say("heading.cause", heading=told, cause=words.say(f"cause.{_cause(finding)}"))


def _cause(finding: Finding) -> str:
    """The word of a heading: the finding's kind, or what it is more exactly."""
    evidence = finding.evidence
    alone = evidence.history.updated_in is not None and bool(evidence.one_run.calls)
    skipped = evidence.one_run.backwards is not None and finding.kind is FindingKind.OPTIMIZER
    if skipped or alone or evidence.one_run.shifted is not None:
        return "step"
    return "model" if evidence.one_run.paired is not None else finding.kind.value


def _in_module(words: Phrases, finding: Finding, told: str, module: str) -> str:
    """Where it is; of operators of a network that could not all be compared, between which."""
    evidence = finding.evidence
    if evidence.span.uncompared:
        span = evidence.span.uncompared
        # Without an `and`, which another follows.
        names = words.comma.join(map(shown_name, span)) if len(span) <= NAMES_SHOWN else words.names(span)
        return words.say("heading.span", heading=told, names=names, module=module)
    if evidence.span.given_by is not None:
        return words.say("heading.given", heading=told, name=shown_name(evidence.span.given_by), module=module)
    return words.say("heading.module", heading=told, module=module)


def _answer(finding: Finding, comparison: Comparison, words: Phrases) -> Iterator[RenderableType]:
    """The call with its source line, and what is to be said of it, a line each."""
    name, source = finding.place.call or finding.place.op, finding.place.source
    if name or source:
        yield head_line([name] if name else [], source)
    for statement in statements(finding, words.language, ledger=comparison.ledger):
        yield plain(f"{statement[0].upper()}{statement[1:]}{words.stop}")


def _tables(comparison: Comparison, words: Phrases, *, width: int) -> Iterator[RenderableType]:
    """Labelled lines and the calls around the answer; labels are equally wide in all of them."""
    language, several, ledger = words.language, has_several_ranks(comparison), comparison.ledger
    yield from _labelled(words, ("anchor", anchor_lines(comparison.anchor, words)))
    if comparison.neighbours:
        yield _neighbours(comparison.neighbours, words, width=width)
    after = any(row.nearness is Nearness.AFTER for row in comparison.neighbours)
    further = [sentence(finding, language, several_ranks=several, ledger=ledger) for finding in comparison.findings[1:]]
    yield from _labelled(
        words,
        ("" if after else "after", list(_followers(comparison, words))),
        ("also", _cut(further, FINDINGS_SHOWN, words)),
    )
    if ledger is not None:
        yield from _labelled(words, ("ledger", list(executed_lines(ledger, words))))
        # The calls that made most, where there is something to explain.
        if is_guilty(ledger) or (ledger.finals and verdict(comparison) is Outcome.DIVERGED):
            yield _ledger_table(ledger, words, width=width)
        yield from _labelled(words, ("", closure_lines(ledger, words)))
    notes = [note_sentence(note, language, several_ranks=several) for note in comparison.notes]
    yield from _labelled(
        words,
        ("note", _cut(notes, NOTES_SHOWN, words)),
        ("environment", [difference_sentence(each, words) for each in quoted(comparison)]),
        ("advice", [advice_sentence(each, language) for each in comparison.advice]),
        ("scope", list(scope_lines(comparison, words))),
        ("missing", _cut(words.remarks(comparison.missing, longest=LONGEST_MISSING), NOTES_SHOWN, words)),
    )


def _ledger_table(ledger: Ledger, words: Phrases, *, width: int) -> Table:
    headers, rows = [words.say(f"ledger.{column}") for column in COLUMNS], ledger_rows(ledger, words)
    drawn, wide = _grid(words), width >= NARROWEST_LEDGER
    for column in COLUMNS if wide else ("row",):
        whole = wide and column not in ("call", "module")
        drawn.add_column(overflow="fold", no_wrap=whole, justify="right" if whole else "left")
    if wide:
        drawn.add_row(Text(), *(plain(header, style="dim") for header in headers))
    for guilty, cells in rows:
        style = BAD if guilty else ""
        told = [plain(cell, style=style) for cell in (cells if wide else [_in_words(headers, cells, words)])]
        drawn.add_row(Text(), *told)
    return drawn


def _in_words(headers: Sequence[str], cells: Sequence[str], words: Phrases) -> str:
    """A row on its own, where columns have no room."""
    numbers = [
        words.say("ledger.cell", name=header, number=cell)
        for header, cell in zip(headers[2:], cells[2:], strict=True)
        if cell
    ]
    call, module = cells[:2]
    name = words.say("place.call_in", call=call, module=module) if module else call
    return words.clause_comma.join([name, *numbers])


def _neighbours(rows: Sequence[Neighbour], words: Phrases, *, width: int) -> Table:
    drawn, root = _grid(words), _shared_root([row.module for row in rows if row.module])
    drawn.add_column(overflow="fold")
    for _ in ("op", "in", "out", "judgement") if width >= NARROWEST_TABLE else ():
        drawn.add_column(no_wrap=True)
    for nearness in Nearness:
        label = words.say(f"label.{nearness.value}")
        for row in rows:
            if row.nearness is nearness:
                cells = list(_neighbour(row, words, root=root))
                drawn.add_row(Text(label), *(cells if width >= NARROWEST_TABLE else [Text("  ").join(cells)]))
                label = ""
    return drawn


def _neighbour(row: Neighbour, words: Phrases, *, root: str) -> Iterator[Text]:
    yield plain(shown_name(row.module.removeprefix(root) if row.module else row.call))
    yield plain(shown_name(row.op.rsplit(".", 1)[-1], longest=LONGEST_OP))
    for key, error in (("neighbour.in", row.error_in), ("neighbour.out", row.error_out)):
        yield plain("" if error is None else words.say(key, error=number_text(error)))
    judgement = words.known(f"judgement.{row.judgement}", row.judgement)
    yield plain(judgement, style=_STYLES.get(row.judgement, ""))


def _shared_root(modules: Sequence[str]) -> str:
    """`model.` where all of them begin with it."""
    roots = {module.partition(".")[0] for module in modules if "." in module}
    shared = len(roots) == 1 and all("." in module for module in modules)
    return f"{roots.pop()}." if shared else ""


def _followers(comparison: Comparison, words: Phrases) -> Iterator[str]:
    """How many calls carry the answer's error on."""
    followers = comparison.findings[0].evidence.amount.followers if comparison.findings else None
    if followers == 0:
        yield words.say("followers.none")
    elif followers is not None:
        further = len(comparison.findings) - 1
        calm = words.say("followers.calm")
        rest = words.say("followers.more", findings=words.count(further, "finding")) if further else calm
        key = "followers.one" if followers == 1 else "followers"
        yield words.say(key, calls=words.count(followers, "call"), rest=rest)


def _cut(texts: list[str], longest: int, words: Phrases) -> list[str]:
    left = len(texts) - longest
    return [*texts[:longest], *([words.say("more.findings", number=f"{left:,}")] if left > 0 else [])]


def _labelled(words: Phrases, *groups: tuple[str, Sequence[str]]) -> Iterator[Table]:
    """Texts a line, with a label beside the first of each group; nothing where there are none."""
    drawn = _grid(words)
    drawn.add_column(overflow="fold")
    for label, texts in groups:
        for number, text in enumerate(texts):
            shown = words.say(f"label.{label}") if label and not number else ""
            drawn.add_row(Text(shown), plain(text))
    if drawn.row_count:
        yield drawn


def _grid(words: Phrases) -> Table:
    labels = (text for key, text in words.templates.items() if key.startswith("label."))
    drawn = Table.grid(padding=(0, 2, 0, 0))
    drawn.add_column(no_wrap=True, style="dim", min_width=max(map(cell_len, labels)))
    return drawn


def compare_json(comparison: Comparison, language: Language = Language.EN) -> dict[str, Any]:
    """The answer as values that json.dumps(allow_nan=False) takes."""
    extent, several = extent_of(comparison), has_several_ranks(comparison)
    findings = [
        _entry(finding, sentence(finding, language, several_ranks=several, ledger=comparison.ledger), comparison)
        for finding in comparison.findings
    ]
    notes = [
        _entry(note, note_sentence(note, language, several_ranks=several), comparison) for note in comparison.notes
    ]
    scope = comparison.scope
    return answer_json(
        "compare",
        verdict=verdict(comparison),
        findings=findings,
        notes=notes,
        counts=comparison.counts,
        reference=comparison.reference,
        target=comparison.target,
        scope={
            **fields_of(scope),
            "levels": _both(scope.levels),
            "measured": {measured.value: number for measured, number in scope.measured},
            "not_compared": [{"reason": reason, "tensors": number} for reason, number in scope.not_compared],
            "unresolved": [{"reason": reason, "tensors": number} for reason, number in scope.unresolved],
            "filters": None if scope.filters is None else _both(scope.filters),
        },
        extent={"complete": extent.is_all, **fields_of(extent)},
        anchor=comparison.anchor,
        neighbours=comparison.neighbours,
        advice=[{**fields_of(advice), "sentence": advice_sentence(advice, language)} for advice in comparison.advice],
        missing=remark_texts(comparison.missing, language),
        ledger=ledger_object(comparison.ledger),
        environment=[difference_json(each, language) for each in comparison.environment],
    )


def _entry(finding: Finding, told: str, comparison: Comparison) -> dict[str, Any]:
    return finding_entry(
        finding.kind,
        finding.place,
        evidence=evidence_json(finding.evidence),
        sentence=told,
        next_command=next_command(finding, comparison),
    )


def _both(pair: tuple[Any, Any]) -> dict[str, Any]:
    return {"reference": pair[0], "target": pair[1]}
