"""Besides: exports of this data set that its record names no more, because a later one of the same format took their place.

In:  the run directory. Out: their steps, and the rows that each export was written from, by fingerprint; the variants of the
directory that hold other sequences.
"""

from __future__ import annotations

from pathlib import Path

from nextlong.verify.artefacts import Artefacts
from nextlong.verify.step import Step, open_step


def earlier_exports(run: Artefacts) -> list[Step]:
    """Return the steps that wrote other exports of the same sequences, in the order of their folders."""
    named = {step.folder for step in run.steps.values()}
    rows = rows_of_data_set(run)
    exports = []
    for path in sorted(run.path.glob("[0-9][0-9]-*/manifest.json")):
        step = open_step(path.parent.name, path.parent)
        if path.parent not in named and is_export(step) and step.manifest["inputs"].get("rows") in rows:
            exports.append(step)
    return exports


def rows_of_data_set(run: Artefacts) -> dict[str, Step]:
    """Return every step that arranged the sequences of this data set, and of no other run beside, by fingerprint."""
    compose, asked = run.steps.get("compose"), run.setting("compose", "sequences", 100)
    steps = {}
    for path in sorted(run.path.glob("[0-9][0-9]-rows-*/manifest.json")):
        step = open_step("rows", path.parent)
        config = step.manifest.get("config", {})
        is_ours = compose is not None and step.manifest["inputs"].get("compose") == compose.manifest["fingerprint"]
        if is_ours and config.get("sequences") == [asked] and not config.get("others"):
            steps[step.manifest["fingerprint"]] = step
    return run.rows_steps | steps


def other_variants(run: Artefacts) -> list[tuple[str, Artefacts]]:
    """Return the run directory's other variants, by name, each set of sequences once and none that this run has itself."""
    seen = {_sequences_of(run)}
    variants = []
    for record in sorted((run.path / "variants").glob("[!.]*.json")):
        variant = Artefacts(Path(f"{run.path}@{record.stem}"))
        if _sequences_of(variant) not in seen:
            seen.add(_sequences_of(variant))
            variants.append((record.stem, variant))
    return variants


def _sequences_of(run: Artefacts) -> tuple[str, ...]:
    compose = run.steps.get("compose")
    return ("" if compose is None else str(compose.manifest["fingerprint"]), *map(str, run.takes))


def is_export(step: Step) -> bool:
    """Say whether a step wrote an export."""
    return {"format", "split"} <= set(step.manifest.get("config", {}))
