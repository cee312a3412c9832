"""Pairs the calls of one rank and step.

Calls form a tree: modules and composite functions around what they call. Two trees are matched from the root down;
within a pair of parents, children are aligned as sequences of operations, so that an extra cast or another attention
leaves the rest matched: the most equal ones in order, as a line diff does. A backward is matched through its forward.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import cached_property
from typing import TypeAlias

import polars as pl

from ulpscope.align.sums import Asking, Sums, pair_sums
from ulpscope.operations.registry import Trait, is_fused, last_word, operation, plain_word
from ulpscope.records.enums import (
    BACKWARD_KIND,
    COMPILED_KIND,
    GRAD_INPUT_ROLE,
    GRAD_OUTPUT_ROLE,
    INPUT_ROLE,
    MODULE_BACKWARD_KIND,
    MODULE_KIND,
    OPTIMIZER_KIND,
    OUTPUT_ROLE,
    Kind,
)
from ulpscope.records.pairs import Pair

BACKWARDS = (BACKWARD_KIND, MODULE_BACKWARD_KIND)

Indices: TypeAlias = Sequence[int]
Origin: TypeAlias = tuple[int | None, str | None]
"""The call that made an operand, and as which of its outputs; none where nobody knows."""
Matches: TypeAlias = list[tuple[int, int]]


@dataclass(frozen=True)
class StepCalls:
    """The calls of one rank and step, as columns; an index is a row. `module` and `op` are in the reference's names."""

    id: list[int]
    kind: list[str]
    op: list[str]
    module: list[str | None]
    parent: list[int | None]
    forward: list[int | None]
    recompute: list[bool]
    arguments: list[str | None]
    generator: list[str | None]
    """State of the random generator before the call, of calls that draw from one."""
    mapped: list[bool]
    """Of a module call: whether the other run has this module, too."""
    given: list[str | None]
    """Names that the script gave to nodes of a graph: where a run computes another op in their place, it keeps them."""
    shapes: Callable[[str], dict[int, str]]
    """For a role, the shapes of each call's tensors as text; asked only where the two runs differ."""
    made_by: Callable[[], dict[int, tuple[str | None, ...]]]
    """For each call the operations that made its operands."""
    origins: Callable[[], dict[int, tuple[Origin, ...]]]
    """For each call where its operands come from."""
    senders: Asking
    readers: Callable[[Sequence[int]], dict[int, set[int]]]
    """For some calls those that read their results."""

    @cached_property
    def outputs(self) -> dict[int, str]:
        return self.shapes(OUTPUT_ROLE)

    @cached_property
    def inputs(self) -> dict[int, str]:
        return self.shapes(INPUT_ROLE)

    def is_fused(self, row: int) -> bool:
        """Whether it computes several operations."""
        return is_fused(self.op[row], self.arguments[row])

    @cached_property
    def gradients(self) -> dict[str, dict[int, str]]:
        return {role: self.shapes(role) for role in (GRAD_OUTPUT_ROLE, GRAD_INPUT_ROLE)}

    @cached_property
    def read_from(self) -> dict[int, tuple[Origin, ...]]:
        return self.origins()

    @cached_property
    def makers(self) -> dict[int, tuple[str | None, ...]]:
        return self.made_by()

    def idle_of(self, rows: Sequence[int]) -> frozenset[int]:
        """Those of which nothing is made: others look at their results at most."""
        readers = self.readers([self.id[row] for row in rows])
        return frozenset(row for row in rows if not any(self._computes(row, call) for call in readers[self.id[row]]))

    def _computes(self, row: int, reader: int) -> bool:
        """Whether a call outside of this one makes something of what it reads."""
        here = self.rows.get(reader)
        if here is None:
            return True
        looks = operation(self.op[here]).has(Trait.METADATA, Trait.CONSTANT)
        around: int | None = here
        while around is not None and around != row:
            parent = self.parent[around]
            around = None if parent is None else self.rows.get(parent)
        return around is None and not looks

    @cached_property
    def rows(self) -> dict[int, int]:
        return {call: row for row, call in enumerate(self.id)}

    @cached_property
    def _have_backwards(self) -> frozenset[int]:
        return frozenset(call for call in self.forward if call is not None)

    @property
    def relatives(self) -> list[list[int | None]]:
        """Rows of the calls around all calls, and of their forwards; -1 for those of other steps."""
        both = (self.parent, self.forward)
        return [[None if call is None else self.rows.get(call, -1) for call in calls] for calls in both]

    @cached_property
    def children(self) -> dict[int | None, list[int]]:
        """Rows of the calls inside each call, recomputed ones and backwards apart from the rest."""
        found: dict[int | None, list[int]] = defaultdict(list)
        for row, parent in enumerate(self.parent):
            if self.kind[row] not in BACKWARDS and not self.recompute[row]:
                found[None if parent is None else self.rows.get(parent)].append(row)
        return found

    def token(self, row: int) -> Hashable:
        """What a call is, for alignment: the module, the optimizer's group, or the operation."""
        kind = self.kind[row]
        if kind == MODULE_KIND:
            return kind, self.module[row]
        if kind == OPTIMIZER_KIND:
            return kind
        return self.op[row]

    def given_token(self, row: int) -> Hashable | None:
        """The name that the script gave, and the shape of the first result: a rewritten op may make more of them."""
        name, outputs = self.given[row], self.outputs.get(self.id[row])
        return None if name is None or outputs is None else (name, outputs.partition(";")[0])

    def shaped_token(self, row: int) -> Hashable:
        """The operation and the shapes of its results."""
        return self.token(row), self.outputs.get(self.id[row])

    def bare_token(self, row: int) -> Hashable:
        """The same without the namespace through which it was called, and whichever library computes it: torch.add is
        Tensor.__add__ is add_, and what is fused is the last of its operations. Results that only the library reads
        (a workspace) stand behind the first."""
        token, outputs = self.token(row), self.outputs.get(self.id[row])
        if not isinstance(token, str):
            return token, outputs
        return last_word(token, self.arguments[row]), None if outputs is None else outputs.partition(";")[0]

    def close_token(self, row: int) -> Hashable:
        """The same with all that tells equal operations apart: evaluation on the side has no backward.

        A cast that changes nothing has none either.
        """
        call = self.id[row]
        trained = call in self._have_backwards and not operation(self.op[row]).has(Trait.MOVING)
        return self.token(row), self.arguments[row], self.inputs.get(call), self.generator[row], trained

    def traced_token(self, row: int) -> Hashable:
        """The same with the operations that made its operands: of equal calls in a row one run may leave out any."""
        return self.close_token(row), self.makers.get(self.id[row])


