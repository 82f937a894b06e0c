"""Clean up: what no variant of a run directory needs, and how it is removed.

In:  a run directory, and the variants that are to stay. Out: `Waste`, a folder each; then they are gone.
A kept variant needs the folders that its record names, and every export of its sequences, mixes in which they come first among
them, unless that is a dropped variant's. Records go before folders, and a folder is renamed before its files go: killed
anywhere, every variant that is still listed is whole, and what was left half removed goes at the next run.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from nextlong.artefacts import record
from nextlong.artefacts.pages import CURRENT, pages_of
from nextlong.artefacts.record import Variant
from nextlong.engine import shared, store
from nextlong.errors import RunError
from nextlong.runs import data_folder
from nextlong.runs.listed import bytes_of, inputs_of, manifest_of

_LEFTOVERS = (".work-*", ".*.tmp")


@dataclass(frozen=True)
class Waste:
    """A folder or file that no kept variant needs, and what it is."""

    path: Path
    bytes: int
    why: str


def choose(run_dir: Path, *, keep: Sequence[str] = (), drop: Sequence[str] = ()) -> tuple[list[Variant], list[Variant]]:
    """Return the variants that stay and those that go; both empty means all stay. Raises RunError for a name that is none."""
    there = record.existing(run_dir)
    known = [variant.name for variant in there]
    for name in (*keep, *drop):
        if name not in known:
            raise RunError(f"{run_dir} has no variant {name!r}; it has: {', '.join(known)} (`nextlong list {run_dir}`)")
    kept = [variant for variant in there if (not keep or variant.name in keep) and variant.name not in drop]
    if not kept:
        raise RunError(f"this leaves {run_dir} without a variant; delete the folder itself if nothing of it is needed")
    return kept, [variant for variant in there if variant not in kept]


def find_waste(run_dir: Path, kept: Sequence[Variant], dropped: Sequence[Variant] = ()) -> list[Waste]:
    """Return what can go, in the order of the route."""
    needed = _needed(run_dir, kept, dropped)
    waste = []
    for folder in sorted(run_dir.glob("[0-9][0-9]-*")):
        if folder.is_symlink():
            if folder.name not in needed:
                waste.append(Waste(folder, 0, f"a link; its files stay in {folder.readlink().parent}"))
            continue
        if folder.name not in needed:
            waste.append(Waste(folder, bytes_of(folder), _why(folder, dropped)))
            continue
        left = [path for pattern in _LEFTOVERS for path in sorted(folder.glob(pattern))]
        waste += [Waste(path, bytes_of(path), "left by a killed run") for path in left]
    return waste


def _needed(run_dir: Path, kept: Sequence[Variant], dropped: Sequence[Variant]) -> set[str]:
    named = {folder for variant in kept for folder in variant.steps.values()}
    given_up = {folder for variant in dropped for folder in variant.steps.values()} - named
    composed = {_fingerprint(variant.steps["compose"]) for variant in kept}
    for folder in run_dir.glob("[0-9][0-9]-*"):
        if inputs_of(folder).get("compose") in composed and folder.name not in given_up:
            named.add(folder.name)
    rows = {inputs_of(run_dir / folder).get("rows") for folder in named}
    return named | {path.name for path in run_dir.glob("[0-9][0-9]-rows-*") if _fingerprint(path.name) in rows}


def _fingerprint(folder: str) -> str:
    return folder.rpartition("-")[2]


def _why(folder: Path, dropped: Sequence[Variant]) -> str:
    owners = [variant.name for variant in dropped if folder.name in variant.steps.values()]
    if owners:
        return f"of {', '.join(owners)}"
    return "of no variant" if manifest_of(folder) else "not finished"


def find_pages(run_dir: Path, dropped: Sequence[Variant]) -> list[Waste]:
    """Return the pages of reports that go with the variants that are dropped."""
    gone = {variant.name for variant in dropped}
    pages = dict.fromkeys(pages_of(run_dir, gone) if gone else [], "shows a variant that goes")
    if record.current(run_dir) in gone:
        pages[run_dir / CURRENT] = "shows a variant that goes"
    return [Waste(page, page.stat().st_size, why) for page, why in pages.items() if page.exists()]


def remove(run_dir: Path, dropped: Sequence[Variant], waste: Sequence[Waste]) -> None:
    """Remove variants with their pages, then folders; the caller holds the run directory's lock."""
    with store.explained(run_dir):
        pages = find_pages(run_dir, dropped)
        removed = {one.path for one in waste}
        rows = {_fingerprint(path.name) for path in run_dir.glob("[0-9][0-9]-rows-*") if path not in removed}
        gone = {variant.name for variant in dropped}
        kept = {name for name in record.variant_names(run_dir) if name not in gone}
        data_folder.remove(data_folder.stale(run_dir, kept=kept, rows=rows))
        for variant in dropped:
            record.remove(variant)
        for page in pages:
            store.remove_file(page.path)
        for path in _set_aside(run_dir, waste):
            shutil.rmtree(path)


