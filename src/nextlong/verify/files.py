"""Files: every file of a run against the size and hash in its manifest, and every manifest against those of its inputs.

This includes exports that a later one of the same format replaced, the finished rows in `data/`, and mixes of several runs.
What the rows of a mix should hold is known only to all of its runs together, so of a mix the hashes alone are checked.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, Final

import xxhash

from nextlong.text import Json
from nextlong.verify.outcome import CheckOutcome
from nextlong.verify.run_files import FileEntry, RunFiles, StepFiles, open_step

_READ_BYTES: Final = 1 << 22
_MIX: Final = "mix.json"  # beside the rows of a mix: which runs it is of


def check_files(run: RunFiles, *, known: Collection[Path] = ()) -> list[CheckOutcome]:
    """Hash every file that a manifest names, except those in the folders that are `known` already."""
    files, manifests = CheckOutcome("hashes", "files"), CheckOutcome("manifests", "steps")
    rows = rows_of_data_set(run)
    hashed: set[tuple[int, int]] = set()  # device and inode
    for step in {step.folder: step for step in (*run.steps.values(), *rows.values(), *earlier_exports(run))}.values():
        if step.folder in known:
            continue
        manifests.checked += 1
        if step.damage:
            manifests.breach(f"{step.folder.name}/manifest.json {step.damage}")
            continue
        for name, fingerprint in step.manifest["inputs"].items():
            made_from = rows.get(fingerprint) if name == "rows" else run.steps.get(name)
            if made_from is not None and made_from.damage:
                continue  # reported for that step
            present = made_from.manifest["fingerprint"] if made_from else "not among the run's steps"
            # A step is known by the hash of its inputs, so another fingerprint means that it was made from something else.
            if present != fingerprint:
                manifests.breach(f"{step.folder.name} was made from {name} {fingerprint}, which is now {present}")
        _check_step(step, files)
        hashed |= {_inode(step.folder / name) for name in step.entries if (step.folder / name).is_file()}
    for folder, entries in _data_of(run):
        for name, entry in entries.items():
            files.checked += 1
            is_hashed = (folder / name).is_file() and _inode(folder / name) in hashed  # by a hard link
            if not is_hashed and (problem := _problem_of(folder / name, entry)):
                files.breach(f"{folder.relative_to(run.path)}/{name} {problem}")
    return [manifests, files]


def _check_step(step: StepFiles, outcome: CheckOutcome) -> None:
    for name, entry in step.entries.items():
        outcome.checked += 1
        if problem := _problem_of(step.folder / name, entry):
            outcome.breach(f"{step.folder.name}/{name} {problem}")


def _inode(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _data_of(run: RunFiles) -> Iterator[tuple[Path, dict[str, FileEntry]]]:
    """Yield the folders of `data/` that hold rows of the run, and the files that the record in each names."""
    compose = run.steps.get("compose")
    exports = {name for name, step in run.steps.items() if step.damage or "rows" in step.manifest["inputs"]}
    data = run.path / "data"
    places = [data, *data.glob("mix-*"), *(data / path.stem for path in (run.path / "variants").glob("*.json"))]
    for path in sorted(path for place in places for path in place.glob("*/manifest.json")):
        folder = path.parent
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            composed = [made["steps"]["compose"] for made in record["runs"]]
            is_ours = record["format"] == folder.name and isinstance(record["files"], dict)
            if is_ours and compose and compose.manifest["fingerprint"] in composed:
                yield folder, record["files"]
        except (OSError, ValueError, KeyError, TypeError):
            if folder.name in exports:  # else it is the user's
                yield folder, {path.name: {"bytes": -1, "xxh3": ""}}  # an entry that no file matches


def _problem_of(path: Path, entry: FileEntry) -> str:
    if not path.is_file():
        return "is missing"
    with path.open("rb") as file:
        return content_problem(file, path.stat().st_size, entry)


def content_problem(file: Any, size: int, entry: FileEntry) -> str:
    """Return how an open binary file of `size` bytes differs from what was recorded, "" if it does not."""
    if size != entry["bytes"]:
        return f"has {size:,} bytes, {entry['bytes']:,} were recorded"
    state = xxhash.xxh3_128()
    while piece := file.read(_READ_BYTES):
        state.update(piece)
    return (
        "" if state.hexdigest() == entry["xxh3"] else f"has the hash {state.hexdigest()}, {entry['xxh3']} was recorded"
    )


# steps that the record of the run does not name


def _all_steps(run: RunFiles) -> Iterator[StepFiles]:
    for path in sorted(run.path.glob("[0-9][0-9]-*/manifest.json")):
        yield open_step(path.parent.name, path.parent)


def earlier_exports(run: RunFiles) -> list[StepFiles]:
    """Return the steps that wrote other exports of the same sequences, in the order of their folders."""
    named = {step.folder for step in run.steps.values()}
    rows = rows_of_data_set(run)
    return [
        step
        for step in _all_steps(run)
        if step.folder not in named and is_export(step) and step.manifest["inputs"].get("rows") in rows
    ]


def rows_of_data_set(run: RunFiles) -> dict[str, StepFiles]:
    """Return every step that arranged the sequences of this data set, and of no other run, by fingerprint."""
    compose, sequences = run.steps.get("compose"), run.setting("compose", "sequences", 100)
    steps = {}
    for step in _all_steps(run):
        config = step.manifest.get("config", {})
        is_ours = compose is not None and step.manifest["inputs"].get("compose") == compose.manifest["fingerprint"]
        if is_ours and config.get("sequences") == [sequences] and not config.get("others"):
            steps[step.manifest["fingerprint"]] = step
    return run.rows_steps | steps


def other_variants(run: RunFiles) -> list[tuple[str, RunFiles]]:
    """Return the other variants of the run directory, by name, each set of sequences once and none that this run has itself."""

    def sequences_of(run: RunFiles) -> tuple[str, ...]:
        compose = run.steps.get("compose")
        return ("" if compose is None else str(compose.manifest["fingerprint"]), *map(str, run.takes))

    seen = {sequences_of(run)}
    variants = []
    for record in sorted((run.path / "variants").glob("[!.]*.json")):
        variant = RunFiles(Path(f"{run.path}@{record.stem}"))
        if sequences_of(variant) not in seen:
            seen.add(sequences_of(variant))
            variants.append((record.stem, variant))
    return variants


def is_export(step: StepFiles) -> bool:
    """Return whether a step wrote an export."""
    return {"format", "split"} <= set(step.manifest.get("config", {}))


def check_mixes(run: RunFiles) -> list[CheckOutcome]:
    """Hash every file of each mix of runs in this run directory, and say that its rows were not checked."""
    steps = list(_all_steps(run))
    outcomes = []
    for rows in steps:
        if not rows.manifest.get("config", {}).get("others") and not (rows.folder / _MIX).exists():
            continue
        outcome = CheckOutcome(f"mix {rows.folder.name}", "files")
        if rows.damage:
            outcome.breach(f"{rows.folder.name}/manifest.json {rows.damage}")
        fingerprint = rows.folder.name.rpartition("-")[2]  # which a damaged manifest would not tell
        exports = [step for step in steps if step.manifest["inputs"].get("rows") == fingerprint]
        for step in (rows, *exports):
            _check_step(step, outcome)
        written = ", ".join(step.folder.name for step in exports) or "no export"
        outcome.note = (
            f"only hashes are checked, not the rows of {written}. Verify each run: {_runs_of_mix(rows.folder)}"
        )
        outcomes.append(outcome)
    return outcomes


def _runs_of_mix(folder: Path) -> str:
    try:
        description: Json = json.loads((folder / _MIX).read_text(encoding="utf-8"))
        return ", ".join(str(run["run"]) for run in description["runs"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"unknown ({_MIX} cannot be read; export the mix again)"