TOKENS = (StepCalls.traced_token, StepCalls.close_token, StepCalls.shaped_token, StepCalls.bare_token)
"""From the most that calls have in common to the least."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """Index pairs of one step, and those among them that replace each other rather than being the same operation."""

    pairs: Matches
    replaced: set[tuple[int, int]]


def plan_step(reference: StepCalls, target: StepCalls) -> StepPlan:
    """Pair the calls of one step."""
    has_sums = any(operation(op).has(Trait.ADDING_UP) for op in set(reference.op))
    if not has_sums and _same_structure(reference, target):
        return StepPlan([(row, row) for row in range(len(reference.id))], set())
    planner = _Planner(reference, target)
    planner.scope(reference.children[None], target.children[None])
    planner.moved()
    planner.named()
    planner.recomputed()
    planner.backwards()
    planner.named(in_backwards=True)
    planner.sums()
    return StepPlan(sorted(planner.pairs, key=lambda pair: pair[1]), planner.replaced)


def _same_structure(reference: StepCalls, target: StepCalls) -> bool:
    if not all(reference.mapped) or not all(target.mapped):
        return False
    if (reference.kind, reference.op, reference.module) != (target.kind, target.op, target.module):
        return False
    return reference.recompute == target.recompute and reference.relatives == target.relatives


class _Planner:
    def __init__(self, reference: StepCalls, target: StepCalls) -> None:
        self.reference = reference
        self.target = target
        self.pairs: Matches = []
        self.replaced: set[tuple[int, int]] = set()

    def scope(self, reference: Indices, target: Indices) -> None:
        """Pair two sequences of calls, and what is inside each pair."""
        both = _spliced(self.reference, reference), _spliced(self.target, target)
        for pair in self._align(*_written_out(Pair(self.reference, self.target), Pair(*both))):
            self.pairs.append(pair)
            self.scope(self.reference.children.get(pair[0], ()), self.target.children.get(pair[1], ()))

    def _align(self, reference: Indices, target: Indices) -> Matches:
        if not reference or not target:
            return []
        coarse = StepCalls.token
        if [coarse(self.reference, row) for row in reference] == [coarse(self.target, row) for row in target]:
            return list(zip(reference, target, strict=True))
        kept = self._without_idle(Pair(reference, target))
        return self._refine(kept.reference, kept.target, TOKENS)

    def _without_idle(self, rows: Pair[Indices]) -> Pair[list[int]]:
        """Of equal calls, of which one run has more, the other lacks those of which nothing is made: what nobody reads,
        a graph leaves out."""
        calls = Pair(self.reference, self.target)
        tokens = Pair(*([side.token(row) for row in found] for side, found in zip(calls, rows, strict=True)))
        counts = tokens.map(Counter)
        kept = []
        for side, found, names, own, other in zip(
            calls, rows, tokens, counts, (counts.target, counts.reference), strict=True
        ):
            more = {name: own[name] - other[name] for name in own if own[name] > other[name] > 0}
            asked = [row for row, name in zip(found, names, strict=True) if name in more]
            idle = side.idle_of(asked) if asked else frozenset[int]()
            idle_names = Counter(side.token(row) for row in idle)
            dropped = {row for row in idle if idle_names[side.token(row)] == more[side.token(row)]}
            kept.append([row for row in found if row not in dropped])
        return Pair(*kept)

    def _refine(
        self, reference: Indices, target: Indices, tokens: Sequence[Callable[[StepCalls, int], Hashable]]
    ) -> Matches:
        """Align by the first kind of token, what lies between by the next, and at last by what can replace what."""
        if not tokens:
            return self._last_resort(reference, target)
        token, *coarser = tokens
        matches = align([token(self.reference, r) for r in reference], [token(self.target, t) for t in target])
        pairs = [(reference[r], target[t]) for r, t in matches]
        for gap_reference, gap_target in gaps(matches, reference=len(reference), target=len(target)):
            if gap_reference and gap_target:
                pairs += self._refine([reference[r] for r in gap_reference], [target[t] for t in gap_target], coarser)
        return sorted(pairs, key=lambda pair: pair[1])

    def _last_resort(self, reference: Indices, target: Indices) -> Matches:
        """Calls that stand alone against each other replace each other; composite ones are opened."""
        if len(reference) == len(target) == 1 and self.reference.token(reference[0]) == self.target.token(target[0]):
            return [(reference[0], target[0])]
        if len(reference) == len(target) == 1 and self._are_elsewhere(reference[0], target[0]):
            return []
        if len(reference) == len(target) == 1 and self._can_replace(reference[0], target[0]):
            self.replaced.add((reference[0], target[0]))
            return [(reference[0], target[0])]
        open_reference, open_target = _opened(self.reference, reference), _opened(self.target, target)
        if (open_reference, open_target) == (list(reference), list(target)):
            return []
        return self._refine(open_reference, open_target, TOKENS[-2:])

    def _are_elsewhere(self, reference: int, target: int) -> bool:
        """Whether these are two modules that both runs call, so that neither replaces the other."""
        sides = ((self.reference, reference), (self.target, target))
        return all(calls.kind[row] == MODULE_KIND and calls.mapped[row] for calls, row in sides)

    def _can_replace(self, reference: int, target: int) -> bool:
        ids = self.reference.id[reference], self.target.id[target]
        moves = [operation(op).has(Trait.MOVING) for op in (self.reference.op[reference], self.target.op[target])]
        if moves[0] is not moves[1]:
            return False  # what only hands numbers on computes nothing in another's place
        outputs = self.reference.outputs.get(ids[0]), self.target.outputs.get(ids[1])
        inputs = self.reference.inputs.get(ids[0]), self.target.inputs.get(ids[1])
        return outputs[0] is not None and outputs[0] == outputs[1] and inputs[0] == inputs[1]

    def moved(self) -> None:
        """Calls that read the same and do the same are the same calls, wherever in their scope they stand."""
        while found := self._moved_once():
            for pair in found:
                self.pairs.append(pair)
                self.scope(self.reference.children.get(pair[0], ()), self.target.children.get(pair[1], ()))

    def _moved_once(self) -> Matches:
        """Calls without partners whose operands come from partners, if no other call could be meant."""
        partners = dict(self.pairs)
        reference = _alone(self.reference, set(partners))
        target = _alone(self.target, set(partners.values()))
        if not reference or not target:
            return []
        own = {self.reference.id[row]: row for row in partners}
        other = {self.target.id[theirs]: row for row, theirs in partners.items()}
        sides = (self.reference, reference, own), (self.target, target, other)
        by_reading, by_target = (_by_reading(calls, rows, paired) for calls, rows, paired in sides)
        shared = (reading for reading in by_reading if reading in by_target)
        both = ((by_reading[reading], by_target[reading]) for reading in shared)
        return [(rows[0], theirs[0]) for rows, theirs in both if len(rows) == len(theirs) == 1]

    def named(self, *, in_backwards: bool = False) -> None:
        """Calls that bear one name of the script's are the same calls, whatever a run computes in their place."""
        partners = dict(self.pairs)
        reference = _by_given_name(self.reference, set(partners), in_backwards=in_backwards)
        target = _by_given_name(self.target, set(partners.values()), in_backwards=in_backwards)
        for name, row in reference.items():
            if name in target:
                pair = row, target[name]
                self.pairs.append(pair)
                if plain_word(self.reference.op[row]) != plain_word(self.target.op[pair[1]]):
                    self.replaced.add(pair)

    def recomputed(self) -> None:
        """Recomputed calls are matched as what they repeat."""
        originals = dict(self.pairs)
        repeats: dict[int, list[int]] = defaultdict(list)
        for row, original in canonical(self.target).items():
            repeats[original].append(row)
        for row, original in canonical(self.reference).items():
            candidates = repeats[originals.get(original, -1)]
            if candidates:
                self.pairs.append((row, candidates.pop(0)))

    def backwards(self) -> None:
        """Backwards are matched through their forwards; a recomputed forward stands for the one it repeats."""
        partners = dict(self.pairs)
        waiting = _backwards_by_forward(self.target)
        for (forward, kind), rows in _backwards_by_forward(self.reference).items():
            partner = partners.get(forward)
            if partner is None:
                continue
            theirs = waiting.get((partner, kind), [])
            fused = self.reference.is_fused(forward) is not self.target.is_fused(partner)
            alone = len(rows) == len(theirs) == 1 and not fused
            for pair in [(rows[0], theirs[0])] if alone else self._of_one_forward(rows, theirs):
                self.pairs.append(pair)
                self.scope(self.reference.children.get(pair[0], ()), self.target.children.get(pair[1], ()))

    def _of_one_forward(self, reference: Indices, target: Indices) -> Matches:
        """Backwards of one forward, in order; of one that is fused there is one of each operation, in any order."""
        waiting: dict[Hashable, list[int]] = defaultdict(list)
        for theirs in target:
            waiting[self._gradients(self.target, theirs)].append(theirs)
        found = [(row, waiting[self._gradients(self.reference, row)]) for row in reference]
        return [(row, rows.pop(0)) for row, rows in found if rows]

    def _gradients(self, calls: StepCalls, row: int) -> Hashable:
        return tuple(calls.gradients[role].get(calls.id[row]) for role in (GRAD_OUTPUT_ROLE, GRAD_INPUT_ROLE))

    def sums(self) -> None:
        """Sums of lists are known by their terms, whatever stands in their places."""
        sums = Pair(_sums(self.reference), _sums(self.target))
        if not sums.reference.rows or not sums.target.rows:
            return
        meant = {t: r for r, t in self.pairs if r in sums.reference.rows and t in sums.target.rows}
        partners = {t: r for r, t in self.pairs if t not in meant}
        found = pair_sums(sums, partners)
        taken = set(found.values())
        kept = {t: r for t, r in meant.items() if t not in found and r not in taken}
        self.pairs = [(r, t) for t, r in {**partners, **found, **kept}.items()]


