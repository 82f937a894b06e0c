"""Data folder: `RUN/data/`, where a person and a trainer find the finished rows of each format, with a data card.

In:  what was exported. Out: `data/README.md`, and for each format `data/FORMAT/` as `export --into` delivers it: the files, a card
and `manifest.json`. The rows of a variant made with --set lie in `data/NAME/`, those of a mix in `data/mix-RUN+RUN-HASH/`.

The files are hard links to those in the folders of the steps (decision 0016), so they cost no disk space, and survive whatever
copies, mounts or archives `data/` alone. A format's folder is built under a hidden name and renamed: it is whole or absent.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from nextlong.artifacts import variant_records
from nextlong.engine import store
from nextlong.export.publish import CARD as CARD
from nextlong.export.publish import DELIVERED, ExportFile
from nextlong.text import Json

MIX: Final = "mix-"  # before the name of a mix
# File systems without hard links, or with few of them to a file.
_NO_LINKS: Final = {
    errno.EPERM,
    errno.EXDEV,
    errno.EMLINK,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.ENOTSUP,
    errno.EACCES,
}


def folder_of(variant: variant_records.Variant) -> Path:
    """Return the folder of a variant's rows: `RUN/data` for the one that `RUN` opens, else `RUN/data/NAME`."""
    data = variant.run_dir / variant_records.DATA
    return (
        data
        if variant_records.current(variant.run_dir) == variant.name
        else data / variant.name
    )


def settle(run_dir: Path) -> None:
    """Move formats between `data/` and `data/NAME/` after `RUN` has come to open another variant.

    The record in a format's folder says whose it is, so that a move that was interrupted is completed by the next call.
    """
    data, own = run_dir / variant_records.DATA, variant_records.current(run_dir)
    with store.explained(data):
        for folder, plain in delivered_in(data):
            if (name := _variant_of(plain)) != own:
                _move(folder, data / name / folder.name)
                if (data / CARD).exists():
                    (data / CARD).replace(data / name / CARD)
        if own is not None and (data / own).is_dir():
            for folder, _ in delivered_in(data / own):
                _move(folder, data / folder.name)
            if (card := data / own / CARD).exists():
                card.unlink() if (data / CARD).exists() else card.rename(data / CARD)
            _remove_empty(data / own)
        for folder, _ in [
            *delivered_in(data),
            *(one for below in data.glob("[!.]*/") for one in delivered_in(below)),
        ]:
            # A relative symbolic link breaks when its folder moves, so it is made again.
            for path in _files_below(folder):
                if path.is_symlink() and not path.exists():
                    source = run_dir.joinpath(
                        *(part for part in path.readlink().parts if part != "..")
                    )
                    if source.is_file():
                        again = path.with_name(f".{path.name}.tmp")
                        again.unlink(missing_ok=True)
                        again.symlink_to(os.path.relpath(source, path.parent))
                        again.replace(path)


