"""What tests of several views do with a page."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conftest import READY_S, wait_for

VIEWS = ("answer", "run", "table", "model", "map", "tensor_pair")


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


def change_json(path: Path, change: Callable[[Any], None]) -> None:
    """Change a file of a made result."""
    content = json.loads(path.read_text(encoding="utf-8"))
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def selected_row(browser: Any) -> int:
    """The row that is selected, as soon as one is."""
    return int(wait_for(browser, "return new URLSearchParams(location.hash.slice(1)).get('selected')"))


def saved_csv(browser: Any, folder: Path) -> list[dict[str, str]]:
    """What the table saves as CSV, read."""
    from selenium.webdriver.support.ui import WebDriverWait

    browser.execute_cdp_cmd("Page.setDownloadBehavior", {"behavior": "allow", "downloadPath": str(folder)})
    browser.find_element("xpath", "//button[text()='Save as CSV']").click()
    saved = folder / "tensors.csv"
    WebDriverWait(browser, READY_S, poll_frequency=0.05).until(lambda _: saved.is_file(), message=f"no {saved}")
    with saved.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))
