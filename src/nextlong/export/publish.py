"""Publish: copy finished export files to a local folder or any fsspec URL; a second push resumes an interrupted one.

In:  files with their sizes and hashes, as the run recorded them; a destination.
Out: the same files there, each complete under its final name or absent. Index files and cards are sent last, because a
reader that finds one of them expects the rest.

`.nextlong-push.json` at the destination names every file that a push has begun to send, and the hash of those that
arrived, so a resumed push reads nothing back.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import posixpath
import shutil
import tempfile
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, TypedDict

import xxhash

from nextlong.errors import ExportError, RunError
from nextlong.reading import file_systems
from nextlong.text import counted

# A reader that finds one of these takes the files beside it for complete.
_TOLD_ANEW: Final = frozenset({"README.md", "manifest.json"})  # the same data may be told with other words
_LAST_NAMES: Final = frozenset({"README.md", "index.json", "manifest.json", "dataset_info.json", "state.json"})
_LAST_SUFFIXES: Final = (".idx",)
# What people and hubs put beside data; hidden files besides.
_ALLOWED: Final = frozenset({"LICENSE", "LICENSE.md", "LICENSE.txt"})
# Trying again does not help against these.
_LASTING: Final = (PermissionError, FileNotFoundError, NotADirectoryError, IsADirectoryError, ImportError, MemoryError)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_RECORD_EVERY_S: Final = 10.0  # on the Hugging Face hub each write is a commit
_LONGEST_PAUSE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Published:
    """What a push did: the files that it sent, their bytes, and the files that were there already."""

    sent: int
    sent_bytes: int
    kept: int


@dataclass(frozen=True, slots=True)
class Push:
    """What a push will do: files to send, names to delete before, and what the record says before and after the
    deleting."""

    due: list[ExportFile]
    stale: list[str]
    before: dict[str, PublishedFile]
    record: dict[str, PublishedFile]


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

    `others` says what to do about files of earlier pushes that are not among `files`: refuse, or delete them. Files
    that no push put there are never deleted. A failed transfer is tried `attempts` times, `first_pause_s` apart and
    twice as long each time. `progress` is told after each file how many files and bytes were sent.

    Raises ExportError naming the destination and the cure; RunError if a file is not what the run recorded.
    """
    place = Destination(destination)
    with _refusals(destination):
        plan = plan_push(files, place.sizes(), place.read_record(), destination=destination, others=others)
        if plan.due or plan.stale:
            _clear(place, plan)
        push = _Push(place, plan.record, attempts=attempts, first_pause_s=first_pause_s, progress=progress)
        for is_last in (False, True):
            push.send([file for file in plan.due if _comes_last(file.name) is is_last], threads=threads)
    return Published(len(plan.due), sum(file.bytes for file in plan.due), len(files) - len(plan.due))


def check_destination(destination: str, steps: Mapping[str, str] | None = None) -> None:
    """Raise ExportError if a destination cannot be written to, or holds files that no push put there.

    Of `steps`, the fingerprints of those that make the export's splits where they are known, it must also hold no
    other export. Called before the files are made, so that nothing is made in vain; `publish` compares their hashes
    afterwards.
    """
    place = Destination(destination)
    with _refusals(destination):
        at_destination, record = place.sizes(), place.read_record()
        known = _known(at_destination, record)
        _refuse_strangers((), at_destination, known, destination)
        there = sorted(known.keys() & at_destination.keys())
        if there and steps is not None and place.pushed_steps() not in (None, steps):
            raise _another(destination, there)
        place.try_writing()


def plan_push(
    files: Sequence[ExportFile],
    at_destination: Mapping[str, int],
    record: Mapping[str, PublishedFile],
    *,
    destination: str,
    others: Literal["refuse", "replace"],
) -> Push:
    """Return what is to be done so that exactly `files` lie at the destination, which has `found` and was told
    `record`.

    Raises ExportError if that would take what no push put there, or another export without leave.
    """
    known = _known(at_destination, record)
    _refuse_strangers(files, at_destination, known, destination)
    other = _of_another(files, at_destination, known)
    if other and others == "refuse":
        raise _another(destination, other)
    stale = _stale(files, at_destination, known, other)
    due = [file for file in files if file.name in stale or not _is_whole(file, at_destination, known)]
    names_due = {file.name for file in due}
    whole = {file.name: _entry(file, whole=file.name not in names_due) for file in files}
    return Push(due, stale, {**{name: known[name] for name in stale}, **whole}, whole)


def _known(at_destination: Mapping[str, int], record: Mapping[str, PublishedFile]) -> dict[str, PublishedFile]:
    return {name: entry for name, entry in record.items() if name in at_destination or entry["whole"] is False}


def _another(destination: str, other: Sequence[str]) -> ExportError:
    return ExportError(
        f"{destination} holds {counted(len(other), 'file')} of another export, such as {other[0]!r}; choose another "
        f"destination, or replace them: nextlong export RUN --into {destination} --replace"
    )


def _stale(
    files: Sequence[ExportFile],
    at_destination: Mapping[str, int],
    known: Mapping[str, PublishedFile],
    other: Sequence[str],
) -> list[str]:
    """Return what is to be deleted, in this order.

    Replacing begins with what says that the rest is there, so that no reader ever takes a mixture for whole.
    """
    if not other:
        return []
    ends = {name for name in at_destination if _comes_last(name) and name in known}
    kept = {file.name for file in files} - ends
    return sorted(({*other} | ends) - kept, key=lambda name: (not _comes_last(name), name))


