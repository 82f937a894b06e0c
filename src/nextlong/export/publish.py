"""Publish finished export files to a local folder or any fsspec URL.

In:  files with their sizes and hashes, as the run recorded them; a destination.
Out: the same files at the destination, each complete under its final name or absent.
     Index files and cards are sent last, because readers that find one of them expect
     all other files.

A second push resumes an interrupted one: `.nextlong-push.json` at the destination
records every file that a push has started to send and the hash of those that arrived,
so that a resumed push reads nothing back. A data set of the Hugging Face Hub gets
commits instead (hub.py), each of which names its files and their record.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

from nextlong.engine import store
from nextlong.errors import ExportError, RunError
from nextlong.export.hub import HubRepository, repository_at
from nextlong.reading.files import is_local, protocols, reach
from nextlong.text import Json, counted

RECORD: Final = ".nextlong-push.json"
CARD: Final = "README.md"
DELIVERED: Final = "manifest.json"  # describes the exported files
# They may change while the data stays the same.
_CARDS: Final = frozenset({CARD, DELIVERED})
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
    ExportError,
    PermissionError,
    FileNotFoundError,
    NotADirectoryError,
    IsADirectoryError,
    ImportError,
    MemoryError,
)
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_RECORD_EVERY_S: Final = 10.0
# The Hub recommends some hundreds of files: a commit checks each of them in a minute.
_COMMIT_FILES: Final = 250
# To send a file; before the second there is a pause, doubled for each further one.
_ATTEMPTS: Final = 5
_FIRST_PAUSE_S: Final = 1.0
_MARKER: Final = ".nextlong-push-check"
# Object stores show an upload only when it is complete; elsewhere files are sent under
# a temporary name first.
_ATOMIC: Final = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "az", "hf"})
# By file name: its `bytes`, its `xxh3` in hex, and whether it is `whole`, i.e. has
# arrived.
_Record = dict[str, Json]


@dataclass(frozen=True, slots=True)
class ExportFile:
    """A finished file.

    `name` is relative to the destination (with /), `xxh3` its 128-bit hash in hex.
    """

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
    """Send files to a local folder or fsspec URL; return the names of those sent.

    `others`: refuse or replace files of earlier pushes that are not among `files`.
    Files that no push has sent are never deleted. Raises ExportError with the fix;
    RunError if a file differs from the run's record.
    """
    target = Destination(destination)
    with _refusals(destination):
        sizes, known = target.contents(file.name for file in files)
        other = _files_of_another(files, sizes, known)
        if other and others == "refuse":
            raise _of_another(destination, other)
        stale = _stale_files(files, other, sizes=sizes, known=known)
        due = []
        for file in files:
            arrived = file.name not in stale and _has_arrived(file, sizes, known)
            # Local copies are hashed, so that replacing repairs damaged ones.
            if not arrived or (others == "replace" and target.differs(file)):
                due.append(file)
        record = {file.name: file.entry(whole=True) for file in files}
        record |= {file.name: file.entry(whole=False) for file in due}
        _deliver(due, stale, target, known=known, record=record, threads=threads)
    return [file.name for file in due]


def _has_arrived(file: ExportFile, sizes: Mapping[str, int], known: _Record) -> bool:
    is_recorded = known.get(file.name) == file.entry(whole=True)
    return is_recorded and sizes.get(file.name) == file.bytes


def _deliver(
    due: Sequence[ExportFile],
    stale: Sequence[str],
    target: Destination,
    *,
    known: _Record,
    record: _Record,
    threads: int,
) -> None:
    """Delete files of another export and send those that are due."""
    if target.repository is not None:
        _commit_all(due, target, target.repository, stale=stale, record=record)
    elif due or stale:
        _delete(stale, target, known=known, record=record)
        _send_in_order(due, target, record, threads=threads)


def _commit_all(
    files: Sequence[ExportFile],
    target: Destination,
    repository: HubRepository,
    *,
    stale: Sequence[str] = (),
    record: _Record,
) -> None:
    """Commit files and their record, and delete files of another export.

    Several commits only of very many files: the first deletes, and the last has the
    files that say that all is there.
    """
    ordered = sorted(files, key=lambda file: _comes_last(file.name))
    to_delete = list(stale)
    while ordered or to_delete:
        batch = ordered[:_COMMIT_FILES]
        ordered = ordered[_COMMIT_FILES:]
        additions: dict[str, Path | bytes] = {}
        for file in batch:
            _check_content(file)
            additions[file.name] = file.path
            record[file.name] = file.entry(whole=True)
        additions[RECORD] = _record_text(record).encode()
        commit = partial(
            repository.commit,
            additions,
            deletions=[name for name in to_delete if name not in additions],
            message=f"Add {counted(len(batch), 'file')} with nextlong",
        )
        with _refusals(target.url):
            _try_repeatedly(commit)
        to_delete = []


def _delete(
    stale: Sequence[str], target: Destination, *, known: _Record, record: _Record
) -> None:
    """Delete files of another export, and write the record of what is sent next.

    The record comes first, so that a kill leaves no file unrecorded.
    """
    target.write_record({name: known[name] for name in stale} | record)
    for name in stale:
        target.delete(name)
    target.write_record(record)


def _send_in_order(
    files: Sequence[ExportFile], target: Destination, record: _Record, *, threads: int
) -> None:
    """Send files; those that say that all is there come after all others."""
    first = [file for file in files if not _comes_last(file.name)]
    last = [file for file in files if _comes_last(file.name)]
    for batch in (first, last):
        if batch:
            _send_all(batch, target, record, threads=threads)


def _files_of_another(
    files: Sequence[ExportFile], sizes: Mapping[str, int], known: _Record
) -> list[str]:
    """Return the files of earlier pushes that differ from these; cards may differ."""
    hashes = {file.name: file.xxh3 for file in files}
    other = []
    for name in sorted(sizes.keys() & known.keys()):
        is_card = name in hashes and posixpath.basename(name) in _CARDS
        if hashes.get(name) != known[name]["xxh3"] and not is_card:
            other.append(name)
    return other


def _stale_files(
    files: Sequence[ExportFile],
    other: Sequence[str],
    *,
    sizes: Mapping[str, int],
    known: _Record,
) -> list[str]:
    """Return the files that replacing another export deletes, in this order.

    The files that come last are deleted first, so that no reader takes a mixture for a
    complete data set.
    """
    if not other:
        return []
    last = {name for name in sizes if _comes_last(name) and name in known}
    unnamed = set(other) - {file.name for file in files}
    return sorted(last | unnamed, key=lambda name: (not _comes_last(name), name))


def _send_all(
    files: Sequence[ExportFile], target: Destination, record: _Record, *, threads: int
) -> None:
    """Send files by several threads.

    The record at the destination is updated every few seconds and at the end.
    """
    written = time.monotonic()
    executor = ThreadPoolExecutor(threads, thread_name_prefix="publish")
    sending = [executor.submit(_send, file, target, record) for file in files]
    try:
        for sent in as_completed(sending):
            sent.result()
            if time.monotonic() - written > _RECORD_EVERY_S:
                target.write_record(record)
                written = time.monotonic()
    finally:
        executor.shutdown(cancel_futures=True)
        target.write_record(record)


def publish_card(text: str, destination: str) -> None:
    """Send the card of a folder that has the exports of several formats below it.

    A README.md there that was not sent by nextlong is kept.
    """
    target = Destination(destination)
    with _refusals(destination):
        record = target.read_record()
        if target.fs.exists(target.at(CARD)) and CARD not in record:
            return
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / CARD
            path.write_text(text, encoding="utf-8")
            file = ExportFile(
                path=path,
                name=CARD,
                bytes=path.stat().st_size,
                xxh3=store.hash_file(path),
            )
            if target.repository is not None:
                if record.get(CARD) != file.entry(whole=True):
                    _commit_all([file], target, target.repository, record=record)
                return
            record[CARD] = file.entry(whole=False)
            target.write_record(record)
            _send(file, target, record)
            target.write_record(record)


def check_destination(destination: str, steps: Mapping[str, str] | None = None) -> None:
    """Raise ExportError, before anything is computed, for a destination that cannot be.

    It is not writable, or holds files of other origin. `steps` are the fingerprints of
    the export's splits, if known: the destination must then hold no other export.
    """
    target = Destination(destination)
    with _refusals(destination):
        sizes, known = target.contents()
        pushed = sorted(known.keys() & sizes.keys())
        if pushed and steps is not None:
            delivered = target.delivered_steps()
            if delivered is not None and delivered != steps:
                raise _of_another(destination, pushed)
        target.try_writing()


def _of_another(destination: str, other: Sequence[str]) -> ExportError:
    command = f"nextlong export RUN --into {shlex.quote(destination)} --replace"
    return ExportError(
        where=destination,
        problem=f"it contains {counted(len(other), 'file')} of another export, such as "
        f"{other[0]!r}",
        fix=f"choose another destination, or replace them: {command}",
    )


def _comes_last(name: str) -> bool:
    return posixpath.basename(name) in _LAST_NAMES or name.endswith(_LAST_SUFFIXES)


@contextmanager
def _refusals(url: str, name: str = "") -> Iterator[None]:
    """Convert the exceptions of file systems, which each define their own.

    They become an ExportError with the fix.
    """
    try:
        yield
    except (ExportError, RunError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        what = "it could not be reached"
        if name:
            what = f"{name!r} could not be sent there"
        raise ExportError(
            where=url, problem=f"{what}: {reason}", fix=_fix_of(error, reason)
        ) from None


def _fix_of(error: Exception, reason: str) -> str:
    """Return what to do about an exception of a file system."""
    if isinstance(error, PermissionError) or "credential" in reason.lower():
        return "check your credentials, and that they may list and write there"
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "check the path; a bucket or repository must exist already"
    if isinstance(error, OSError) and error.errno in _FULL:
        return "free space there; what arrived is kept"
    return "try again: what arrived is kept and not sent twice"


def _send(file: ExportFile, target: Destination, record: _Record) -> None:
    """Send a file and record its arrival; runs in a thread.

    Raises RunError if the file differs from the run's record.
    """
    _check_content(file)
    with _refusals(target.url, file.name):
        _try_repeatedly(partial(target.put, file))
    record[file.name] = file.entry(whole=True)


def _check_content(file: ExportFile) -> None:
    """Raise RunError if a file is not what the run recorded."""
    try:
        digest = store.hash_file(file.path)
    except OSError as error:
        raise RunError(
            where=file.path,
            problem=f"it cannot be read ({error.strerror})",
            fix="export again",
        ) from None
    if digest != file.xxh3:
        raise RunError(
            where=file.path,
            problem=f"it is not what was exported (its hash is {digest}, not "
            f"{file.xxh3})",
            fix="export again",
        )


def _try_repeatedly(send: Callable[[], None]) -> None:
    """Send something; networks fail for moments, and what lasts is not tried again."""
    for attempt in range(_ATTEMPTS):
        try:
            send()
            return
        except Exception as error:
            is_full = getattr(error, "errno", None) in _FULL
            is_last = attempt == _ATTEMPTS - 1
            if is_last or is_full or isinstance(error, _LASTING):
                raise
            time.sleep(_FIRST_PAUSE_S * 2**attempt)


def _record_text(files: _Record) -> str:
    record = {"files": dict(sorted(files.items()))}
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


class Destination:
    """A folder on any file system, local or reached by a URL.

    Raises ExportError if it cannot be reached.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self.repository = repository_at(url)
        self.fs, root = reach(url, where=f"the destination {url!r}", error=ExportError)
        self.root = root.rstrip("/") or "/"
        self.is_local = is_local(self.fs)
        self.is_atomic = bool(protocols(self.fs) & _ATOMIC)

    def sizes(self) -> dict[str, int]:
        """Return the size in bytes of every file by name, without hidden files."""
        self.fs.invalidate_cache()
        if self.fs.isfile(self.root):
            raise ExportError(
                where=f"the destination {self.url!r}",
                problem="it is a file",
                fix="name a folder",
            )
        sizes = {}
        # A folder that does not exist yet has no files.
        with suppress(FileNotFoundError):
            for path, info in self.fs.find(self.root, detail=True).items():
                name = posixpath.relpath(path, self.root)
                is_hidden = "/." in f"/{name}"
                if not is_hidden:
                    sizes[name] = int(info["size"] or 0)
        return sizes

    def contents(self, names: Iterable[str] = ()) -> tuple[dict[str, int], _Record]:
        """Return the sizes of all files, and the record of those of earlier pushes.

        These exist, or their sending has started. Raises ExportError for files that no
        push has sent; `names` are about to be written.
        """
        if self.repository is not None:
            self.repository.check_writable()
        sizes = self.sizes()
        known = {
            name: entry
            for name, entry in self.read_record().items()
            if name in sizes or not entry["whole"]
        }
        strangers = sorted(sizes.keys() - known.keys() - _ALLOWED)
        if strangers:
            clash = ""
            if strangers[0] in set(names):
                clash = " and would be overwritten"
            raise ExportError(
                where=self.url,
                problem=f"it contains {counted(len(strangers), 'file')} that nextlong "
                f"did not export, such as {strangers[0]!r}, which readers would take "
                f"for part of the data set{clash}",
                fix="choose an empty destination or remove them",
            )
        return sizes, known

    def read_record(self) -> _Record:
        """Return the record of earlier pushes; empty if there was none."""
        try:
            text = self.fs.cat_file(self.at(RECORD))
        except FileNotFoundError:
            return {}
        record = {}
        try:
            for name, entry in json.loads(text)["files"].items():
                record[str(name)] = {
                    key: entry[key] for key in ("bytes", "xxh3", "whole")
                }
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ExportError(
                where=self.url,
                problem=f"it contains a damaged {RECORD}",
                fix="delete that file, and the files that are to be sent again",
            ) from None
        return record

    def delivered_steps(self) -> dict[str, str] | None:
        """Return the fingerprint of each split that was delivered here.

        None where that is unknown: a push that was interrupted before it wrote this
        file may be resumed.
        """
        try:
            text = self.fs.cat_file(self.at(DELIVERED))
            splits = json.loads(text)["splits"]
            return {name: split["step"] for name, split in splits.items()}
        except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def differs(self, file: ExportFile) -> bool:
        """Tell whether a local copy is not the file; elsewhere nothing is read back."""
        if not self.is_local:
            return False
        path = Path(self.at(file.name))
        return store.hash_file(path) != file.xxh3

    def try_writing(self) -> None:
        """Raise the file system's exception if it is not writable.

        The Hub is asked by `contents`.
        """
        if self.is_local:
            folder = Path(self.root).absolute()
            nearest = next(path for path in (folder, *folder.parents) if path.exists())
            # It has no name, so nothing can remain.
            tempfile.TemporaryFile(dir=nearest).close()
        elif self.repository is None:
            parent = self._nearest_folder().rstrip("/")
            # Unique, because several runs may check at once.
            marker = f"{parent}/{_MARKER}-{uuid.uuid4().hex[:8]}"
            self.fs.pipe_file(marker, b"")
            # Any exception of a file system without permission to delete.
            with suppress(Exception):
                self.fs.rm_file(marker)

    def _nearest_folder(self) -> str:
        """Return the nearest existing folder; in object stores every folder exists."""
        folder = self.root
        while not self.is_atomic and not self.fs.exists(folder):
            parent: str = self.fs._parent(folder)
            if parent == folder:
                break
            folder = parent
        return folder

    def write_record(self, files: _Record) -> None:
        text = _record_text(files)
        if self.is_local:
            target = Path(self.at(RECORD))
            target.parent.mkdir(parents=True, exist_ok=True)
            store.write_file(target, text)
        else:
            self.fs.pipe_file(self.at(RECORD), text.encode())

    def put(self, file: ExportFile) -> None:
        """Send a file, which appears under its name only when it is complete."""
        target = self.at(file.name)
        folder, name = posixpath.split(target)
        # Hidden, so that no reader takes it for a finished file.
        partial = f"{folder}/.{name}.{file.xxh3[:8]}.part"
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
        """Delete a file, and the local folders that it leaves empty."""
        path = self.at(name)
        self.fs.rm_file(path)
        folder = Path(path).parent
        while self.is_local and folder != Path(self.root) and not any(folder.iterdir()):
            folder.rmdir()
            folder = folder.parent

    def at(self, name: str) -> str:
        return f"{self.root.rstrip('/')}/{name}"
