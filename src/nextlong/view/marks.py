"""Marks: sequences, documents and sources that a reader marked as bad, with notes, in one file of the run directory.

In:  a mark of a sequence, a document or a source. Out: `RUN/marks.jsonl`, one JSON object per line: `source`, and `id` unless
the whole source is marked; `note`; `sequence` if a sequence was marked, which means the document that it is about.
`ingest.exclude: RUN/marks.jsonl` in a recipe excludes these documents from the next run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from nextlong.engine import store
from nextlong.errors import RunError

FILE: Final = "marks.jsonl"


@dataclass(frozen=True)
class Mark:
    """One mark; `id` is "" for a whole source, `sequence` is VARIANT/NUMBER or ""."""

    source: str
    id: str = ""
    note: str = ""
    sequence: str = ""

    @property
    def kind(self) -> str:
        """What was marked."""
        return "sequence" if self.sequence else "document" if self.id else "source"

    def as_form(self) -> str:
        """Return the mark without its note as ASCII JSON, which survives forms and pages whatever an id contains."""
        return json.dumps({"kind": self.kind, "source": self.source, "id": self.id, "sequence": self.sequence})


def read(run_dir: Path) -> list[Mark]:
    """Return the marks of a run directory, the oldest first. Raises RunError for a line that is no mark."""
    path = run_dir / FILE
    marks = []
    # Not `splitlines`: JSON strings may contain an unescaped U+2028, at which that splits.
    for number, line in enumerate(path.read_text(encoding="utf-8").split("\n") if path.is_file() else (), start=1):
        if not line.strip():
            continue
        try:
            marks.append(Mark(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise RunError(f"{path}:{number}: not a mark ({error}); correct or delete the line") from None
    return marks


def change(run_dir: Path, mark: Mark, *, is_set: bool) -> None:
    """Add a mark, or replace the note of the same one; or remove it, whatever its note says."""
    with store.alone(run_dir / FILE), store.explained(run_dir / FILE):  # other viewers wait; a run is not affected
        kept = [one for one in read(run_dir) if replace(one, note="") != replace(mark, note="")]
        lines = [{key: value for key, value in asdict(one).items() if value} for one in [*kept, *[mark] * is_set]]
        store.write_file(run_dir / FILE, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
