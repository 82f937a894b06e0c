"""Variants: list those of a run directory, and clean up what none of them needs.

In:  a run directory. Out: one `Listed` per variant, the oldest first, with its settings
and sizes. A folder that several variants need counts for each of them; `alone_bytes` is
what dropping this variant would free.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from nextlong.artifacts import variant_names, variant_records
from nextlong.artifacts.variant_records import Variant
from nextlong.engine import store
from nextlong.errors import PluginError, RunError
from nextlong.runs import card, data_folder
from nextlong.runs.run import Run
from nextlong.sequences.shortfall import why_fewer
from nextlong.text import Json

_UNREADABLE: Final = "unknown: its steps cannot be read"
_LEFTOVERS: Final = (".work-*", ".*.tmp")
CURRENT: Final = "report.html"  # of the variant that `RUN` opens
SEARCH_INDEX: Final = "search-index"  # the folder that the viewer keeps its index in
# In the head of a page: which variants it shows.
VARIANTS_META: Final = "nextlong-variants"
# Of a page, which hold its style sheet and the names of its variants.
HEAD_CHARS: Final = 60_000


@dataclass(frozen=True)
class Listed:
    """One variant of a run directory.

    `differs` are the settings that differ from those that `RUN` opens, else from the
    oldest variant's. `exports` are folders by format and split; `why_fewer` says why it
    has fewer sequences than `asked`, else it is empty.
    """

    name: str
    is_current: bool
    differs: Json
    sequences: int
    asked: int | Literal["all"]
    why_fewer: str
    tokens_each: int | None
    exports: dict[str, str]
    bytes: int
    alone_bytes: int
    made: str


def list_variants(run_dir: Path) -> list[Listed]:
    """Return the variants of a run directory, the oldest first.

    Raises RunError if nothing has finished there.
    """
    recorded = variant_records.existing(run_dir)
    current = variant_records.opened(run_dir)
    base = recorded[0]
    holders = Counter[str]()  # by folder: how many variants need it
    for variant in recorded:
        holders.update(set(variant.steps.values()))
        if variant.name == current:
            base = variant
    sizes = {folder: bytes_of(run_dir / folder) for folder in holders}
    listed = []
    for variant in recorded:
        folders = set(variant.steps.values())
        manifests = {
            step: manifest_of(run_dir / folder)
            for step, folder in variant.steps.items()
        }
        composed = manifests.get("compose", {})
        exports = {
            step: variant.steps[step]
            for step, manifest in manifests.items()
            if "rows" in manifest.get("inputs", {})
        }
        alone_bytes = sum(sizes[folder] for folder in folders if holders[folder] == 1)
        listed.append(
            Listed(
                name=variant.name,
                is_current=variant.name == current,
                differs=variant_names.differences(variant.settings, base.settings),
                sequences=variant.sequences,
                asked=variant.recipe["compose"]["sequences"],
                why_fewer=_why_fewer(variant),
                tokens_each=composed.get("config", {}).get("target_tokens"),
                exports=exports,
                bytes=sum(sizes[folder] for folder in folders),
                alone_bytes=alone_bytes,
                made=variant.made,
            )
        )
    return listed


def _why_fewer(variant: Variant) -> str:
    """Return why a variant has fewer sequences than its recipe asks for; else ""."""
    asked = variant.recipe["compose"]["sequences"]
    if not isinstance(asked, int) or variant.sequences >= asked:
        return ""
    try:
        run = Run(variant.named)
        return "; ".join(why_fewer(run.recipe.compose, run.steps))
    except (RunError, PluginError, KeyError):
        # A step is damaged, as `nextlong verify` reports, or a plug-in.
        return _UNREADABLE


def manifest_of(folder: Path) -> Json:
    """Return a step's manifest, {} where it has none that can be read.

    The step is not finished then, or damaged.
    """
    with suppress(RunError):
        manifest = store.read_json(folder / store.MANIFEST)
        if isinstance(manifest, dict):
            return manifest
    return {}


def bytes_of(folder: Path) -> int:
    """Return how much the files in a folder, or one file, hold."""
    paths = folder.rglob("*") if folder.is_dir() else [folder]
    return sum(path.lstat().st_size for path in paths if not path.is_dir())


@dataclass(frozen=True)
class Waste:
    """A folder or file that no kept variant needs, and what it is."""

    path: Path
    bytes: int
    why: str


def choose(
    run_dir: Path, *, keep: Sequence[str] = (), drop: Sequence[str] = ()
) -> tuple[list[Variant], list[Variant]]:
    """Return the variants to keep and those to delete; without names all are kept.

    Raises RunError for an unknown name.
    """
    recorded = variant_records.existing(run_dir)
    known = [variant.name for variant in recorded]
    for name in (*keep, *drop):
        if name not in known:
            raise variant_records.unknown_variant(run_dir, name, known)
    kept = []
    dropped = []
    for variant in recorded:
        is_kept = not keep or variant.name in keep
        if is_kept and variant.name not in drop:
            kept.append(variant)
        else:
            dropped.append(variant)
    if not kept:
        raise RunError(
            where=run_dir,
            problem="this would delete every variant of it",
            fix="keep one, or delete the folder itself",
        )
    return kept, dropped


def find_waste(
    run_dir: Path, kept: Sequence[Variant], dropped: Sequence[Variant] = ()
) -> list[Waste]:
    """Return the folders and files that no kept variant needs.

    In the order of the route.
    """
    folders = sorted(run_dir.glob("[0-9][0-9]-*"))
    manifests = {folder.name: manifest_of(folder) for folder in folders}
    needed = _needed_folders(manifests, kept, dropped)
    waste = []
    for folder in folders:
        if folder.name in needed:
            for pattern in _LEFTOVERS:
                for path in sorted(folder.glob(pattern)):
                    waste.append(Waste(path, bytes_of(path), "left by a killed run"))
            continue
        owners = [
            variant.name for variant in dropped if folder.name in variant.steps.values()
        ]
        why = "not finished"
        if owners:
            why = f"used by {', '.join(owners)}"
        elif manifests[folder.name]:
            why = "used by no variant"
        waste.append(Waste(folder, bytes_of(folder), why))
    return waste


def _needed_folders(
    manifests: Mapping[str, Json],
    kept: Sequence[Variant],
    dropped: Sequence[Variant],
) -> set[str]:
    """Return the names of the step folders that kept variants need.

    Other exports and measurements of what a kept variant composed stay too, and the
    rows that any of them reads.
    """
    needed = _folders_of(kept)
    # A variant that is dropped takes its own exports with it.
    only_dropped = _folders_of(dropped) - needed
    inputs = {name: manifest.get("inputs", {}) for name, manifest in manifests.items()}
    composed = {_fingerprint(variant.steps["compose"]) for variant in kept}
    for name, inputs_of_step in inputs.items():
        if inputs_of_step.get("compose") in composed and name not in only_dropped:
            needed.add(name)
    rows = {inputs.get(name, {}).get("rows") for name in needed}
    for name in inputs:
        if name[2:].startswith("-rows-") and _fingerprint(name) in rows:
            needed.add(name)
    return needed


def _folders_of(variants: Sequence[Variant]) -> set[str]:
    """Return the step folders that some variants consist of."""
    folders: set[str] = set()
    for variant in variants:
        folders.update(variant.steps.values())
    return folders


def _fingerprint(folder: str) -> str:
    return folder.rpartition("-")[2]


def find_search_index(run_dir: Path) -> list[Waste]:
    """Return the viewer's search index, if there is one."""
    path = run_dir / SEARCH_INDEX
    if not path.is_dir():
        return []
    return [Waste(path, bytes_of(path), "search index, rebuilt by nextlong view")]


