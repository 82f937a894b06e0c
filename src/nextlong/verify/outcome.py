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
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def first_difference(found: str, expected: str) -> tuple[int, str, str]:
    """Return the first position at which two texts differ (possibly the end of one), and the next characters of both."""
    pairs = enumerate(zip_longest(found, expected))
    place = next(
        (place for place, (one, other) in pairs if one != other), len(expected)
    )
    return place, found[place : place + 20], expected[place : place + 20]


@dataclass
class CheckOutcome:
    """The result of one check: how many `unit` were checked, the number of breaches, and descriptions of the first few."""

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
        return (
            "not needed" if self.not_needed else "skipped" if self.skipped else "pass"
        )


MARK: Final = re.compile(r"⟦(chunk|document) (-?\d+)⟧")


def chunk_name(row: int, shard: int = 0) -> str:
    """Return a placeholder for a chunk, by row or id, which is replaced by its document's id and its number there, from 1."""
    return f"⟦chunk {shard << SHARD_BITS | int(row)}⟧"


def document_name(row: int, shard: int = 0) -> str:
    """Return a placeholder for a document, by row or id, which is replaced by its own id."""
    return f"⟦document {shard << SHARD_BITS | int(row)}⟧"


def passed(outcomes: Sequence[CheckOutcome]) -> bool:
    return not any(outcome.breaches for outcome in outcomes)


def show(
    outcomes: Sequence[CheckOutcome], run_dir: str | Path, console: Console
) -> None:
    """Print one line per check, then the first breaches of each."""
    tables.show_title(f"verify {run_dir}", console)
    table = tables.table()
    table.add_column("check", no_wrap=True)
    table.add_column("checked", justify="right", no_wrap=True)
    for heading in ("of", "result", ""):
        table.add_column(heading)
    for outcome in outcomes:
        breaches = counted(outcome.breaches, "breach") if outcome.breaches else ""
        remark = breaches or outcome.skipped or outcome.not_needed or outcome.note
        style = {
            "pass": "green",
            "breach": "bold red",
            "skipped": "yellow",
            "not needed": "dim",
        }[outcome.result]
        result = f"[{style}]{outcome.result}[/]"
        table.add_row(
            outcome.check,
            f"{outcome.checked:,}",
            outcome.unit,
            result,
            tables.cell(remark),
        )
    tables.show(table, console)
    for outcome in outcomes:
        for example in outcome.examples:
            tables.say(f"{outcome.check}: {' '.join(example.split())}", console)
    total, skipped = (
        sum(one.breaches for one in outcomes),
        sum(one.result == "skipped" for one in outcomes),
    )
    breaches = counted(total, "breach") if total else "no breach"
    console.print(
        breaches + (f"; {counted(skipped, 'check')} skipped" if skipped else ""),
        highlight=False,
    )


def as_json(outcomes: Sequence[CheckOutcome], run_dir: str | Path) -> str:
    checks = [asdict(outcome) | {"result": outcome.result} for outcome in outcomes]
    return json.dumps(
        {"run": str(run_dir), "passed": passed(outcomes), "checks": checks},
        indent=1,
        ensure_ascii=False,
    )