def place(
    folder: Path, files: list[ExportFile], *, texts: Mapping[str, str], delivered: str
) -> None:
    """Make the folder of one format, in place of an earlier one.

    `files` are named below the folder, `texts` are the files written here (such as the
    card) by name, and `delivered` is the record of all of them. What the user put beside
    the files stays; a file of the user's whose name is now taken gets `.kept` behind its
    name.
    """
    new, old = (folder.with_name(f".{folder.name}.{mark}") for mark in ("new", "old"))
    with store.explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if old.exists() and not folder.exists():  # killed between the two renames
            old.rename(folder)
        _merge(old, folder)  # killed after them
        shutil.rmtree(new, ignore_errors=True)
        with suppress(OSError):
            written = {**texts, DELIVERED: delivered}
            current = {
                name: (folder / name).read_text(encoding="utf-8") for name in written
            }
            if current == written and all(
                (folder / file.name).samefile(file.path) for file in files
            ):
                return
        new.mkdir()
        for file in files:
            target = new / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(file.path, target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                target.symlink_to(os.path.relpath(file.path, target.parent))
        for below in {(new / file.name).parent for file in files}:
            store.sync(below)
        for name, text in texts.items():
            store.write_file(new / name, text)
        store.write_file(new / DELIVERED, delivered)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        store.sync(folder.parent)
        _merge(old, folder)


def remove_stale(run_dir: Path, *, kept: set[str], rows: set[str]) -> None:
    """Remove formats and cards of variants that are not `kept`, and of mixes whose `rows` are gone. What is the user's stays."""
    data = run_dir / variant_records.DATA
    if stale := [
        folder for folder, plain in delivered_in(data) if _variant_of(plain) not in kept
    ]:
        stale.append(data / CARD)
    for folder in sorted(path for path in data.glob("[!.]*") if path.is_dir()):
        formats, is_mix, is_kept = (
            delivered_in(folder),
            folder.name.startswith(MIX),
            folder.name in kept,
        )
        gone = [one for one, plain in formats if is_mix and plain["rows"] not in rows]
        gone += [
            one
            for one, plain in formats
            if not (is_mix or is_kept) and _variant_of(plain) == folder.name
        ]
        stale += [*gone, folder / CARD] if gone and len(gone) == len(formats) else gone
    for path in stale:
        if path.name == CARD:
            path.unlink(missing_ok=True)
        else:
            _remove_ours(path)
        if path.parent != data:
            _remove_empty(path.parent)


def delivered_in(folder: Path) -> list[tuple[Path, Json]]:
    """Return the folders of formats with their records; another folder with a `manifest.json`, or a copy, is the user's."""
    ours = []
    for below in (path.parent for path in sorted(folder.glob(f"[!.]*/{DELIVERED}"))):
        plain = _record_of(below)
        runs = plain.get("runs")
        of_runs = (
            isinstance(runs, list)
            and runs
            and all(isinstance(run, dict) for run in runs)
        )
        if (
            of_runs
            and plain.get("format") == below.name
            and isinstance(_variant_of(plain), str)
        ):
            ours.append((below, plain))
    return ours


def _record_of(folder: Path) -> Json:
    """Return the delivered record of a format's folder, {} where it has none that can be read."""
    with suppress(OSError, ValueError):
        plain = json.loads((folder / DELIVERED).read_text(encoding="utf-8"))
        if isinstance(plain, dict) and isinstance(plain.get("files"), dict):
            return plain
    return {}


def _variant_of(record: Json) -> str:
    name: str = record["runs"][0].get("variant")
    return name


def _move(folder: Path, target: Path) -> None:
    """Move a format's folder; rows that the target already has are newer and are kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        _merge(folder, target)
    else:
        folder.rename(target)


def _merge(folder: Path, target: Path) -> None:
    """Move what the user put into a format's folder over to the one that takes its place, and remove the rest."""
    ours = {CARD, DELIVERED, *_record_of(folder).get("files", ())}
    for path in _files_below(folder):
        name = path.relative_to(folder)
        if name.as_posix() in ours:
            continue
        to = target / name
        if to.exists() and path.exists() and to.samefile(path):
            path.unlink()
            continue
        while os.path.lexists(to):
            to = to.with_name(f"{to.name}.kept")
        to.parent.mkdir(parents=True, exist_ok=True)
        path.rename(to)
    _remove_ours(folder)


def _files_below(folder: Path) -> list[Path]:
    """Return every file and link below a folder."""
    return [
        Path(root, name)
        for root, folders, files in os.walk(folder)
        for name in [*files, *(one for one in folders if Path(root, one).is_symlink())]
    ]


def _remove_ours(folder: Path) -> None:
    """Remove the files that a format's record names, the record after them, and the folder if that was all."""
    for name in [CARD, *_record_of(folder).get("files", ()), DELIVERED]:
        (folder / name).unlink(missing_ok=True)
    for root, _, _ in os.walk(folder, topdown=False):
        _remove_empty(Path(root))


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
