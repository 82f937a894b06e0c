"""At the end: the page that a run leaves in its run directory.

In:  what has just been made. Out: `report.html`, or `sweep.html` of several states; as it was, if it shows just that.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from nextlong.engine import store
from nextlong.report.page import pictures, write
from nextlong.runs.opened import Run

HOW = "pip install 'nextlong[report]', and runs end with a page of pictures: report.html"
_HEAD_CHARS = 60_000  # the style stands there, and what names the state


def leave(runs: Sequence[Run]) -> str:
    """Write the page of some states of one run directory; return what to tell of it."""
    if find_spec("matplotlib") is None:
        return HOW
    shown = runs[: pictures.MAX_RUNS]
    path = shown[0].path / ("report.html" if len(runs) == 1 else "sweep.html")
    if not _shows(path, write.identity(shown)):
        with store.explained(path):
            store.write_text(path, write.page(shown))
    return str(path) if shown == runs else f"{path} (the first {len(shown)} of {len(runs)})"


def _shows(path: Path, identity: str) -> bool:
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return identity in file.read(_HEAD_CHARS)
