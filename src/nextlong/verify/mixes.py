"""Mixes: the exports of several runs that lie in this run's directory.

In:  the run directory; the rows that are of other runs too, and the exports that were written from them. Out: one `Outcome` a
mix: its files against their hashes. What its rows should hold is known to several runs, each of which is verified by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from nextlong.verify.artefacts import Artefacts
from nextlong.verify.files import problem_of
from nextlong.verify.outcome import Outcome
from nextlong.verify.step import Step, open_step

_DESCRIPTION = "mix.json"


def check_mixes(run: Artefacts) -> list[Outcome]:
    """Hash every file of each mix, and say what else was not checked; nothing where there is no mix."""
    steps = [open_step(path.parent.name, path.parent) for path in sorted(run.path.glob("[0-9][0-9]-*/manifest.json"))]
    return [_check(rows, [step for step in steps if _is_of(step, rows)]) for rows in steps if _is_mix(rows)]


def _is_mix(step: Step) -> bool:
    return bool(step.manifest.get("config", {}).get("others")) or (step.folder / _DESCRIPTION).exists()


def _is_of(step: Step, rows: Step) -> bool:
    fingerprint = rows.folder.name.rpartition("-")[2]  # which a damaged manifest would not tell
    return bool(step.manifest["inputs"].get("rows") == fingerprint)


def _check(rows: Step, exports: list[Step]) -> Outcome:
    outcome = Outcome(f"mix {rows.folder.name}", "files")
    if rows.damage:
        outcome.breach(f"{rows.folder.name}/manifest.json {rows.damage}")
    for step in (rows, *exports):
        for part in step.manifest["parts"]:
            for file, record in part["files"].items():
                outcome.checked += 1
                if problem := problem_of(step.folder / file, record["bytes"], record["xxh3"]):
                    outcome.breach(f"{step.folder.name}/{file} {problem}")
    written = ", ".join(step.folder.name for step in exports) or "no export"
    outcome.note = (
        f"hashes only; what the rows of {written} hold was not checked. Verify each run: {', '.join(_runs(rows))}"
    )
    return outcome


def _runs(rows: Step) -> Iterator[str]:
    try:
        for run in json.loads((rows.folder / _DESCRIPTION).read_text(encoding="utf-8"))["runs"]:
            yield str(run["run"])
    except (OSError, ValueError, KeyError, TypeError):
        yield f"unknown, for {_DESCRIPTION} cannot be read; export the mix again"
