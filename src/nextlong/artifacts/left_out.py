"""Left out: what no sequence can hold because a filter left it out, by reason, with a few examples; as the corpus step wrote it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

SUFFIX = ".filter_report.json"

# Reasons; behind the first stands what is wrong with the records.
REJECTED = "rejected: "
FILTERED = "removed by the source filter"
EXCLUDED = "excluded by ingest.exclude"
EXACT = "exact duplicate of another document"
NORMALIZED = "normalized duplicate of another document"
OVER = "over max_documents, max_chars or weight"
NEARLY_EQUAL = "near-duplicate of another document"
CONTAMINATED = "shares words with an evaluation text"


@dataclass(frozen=True)
class Example:
    """One that was left out: its own id, the source's name, how its text begins, and what there is to say of it."""

    source_id: str
    source: str
    head: str
    note: str


@dataclass(frozen=True)
class LeftOut:
    """How many `unit` were left out for one reason; `examples` are some of them."""

    reason: str
    unit: str
    count: int
    examples: tuple[Example, ...]


def write(path: Path, reasons: Sequence[LeftOut]) -> None:
    """Write what was left out as JSON."""
    path.write_text(json.dumps([asdict(one) for one in reasons], indent=1, ensure_ascii=False), encoding="utf-8")


def read(path: Path) -> tuple[LeftOut, ...]:
    """Return what `write` wrote."""
    return tuple(
        LeftOut(**{**one, "examples": tuple(Example(**example) for example in one["examples"])})
        for one in json.loads(path.read_text(encoding="utf-8"))
    )
