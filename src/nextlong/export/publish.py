"""Publish finished export files to a local folder or any fsspec URL; a second push resumes an interrupted one.

In:  files with their sizes and hashes, as the run recorded them; a destination.
Out: the same files at the destination, each complete under its final name or absent. Index files and cards are sent last,
     because readers that find one of them expect all other files.

`.nextlong-push.json` at the destination records every file that a push has started to send and the hash of those that
arrived, so that a resumed push reads nothing back.
"""

from __future__ import annotations

import errno
import json
import posixpath
import shlex
import shutil
import tempfile
import time
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from nextlong.engine import store
from nextlong.errors import ExportError, RunError
from nextlong.reading.files import is_local, protocols, reach
from nextlong.text import Json, counted

RECORD: Final = ".nextlong-push.json"
CARD: Final = "README.md"
DELIVERED: Final = "manifest.json"  # describes the exported files
_CARDS: Final = frozenset({CARD, DELIVERED})  # may change while the data stays the same
# A reader that finds one of these assumes that all other files are complete.
_LAST_NAMES: Final = frozenset(
    {
        CARD,
        DELIVERED,
        "index.json",
        "dataset_info.json",
        "state.json",
        "dataset_dict.json",
    }
)
_LAST_SUFFIXES: Final = (".idx",)
# Files that people and hubs add to data sets, besides hidden files.
_ALLOWED: Final = frozenset({"LICENSE", "LICENSE.md", "LICENSE.txt"})
# Errors for which a retry does not help.
_LASTING: Final = (
    PermissionError,
    FileNotFoundError,
    NotADirectoryError,
    IsADirectoryError,
    ImportError,
    MemoryError,
)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_RECORD_EVERY_S: Final = 10.0  # on the Hugging Face Hub each write is a commit
_ATTEMPTS: Final = 5  # to send a file
_FIRST_PAUSE_S: Final = 1.0  # before the second attempt; doubled for each further one
_MARKER: Final = ".nextlong-push-check"
_COMMITS: Final = frozenset({"hf"})
# Object stores show an upload only when it is complete; elsewhere files are sent under a temporary name first.
_ATOMIC: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "hf"})
_Record = dict[
    str, Json
]  # file name → its `bytes`, its `xxh3` in hex, and whether it is `whole`, i.e. has arrived


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A finished file: its path, its name relative to the destination (with /), its size, and its XXH3 128-bit hash in hex."""

    path: Path
    name: str
    bytes: int
    xxh3: str

    def entry(self, *, whole: bool) -> Json:
        """Return the record's entry of the file."""
        return {"bytes": self.bytes, "xxh3": self.xxh3, "whole": whole}


def publish(
    files: Sequence[ExportFile],
    destination: str,
    *,
    others: Literal["refuse", "replace"] = "refuse",
    threads: int = 8,
) -> list[str]:
    """Send files to a local folder or fsspec URL, and return the names of those that were sent.

    `others`: refuse or replace files of earlier pushes that are not among `files`. Files that no push has sent are never
    deleted. Raises ExportError with the fix; RunError if a file differs from the run's record.
    """
    place = Destination(destination)
    with _refusals(destination):
        hashes = {file.name: file.xxh3 for file in files}
        sizes, known = place.held(hashes)
        # Files of earlier pushes that differ from these; descriptions may differ.
        differing = (
            name
            for name in sizes.keys() & known
            if hashes.get(name) != known[name]["xxh3"]
        )
        other = sorted(
            name
            for name in differing
            if name not in hashes or posixpath.basename(name) not in _CARDS
        )
        if other and others == "refuse":
            raise _of_another(destination, other)
        # Replacing first deletes the files that come last, so that no reader takes a mixture for a complete data set.
        ends = (
            {name for name in sizes if _comes_last(name) and name in known}
            if other
            else set()
        )
        stale = sorted(
            ends | (set(other) - hashes.keys()),
            key=lambda name: (not _comes_last(name), name),
        )
        due = [
            file
            for file in files
            if file.name in stale
            or sizes.get(file.name) != file.bytes
            or known.get(file.name) != file.entry(whole=True)
            # Local copies are hashed, so that replacing repairs damaged ones.
            or (
                others == "replace"
                and place.is_local
                and store.hash_file(Path(place.at(file.name))) != file.xxh3
            )
        ]
        record = {file.name: file.entry(whole=True) for file in files}
        record |= {file.name: file.entry(whole=False) for file in due}
        if due or stale:  # update the record first, then delete stale files
            place.write_record({name: known[name] for name in stale} | record)
            for name in stale:
                place.delete(name)
            place.write_record(record)
        # The record at the destination is updated every few seconds and at the end.
        for is_last in (False, True):
            written, executor = (
                time.monotonic(),
                ThreadPoolExecutor(threads, thread_name_prefix="publish"),
            )
            sending = [
                executor.submit(_send, file, place, record)
                for file in due
                if _comes_last(file.name) is is_last
            ]
            try:
                for sent in as_completed(sending):
                    sent.result()
                    if time.monotonic() - written > _RECORD_EVERY_S:
                        place.write_record(record)
                        written = time.monotonic()
            finally:
                executor.shutdown(cancel_futures=True)
                if sending:
                    place.write_record(record)
    return [file.name for file in due]


