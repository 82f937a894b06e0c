"""Publish: finished export files → a local folder or any fsspec URL, going on where an earlier push stopped.

In:  files with their sizes and hashes, as the run recorded them; a destination.
Out: the same files there, each whole under its final name or absent; those that say the rest is there come last.

`.nextlong-push.json` at the destination names every file that a push has begun to put there, and the hash of those that
arrived. Sizes and that record decide what is sent again, so that a resumed push reads nothing back.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import posixpath
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import xxhash

from nextlong.errors import ExportError, RunError
from nextlong.inputs import file_systems

RECORD: Final = ".nextlong-push.json"

# A reader that finds one of these takes the files beside it for complete.
_CARD: Final = "README.md"
_LAST_NAMES: Final = frozenset({"README.md", "index.json", "manifest.json", "dataset_info.json", "state.json"})
_LAST_SUFFIXES: Final = (".idx",)
# What people and hubs put beside data; hidden files besides.
_ALLOWED: Final = frozenset({"LICENSE", "LICENSE.md", "LICENSE.txt"})
# Object stores show an upload when it is complete; elsewhere a file is sent under another name first.
_ATOMIC: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "hf"})
# Trying again does not help against these.
_LASTING: Final = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError, ImportError, MemoryError)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_RECORD_EVERY_S: Final = 10.0  # on the Hugging Face hub each write is a commit
_LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A finished file: where it lies, its name below the destination (with /), its size and XXH3 128-bit hash in hex."""

    path: Path
    name: str
    bytes: int
    xxh3: str


@dataclass(frozen=True, slots=True)
class Published:
    """What a push did: the files that it sent, their bytes, and the files that were there already."""

    sent: int
    sent_bytes: int
    kept: int


def publish(
    files: Sequence[ExportFile],
    destination: str,
    *,
    others: Literal["refuse", "replace"] = "refuse",
    threads: int = 8,
    attempts: int = 5,
    first_pause_s: float = 1.0,
    progress: Callable[[int, int], None] = lambda _files, _bytes: None,
) -> Published:
    """Put files to a destination: a local folder or an fsspec URL; what is there whole is not sent again.

    `others` says what to do about files of earlier pushes that are not among `files`: refuse, or delete them. Files that no
    push put there are never deleted. A failed transfer is tried `attempts` times, `first_pause_s` apart and twice as long each
    time. `progress` is told after each file how many files and bytes were sent.

    Raises ExportError naming the destination and the cure; RunError if a file is not what the run recorded.
    """
    place = _Place(destination)
    try:
        found = place.sizes()
        record = place.read_record()
    except Exception as error:  # each file system has errors of its own, many of them no OSError
        raise _refusal(destination, error) from None
    known = {str(name): entry for name, entry in record.items() if name in found or entry["whole"] is False}
    _refuse_strangers(files, found, known, destination)
    other = _of_another(files, found, known)
    if other and others == "refuse":
        raise ExportError(
            f"{destination} holds {len(other):,} files of another export, such as {other[0]!r}; choose another destination, "
            f"or replace them: nextlong export RUN --into {destination} --replace"
        )
    # Replacing begins with what says that the rest is there, so that no reader ever takes a mixture for whole.
    ends = [name for name in found if _comes_last(name) and name in known] if other else []
    stale = sorted({*other, *ends} - {file.name for file in files if file.name not in ends})
    due = [file for file in files if file.name in stale or not _is_whole(file, found, known)]
    whole = {file.name: _entry(file, whole=file not in due) for file in files}
    try:
        if due or stale:
            place.write_record({**{name: known[name] for name in stale}, **whole})
            for name in sorted(stale, key=_comes_last, reverse=True):
                place.delete(name)
            place.write_record(whole)
        push = _Push(place, whole, attempts=attempts, first_pause_s=first_pause_s, progress=progress)
        for wave in (False, True):
            push.send([file for file in due if _comes_last(file.name) is wave], threads=threads)
    except (ExportError, RunError):
        raise
    except Exception as error:
        raise _refusal(destination, error) from None
    return Published(len(due), sum(file.bytes for file in due), len(files) - len(due))


class _Push:
    """A push under way: what arrived, told to the destination's record every few seconds and at the end."""

    def __init__(
        self,
        place: _Place,
        whole: dict[str, dict[str, Any]],
        *,
        attempts: int,
        first_pause_s: float,
        progress: Callable[[int, int], None],
    ) -> None:
        self.place, self.record = place, whole
        self.attempts, self.first_pause_s, self.progress = attempts, first_pause_s, progress
        self.files = self.bytes = 0

    def send(self, files: Sequence[ExportFile], *, threads: int) -> None:
        if not files:
            return
        written = time.monotonic()
        executor = ThreadPoolExecutor(threads, thread_name_prefix="publish")
        under_way = {executor.submit(self._send_one, file): file for file in files}
        try:
            for done in as_completed(under_way):
                done.result()
                self._arrived(under_way[done])
                if time.monotonic() - written > _RECORD_EVERY_S:
                    self.place.write_record(self.record)
                    written = time.monotonic()
        finally:
            executor.shutdown(cancel_futures=True)
            self._note_stragglers(under_way)
            self.place.write_record(self.record)

    def _arrived(self, file: ExportFile) -> None:
        self.record[file.name] = _entry(file, whole=True)
        self.files, self.bytes = self.files + 1, self.bytes + file.bytes
        self.progress(self.files, self.bytes)

    def _note_stragglers(self, under_way: Mapping[Future[None], ExportFile]) -> None:
        """Note what other threads finished while one of them failed."""
        for done, file in under_way.items():
            if done.done() and not done.cancelled() and done.exception() is None:
                self.record[file.name] = _entry(file, whole=True)

    def _send_one(self, file: ExportFile) -> None:
        _check_source(file)
        pause_s = self.first_pause_s
        for attempt in range(1, self.attempts + 1):
            try:
                return self.place.put(file)
            except Exception as error:
                if attempt == self.attempts or _lasts(error):
                    raise _refusal(self.place.url, error, file.name) from None
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        raise AssertionError("unreachable: the last attempt returns or raises")


