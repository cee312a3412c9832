"""A real browser that opens pages. Where it is missing the tests are skipped, and say so; with $CI set they fail."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from selenium import webdriver

FLAGS = (
    "--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1366,850",
)  # fmt: skip
READY_S = 60
"""Far more than a page takes: a machine may be busy."""

OpenPage = Callable[..., Any]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Chromium, one for all tests."""
    chromium, driver = shutil.which("chromium") or shutil.which("google-chrome"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        missing = "chromium and chromedriver are not installed (Debian: chromium, chromium-driver)"
        assert "CI" not in os.environ, missing
        pytest.skip(missing)
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    options.add_experimental_option("prefs", {"download.default_directory": str(tmp_path_factory.mktemp("downloads"))})
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    started.set_script_timeout(READY_S)
    yield started
    started.quit()


@pytest.fixture
def open_page(browser: Any) -> Iterator[OpenPage]:
    """Opens a page with a state of its address, waits until its view is there; no error may reach the console."""

    def open_it(page: Path | str, **state: Any) -> Any:
        address = page if isinstance(page, str) else page.resolve().as_uri()
        texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in state.items()}
        browser.get("about:blank")
        browser.get_log("browser")
        browser.get(address + "#" + "&".join(f"{key}={quote(text)}" for key, text in texts.items()))
        wait_for(browser, "return document.querySelector('.panel:not(.hidden)[data-shown]') !== null")
        return browser

    yield open_it
    faults = [entry["message"] for entry in browser.get_log("browser") if entry["level"] == "SEVERE"]
    assert faults == []


def wait_for(browser: Any, script: str, *arguments: Any) -> Any:
    """What a script returns as soon as that is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    waiting = WebDriverWait(browser, READY_S, poll_frequency=0.05)
    return waiting.until(lambda driver: driver.execute_script(script, *arguments), message=script)


def requested(browser: Any) -> list[str]:
    """Addresses that the browser has asked for since the last question."""
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [
        message["params"]["request"]["url"] for message in messages if message["method"] == "Network.requestWillBeSent"
    ]
