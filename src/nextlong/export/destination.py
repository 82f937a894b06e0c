"""Destination: a folder on any file system that export files are put to, and the record of what earlier pushes put there.

`.nextlong-push.json` names every file that a push has begun to put there, and the hash of those that arrived.
"""

from __future__ import annotations

import json
import os
import posixpath
import shutil
import tempfile
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict

from nextlong.errors import ExportError
from nextlong.inputs import file_systems

RECORD: Final = ".nextlong-push.json"
DELIVERED: Final = "manifest.json"  # says what the files are of

_MARKER: Final = ".nextlong-push-check"
_COMMITS: Final = frozenset({"hf"})
# Object stores show an upload when it is complete; elsewhere a file is sent under another name first.
_ATOMIC: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "hf"})


class Entry(TypedDict):
    """What the record says of a file: its size, its XXH3 128-bit hash in hex, and whether it has arrived."""

    bytes: int
    xxh3: str
    whole: bool


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A finished file: where it lies, its name below the destination (with /), its size and XXH3 128-bit hash in hex."""

    path: Path
    name: str
    bytes: int
    xxh3: str


class Destination:
    """A folder on any file system, local or reached by a URL. Raises ExportError if it cannot be reached."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs, root = file_systems.reach(url, where=f"the destination {url!r}", error=ExportError)
        self.root = root.rstrip("/") or "/"
        self.is_local = file_systems.is_local(self.fs)
        self.is_atomic = bool(file_systems.protocols(self.fs) & _ATOMIC)

    def sizes(self) -> dict[str, int]:
        """Return name → bytes of every file that is there, hidden ones left out."""
        self.fs.invalidate_cache()
        if self.fs.isfile(self.root):
            raise ExportError(f"the destination {self.url!r} is a file; name a folder")
        try:
            listed = self.fs.find(self.root, detail=True)
        except FileNotFoundError:
            return {}
        names = {posixpath.relpath(path, self.root): info for path, info in listed.items()}
        return {
            name: int(info["size"] or 0)
            for name, info in names.items()
            if not any(part.startswith(".") for part in name.split("/"))
        }

    def read_record(self) -> dict[str, Entry]:
        """Return name → bytes, xxh3 and whether it arrived, of what earlier pushes sent; empty where there was none."""
        try:
            files = json.loads(self.fs.cat_file(self.at(RECORD)))["files"]
            return {
                str(name): Entry(bytes=entry["bytes"], xxh3=entry["xxh3"], whole=entry["whole"])
                for name, entry in files.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ExportError(
                f"{self.url} holds a damaged {RECORD}; delete that file, and the files that are to be sent again"
            ) from None

    def pushed_steps(self) -> dict[str, str] | None:
        """Return split → fingerprint of the step that made it, as the last push tells; None where it got not so far."""
        try:
            splits = json.loads(self.fs.cat_file(self.at(DELIVERED)))["splits"]
            return {str(split): str(told["step"]) for split, told in splits.items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def try_writing(self) -> None:
        """Raise OSError, or what the file system raises, where files cannot be put there.

        Where files can be written and not deleted, an empty hidden one stays. On the Hugging Face hub each write is a commit, so
        there nothing is tried.
        """
        if self.is_local:
            return _check_folder(Path(self.root))
        if not file_systems.protocols(self.fs) & _COMMITS:
            marker = f"{self._nearest().rstrip('/')}/{_MARKER}-{uuid.uuid4().hex[:8]}"  # several runs may try at once
            self.fs.pipe_file(marker, b"")
            with suppress(Exception):  # whatever a file system raises where it may not be deleted
                self.fs.rm_file(marker)
        return None

    def _nearest(self) -> str:
        """Return the folder, or the nearest one above it that is there; object stores have no folders that could be missing."""
        folder = self.root
        while not self.is_atomic and folder != self.fs._parent(folder) and not self.fs.exists(folder):
            folder = self.fs._parent(folder)
        return folder

    def write_record(self, files: Mapping[str, Entry]) -> None:
        text = json.dumps({"files": dict(sorted(files.items()))}, indent=1, ensure_ascii=False) + "\n"
        if self.is_local:
            target = Path(self.at(RECORD))
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(target, lambda partial: partial.write_text(text, encoding="utf-8"), mark="new")
        else:
            self.fs.pipe_file(self.at(RECORD), text.encode())

    def put(self, file: ExportFile) -> None:
        """Send one file; it is there under its name only when it is complete."""
        target = self.at(file.name)
        if self.is_local:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            return _write_whole(Path(target), lambda partial: shutil.copyfile(file.path, partial), mark=file.xxh3[:8])
        if self.is_atomic:
            self.fs.put_file(str(file.path), target)
        else:
            partial = f"{posixpath.dirname(target)}/.{posixpath.basename(target)}.{file.xxh3[:8]}.part"
            self.fs.put_file(str(file.path), partial)
            self.fs.mv(partial, target)
        return None

    def delete(self, name: str) -> None:
        self.fs.rm_file(self.at(name))
        if self.is_local:
            _remove_empty(Path(self.at(name)).parent, below=Path(self.root))

    def at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"


def _check_folder(folder: Path) -> None:
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    tempfile.TemporaryFile(dir=there).close()  # one without a name


def _write_whole(target: Path, write: Callable[[Path], Any], *, mark: str) -> None:
    """Have `write` make a file beside `target`, bring it to the disk, and give it its name."""
    partial = target.with_name(f".{target.name}.{mark}.part")
    try:
        write(partial)
        with partial.open("rb+") as file:
            os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _remove_empty(folder: Path, *, below: Path) -> None:
    """Remove a folder that nothing is left in, and those above it, down to the destination itself."""
    while folder != below and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
