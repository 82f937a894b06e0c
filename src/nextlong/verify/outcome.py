"""Outcome: the result of one check, and its display as a table or as JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Final, Literal

from rich.console import Console

from nextlong.report import tables
from nextlong.schemas import SHARD_BITS
from nextlong.text import counted


def in_words(error: BaseException) -> str:
    """Return the message of an error, with its file if it names one."""
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    name = type(error).__name__
    message = str(error)
    return f"{name}: {message}" if message else name


def first_difference(found: str, expected: str) -> tuple[int, str, str]:
    """Return where two texts first differ, and the next characters of both.

    That may be the end of one of them.
    """
    position = len(expected)
    for index, (left, right) in enumerate(zip_longest(found, expected)):
        if left != right:
            position = index
            break
    after = slice(position, position + 20)
    return position, found[after], expected[after]


@dataclass
class CheckOutcome:
    """The result of one check: how many `unit` were checked, and the breaches.

    `examples` are descriptions of the first few breaches.
    """

    check: str
    unit: str
    checked: int = 0
    breaches: int = 0
    examples: list[str] = field(default_factory=list)
    note: str = ""
    skipped: str = ""  # why nothing could be checked
    not_needed: str = ""  # why there is nothing to check with this method or recipe

    def breach(self, example: str) -> None:
        """Count a breach, and keep its description if it is one of the first."""
        self.breaches += 1
        if len(self.examples) < 5:
            self.examples.append(example)

    def breach_each(self, examples: Iterable[str], *, checked: int = 0) -> None:
        """Count `checked` units as checked, and each example as a breach."""
        self.checked += checked
        for example in examples:
            self.breach(example)

    @property
    def result(self) -> Literal["pass", "breach", "skipped", "not needed"]:
        if self.breaches:
            return "breach"
        if self.not_needed:
            return "not needed"
        return "skipped" if self.skipped else "pass"


_STYLES: Final = {
    "pass": "green",
    "breach": "bold red",
    "skipped": "yellow",
    "not needed": "dim",
}
# Names need look-ups in the corpus, so descriptions have ids until they are kept.
MARK: Final = re.compile(r"⟦(chunk|document) (-?\d+)⟧")


def chunk_name(row: int, shard: int = 0) -> str:
    """Return a placeholder for a chunk, by row or id.

    `StoredRun.name_marks` replaces it by the id of the chunk's document and its number
    there, from 1.
    """
    return f"⟦chunk {shard << SHARD_BITS | int(row)}⟧"


def document_name(row: int, shard: int = 0) -> str:
    """Return a placeholder for a document, by row or id, replaced like a chunk's."""
    return f"⟦document {shard << SHARD_BITS | int(row)}⟧"


def passed(outcomes: Sequence[CheckOutcome]) -> bool:
    return not any(outcome.breaches for outcome in outcomes)


def show(
    outcomes: Sequence[CheckOutcome],
    run_dir: str | Path,
    console: Console,
) -> None:
    """Print one line per check, then the first breaches of each."""
    tables.show_title(f"verify {run_dir}", console)
    table = tables.table()
    table.add_column("check", no_wrap=True)
    table.add_column("checked", justify="right", no_wrap=True)
    for heading in ("of", "result", ""):
        table.add_column(heading)
    for outcome in outcomes:
        table.add_row(
            outcome.check,
            f"{outcome.checked:,}",
            outcome.unit,
            f"[{_STYLES[outcome.result]}]{outcome.result}[/]",
            tables.cell(_remark(outcome)),
        )
    tables.show(table, console)
    # Below the table, where an example has a line of its own.
    for outcome in outcomes:
        for example in outcome.examples:
            one_line = " ".join(example.split())
            tables.say(f"{outcome.check}: {one_line}", console)
    total = sum(outcome.breaches for outcome in outcomes)
    summary = counted(total, "breach") if total else "no breach"
    skipped = [outcome for outcome in outcomes if outcome.result == "skipped"]
    if skipped:
        summary += f"; {counted(len(skipped), 'check')} skipped"
    console.print(summary, highlight=False)


def _remark(outcome: CheckOutcome) -> str:
    if outcome.breaches:
        return counted(outcome.breaches, "breach")
    return outcome.skipped or outcome.not_needed or outcome.note


def as_json(outcomes: Sequence[CheckOutcome], run_dir: str | Path) -> str:
    checks = [asdict(outcome) | {"result": outcome.result} for outcome in outcomes]
    report = {"run": str(run_dir), "passed": passed(outcomes), "checks": checks}
    return json.dumps(report, indent=1, ensure_ascii=False)
