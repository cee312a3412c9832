"""Everything that is said in more than one language: English and Chinese side by side, a file a subject.

"anchor.identical": {"en": "{names}: identical bits", "zh": "{names}：逐比特相同"}

What the scripts of the HTML page ask for is in page*.json. All other files are one table: a key is in one of them only.
"""

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources


@cache
def phrase_table(language: str, *, of_page: bool = False) -> Mapping[str, str]:
    """The phrases of a language by key: those of terminal and JSON, or those of the page."""
    files = (file for file in resources.files(__name__).iterdir() if file.name.endswith(".json"))
    chosen = (file for file in files if file.name.startswith("page") == of_page)
    entries: dict[str, dict[str, str]] = {}
    for file in chosen:
        entries |= json.loads(file.read_text(encoding="utf-8"))
    return {key: texts[language] for key, texts in entries.items()}
