"""How large pages of results are, how soon they can be used, and how they feel: in Chromium, from a file.

  python benchmarks/report.py [--tensors 5000,200000]

WebGL runs in software here unless the machine has a GPU that headless Chromium can use: what zooming takes is an upper
bound.
"""

import argparse
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from made_results import layers_for, write_result
from ulpscope.workflows.report.command import make_report

STEPS = 10
PATIENCE_S = 120
BARS = {5_000: {"MB": 8.0, "first view s": 2.0}, 200_000: {"MB": 40.0, "first view s": 6.0, "filter s": 0.3}}
FLAGS = (
    "--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader", "--disable-quic",
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--disable-dev-shm-usage", "--window-size=1366,850",
)  # fmt: skip

SHOWN = "return performance.getEntriesByName(arguments[0])[0]?.startTime ?? null"
OPEN = """
    const [view, drawn, done] = arguments;
    const start = performance.now();
    document.getElementById(`tab-${view}`).click();
    const look = () => (document.querySelector(drawn) ? requestAnimationFrame(() => done(performance.now() - start))
                                                      : requestAnimationFrame(look));
    look();
"""
FILTER = """
    const [text, done] = arguments;
    const input = document.querySelector(".table-view input[name=text]");
    const count = document.querySelector(".table-view .count");
    const start = performance.now();
    new MutationObserver((_, observer) => {
        observer.disconnect();
        requestAnimationFrame(() => done(performance.now() - start));
    }).observe(count, {childList: true, characterData: true, subtree: true});
    input.value = text;
    input.dispatchEvent(new Event("input"));
"""
SORT = """
    const done = arguments[0];
    const start = performance.now();
    document.querySelector(".table-view [data-column=error]").click();
    requestAnimationFrame(() => done(performance.now() - start));
"""
ZOOM = """
    const done = arguments[0];
    const chart = document.querySelector(".run-view .chart");
    const [low, high] = chart._fullLayout.xaxis.range;
    const frames = [];
    const zoom = async (number) => {
        if (number === 20) return done(frames);
        const start = performance.now();
        const cut = ((high - low) * number) / 50;
        await Plotly.relayout(chart, {"xaxis.range": [low + cut, high - cut]});
        requestAnimationFrame(() => { frames.push(performance.now() - start); zoom(number + 1); });
    };
    zoom(0);
"""
DRAWN = ".run-view .chart .gl-canvas"


@dataclass(frozen=True, slots=True)
class Figures:
    """What was measured of one page, by the name of its column."""

    tensors: int
    columns: dict[str, float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tensors", default="5000,200000", help="sizes of results (default: 5000,200000)")
    sizes = [int(size) for size in parser.parse_args().tensors.split(",")]
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            found.append(measure(Path(folder) / str(size), size))
    print("\n".join(table(found)))


def measure(result: Path, size: int) -> Figures:
    """Make a result and its page, open it, use it."""
    write_result(result, layers=layers_for(size, steps=STEPS), steps=STEPS)
    start = time.perf_counter()
    page = make_report(result)
    made = time.perf_counter() - start
    browser = started(result / "profile")
    try:
        return Figures(size, {"make s": made, "MB": page.stat().st_size / 1e6, **used(browser, page)})
    finally:
        browser.quit()


def started(profile: Path) -> Any:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    browser.set_script_timeout(PATIENCE_S)
    return browser


def used(browser: Any, page: Path) -> dict[str, float]:
    """Seconds until things are there, as the page's own clock tells."""
    browser.get(page.as_uri())
    first = WebDriverWait(browser, PATIENCE_S).until(lambda driver: driver.execute_script(SHOWN, "shown answer"))
    table_s = browser.execute_async_script(OPEN, "table", ".table-view .rows .row")
    filters = [browser.execute_async_script(FILTER, text) for text in ("gelu", "blocks.1.", "linear.1", "no such")]
    sort = browser.execute_async_script(SORT)
    browser.execute_async_script(FILTER, "")
    chart = browser.execute_async_script(OPEN, "run", DRAWN)
    frames = sorted(browser.execute_async_script(ZOOM))
    model = browser.execute_async_script(OPEN, "model", ".tree .rows .row")
    return {
        "first view s": first / 1e3,
        "table s": table_s / 1e3,
        "filter s": max(filters) / 1e3,
        "sort s": sort / 1e3,
        "chart s": chart / 1e3,
        "zoom ms": frames[len(frames) // 2],
        "model s": model / 1e3,
    }


def table(found: list[Figures]) -> list[str]:
    """A line a size, and the bars below."""
    names = list(found[0].columns)
    lines = ["| tensors | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    for figures in found:
        bars = BARS.get(figures.tensors, {})
        cells = [_cell(figures.columns[name], bars.get(name)) for name in names]
        lines.append(f"| {figures.tensors:,} | " + " | ".join(cells) + " |")
    return lines


def _cell(number: float, bar: float | None) -> str:
    shown = f"{number:.2f}" if number < 10 else f"{number:.0f}"
    return shown if bar is None else f"{shown} ({'at most' if number <= bar else 'MISSES'} {bar:g})"


if __name__ == "__main__":
    main()
