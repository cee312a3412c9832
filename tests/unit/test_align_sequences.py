"""Alignment of token sequences: as many matches as there can be, in order."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ulpscope.align import calls as sequences
from ulpscope.align.calls import Matches, align, gaps

TOKENS = st.lists(st.sampled_from("abcd"), max_size=14)


def longest_common(reference: list[str], target: list[str]) -> int:
    """The length of the longest common subsequence, by the table of every textbook."""
    table = [[0] * (len(target) + 1) for _ in range(len(reference) + 1)]
    for r, mine in enumerate(reference):
        for t, other in enumerate(target):
            table[r + 1][t + 1] = table[r][t] + 1 if mine == other else max(table[r][t + 1], table[r + 1][t])
    return table[-1][-1]


def check_common_subsequence(matches: Matches, reference: list[str], target: list[str]) -> None:
    assert all(reference[r] == target[t] for r, t in matches)
    assert all(earlier[0] < later[0] and earlier[1] < later[1] for earlier, later in itertools.pairwise(matches))


@given(TOKENS, TOKENS)
def test_the_result_is_a_longest_common_subsequence(reference: list[str], target: list[str]) -> None:
    matches = align(reference, target)
    check_common_subsequence(matches, reference, target)
    assert len(matches) == longest_common(reference, target)


@given(TOKENS)
def test_a_sequence_matches_itself(tokens: list[str]) -> None:
    assert align(tokens, tokens) == [(place, place) for place in range(len(tokens))]


def test_what_only_one_side_has_is_left_out() -> None:
    assert align("abcd", "abxcd") == [(0, 0), (1, 1), (2, 3), (3, 4)]
    assert align("abxcd", "abcd") == [(0, 0), (1, 1), (3, 2), (4, 3)]
    assert align("abc", "xyz") == []
    assert align("", "abc") == align("abc", "") == []


def test_a_repeated_token_matches_once() -> None:
    assert len(align("a", "aaa")) == 1
    assert len(align("aaa", "aa")) == 2


def test_beyond_the_exact_search_the_result_is_still_common(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "EXACT_DIFFERENCES", 3)
    reference, target = list("abcdefgh" * 4), list("hgfedcba" * 4)
    matches = align(reference, target)
    check_common_subsequence(matches, reference, target)
    assert matches


@given(TOKENS, TOKENS)
def test_gaps_hold_exactly_what_has_no_partner(reference: list[str], target: list[str]) -> None:
    matches = align(reference, target)
    found = gaps(matches, reference=len(reference), target=len(target))
    left = [place for gap, _ in found for place in gap], [place for _, gap in found for place in gap]
    assert left[0] == [place for place in range(len(reference)) if place not in {r for r, _ in matches}]
    assert left[1] == [place for place in range(len(target)) if place not in {t for _, t in matches}]
    assert all(gap_reference or gap_target for gap_reference, gap_target in found)


def test_a_gap_lies_between_its_matches() -> None:
    found = gaps([(0, 0), (3, 1), (4, 4)], reference=6, target=5)
    assert found == [(range(1, 3), range(1, 1)), (range(4, 4), range(2, 4)), (range(5, 6), range(5, 5))]
