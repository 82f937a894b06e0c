"""Draw the screenshots of the documentation: the top of a report, and its walk through one sequence.

    pip install -e '.[browser]'; apt-get install chromium; make demo
    python bench/screenshots.py nextlong-demo/run/report.html docs/assets

In:  a report, and a folder. Out: `report.png` (the decision) and `report-sequence.png`, 1,440 px wide.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

WIDTH, HEIGHT = 1440, 900


def main(report: Path, folder: Path) -> None:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light"
        )
        page.goto(report.resolve().as_uri())
        for name, section in (("report", "decision"), ("report-sequence", "sequence")):
            top = (
                page.locator(f"#{section}").evaluate("(one) => one.offsetTop")
                if section != "decision"
                else 0
            )
            page.evaluate("(top) => scrollTo(0, top)", top)
            page.locator(f"nav [aria-current][href='#{section}']").wait_for(
                state="attached"
            )
            page.screenshot(path=folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
