"""Variants: list the variants of a run directory with their settings and sizes, and clean up what none of them needs.

In:  a run directory. Out: one `Listed` per variant, the oldest first. A folder that several variants need counts for each of
them; `alone_bytes` is what dropping this variant would free.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from nextlong.artifacts import variant_names, variant_records
from nextlong.artifacts.variant_records import Variant
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.runs import card, data_folder
from nextlong.runs.run import Run
from nextlong.sequences.shortfall import why_fewer
from nextlong.text import Json


@dataclass(frozen=True)
class Listed:
    """One variant; `differs` are the settings that differ from those that `RUN` opens, else from the oldest variant's.

    `exports` are folders by format and split; `why_fewer` says why it has fewer sequences than `asked`, else it is empty.
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
    """Return the variants of a run directory, the oldest first. Raises RunError if nothing has finished there."""
    recorded = variant_records.existing(run_dir)
    current = variant_records.opened(run_dir)
    base = next(
        (variant for variant in recorded if variant.name == current), recorded[0]
    )
    holders = Counter(
        folder for variant in recorded for folder in set(variant.steps.values())
    )
    sizes = {folder: bytes_of(run_dir / folder) for folder in holders}
    listed = []
    for variant in recorded:
        asked, why, steps = variant.recipe["compose"]["sequences"], "", variant.steps
        if isinstance(asked, int) and variant.sequences < asked:
            try:
                run = Run(variant.named)
                why = "; ".join(why_fewer(run.recipe.compose, run.steps))
            except (
                RunError,
                KeyError,
            ):  # a step is damaged; `nextlong verify` reports it
                why = "unknown: its steps cannot be read"
        manifests = {
            step: manifest_of(run_dir / folder) for step, folder in steps.items()
        }
        one = Listed(
            name=variant.name,
            is_current=variant.name == current,
            differs=variant_names.differences(variant.settings, base.settings),
            sequences=variant.sequences,
            asked=asked,
            why_fewer=why,
            tokens_each=manifests.get("compose", {})
            .get("config", {})
            .get("target_tokens"),
            exports={
                step: steps[step]
                for step, manifest in manifests.items()
                if "rows" in manifest.get("inputs", {})
            },
            bytes=sum(sizes[folder] for folder in set(steps.values())),
            alone_bytes=sum(
                sizes[folder] for folder in set(steps.values()) if holders[folder] == 1
            ),
            made=variant.made,
        )
        listed.append(one)
    return listed


def manifest_of(folder: Path) -> Json:
    """Return a step's manifest, {} where it has none that can be read: it is not finished, or damaged."""
    with suppress(RunError):
        if isinstance(manifest := store.read_json(folder / store.MANIFEST), dict):
            return manifest
    return {}


def bytes_of(folder: Path) -> int:
    """Return how much the files in a folder, or one file, hold."""
    paths = folder.rglob("*") if folder.is_dir() else [folder]
    return sum(path.lstat().st_size for path in paths if not path.is_dir())


_LEFTOVERS = (".work-*", ".*.tmp")
CURRENT: Final = "report.html"  # of the variant that `RUN` opens
VARIANTS_META: Final = (
    "nextlong-variants"  # in the head of a page: which variants it shows
)
HEAD_CHARS: Final = (
    60_000  # of a page, which hold its style sheet and the names of its variants
)


@dataclass(frozen=True)
class Waste:
    """A folder or file that no kept variant needs, and what it is."""

    path: Path
    bytes: int
    why: str


def choose(
    run_dir: Path, *, keep: Sequence[str] = (), drop: Sequence[str] = ()
) -> tuple[list[Variant], list[Variant]]:
    """Return the variants to keep and those to delete; without names all are kept. Raises RunError for an unknown name."""
    recorded = variant_records.existing(run_dir)
    known = [variant.name for variant in recorded]
    for name in (*keep, *drop):
        if name not in known:
            raise RunError(
                f"{run_dir} has no variant {name!r}; it has: {', '.join(known)} (`nextlong list {run_dir}`)"
            )
    kept = [
        variant
        for variant in recorded
        if (not keep or variant.name in keep) and variant.name not in drop
    ]
    if not kept:
        raise RunError(
            f"this would delete every variant of {run_dir}; keep one, or delete the folder itself"
        )
    return kept, [variant for variant in recorded if variant not in kept]


