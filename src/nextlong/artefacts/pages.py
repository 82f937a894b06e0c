"""Pages: what the files with pages of a run directory's variants are called, so that those of variants that go can go with them."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Final

import xxhash

CURRENT: Final = "report.html"  # of the variant that `RUN` opens
SWEEP: Final = "sweep.html"  # of those that a sweep made
VARIANTS_META: Final = "nextlong-variants"  # in the head of a page: which variants it shows
_AND: Final = "@"  # which no variant has in its name
_MANY: Final = "variants"
_HASH: Final = re.compile("[0-9a-f]{8}")
HEAD_CHARS: Final = 60_000  # of a page: the style stands there, and what names its variants
_LONGEST_BYTES: Final = 200


def page_name(names: Sequence[str]) -> str:
    """Return the file name of the page of some variants; of many with long names, how many and a hash stand in their place."""
    joined = _AND.join(names)
    if len(joined.encode()) > _LONGEST_BYTES:
        joined = _AND.join((str(len(names)), _MANY, xxhash.xxh3_64_hexdigest(joined.encode())[:8]))
    return f"report-{joined}.html"


def pages_of(run_dir: Path, names: Container[str]) -> list[Path]:
    """Return the pages that show one of these variants, and those of which neither name nor head tells."""
    pages = {path: path.stem.removeprefix("report-").split(_AND) for path in sorted(run_dir.glob("report-*.html"))}
    sweep = run_dir / SWEEP
    if sweep.is_file():
        pages[sweep] = _told(sweep)
    return [
        path for path, shown in pages.items() if not shown or _is_hashed(shown) or any(name in names for name in shown)
    ]


def _told(page: Path) -> list[str]:
    with page.open(encoding="utf-8", errors="replace") as file:
        head = file.read(HEAD_CHARS)
    told = re.search(rf'name="{VARIANTS_META}" content="([^"]*)"', head)
    return told[1].split() if told else []


def _is_hashed(shown: Sequence[str]) -> bool:
    return len(shown) == 3 and shown[0].isdecimal() and shown[1] == _MANY and _HASH.fullmatch(shown[2]) is not None
