"""Files: every file of the run against the size and hash in its manifest, and every manifest against its inputs'."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from pathlib import Path

import xxhash

from nextlong.plain_data import Json
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.besides import earlier_exports, rows_of_data_set
from nextlong.verify.outcome import Outcome
from nextlong.verify.step import FileEntry, Manifest

_READ_BYTES = 1 << 22


def check_files(run: Artefacts, *, known: Collection[Path] = ()) -> list[Outcome]:
    """Hash every file that a manifest names, but for those in the folders that are `known` already."""
    files, manifests = Outcome("hashes", "files"), Outcome("manifests", "steps")
    rows = rows_of_data_set(run)
    hashed: set[tuple[int, int]] = set()
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
                continue  # which is told where its own turn comes
            there = made_from.manifest["fingerprint"] if made_from else "not among the run's steps"
            if there != fingerprint:
                manifests.breach(f"{step.folder.name} was made from {name} {fingerprint}, which is now {there}")
        for file, record in _recorded(step.manifest).items():
            files.checked += 1
            if (path := step.folder / file).is_file():
                hashed.add((path.stat().st_dev, path.stat().st_ino))
            if problem := problem_of(step.folder / file, record["bytes"], record["xxh3"]):
                files.breach(f"{step.folder.name}/{file} {problem}")
    for folder, delivered in _data_of(run):
        for name, record in delivered["files"].items():
            files.checked += 1
            if not _is_hashed(folder / name, hashed) and (
                problem := problem_of(folder / name, record["bytes"], record["xxh3"])
            ):
                files.breach(f"{folder.relative_to(run.path)}/{name} {problem}")
    return [manifests, files]


def _data_of(run: Artefacts) -> Iterator[tuple[Path, Json]]:
    """Yield the folders of `data/` that hold rows of the run, and the record in each."""
    compose = run.steps.get("compose")
    exports = {name for name, step in run.steps.items() if step.damage or "rows" in step.manifest["inputs"]}
    data = run.path / "data"
    places = [data, *data.glob("mix-*"), *(data / path.stem for path in (run.path / "variants").glob("*.json"))]
    for path in sorted(path for place in places for path in place.glob("*/manifest.json")):
        folder = path.parent
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            made = [made["steps"]["compose"] for made in record["runs"]]
            is_ours = record["format"] == folder.name and isinstance(record["files"], dict)
            if is_ours and compose and compose.manifest["fingerprint"] in made:
                yield folder, record
        except (OSError, ValueError, KeyError, TypeError):
            if folder.name in exports:  # else it is the user's
                yield folder, {"files": {path.name: {"bytes": -1, "xxh3": ""}}}  # which no file is


def _is_hashed(path: Path, hashed: set[tuple[int, int]]) -> bool:
    """Say whether a file is a hard link to one that was hashed."""
    return path.is_file() and (path.stat().st_dev, path.stat().st_ino) in hashed


def _recorded(manifest: Manifest) -> dict[str, FileEntry]:
    """Return size and hash of every file that a manifest names."""
    return {name: record for part in manifest["parts"] for name, record in part["files"].items()}


def problem_of(path: Path, size: int, xxh3: str) -> str:
    """Return what is wrong with a file, "" if it is as recorded."""
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != size:
        return f"has {path.stat().st_size:,} bytes, its manifest says {size:,}"
    state = xxhash.xxh3_128()
    with path.open("rb") as file:
        while piece := file.read(_READ_BYTES):
            state.update(piece)
    return "" if state.hexdigest() == xxh3 else f"has the hash {state.hexdigest()}, its manifest says {xxh3}"
