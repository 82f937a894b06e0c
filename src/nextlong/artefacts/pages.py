"""Pages: what the files with pages of a run directory's states are called, so that those of states that go can go with them."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Final

import xxhash

CURRENT: Final = "report.html"  # of the state that the directory stands for
_AND: Final = "@"  # which no state has in its name
_MANY: Final = "states"
_HASH: Final = re.compile("[0-9a-f]{8}")
_LONGEST_BYTES: Final = 200


def page_name(names: Sequence[str]) -> str:
    """Return the file name of the page of some states; of many with long names, how many and a hash stand in their place."""
    joined = _AND.join(names)
    if len(joined.encode()) > _LONGEST_BYTES:
        joined = _AND.join((str(len(names)), _MANY, xxhash.xxh3_64_hexdigest(joined.encode())[:8]))
    return f"report-{joined}.html"


def pages_of(run_dir: Path, names: Container[str]) -> list[Path]:
    """Return the pages that show one of these states, and those of which the name does not tell."""
    pages = {path: path.stem.removeprefix("report-").split(_AND) for path in sorted(run_dir.glob("report-*.html"))}
    return [path for path, shown in pages.items() if _is_hashed(shown) or any(name in names for name in shown)]


def _is_hashed(shown: Sequence[str]) -> bool:
    return len(shown) == 3 and shown[0].isdecimal() and shown[1] == _MANY and _HASH.fullmatch(shown[2]) is not None