def publish_card(text: str, destination: str) -> None:
    """Send the card of a folder that has the exports of several formats below it.

    A README.md there that was not sent by nextlong is kept.
    """
    place = Destination(destination)
    with _refusals(destination):
        record = place.read_record()
        if place.fs.exists(place.at(CARD)) and CARD not in record:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / CARD
            path.write_text(text, encoding="utf-8")
            size = path.stat().st_size
            file = ExportFile(path, CARD, size, store.hash_file(path))
            record[CARD] = file.entry(whole=False)
            place.write_record(record)
            _send(file, place, record)
            place.write_record(record)


def check_destination(destination: str, steps: Mapping[str, str] | None = None) -> None:
    """Raise ExportError, before anything is computed, if a destination is not writable or holds files of other origin.

    `steps` are the fingerprints of the export's splits, if known: the destination must then hold no other export.
    """
    place = Destination(destination)
    with _refusals(destination):
        sizes, known = place.held()
        if (pushed := sorted(known.keys() & sizes.keys())) and steps is not None:
            # A push that was interrupted before it wrote this file may be resumed.
            with suppress(
                FileNotFoundError, ValueError, KeyError, TypeError, AttributeError
            ):
                splits = json.loads(place.fs.cat_file(place.at(DELIVERED)))["splits"]
                if {name: split["step"] for name, split in splits.items()} != steps:
                    raise _of_another(destination, pushed)
        place.try_writing()


def _of_another(destination: str, other: Sequence[str]) -> ExportError:
    problem = f"{destination} contains {counted(len(other), 'file')} of another export, such as {other[0]!r}"
    command = f"nextlong export RUN --into {shlex.quote(destination)} --replace"
    cure = f"choose another destination, or replace them: {command}"
    return ExportError(f"{problem}; {cure}")


def _comes_last(name: str) -> bool:
    return posixpath.basename(name) in _LAST_NAMES or name.endswith(_LAST_SUFFIXES)