class _Place:
    """A destination folder on any file system."""

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

    def read_record(self) -> dict[str, dict[str, Any]]:
        """Return name → bytes, xxh3 and whether it arrived, of what earlier pushes sent; empty where there was none."""
        try:
            files = json.loads(self.fs.cat_file(self._at(RECORD)))["files"]
            return {name: {key: entry[key] for key in ("bytes", "xxh3", "whole")} for name, entry in files.items()}
        except FileNotFoundError:
            return {}
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ExportError(
                f"{self.url} holds a damaged {RECORD}; delete that file, and the files that are to be sent again"
            ) from None

    def write_record(self, files: Mapping[str, Mapping[str, Any]]) -> None:
        text = json.dumps({"files": dict(sorted(files.items()))}, indent=1, ensure_ascii=False) + "\n"
        if self.is_local:
            target = Path(self._at(RECORD))
            target.parent.mkdir(parents=True, exist_ok=True)
            _write_whole(target, lambda partial: partial.write_text(text, encoding="utf-8"), mark="new")
        else:
            self.fs.pipe_file(self._at(RECORD), text.encode())

    def put(self, file: ExportFile) -> None:
        """Send one file; it is there under its name only when it is complete."""
        target = self._at(file.name)
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
        self.fs.rm_file(self._at(name))
        if self.is_local:
            _remove_empty(Path(self._at(name)).parent, below=Path(self.root))

    def _at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"


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


def _check_source(file: ExportFile) -> None:
    """Raise RunError unless a file is what the run recorded; what is published must be what was verified."""
    try:
        with file.path.open("rb") as opened:
            found = hashlib.file_digest(opened, xxhash.xxh3_128).hexdigest()
    except OSError as error:
        raise RunError(f"{file.path} cannot be read ({error.strerror}); export again") from None
    if found != file.xxh3:
        raise RunError(f"{file.path} is not what was exported (its hash is {found}, not {file.xxh3}); export again")


def _entry(file: ExportFile, *, whole: bool) -> dict[str, Any]:
    return {"bytes": file.bytes, "xxh3": file.xxh3, "whole": whole}


def _is_whole(file: ExportFile, found: Mapping[str, int], known: Mapping[str, Mapping[str, Any]]) -> bool:
    return found.get(file.name) == file.bytes and known.get(file.name) == _entry(file, whole=True)


def _comes_last(name: str) -> bool:
    return posixpath.basename(name) in _LAST_NAMES or name.endswith(_LAST_SUFFIXES)


def _refuse_strangers(
    files: Iterable[ExportFile], found: Mapping[str, int], known: Mapping[str, Any], destination: str
) -> None:
    """Raise ExportError if the destination holds files that no push put there, whatever their names."""
    strangers = sorted(name for name in found.keys() - known.keys() if name not in _ALLOWED)
    if strangers:
        clash = " and would be overwritten" if strangers[0] in {file.name for file in files} else ""
        raise ExportError(
            f"{destination} holds {len(strangers):,} files that no push put there, such as {strangers[0]!r}, which a reader "
            f"would take for the data set's{clash}; choose an empty destination or remove them"
        )


def _of_another(
    files: Sequence[ExportFile], found: Mapping[str, int], known: Mapping[str, Mapping[str, Any]]
) -> list[str]:
    """Return what earlier pushes put there that is not of these files; a card may be told anew."""
    own = {file.name: file.xxh3 for file in files}
    return sorted(
        name
        for name, entry in known.items()
        if name in found and own.get(name) != entry["xxh3"] and (name not in own or posixpath.basename(name) != _CARD)
    )


def _lasts(error: Exception) -> bool:
    return isinstance(error, _LASTING) or (isinstance(error, OSError) and error.errno in _FULL)


def _refusal(url: str, error: Exception, name: str = "") -> ExportError:
    """Return what an error of a file system means to the user, and the cure."""
    if isinstance(error, ExportError):
        return error
    told = " ".join(str(error).split()) or type(error).__name__
    what = f"{name!r} could not be sent to {url}" if name else f"{url} could not be reached"
    if isinstance(error, PermissionError) or "credential" in told.lower():
        cure = "check your credentials, and that they may list and write there"
    elif isinstance(error, FileNotFoundError | NotADirectoryError):
        cure = "check the path; a bucket or repository must exist already"
    elif isinstance(error, OSError) and error.errno in _FULL:
        cure = "free space there; what arrived is kept"
    else:
        cure = "try again: what arrived is kept and not sent twice"
    return ExportError(f"{what}: {told}; {cure}")