def _sums(calls: StepCalls) -> Sums:
    has_sums = any(operation(op).has(Trait.ADDING_UP) for op in set(calls.op))
    return Sums.of(calls.id, calls.op, calls.kind, calls.senders, calls.outputs) if has_sums else Sums((), {})


def _alone(calls: StepCalls, paired: Container[int]) -> list[int]:
    """Rows of forward calls without a partner whose shapes are known."""
    return [
        row
        for row, kind in enumerate(calls.kind)
        if row not in paired and kind not in (*BACKWARDS, OPTIMIZER_KIND) and not calls.recompute[row]
    ]


def _by_reading(calls: StepCalls, rows: Indices, paired: Mapping[int, int]) -> dict[Hashable, list[int]]:
    """These calls by what they do, and where in the reference's calls their operands come from."""
    found: dict[Hashable, list[int]] = defaultdict(list)
    for row in rows:
        call, parent = calls.id[row], calls.parent[row]
        # What other steps made, and what came from outside, is told by a module's own path alone.
        known = [(maker, place) for maker, place in calls.read_from.get(call, ()) if maker in calls.rows]
        is_placed = all(maker in paired for maker, _ in known) and (parent is None or parent in paired)
        if is_placed and (known or calls.kind[row] == MODULE_KIND):
            read = tuple((paired[maker], place) for maker, place in known if maker is not None)
            inside = None if parent is None else paired[parent]
            found[calls.token(row), calls.arguments[row], calls.outputs.get(call), read, inside].append(row)
    return found


