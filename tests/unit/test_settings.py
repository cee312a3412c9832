from pathlib import Path

import pytest

from ulpscope.capture.settings import parse_ranges, parse_size, settings_from_json, settings_to_json
from ulpscope.records.enums import Compiled, Level, Save
from ulpscope.records.errors import UlpscopeError
from ulpscope.records.runs import CaptureSettings, IntRanges


def test_ranges_are_read_as_written() -> None:
    ranges = parse_ranges("0, 2-4", option="--steps")
    assert [number for number in range(7) if number in ranges] == [0, 2, 3, 4]
    assert (str(ranges), ranges.last) == ("0,2-4", 4)


@pytest.mark.parametrize("text", ["", "a", "1,", "-1", "1-", "1-2-3", "1.5", "٣"])
def test_bad_ranges_are_refused(text: str) -> None:
    with pytest.raises(UlpscopeError, match="is not a number or a range") as caught:
        parse_ranges(text, option="--steps")
    assert "--steps 0,2-4" in caught.value.next_step


def test_a_range_backwards_is_refused_with_the_right_one() -> None:
    with pytest.raises(UlpscopeError, match="ends before it begins") as caught:
        parse_ranges("4-2", option="--ranks")
    assert caught.value.next_step == "write --ranks 2-4"


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("500", 500), ("500MB", 500 * 10**6), ("10GB", 10**10), ("1.5 GiB", 3 * 2**29), ("2k", 2000)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text, option="--max-disk") == size


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "10XB", "1e9", "10 G B"])
def test_bad_sizes_are_refused(text: str) -> None:
    with pytest.raises(UlpscopeError, match="is not a size") as caught:
        parse_size(text, option="--max-disk")
    assert "--max-disk 10GB" in caught.value.next_step


@pytest.mark.parametrize(
    "settings",
    [
        CaptureSettings(out=Path("runs/ref")),
        CaptureSettings(
            out=Path("/ünïcode dir"),
            level=Level.KERNEL,
            save=Save.TENSORS,
            steps=IntRanges(((0, 0), (2, 4))),
            ranks=IntRanges(((1, 1),)),
            only=("*norm*", "a b"),
            skip=("'\"",),
            max_disk=10**10,
            stop=True,
            compiled=Compiled.EAGER,
            verify=True,
        ),
    ],
)
def test_settings_survive_the_environment(settings: CaptureSettings) -> None:
    assert settings_from_json(settings_to_json(settings)) == settings


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"out": 1}'])
def test_foreign_settings_are_one_clear_error(text: str) -> None:
    with pytest.raises(UlpscopeError, match="ULPSCOPE_SETTINGS cannot be read"):
        settings_from_json(text)
