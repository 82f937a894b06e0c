"""Data folder: `RUN/data/`, where a person and a trainer find the finished rows of each format, with a data card.

In:  what was exported. Out: `data/README.md`, and for each format `data/FORMAT/` as `export --into` delivers it: the files, a card
and `manifest.json`. The rows of a variant made with --set lie in `data/NAME/`, those of a mix in `data/mix-HASH/`.

The files are hard links to those in the folders of the steps (decision 0016), so they cost no disk space, and survive whatever
copies, mounts or archives `data/` alone. A format's folder is built under a hidden name and renamed: it is whole or absent.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from nextlong.artefacts import record
from nextlong.artefacts.names import DATA
from nextlong.engine import store
from nextlong.errors import RunError
from nextlong.export.card import Laid, Split
from nextlong.export.destination import DELIVERED, ExportFile
from nextlong.export.formats.base import Format, format_of
from nextlong.plain_data import Json

CARD: Final = "README.md"
_MIX: Final = "mix-"
# File systems without hard links, or with few of them to a file.
_NO_LINKS: Final = frozenset(
    {errno.EPERM, errno.EXDEV, errno.EMLINK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EACCES}
)


def folder_of(variant: record.Variant) -> Path:
    """Return where the rows of a variant lie: `RUN/data` for the one that `RUN` opens, `RUN/data/NAME` for another."""
    data = variant.run_dir / DATA
    return data if record.current(variant.run_dir) == variant.name else data / variant.name


def folder_of_mix(run_dir: Path, rows: str) -> Path:
    """Return where the rows of a mix lie, whose step has the fingerprint `rows`."""
    return run_dir / DATA / f"{_MIX}{rows[:8]}"


def settle(run_dir: Path) -> None:
    """Move formats between `data/` and `data/NAME/` after `RUN` has come to open another variant.

    The record in a format's folder says whose it is, so that a move that was interrupted is completed by the next call.
    """
    data, own = run_dir / DATA, record.current(run_dir)
    for folder in _delivered(data):
        if (name := _variant_of(folder)) != own:
            _move(folder, data / name / folder.name)
            if (data / CARD).exists():
                (data / CARD).replace(data / name / CARD)
    if own is not None and (data / own).is_dir():
        for path in [*_delivered(data / own), data / own / CARD]:
            if path.exists():
                _move(path, data / path.name)
        if not any((data / own).iterdir()):
            (data / own).rmdir()


def place(folder: Path, files: list[ExportFile], *, card: str, delivered: str) -> None:
    """Make the folder of one format, in the place of an earlier one; what the user put beside the files stays.

    `files` are named below the folder; `delivered` is the record of them.
    """
    new, old = (folder.with_name(f".{folder.name}.{mark}") for mark in ("new", "old"))
    with store.explained(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if old.exists() and not folder.exists():  # killed between the two renames
            old.rename(folder)
        for left in (new, old):
            shutil.rmtree(left, ignore_errors=True)
        if _is_same(folder, files, card, delivered):
            return
        new.mkdir()
        for file in files:
            target = new / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            _link(file.path, target)
        store.write_text(new / CARD, card)
        store.write_text(new / DELIVERED, delivered)
        if folder.exists():
            ours = {CARD, DELIVERED, *_record_of(folder).get("files", ())}
            for path in [path for path in folder.rglob("*") if path.is_file()]:
                name = path.relative_to(folder)
                if name.as_posix() not in ours and not (new / name).exists():
                    (new / name).parent.mkdir(parents=True, exist_ok=True)
                    path.rename(new / name)
            folder.rename(old)
        new.rename(folder)
        shutil.rmtree(old, ignore_errors=True)


def laid_in(folder: Path) -> Iterator[Laid]:
    """Yield what each format's folder below `folder` holds, as its record has it."""
    for below in _delivered(folder):
        plain = _record_of(below)
        made = format_of(plain["format"])
        splits = [_split(below.name, made, name, plain) for name in plain["splits"]]
        room = plain["settings"].get("pack") or max(run["target_tokens"] for run in plain["runs"])
        yield Laid(made, splits, room, below.name)


def _split(folder: str, made: Format, name: str, plain: Json) -> Split:
    told = plain["splits"][name]
    return Split(
        name,
        f"{folder}/{told['folder']}{made.reader_takes}",
        told["rows"],
        told["sequences"],
        told["documents"],
        told["tokens"],
        sum(entry["bytes"] for file, entry in plain["files"].items() if file.startswith(told["folder"])),
    )


def stale(run_dir: Path, *, kept: set[str], rows: set[str]) -> list[Path]:
    """Return the folders of variants that are not `kept`, and of mixes whose rows, by fingerprint, are gone."""
    data = run_dir / DATA
    stale = [folder for folder in _delivered(data) if _variant_of(folder) not in kept]
    if stale and (data / CARD).exists():
        stale.append(data / CARD)
    for folder in sorted(path for path in data.glob("[!.]*") if path.is_dir()):
        formats = _delivered(folder)
        is_mix = folder.name.startswith(_MIX)
        gone = [one for one in formats if (_record_of(one)["rows"] not in rows if is_mix else folder.name not in kept)]
        stale += [folder] if gone and gone == formats else gone
    return stale


def remove(paths: list[Path]) -> None:
    """Remove folders and files of `data/`."""
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _delivered(folder: Path) -> list[Path]:
    return sorted(path.parent for path in folder.glob(f"[!.]*/{DELIVERED}"))


def _record_of(folder: Path) -> Json:
    """Return the delivered record of a format's folder, {} where it has none that can be read."""
    try:
        plain = json.loads((folder / DELIVERED).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return plain if isinstance(plain, dict) and "files" in plain else {}


def _variant_of(folder: Path) -> str:
    runs = _record_of(folder).get("runs") or [{}]
    name = runs[0].get("variant")
    if not isinstance(name, str):
        raise RunError(f"{folder / DELIVERED} is damaged; delete {folder}, and export again")
    return name


def _move(path: Path, target: Path) -> None:
    """Give a folder or file another place; what is there already is newer and stays."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if not target.exists():
        path.rename(target)
    else:
        remove([path])


def _is_same(folder: Path, files: list[ExportFile], card: str, delivered: str) -> bool:
    texts = {CARD: card, DELIVERED: delivered}
    try:
        return all((folder / name).read_text(encoding="utf-8") == text for name, text in texts.items()) and all(
            (folder / file.name).samefile(file.path) for file in files
        )
    except OSError:
        return False


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        target.symlink_to(os.path.relpath(source, target.parent))