def _by_given_name(calls: StepCalls, paired: Container[int], *, in_backwards: bool) -> dict[Hashable, int]:
    """Calls without a partner by the names that the script gave; what runs more than once under one is none."""
    if not any(calls.given):
        return {}
    found: dict[Hashable, list[int]] = defaultdict(list)
    for row in _alone(calls, paired):
        name, around = calls.given_token(row), calls.rows.get(calls.parent[row] or -1)
        is_inside = around is not None and calls.kind[around] in BACKWARDS
        if name is not None and (in_backwards or not is_inside):
            found[name].append(row)
    return {name: rows[0] for name, rows in found.items() if len(rows) == 1}


def canonical(calls: StepCalls) -> dict[int, int]:
    """For each recomputed call the one it repeats: the first, second, ... of that operation in that module."""
    originals: dict[Hashable, list[int]] = defaultdict(list)
    repeats: dict[Hashable, list[int]] = defaultdict(list)
    for row, again in enumerate(calls.recompute):
        if calls.kind[row] not in BACKWARDS:
            (repeats if again else originals)[calls.kind[row], calls.module[row], calls.op[row]].append(row)
    found = [pair for place, rows in repeats.items() for pair in zip(rows, originals[place], strict=False)]
    return dict(sorted(found))


def _backwards_by_forward(calls: StepCalls) -> dict[tuple[int, str], list[int]]:
    repeats = canonical(calls)
    found: dict[tuple[int, str], list[int]] = defaultdict(list)
    for row, forward in enumerate(calls.forward):
        if calls.kind[row] in BACKWARDS and forward is not None and forward in calls.rows:
            forward_row = calls.rows[forward]
            found[repeats.get(forward_row, forward_row), calls.kind[row]].append(row)
    return found


