"""At the end: the page that a run leaves in its run directory, and `nextlong report` writes anew.

In:  what has just been made. Out: `report.html`, or `sweep.html` of a sweep's variants; as it was, if it shows just that.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from nextlong.artefacts import record
from nextlong.artefacts.pages import CURRENT, HEAD_CHARS, SWEEP, page_name
from nextlong.engine import store
from nextlong.report.page import pictures, write
from nextlong.runs.opened import Run

HOW = "pip install 'nextlong[report]', and runs end with a page of pictures: report.html"


def leave(runs: Sequence[Run]) -> str:
    """Write the page of some variants of one run directory; return what to tell of it."""
    if find_spec("matplotlib") is None:
        return HOW
    shown = runs[: pictures.MAX_RUNS]
    path = place_of(shown) if len(shown) == 1 else shown[0].path / SWEEP
    if not _shows(path, write.identity(shown)):
        with store.explained(path):
            store.write_text(path, write.page(shown))
    return str(path) if shown == runs else f"{path} (the first {len(shown)} of {len(runs)})"


def place_of(runs: Sequence[Run]) -> Path:
    """Return where the page of some variants belongs: in their run directory, or here where they have none in common."""
    run_dir = runs[0].path
    if any(run.path != run_dir for run in runs):
        return Path("report.html")
    names = [run.variant.name for run in runs]
    return run_dir / (CURRENT if names == [record.current(run_dir)] else page_name(names))


def _shows(path: Path, identity: str) -> bool:
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        return identity in file.read(HEAD_CHARS)
