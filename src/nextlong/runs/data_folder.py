"""Data folder: `RUN/data/`, where people and trainers find the rows of each format.

In:  what was exported. Out: `data/README.md`, the data card, and for each format
`data/FORMAT/` as `export --into` delivers it: the files, a card and `manifest.json`.
The rows of a variant made with --set lie in `data/NAME/`, those of a mix in
`data/mix-RUN+RUN-HASH/`.

The files are hard links to those in the folders of the steps (decision 0016), so they
cost no disk space, and survive whatever copies, mounts or archives `data/` alone. A
format's folder is built under a hidden name and renamed: it is whole or absent.
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
    """Return the folder of a variant's rows.

    `RUN/data` for the one that `RUN` opens, else `RUN/data/NAME`.
    """
    data = variant.run_dir / variant_records.DATA
    if variant_records.current(variant.run_dir) == variant.name:
        return data
    return data / variant.name


def settle(run_dir: Path) -> None:
    """Move formats in `data/` after `RUN` has come to open another variant.

    Between `data/` and `data/NAME/`. The record in a format's folder says whose it is,
    so that a move that was interrupted is completed by the next call.
    """
    data = run_dir / variant_records.DATA
    own = variant_records.current(run_dir)
    with store.explained(data):
        # What is in `data/` but belongs to another variant goes to that one's folder …
        for folder, record in delivered_in(data):
            name = _variant_of(record)
            if name != own:
                _move(folder, data / name / folder.name)
                if (data / CARD).exists():
                    (data / CARD).replace(data / name / CARD)
        # … which makes room for what belongs to the variant that `RUN` opens now.
        if own is not None and (data / own).is_dir():
            for folder, _ in delivered_in(data / own):
                _move(folder, data / folder.name)
            _move_card(data / own, data)
            _remove_empty(data / own)
        for parent in (data, *data.glob("[!.]*/")):
            for folder, _ in delivered_in(parent):
                _mend_links(folder, run_dir)


def _move_card(folder: Path, data: Path) -> None:
    """Move the card of a variant's folder to `data/`, unless that has one."""
    card = folder / CARD
    if not card.exists():
        return
    if (data / CARD).exists():
        card.unlink()
    else:
        card.rename(data / CARD)


def _mend_links(folder: Path, run_dir: Path) -> None:
    """Make symbolic links of a format's folder again that broke when it moved.

    They are relative, and lead to files in the run directory.
    """
    for path in _files_below(folder):
        if not path.is_symlink() or path.exists():
            continue
        below_run = [part for part in path.readlink().parts if part != ".."]
        source = run_dir.joinpath(*below_run)
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
    card) by name, and `delivered` is the record of all of them. What the user put
    beside the files stays; a file of the user's whose name is now taken gets `.kept`
    behind its name.
    """
    new = folder.with_name(f".{folder.name}.new")
    old = folder.with_name(f".{folder.name}.old")
    with store.explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # An earlier call may have been killed between its two renames, or after them.
        if old.exists() and not folder.exists():
            old.rename(folder)
        _merge(old, folder)
        shutil.rmtree(new, ignore_errors=True)
        texts = {**texts, DELIVERED: delivered}
        if _is_current(folder, files, texts):
            return
        new.mkdir()
        for file in files:
            _link(file.path, new / file.name)
        # The entries of a folder must be on disk before the folder gets its name.
        for below in {(new / file.name).parent for file in files}:
            store.sync(below)
        for name, text in texts.items():
            store.write_file(new / name, text)
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        store.sync(folder.parent)
        _merge(old, folder)


def _is_current(
    folder: Path, files: list[ExportFile], texts: Mapping[str, str]
) -> bool:
    """Return whether a format's folder has exactly these texts and files."""
    try:
        for name, text in texts.items():
            if (folder / name).read_text(encoding="utf-8") != text:
                return False
        return all((folder / file.name).samefile(file.path) for file in files)
    except OSError:
        return False


