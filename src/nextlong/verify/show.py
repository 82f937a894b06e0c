"""Show: outcomes as a table, or as JSON for tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from nextlong.plural import counted
from nextlong.report import tables
from nextlong.verify.outcome import Outcome

_STYLES = {"pass": "green", "breach": "bold red", "skipped": "yellow", "not needed": "dim"}


def passed(outcomes: Sequence[Outcome]) -> bool:
    """Say whether no check found a breach."""
    return not any(outcome.breaches for outcome in outcomes)


def show(outcomes: Sequence[Outcome], run_dir: str | Path, console: Console) -> None:
    """Print one line a check, then the first breaches of each."""
    tables.show_title(f"verify {run_dir}", console)
    table = tables.table()
    table.add_column("check", no_wrap=True)
    table.add_column("checked", justify="right", no_wrap=True)
    for heading in ("of", "result", ""):
        table.add_column(heading)
    for outcome in outcomes:
        said = outcome.skipped or outcome.not_needed or outcome.note
        if outcome.breaches:
            said = f"{outcome.breaches:,} breach{'es' if outcome.breaches > 1 else ''}"
        style = _STYLES[outcome.result]
        result = f"[{style}]{outcome.result}[/]"
        table.add_row(outcome.check, f"{outcome.checked:,}", outcome.unit, result, tables.cell(said))
    tables.show(table, console)
    for outcome in outcomes:
        for example in outcome.examples:
            tables.say(f"{outcome.check}: {' '.join(example.split())}", console)
    count = sum(outcome.breaches for outcome in outcomes)
    breaches = f"{count:,} breach{'es' if count > 1 else ''}" if count else "no breach"
    skipped = sum(outcome.result == "skipped" for outcome in outcomes)
    left_out = f"; {counted(skipped, 'check')} skipped" if skipped else ""
    console.print(f"{breaches}{left_out}", highlight=False)


def as_json(outcomes: Sequence[Outcome], run_dir: str | Path) -> str:
    """Return what was found as one JSON object."""
    checks = [asdict(outcome) | {"result": outcome.result} for outcome in outcomes]
    return json.dumps({"run": str(run_dir), "passed": passed(outcomes), "checks": checks}, indent=1, ensure_ascii=False)
