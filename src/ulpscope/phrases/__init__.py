"""Everything that is said in more than one language: English and Chinese side by side, a file a subject.

"anchor.identical": {"en": "{names}: identical bits", "zh": "{names}：逐比特相同"}

page*.json is what the scripts of the HTML page ask for, shared.json what terminal and page say alike; all other files
are of terminal and JSON. A key is in one file of a table only.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path


@cache
def phrase_table(language: str, *, of_page: bool = False) -> Mapping[str, str]:
    """The phrases of a language by key: those of terminal and JSON, or those of the page."""
    entries: dict[str, dict[str, str]] = {}
    for file in sorted(Path(__file__).parent.glob("*.json")):
        if file.name == "shared.json" or file.name.startswith("page") == of_page:
            entries |= json.loads(file.read_text(encoding="utf-8"))
    return {key: texts[language] for key, texts in entries.items()}