@dataclass(frozen=True)
class Stored:
    """A step of a store, and the run directories that link to it."""

    name: str
    bytes: int
    run_dirs: list[str]


def list_store(path: Path) -> list[Stored]:
    """Return the steps of a store, in the order of the route."""
    users = shared.users(path)
    return [
        Stored(
            folder.name, bytes_of(folder), [str(run_dir) for run_dir, names in users.items() if folder.name in names]
        )
        for folder in sorted(path.glob("[0-9][0-9]-*"))
    ]


def check_users(path: Path, *, forget: Sequence[Path] = ()) -> None:
    """Take note that the run directories `forget` need nothing of a store any more.

    Raises RunError if one of those is there, or another is not: one that was moved, or is not mounted, still has its links.
    """
    users = shared.users(path)
    known = {run_dir.expanduser().absolute() for run_dir in forget}
    for run_dir in sorted(known):
        if run_dir not in users:
            raise RunError(f"--forget {run_dir}: {path} knows no such run directory; it knows {_listed(users)}")
        if run_dir.is_dir():
            raise RunError(f"--forget {run_dir}: it is still there; delete it first, or leave it out")
    missing = [run_dir for run_dir in users if not run_dir.is_dir() and run_dir not in known]
    if missing:
        raise RunError(
            f"{_listed(missing)} used {path} and cannot be found, so nothing was removed: one that was moved needs its steps; "
            f"move it back or mount it, or, once it is of no use, say nextlong gc {path} "
            + " ".join(f"--forget {run_dir}" for run_dir in missing)
        )


def _listed(run_dirs: Iterable[Path]) -> str:
    return ", ".join(map(str, run_dirs)) or "none"


def find_unshared(path: Path) -> list[Waste]:
    """Return the steps of a store that no run directory links to."""
    unused = [one for one in list_store(path) if not one.run_dirs]
    why = {True: "of no run directory", False: "not finished, of no run directory"}
    return [Waste(path / one.name, one.bytes, why[bool(manifest_of(path / one.name))]) for one in unused]


def remove_unshared(path: Path, waste: Sequence[Waste], *, forget: Sequence[Path] = ()) -> None:
    """Remove steps of a store, and what it knows of run directories; the caller holds its lock, alone."""
    with store.explained(path):
        for run_dir in forget:
            shared.forget(path, run_dir.expanduser())
        for aside in _set_aside(path, waste):
            shutil.rmtree(aside)
        for lock in path.glob(".*.lock"):
            if not next(path.glob(f"[0-9][0-9]-{lock.name[1:].removesuffix('.lock')}"), None):
                lock.unlink(missing_ok=True)


def _set_aside(run_dir: Path, waste: Sequence[Waste]) -> Iterator[Path]:
    """Rename each to what `store.locked` takes for a killed task's folder, and yield it."""
    for one in waste:
        if one.path.is_symlink() or not one.path.is_dir():
            one.path.unlink(missing_ok=True)
            continue
        aside = run_dir / f".work-removed-{one.path.name}"
        one.path.rename(aside)
        yield aside
