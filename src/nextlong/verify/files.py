"""Files: every file of the run against the size and hash in its manifest, and every manifest against its inputs'."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import xxhash

from nextlong.verify.artefacts import Artefacts
from nextlong.verify.besides import earlier_exports, rows_of_data_set
from nextlong.verify.outcome import Outcome
from nextlong.verify.step import FileEntry, Manifest

_READ_BYTES = 1 << 22


def check_files(run: Artefacts, *, known: Collection[Path] = ()) -> list[Outcome]:
    """Hash every file that a manifest names, but for those in the folders that are `known` already."""
    files, manifests = Outcome("hashes", "files"), Outcome("manifests", "steps")
    rows = rows_of_data_set(run)
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
            if problem := problem_of(step.folder / file, record["bytes"], record["xxh3"]):
                files.breach(f"{step.folder.name}/{file} {problem}")
    return [manifests, files]


def _recorded(manifest: Manifest) -> dict[str, FileEntry]:
    """Return size and hash of every file that a manifest names, and of the card that an export got afterwards."""
    files = {name: record for part in manifest["parts"] for name, record in part["files"].items()}
    card = manifest.get("card")
    return files | ({card["file"]: card} if card else {})


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
