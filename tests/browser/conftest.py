"""Chromium, headless, as Debian has it; a page that fails its test for any word on the console."""

import json
import shutil

import pytest
from playwright.sync_api import sync_playwright
from tests.support.hand_made_spans import HOSTILE
from tests.support.viewer import viewer

from nextlong import pipeline

# A document that would run, draw or fetch something if it were taken for anything but
# text.
HOSTILE_TEXT = f"{HOSTILE}\n<svg onload=alert(3)>\n<a href='javascript:alert(4)'>x</a>\n</p></article><script src=//x></script>\n"


@pytest.fixture(scope="session")
def run(small_corpus, recipe_for, tmp_path_factory):
    """A run directory with two variants, over documents whose names and texts do their worst."""
    folder = tmp_path_factory.mktemp("browser")
    (folder / "corpus").mkdir()
    for path in small_corpus.iterdir():
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        lines = [
            json.dumps({"id": HOSTILE + row["id"], "text": HOSTILE_TEXT + row["text"]})
            + "\n"
            for row in rows
        ]
        (folder / "corpus" / path.name).write_text("".join(lines), encoding="utf-8")
    changes = (
        f"ingest.sources={json.dumps([{'path': str(folder / 'corpus'), 'name': HOSTILE}])}",
        "compose.sequences=40",
    )
    pipeline.run(
        recipe_for(folder / "run", *changes, "name=standard", "compose.method=standard")
    )
    pipeline.run(recipe_for(folder / "run", *changes, "name=extended"))
    return folder / "run"


@pytest.fixture(scope="session")
def address(run):
    """The viewer of the run."""
    with viewer(run) as address:
        yield address


@pytest.fixture(scope="session")
def chromium():
    with sync_playwright() as playwright:
        path = shutil.which("chromium")
        assert path, "chromium is not installed; say: apt-get install chromium"
        browser = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(chromium, request):
    """A function of an address, width and colours that opens it; at the end nothing may have been said on any console."""
    said, contexts = [], []
    address_headers = (
        request.getfixturevalue("address").headers
        if "address" in request.fixturenames
        else {}
    )

    def note_failure(request):
        # Leaving a page ends its requests.
        if request.failure != "net::ERR_ABORTED":
            said.append(request.url)

    def opened(url, *, width=1440, colours="light", status=200, headers=None):
        if headers is None:
            headers = address_headers if url.startswith("http") else {}
        contexts.append(
            chromium.new_context(
                viewport={"width": width, "height": 900},
                color_scheme=colours,
                extra_http_headers=headers,
            )
        )
        page = contexts[-1].new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on(
            "dialog", lambda dialog: (said.append(dialog.message), dialog.dismiss())
        )
        page.on("requestfailed", note_failure)
        answer = page.goto(url)
        assert answer is None or answer.status in (0, status)
        if status != 200:
            said[:] = [
                text for text in said if not text.startswith("Failed to load resource")
            ]
        return page

    yield opened
    for context in contexts:
        context.close()
    assert said == []
