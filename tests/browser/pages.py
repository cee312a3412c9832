"""What tests of several views do with a page."""

from typing import Any

import pytest

from conftest import wait_for

pytest.importorskip("selenium", reason="selenium is not installed")
pytest.importorskip("axe_core_python", reason="axe-core-python is not installed")

VIEWS = ("answer", "run", "table", "model")


def violations(browser: Any) -> list[str]:
    """What axe finds that is serious or worse."""
    from axe_core_python.selenium import Axe

    found = Axe().run(browser)["violations"]
    return [
        f"{one['id']}: {node['html'][:200]}"
        for one in found
        if one["impact"] in ("serious", "critical")
        for node in one["nodes"]
    ]


def text_of(browser: Any, selector: str) -> str:
    """All text of the first element that fits."""
    return str(wait_for(browser, "return document.querySelector(arguments[0])?.textContent", selector))


def state_of(browser: Any) -> dict[str, str]:
    """What the address says."""
    script = "return Object.fromEntries(new URLSearchParams(location.hash.slice(1)))"
    return dict(browser.execute_script(script))