def _clear(place: Destination, plan: Push) -> None:
    """Delete what is stale, with the record telling first what is about to change."""
    place.write_record(plan.before)
    for name in plan.stale:
        place.delete(name)
    place.write_record(plan.record)


@contextmanager
def _refusals(url: str) -> Iterator[None]:
    """Tell the errors of file systems, of which each has its own, as ExportError."""
    try:
        yield
    except (ExportError, RunError):
        raise
    except Exception as error:
        raise _refusal(url, error) from None


class _Push:
    """A push under way: what arrived, told to the destination's record every few seconds and at the end."""

    def __init__(
        self,
        place: Destination,
        whole: dict[str, PublishedFile],
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


def _check_source(file: ExportFile) -> None:
    """Raise RunError unless a file is what the run recorded; what is published must be what was verified."""
    try:
        with file.path.open("rb") as opened:
            digest = hashlib.file_digest(opened, xxhash.xxh3_128).hexdigest()
    except OSError as error:
        raise RunError(f"{file.path} cannot be read ({error.strerror}); export again") from None
    if digest != file.xxh3:
        raise RunError(f"{file.path} is not what was exported (its hash is {digest}, not {file.xxh3}); export again")


def _entry(file: ExportFile, *, whole: bool) -> PublishedFile:
    return PublishedFile(bytes=file.bytes, xxh3=file.xxh3, whole=whole)


def _is_whole(file: ExportFile, at_destination: Mapping[str, int], known: Mapping[str, PublishedFile]) -> bool:
    return at_destination.get(file.name) == file.bytes and known.get(file.name) == _entry(file, whole=True)


def _comes_last(name: str) -> bool:
    return posixpath.basename(name) in _LAST_NAMES or name.endswith(_LAST_SUFFIXES)


def _refuse_strangers(
    files: Iterable[ExportFile], at_destination: Mapping[str, int], known: Mapping[str, PublishedFile], destination: str
) -> None:
    """Raise ExportError if the destination holds files that no push put there, whatever their names."""
    strangers = sorted(name for name in at_destination.keys() - known.keys() if name not in _ALLOWED)
    if strangers:
        clash = " and would be overwritten" if strangers[0] in {file.name for file in files} else ""
        raise ExportError(
            f"{destination} holds {counted(len(strangers), 'file')} that no push put there, such as {strangers[0]!r}, which a "
            f"reader would take for the data set's{clash}; choose an empty destination or remove them"
        )


def _of_another(
    files: Sequence[ExportFile], at_destination: Mapping[str, int], known: Mapping[str, PublishedFile]
) -> list[str]:
    """Return what earlier pushes put there that is not of these files; a card may be told anew."""
    exported_hashes = {file.name: file.xxh3 for file in files}
    return sorted(
        name
        for name, entry in known.items()
        if name in at_destination
        and exported_hashes.get(name) != entry["xxh3"]
        and (name not in exported_hashes or posixpath.basename(name) not in _TOLD_ANEW)
    )


def _lasts(error: Exception) -> bool:
    return isinstance(error, _LASTING) or (isinstance(error, OSError) and error.errno in _FULL)


def _refusal(url: str, error: Exception, name: str = "") -> ExportError:
    """Return what an error of a file system means to the user, and the cure."""
    if isinstance(error, ExportError):
        return error
    reason = " ".join(str(error).split()) or type(error).__name__
    what = f"{name!r} could not be sent to {url}" if name else f"{url} could not be reached"
    if isinstance(error, PermissionError) or "credential" in reason.lower():
        cure = "check your credentials, and that they may list and write there"
    elif isinstance(error, FileNotFoundError | NotADirectoryError):
        cure = "check the path; a bucket or repository must exist already"
    elif isinstance(error, OSError) and error.errno in _FULL:
        cure = "free space there; what arrived is kept"
    else:
        cure = "try again: what arrived is kept and not sent twice"
    return ExportError(f"{what}: {reason}; {cure}")


RECORD: Final = ".nextlong-push.json"
DELIVERED: Final = "manifest.json"  # says what the files are of

_MARKER: Final = ".nextlong-push-check"
_COMMITS: Final = frozenset({"hf"})
# Object stores show an upload when it is complete; elsewhere a file is sent under another name first.
_ATOMIC: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "hf"})


class PublishedFile(TypedDict):
    """What the record says of a file: its size, its XXH3 128-bit hash in hex, and whether it has arrived."""

    bytes: int
    xxh3: str
    whole: bool


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A finished file: where it lies, its name below the destination (with /), its size and XXH3 128-bit hash in
    hex."""

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

    def read_record(self) -> dict[str, PublishedFile]:
        """Return name → bytes, xxh3 and whether it arrived, of what earlier pushes sent; empty where there was none."""
        try:
            files = json.loads(self.fs.cat_file(self.at(RECORD)))["files"]
            return {
                str(name): PublishedFile(bytes=entry["bytes"], xxh3=entry["xxh3"], whole=entry["whole"])
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

        Where files can be written and not deleted, an empty hidden one stays. On the Hugging Face hub each write is a
        commit, so there nothing is tried.
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
        """Return the folder, or the nearest one above it that is there; object stores have no folders that could be
        missing."""
        folder = self.root
        while not self.is_atomic and folder != self.fs._parent(folder) and not self.fs.exists(folder):
            folder = self.fs._parent(folder)
        return folder

    def write_record(self, files: Mapping[str, PublishedFile]) -> None:
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