@contextmanager
def _refusals(url: str, name: str = "") -> Iterator[None]:
    """Convert the exceptions of file systems, which each define their own, to an ExportError with the fix."""
    try:
        yield
    except (ExportError, RunError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        what = (
            f"{name!r} could not be sent to {url}"
            if name
            else f"{url} could not be reached"
        )
        if isinstance(error, PermissionError) or "credential" in reason.lower():
            cure = "check your credentials, and that they may list and write there"
        elif isinstance(error, FileNotFoundError | NotADirectoryError):
            cure = "check the path; a bucket or repository must exist already"
        elif isinstance(error, OSError) and error.errno in _FULL:
            cure = "free space there; what arrived is kept"
        else:
            cure = "try again: what arrived is kept and not sent twice"
        raise ExportError(f"{what}: {reason}; {cure}") from None


def _send(file: ExportFile, place: Destination, record: _Record) -> None:
    """Send a file and record its arrival; runs in a thread. Raises RunError if the file differs from the run's record."""
    try:
        digest = store.hash_file(file.path)
    except OSError as error:
        raise RunError(
            f"{file.path} cannot be read ({error.strerror}); export again"
        ) from None
    if digest != file.xxh3:
        raise RunError(
            f"{file.path} is not what was exported (its hash is {digest}, not {file.xxh3}); export again"
        )
    with _refusals(place.url, file.name):
        for pause in (
            *(_FIRST_PAUSE_S * 2**attempt for attempt in range(_ATTEMPTS - 1)),
            None,
        ):
            try:
                place.put(file)
                break
            except Exception as error:
                if (
                    pause is None
                    or isinstance(error, _LASTING)
                    or getattr(error, "errno", None) in _FULL
                ):
                    raise
                time.sleep(pause)
    record[file.name] = file.entry(whole=True)


class Destination:
    """A folder on any file system, local or reached by a URL. Raises ExportError if it cannot be reached."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.fs, root = reach(url, where=f"the destination {url!r}", error=ExportError)
        self.root = root.rstrip("/") or "/"
        self.is_local = is_local(self.fs)
        self.is_atomic = bool(protocols(self.fs) & _ATOMIC)

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file at the destination by name, without hidden files."""
        self.fs.invalidate_cache()
        if self.fs.isfile(self.root):
            raise ExportError(f"the destination {self.url!r} is a file; name a folder")
        with suppress(FileNotFoundError):
            listed = self.fs.find(self.root, detail=True).items()
            sizes = {
                posixpath.relpath(path, self.root): int(info["size"] or 0)
                for path, info in listed
            }
            return {
                name: size for name, size in sizes.items() if "/." not in f"/{name}"
            }
        return {}

    def held(self, names: Collection[str] = ()) -> tuple[dict[str, int], _Record]:
        """Return the sizes of all files, and the record of those that exist or whose sending has started.

        Raises ExportError for files that no push has sent; `names` are about to be written.
        """
        sizes, record = self.sizes(), self.read_record()
        known = {
            name: entry
            for name, entry in record.items()
            if name in sizes or not entry["whole"]
        }
        if strangers := sorted(sizes.keys() - known.keys() - _ALLOWED):
            clash = " and would be overwritten" if strangers[0] in names else ""
            problem = f"{self.url} contains {counted(len(strangers), 'file')} that nextlong did not export"
            example = f"such as {strangers[0]!r}, which readers would take for part of the data set{clash}"
            raise ExportError(
                f"{problem}, {example}; choose an empty destination or remove them"
            )
        return sizes, known

    def read_record(self) -> _Record:
        """Return the record of earlier pushes: name → bytes, xxh3 and whether it arrived; empty if there was none."""
        try:
            files = json.loads(self.fs.cat_file(self.at(RECORD)))["files"]
            return {
                str(name): {key: entry[key] for key in ("bytes", "xxh3", "whole")}
                for name, entry in files.items()
            }
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            cure = "delete that file, and the files that are to be sent again"
            raise ExportError(
                f"{self.url} contains a damaged {RECORD}; {cure}"
            ) from None

    def try_writing(self) -> None:
        """Raise the file system's exception if it is not writable; not tried on the Hub, where each write is a commit."""
        if self.is_local:
            folder = Path(self.root).absolute()
            nearest = next(path for path in (folder, *folder.parents) if path.exists())
            tempfile.TemporaryFile(
                dir=nearest
            ).close()  # has no name, so nothing can remain
        elif not protocols(self.fs) & _COMMITS:
            # Write to the nearest existing folder; in object stores every folder exists.
            parent = self.root
            while (
                not self.is_atomic
                and parent != self.fs._parent(parent)
                and not self.fs.exists(parent)
            ):
                parent = self.fs._parent(parent)
            marker = f"{parent.rstrip('/')}/{_MARKER}-{uuid.uuid4().hex[:8]}"  # unique, because several runs may check at once
            self.fs.pipe_file(marker, b"")
            with suppress(
                Exception
            ):  # any exception of a file system without permission to delete
                self.fs.rm_file(marker)

    def write_record(self, files: _Record) -> None:
        text = (
            json.dumps(
                {"files": dict(sorted(files.items()))}, indent=1, ensure_ascii=False
            )
            + "\n"
        )
        if self.is_local:
            target = Path(self.at(RECORD))
            target.parent.mkdir(parents=True, exist_ok=True)
            store.write_file(target, text)
        else:
            self.fs.pipe_file(self.at(RECORD), text.encode())

    def put(self, file: ExportFile) -> None:
        """Send a file, which appears under its name only when it is complete."""
        target = self.at(file.name)
        partial = f"{posixpath.dirname(target)}/.{posixpath.basename(target)}.{file.xxh3[:8]}.part"
        if self.is_local:
            Path(target).parent.mkdir(parents=True, exist_ok=True)
            try:
                shutil.copyfile(file.path, partial)
                store.sync(Path(partial))
                Path(partial).replace(target)
            except BaseException:
                Path(partial).unlink(missing_ok=True)
                raise
            store.sync(Path(target).parent)
        elif self.is_atomic:
            self.fs.put_file(str(file.path), target)
        else:
            self.fs.put_file(str(file.path), partial)
            self.fs.mv(partial, target)

    def delete(self, name: str) -> None:
        self.fs.rm_file(self.at(name))
        folder = Path(self.at(name)).parent
        while self.is_local and folder != Path(self.root) and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"
