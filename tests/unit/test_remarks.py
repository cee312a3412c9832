"""What is told beside an answer: English texts that can be told in Chinese, everywhere in the same words."""

import copy
import json
import pickle
import re
from pathlib import Path

import pytest

from ulpscope.judge.rounding import measuring
from ulpscope.records.remarks import Counted, remark, within
from ulpscope.report.words.language import Language, phrases, remark_text, remark_texts

SOURCE = Path(__file__).resolve().parents[2] / "src" / "ulpscope"


def test_every_phrase_is_used_and_every_used_one_is_there() -> None:
    texts = "\n".join(path.read_text() for path in SOURCE.rglob("*.py"))
    used = set(re.findall(r'\bremark\(\s*"(\w+)"', texts))
    there = {key.removeprefix("remark.") for key in phrases(Language.EN).templates if key.startswith("remark.")}
    # `device_chosen` and `step_chosen` are put together.
    assert used | {"device_chosen", "step_chosen"} == there


@pytest.mark.parametrize(
    ("number", "noun", "verb", "expected"),
    [
        (1, "tensor", "", "1 tensor"),
        (1, "tensor", "have", "1 tensor has"),
        (2, "file", "are", "2 files are"),
        (12345, "element", "", "12,345 elements"),
        (0, "tensor file", "are", "0 tensor files are"),
    ],
)
def test_numbers_of_things(number: int, noun: str, verb: str, expected: str) -> None:
    assert format(Counted(number, noun), verb) == expected


def test_a_remark_is_a_text_and_knows_what_it_says() -> None:
    told = remark("no_partner", tensors=Counted(2, "tensor"), example="mm:input:2")
    assert told == "2 tensors have no partner in the reference, such as mm:input:2"
    assert remark_text(told, Language.EN) == told
    assert remark_text(told, Language.ZH) == "2 个张量在参考数据中没有对应项，例如 mm:input:2"
    assert json.loads(json.dumps([told])) == [str(told)]


def test_a_remark_within_a_place_is_told_with_it() -> None:
    inner = remark("step", step=3, remark=remark("no_dump_json", directory="d/step3"))
    told = within(Path("runs/a"), within("rank0", inner))
    assert told == "runs/a: rank0: step 3: d/step3 has no dump.json and is not read"
    assert remark_text(told, Language.ZH) == "runs/a：rank0：第 3 步：d/step3 中没有 dump.json，未读取"


@pytest.mark.parametrize("language", Language)
def test_every_reason_why_a_pair_is_not_compared_has_words(language: Language) -> None:
    reasons = (
        measuring.SHAPE_DIFFERS,
        measuring.DTYPE_DIFFERS,
        measuring.UNINITIALIZED,
        measuring.NO_SUMMARY,
        measuring.LOST,
        measuring.MASK_DIFFERS,
    )
    assert [reason for reason in reasons if f"reason.{reason}" not in phrases(language).templates] == []


def test_other_texts_stay_as_they_are() -> None:
    assert remark_texts(["{braces} and all", within("rank0", "an old text")], Language.ZH) == [
        "{braces} and all",
        "rank0：an old text",
    ]


def test_names_that_look_like_templates_are_only_names() -> None:
    told = remark("not_dumped", operators=Counted(1, "operator"), example="{0.__class__}{tensors}")
    assert told == "not dumped: 1 operator, such as {0.__class__}{tensors}"
    assert remark_text(told, Language.ZH) == "1 个算子没有 dump 数据，例如 {0.__class__}{tensors}"


@pytest.mark.parametrize("again", [copy.copy, copy.deepcopy, lambda told: pickle.loads(pickle.dumps(told))])
def test_a_copy_knows_as_much(again: object) -> None:
    told = remark("not_dumped", operators=Counted(1, "operator"), example="x")
    copied = again(told)  # type: ignore[operator]
    assert copied == told
    assert remark_text(copied, Language.ZH) == remark_text(told, Language.ZH)