def _spliced(calls: StepCalls, rows: Indices) -> list[int]:
    """The same sequence with the contents of each module that the other run has not in its place."""
    found: list[int] = []
    for row in rows:
        if calls.kind[row] == MODULE_KIND and not calls.mapped[row]:
            found += _spliced(calls, calls.children.get(row, ()))
        else:
            found.append(row)
    return found


def _written_out(calls: Pair[StepCalls], rows: Pair[list[int]]) -> Pair[list[int]]:
    """The same sequences with the contents of compiled regions that only one run has: the other makes those calls."""
    names = Pair(*({side.op[row] for row in found} for side, found in zip(calls, rows, strict=True)))
    reference = _unwrapped(calls.reference, rows.reference, names.target)
    return Pair(reference, _unwrapped(calls.target, rows.target, names.reference))


def _unwrapped(calls: StepCalls, rows: Indices, known: Container[str]) -> list[int]:
    found: list[int] = []
    for row in rows:
        inside = calls.children.get(row, ()) if calls.kind[row] == COMPILED_KIND else ()
        found += _unwrapped(calls, inside, known) if inside and calls.op[row] not in known else [row]
    return found


def _opened(calls: StepCalls, rows: Indices) -> list[int]:
    return [inner for row in rows for inner in (calls.children.get(row) or [row])]


