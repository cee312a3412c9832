import io

from ulpscope.records.runs import Progress
from ulpscope.report.progress import StatusLine, status_text


def test_one_rank() -> None:
    progress = Progress(rank=0, step=3, calls=5120, bytes=900_123, seconds_per_step=0.41)
    assert status_text([progress]) == "ulpscope: step 3 · 5,120 calls · 900.1 KB · 0.41 s a step"


def test_several_ranks_show_the_slowest_and_the_sums() -> None:
    fast = Progress(rank=0, step=4, calls=100, bytes=1000, seconds_per_step=0.5)
    slow = Progress(rank=1, step=3, calls=90, bytes=1000, seconds_per_step=2.0)
    expected = "ulpscope: 2 ranks · step 3 (rank 1 is slowest) · 190 calls · 2.0 KB · 2.0 s a step"
    assert status_text([fast, slow]) == expected


def test_no_speed_before_the_first_step_is_over() -> None:
    assert status_text([Progress(rank=0, step=0, calls=1, bytes=0, seconds_per_step=None)]).endswith("1 call · 0 B")


def test_nothing_is_drawn_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    line = StatusLine(stream)
    line.draw("text")
    line.close()
    assert stream.getvalue() == ""
