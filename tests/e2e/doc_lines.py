"""The commands that README and docs/ tell their readers to type, taken out of the pages as they stand there."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# TRACE, FILE|DIR, [options], ...: a form, nothing to type.
FORM = re.compile(r"(?<![\w./-])[A-Z]{2,}[A-Z_]*(?![\w./-])|\.\.\.|\[|\bD\b")


def doc_lines(page: str) -> list[str]:
    """Each command of a page once, in the order of the page; those that it shows as refused begin with a `!`."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return list(dict.fromkeys(line for line in _commands(text) if _complete(line.lstrip("!"))))


def _complete(line: str) -> bool:
    """`ulpscope check --only` names an option, `ulpscope check runs/ref` can be typed."""
    words = line.split()
    return not FORM.search(line) and len(words) > 2 and (not words[2].startswith("-") or "--" in words)


def _commands(page: str) -> Iterator[str]:
    for number, block in enumerate(re.split(r"^```.*$", page, flags=re.MULTILINE)):
        if number % 2:
            lines = block.splitlines()
            for line, following in zip(lines, [*lines[1:], ""], strict=True):
                if found := re.match(r"(?:\$ )?(ulpscope [a-z].*)", line):
                    refused = "!" if following.startswith("ulpscope: error") else ""
                    yield refused + _without_remark(found[1])
        else:
            yield from (text.replace("\\|", "|") for text in re.findall(r"`(ulpscope [^`]+)`", block))


def _without_remark(line: str) -> str:
    """A command whose meaning stands behind it, after a # or a few blanks."""
    return re.split(r"\s+#|\s{2,}", line.strip(), maxsplit=1)[0]