def find_pages(run_dir: Path, dropped: Sequence[Variant]) -> list[Waste]:
    """Return the reports to delete with dropped variants.

    Their heads name one of these, or name no variants.
    """
    names = {variant.name for variant in dropped}
    if not names:
        return []
    pages = []
    for page in sorted(run_dir.glob("report-*.html")):
        shown = _shown_variants(page)
        if shown is None or shown & names:
            pages.append(page)
    if variant_records.current(run_dir) in names and (run_dir / CURRENT).exists():
        pages.append(run_dir / CURRENT)
    return [
        Waste(page, page.stat().st_size, "shows a deleted variant") for page in pages
    ]


def _shown_variants(page: Path) -> set[str] | None:
    """Return the variants that the head of a report names; None if it names none."""
    with page.open(encoding="utf-8", errors="replace") as file:
        head = file.read(HEAD_CHARS)
    named = re.search(rf'name="{VARIANTS_META}" content="([^"]*)"', head)
    if named is None or not named[1]:
        return None
    return set(named[1].split())


def remove(run_dir: Path, dropped: Sequence[Variant], waste: Sequence[Waste]) -> None:
    """Remove variants with their pages, then folders.

    The caller holds the run directory's lock.
    """
    with store.explained(run_dir):
        pages = find_pages(run_dir, dropped)
        _remove_stale_data(run_dir, dropped, waste)
        for variant in dropped:
            variant_records.remove(variant)
        for page in pages:
            store.remove_file(page.path)
        for wasted in waste:
            path = wasted.path
            if path.is_dir():
                # Renamed first: if the removal is interrupted, `store.locked` takes it
                # for a killed task's and removes it.
                renamed = run_dir / f".work-removed-{path.name}"
                shutil.rmtree(path.rename(renamed))
            else:
                path.unlink(missing_ok=True)
        card.write_index(run_dir)


def _remove_stale_data(
    run_dir: Path, dropped: Sequence[Variant], waste: Sequence[Waste]
) -> None:
    """Remove from `data/` what comes from dropped variants or removed rows."""
    removed = {wasted.path for wasted in waste}
    rows = {
        _fingerprint(path.name)
        for path in run_dir.glob("[0-9][0-9]-rows-*")
        if path not in removed
    }
    kept = set(variant_records.names(run_dir))
    kept.difference_update(variant.name for variant in dropped)
    data_folder.remove_stale(run_dir, kept=kept, rows=rows)