def step_calls(
    frame: pl.DataFrame,
    *,
    modules: Mapping[str, str],
    mapped: Container[str],
    ops: Mapping[str, str],
    shapes: Callable[[str], dict[int, str]],
    made_by: Callable[[], dict[int, tuple[str | None, ...]]],
    origins: Callable[[], dict[int, tuple[Origin, ...]]],
    senders: Asking,
    readers: Callable[[Sequence[int]], dict[int, set[int]]],
) -> StepCalls:
    """Columns of one step, in the reference's names: `modules` and `ops` translate those that differ."""
    columns = ("id", "kind", "op", "module", "parent", "forward", "recompute", "arguments", "generator")
    told = frame.select(columns).to_dict(as_series=False)
    kinds, paths = told["kind"], told["module"]
    told["mapped"] = [kind != MODULE_KIND or path in mapped for kind, path in zip(kinds, paths, strict=True)]
    told["module"] = [modules.get(path, path) for path in paths]
    told["given"] = [_given(*call) for call in frame.select("kind", "op", "name").iter_rows()]
    told["op"] = [ops.get(name, name) for name in told["op"]]
    return StepCalls(**told, shapes=shapes, made_by=made_by, origins=origins, senders=senders, readers=readers)


def _given(kind: str, op: str, name: str) -> str | None:
    """The name that a script gave to a call; others are named after what they execute."""
    stem = name.rpartition(".")[0]
    return stem if kind == Kind.API.value and stem != op else None


_Way: TypeAlias = "tuple[range, int, _Way] | None"
"""Equal tokens of the reference, the diagonal on which they are, and the way that leads there."""

# Differences up to which the exact search is run; it keeps a table of their square.
EXACT_DIFFERENCES = 1_500


def align(reference: Sequence[Hashable], target: Sequence[Hashable]) -> Matches:
    """Index pairs of equal tokens, rising on both sides, as many as there can be."""
    head = _common_head(reference, target)
    tail = _common_head(reference[head:][::-1], target[head:][::-1])
    inner_reference = reference[head : len(reference) - tail]
    inner_target = target[head : len(target) - tail]
    matches = [(place, place) for place in range(head)]
    if inner_reference and inner_target:
        matches += [(head + r, head + t) for r, t in _shortest_edit(inner_reference, inner_target)]
    return matches + [(len(reference) - back, len(target) - back) for back in range(tail, 0, -1)]


def gaps(matches: Matches, *, reference: int, target: int) -> list[tuple[range, range]]:
    """What lies between matches: on each side the indices without a partner, where there are any."""
    found = []
    last = (-1, -1)
    for match in (*matches, (reference, target)):
        gap = range(last[0] + 1, match[0]), range(last[1] + 1, match[1])
        if gap[0] or gap[1]:
            found.append(gap)
        last = match
    return found


def _common_head(reference: Sequence[Hashable], target: Sequence[Hashable]) -> int:
    shorter = min(len(reference), len(target))
    return next((place for place in range(shorter) if reference[place] != target[place]), shorter)


def _shortest_edit(reference: Sequence[Hashable], target: Sequence[Hashable]) -> Matches:
    """Myers' greedy search; a heuristic one where the sequences have too little in common for it."""
    furthest = {1: 0}
    ways: dict[int, _Way] = {1: None}
    for edits in range(min(len(reference) + len(target), EXACT_DIFFERENCES) + 1):
        for diagonal in range(-edits, edits + 1, 2):
            down = diagonal == -edits or (diagonal != edits and furthest[diagonal - 1] < furthest[diagonal + 1])
            before = diagonal + 1 if down else diagonal - 1
            first = furthest[before] if down else furthest[before] + 1
            x, y = first, first - diagonal
            while x < len(reference) and y < len(target) and reference[x] == target[y]:
                x, y = x + 1, y + 1
            furthest[diagonal], ways[diagonal] = x, (range(first, x), diagonal, ways[before])
            if x >= len(reference) and y >= len(target):
                return _matches_on(ways[diagonal])
    blocks = SequenceMatcher(None, reference, target, autojunk=False).get_matching_blocks()
    return [(block.a + i, block.b + i) for block in blocks for i in range(block.size)]


def _matches_on(way: _Way) -> Matches:
    runs = []
    while way is not None:
        equal, diagonal, way = way
        runs.append([(place, place - diagonal) for place in equal])
    return [match for run in reversed(runs) for match in run]
