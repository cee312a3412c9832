"""Makes the pictures of README anew: the page of the demo's result, as Chromium shows it. `make pictures` calls it."""

import base64
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

HERE = Path(__file__).parent
WIDTH = 1200
# Name of a picture: the address of the view, what must be there before it is taken, and its height in pixels.
PICTURES = {
    "answer": ("view=answer", ".hero .command", 640),
    "run": ("view=run", ".run-view .js-plotly-plot .gl-canvas, .run-view .js-plotly-plot .points", 560),
}
QUALITY = 80
READY_S = 60
SETTLED_S = 2


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        demo = Path(folder, "ulpscope-demo")
        subprocess.run([sys.executable, "-m", "ulpscope", "demo"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        browser = webdriver.Chrome(options=_options(), service=webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            for name, (address, shown, height) in PICTURES.items():
                size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
                browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
                browser.get(f"{(demo / 'result' / 'report.html').as_uri()}#{address}&theme=light")
                WebDriverWait(browser, READY_S).until(
                    lambda page, shown=shown: page.find_elements("css selector", shown)
                )
                # What is drawn last follows within a moment.
                time.sleep(SETTLED_S)
                (HERE / f"{name}.webp").write_bytes(_picture(browser))
                # Another address behind # alone would not load the page again.
                browser.get("about:blank")
        finally:
            browser.quit()


def _options() -> webdriver.ChromeOptions:
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or shutil.which("google-chrome") or ""
    for word in (
        "--headless=new",
        "--no-sandbox",
        "--use-angle=swiftshader",
        "--enable-unsafe-swiftshader",
        "--hide-scrollbars",
    ):
        options.add_argument(word)
    return options


def _picture(browser: webdriver.Chrome) -> bytes:
    asked = {"format": "webp", "quality": QUALITY}
    return base64.b64decode(browser.execute_cdp_cmd("Page.captureScreenshot", asked)["data"])


if __name__ == "__main__":
    main()