def _link(path: Path, target: Path) -> None:
    """Link a file to `target`, by a symbolic link where there are no hard links."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(path, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        target.symlink_to(os.path.relpath(path, target.parent))


def remove_stale(run_dir: Path, *, kept: set[str], rows: set[str]) -> None:
    """Remove formats and cards of variants that are not `kept`.

    And of mixes whose `rows` are gone. What is the user's stays.
    """
    data = run_dir / variant_records.DATA
    stale = [
        folder
        for folder, record in delivered_in(data)
        if _variant_of(record) not in kept
    ]
    if stale:
        stale.append(data / CARD)
    for folder in sorted(path for path in data.glob("[!.]*") if path.is_dir()):
        stale += _stale_in(folder, kept=kept, rows=rows)
    for path in stale:
        if path.name == CARD:
            path.unlink(missing_ok=True)
        else:
            _remove_ours(path)
        if path.parent != data:
            _remove_empty(path.parent)


def _stale_in(folder: Path, *, kept: set[str], rows: set[str]) -> list[Path]:
    """Return what is stale in the folder of a variant or a mix.

    The card of the folder is among it if all is.
    """
    formats = delivered_in(folder)
    is_mix = folder.name.startswith(MIX)
    stale = []
    for below, record in formats:
        if is_mix:
            is_stale = record["rows"] not in rows
        else:
            is_own = _variant_of(record) == folder.name
            is_stale = is_own and folder.name not in kept
        if is_stale:
            stale.append(below)
    if stale and len(stale) == len(formats):
        stale.append(folder / CARD)
    return stale


def delivered_in(folder: Path) -> list[tuple[Path, Json]]:
    """Return the folders of formats with their records.

    Another folder with a `manifest.json`, or a copy, is the user's.
    """
    ours = []
    for path in sorted(folder.glob(f"[!.]*/{DELIVERED}")):
        below = path.parent
        record = _record_of(below)
        if record.get("format") == below.name and _names_variant(record):
            ours.append((below, record))
    return ours


def _names_variant(record: Json) -> bool:
    """Return whether a record has runs, and the first of them names its variant."""
    runs = record.get("runs")
    if not isinstance(runs, list) or not runs:
        return False
    if not all(isinstance(run, dict) for run in runs):
        return False
    return isinstance(_variant_of(record), str)


def _record_of(folder: Path) -> Json:
    """Return the record of a format's folder, {} where it has none that can be read."""
    with suppress(OSError, ValueError):
        record = json.loads((folder / DELIVERED).read_text(encoding="utf-8"))
        if isinstance(record, dict) and isinstance(record.get("files"), dict):
            return record
    return {}


def _variant_of(record: Json) -> str:
    name: str = record["runs"][0].get("variant")
    return name


def _move(folder: Path, target: Path) -> None:
    """Move a format's folder; rows that the target has are newer and are kept."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists():
        _merge(folder, target)
    else:
        folder.rename(target)


def _merge(folder: Path, target: Path) -> None:
    """Move what the user put into a format's folder to the one that takes its place.

    And remove the rest.
    """
    ours = {CARD, DELIVERED, *_record_of(folder).get("files", ())}
    for path in _files_below(folder):
        name = path.relative_to(folder)
        if name.as_posix() in ours:
            continue
        kept = target / name
        if kept.exists() and path.exists() and kept.samefile(path):
            path.unlink()
            continue
        while os.path.lexists(kept):
            kept = kept.with_name(f"{kept.name}.kept")
        kept.parent.mkdir(parents=True, exist_ok=True)
        path.rename(kept)
    _remove_ours(folder)


def _files_below(folder: Path) -> list[Path]:
    """Return every file and link below a folder."""
    paths = []
    for root, folders, files in os.walk(folder):
        paths += [Path(root, name) for name in files]
        # Links to folders are named among these.
        for name in folders:
            if Path(root, name).is_symlink():
                paths.append(Path(root, name))
    return paths


def _remove_ours(folder: Path) -> None:
    """Remove the files that a format's record names, and the folder if that was all.

    The record itself goes after them.
    """
    for name in [CARD, *_record_of(folder).get("files", ()), DELIVERED]:
        (folder / name).unlink(missing_ok=True)
    for root, _, _ in os.walk(folder, topdown=False):
        _remove_empty(Path(root))


def _remove_empty(folder: Path) -> None:
    with suppress(OSError):
        folder.rmdir()
