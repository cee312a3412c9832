"""An overflow that ranks share is told where it was made."""

from ulpscope.records.enums import Phase
from ulpscope.records.findings import Place
from ulpscope.records.overflows import OverflowFinding
from ulpscope.report.terminal.overflow import overflow_sentence
from ulpscope.report.words.language import Language
from ulpscope.workflows.overflow import _across_ranks


def found(rank: int, op: str, *, step: int = 3, given: bool = False) -> OverflowFinding:
    place = Place(rank, step, Phase.FORWARD, f"{op}.0", 5 - rank, op)
    return OverflowFinding("run", place, (), given=given)


def test_the_rank_that_made_it_comes_first_and_others_say_so() -> None:
    shared, made = found(0, "torch.distributed.all_reduce"), found(1, "torch.log")
    first, second = _across_ranks([shared, made])
    assert (first.place, first.came_from) == (made.place, None)
    assert second.came_from == made.place
    assert "torch.log.0 of rank 1 had made it" in overflow_sentence(second, Language.EN, several_ranks=True)


def test_what_reaches_a_rank_past_everything_that_is_seen_is_told_after_it() -> None:
    given, made = found(0, "torch.nn.functional.linear", given=True), found(1, "torch.log")
    assert [finding.place.rank for finding in _across_ranks([given, made])] == [1, 0]


def test_ranks_of_other_steps_and_a_rank_alone_stay_as_they_are() -> None:
    shared = found(0, "torch.distributed.all_reduce", step=2)
    assert _across_ranks([shared, found(1, "torch.log")])[0].came_from is None
    own = [found(0, "torch.log"), found(0, "torch.distributed.all_reduce")]
    assert [finding.came_from for finding in _across_ranks(own)] == [None, None]