def find_waste(
    run_dir: Path, kept: Sequence[Variant], dropped: Sequence[Variant] = ()
) -> list[Waste]:
    """Return the folders and files that no kept variant needs, in the order of the route."""
    manifests = {
        folder.name: manifest_of(folder)
        for folder in sorted(run_dir.glob("[0-9][0-9]-*"))
    }
    inputs: dict[str, Json] = {
        name: manifest.get("inputs", {}) for name, manifest in manifests.items()
    }
    needed = {folder for variant in kept for folder in variant.steps.values()}
    only_dropped = {
        folder for variant in dropped for folder in variant.steps.values()
    } - needed
    # Other exports and measurements of what a kept variant composed stay too, and the rows that any of them reads.
    composed = {_fingerprint(variant.steps["compose"]) for variant in kept}
    needed |= {
        name
        for name, of in inputs.items()
        if of.get("compose") in composed and name not in only_dropped
    }
    rows = {inputs.get(name, {}).get("rows") for name in needed}
    needed |= {
        name
        for name in inputs
        if name[2:].startswith("-rows-") and _fingerprint(name) in rows
    }
    waste = []
    for name, manifest in manifests.items():
        folder = run_dir / name
        if name in needed:
            leftovers = [
                path for pattern in _LEFTOVERS for path in sorted(folder.glob(pattern))
            ]
            waste += [
                Waste(path, bytes_of(path), "left by a killed run")
                for path in leftovers
            ]
        else:
            owners = ", ".join(
                variant.name for variant in dropped if name in variant.steps.values()
            )
            why = (
                f"used by {owners}"
                if owners
                else "used by no variant"
                if manifest
                else "not finished"
            )
            waste.append(Waste(folder, bytes_of(folder), why))
    return waste


def _fingerprint(folder: str) -> str:
    return folder.rpartition("-")[2]


def find_pages(run_dir: Path, dropped: Sequence[Variant]) -> list[Waste]:
    """Return the reports to delete with dropped variants: their heads name one of these, or name no variants."""
    gone, pages = {variant.name for variant in dropped}, []
    for page in sorted(run_dir.glob("report-*.html")) if gone else []:
        with page.open(encoding="utf-8", errors="replace") as file:
            named = re.search(
                rf'name="{VARIANTS_META}" content="([^"]*)"', file.read(HEAD_CHARS)
            )
        if named is None or not named[1] or {*named[1].split()} & gone:
            pages.append(page)
    if variant_records.current(run_dir) in gone and (run_dir / CURRENT).exists():
        pages.append(run_dir / CURRENT)
    return [
        Waste(page, page.stat().st_size, "shows a deleted variant") for page in pages
    ]


def remove(run_dir: Path, dropped: Sequence[Variant], waste: Sequence[Waste]) -> None:
    """Remove variants with their pages, then folders; the caller holds the run directory's lock."""
    with store.explained(run_dir):
        pages, removed = find_pages(run_dir, dropped), {one.path for one in waste}
        rows = {
            _fingerprint(path.name)
            for path in run_dir.glob("[0-9][0-9]-rows-*")
            if path not in removed
        }
        kept = set(variant_records.variant_names(run_dir)) - {
            variant.name for variant in dropped
        }
        data_folder.remove_stale(run_dir, kept=kept, rows=rows)
        for variant in dropped:
            variant_records.remove(variant)
        for page in pages:
            store.remove_file(page.path)
        for path in (one.path for one in waste):
            if path.is_dir():
                # Renamed first: if the removal is interrupted, `store.locked` takes it for a killed task's and removes it.
                shutil.rmtree(path.rename(run_dir / f".work-removed-{path.name}"))
            else:
                path.unlink(missing_ok=True)
        card.write_index(run_dir)
