"""Store: write files that are either complete or absent, and check them later.

In:  the private folder of a task. Out: files and a marker in the folder of the step.
`commit_part` runs in the process that wrote the files: it syncs, hashes and renames
them and writes the marker last, so a marker guarantees complete files, also after a
power failure and on network file systems, where another machine could not have synced
them. A step is finished once its manifest exists.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import IO, Any, Final, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import xxhash

from nextlong.errors import RunError
from nextlong.text import Json

MANIFEST = "manifest.json"
_MARKER = ".part-{:05d}.json"
Trust = Literal["size", "time", "hash"]
_Item = TypeVar("_Item")
_T = TypeVar("_T")
_AT_ONCE = 32  # files that are checked, or brought to the disk, together
_OTHER_FOLDER = "set run_dir to a folder that you can write to"


class _Refusal(NamedTuple):
    """What the operating system refused, and the fix."""

    problem: str
    fix: str


_FULL_DISK: Final = _Refusal(
    "it could not be written, because the disk is full, or your quota is exceeded",
    "free space (`nextlong plan` estimates it), then run again: finished steps are "
    "kept",
)
_READ_ONLY: Final = _Refusal("it cannot be written ({reason})", _OTHER_FOLDER)
_REFUSALS: Final = {
    errno.ENOSPC: _FULL_DISK,
    errno.EDQUOT: _FULL_DISK,
    errno.EACCES: _READ_ONLY,
    errno.EPERM: _READ_ONLY,
    errno.EROFS: _READ_ONLY,
    errno.EFBIG: _Refusal(
        "it exceeds the file size limit of this process",
        "raise it (`ulimit -f`), then run again",
    ),
    errno.EMFILE: _Refusal(
        "it cannot be opened: too many open files",
        "raise the limit (`ulimit -n`), then run again",
    ),
    errno.ENOENT: _Refusal(
        "it was deleted during the run",
        "do not change run_dir meanwhile, then run again",
    ),
    errno.ENOTDIR: _Refusal(
        "it cannot be created, because a part of this path is a file", _OTHER_FOLDER
    ),
    errno.EEXIST: _Refusal("it is a file", _OTHER_FOLDER),
    errno.EIO: _Refusal("disk error ({reason})", "choose another folder"),
}
# NumPy reports a full disk as text, without an errno.
_NUMPY_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written|Not enough free space")


class _RecordedFile(TypedDict):
    bytes: int
    xxh3: str
    mtime_ns: NotRequired[int]


class TaskPart(TypedDict):
    """What one task wrote and returned.

    `closes` marks the task that runs after all others.
    """

    index: int
    files: dict[str, _RecordedFile]
    counts: Json
    seconds: float
    peak_bytes: NotRequired[int]
    closes: NotRequired[bool]


def write_json(path: Path, value: Any) -> None:
    """Write a value as JSON, atomically."""
    write_file(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_file(path: Path, content: str | bytes) -> None:
    """Write a small file (text in UTF-8) atomically.

    It holds either the old or the new content, also after a power failure.
    """
    if isinstance(content, str):
        content = content.encode("utf-8")
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    # The data must be on disk before the name, or the name could lead to nothing.
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def remove_file(path: Path) -> None:
    """Remove a file durably, also in case of a power failure."""
    path.unlink(missing_ok=True)
    sync(path.parent)


def read_json(path: Path) -> Any:
    """Read JSON that nextlong wrote.

    Raises RunError if the file is missing or damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(
            where=path, problem="it is missing", fix="run again to rebuild it"
        ) from None
    except ValueError as error:
        raise RunError(
            where=path,
            problem=f"it is damaged ({error})",
            fix="delete this file and run again to rebuild it",
        ) from None


def json_lines(values: Iterable[Any]) -> str:
    """Return values as JSON, one per line."""
    return "".join(json.dumps(value, ensure_ascii=False) + "\n" for value in values)


def whole_lines(path: Path) -> Iterator[Any]:
    """Yield the values of a file of JSON lines, up to a torn or damaged one.

    None of a file that does not exist.
    """
    if not path.is_file():
        return
    # Not splitlines: a text may hold U+2028, which does not end a line here. After the
    # last line end there may be a line that a kill tore.
    for line in path.read_bytes().split(b"\n")[:-1]:
        try:
            yield json.loads(line.decode("utf-8", errors="replace"))
        except ValueError:
            return


def hash_file(path: Path) -> str:
    """Return the XXH3 128-bit hash of a file's bytes, in hex."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


# A command builds its steps several times, and a model may have gigabytes: an unchanged
# file is hashed once.
_hash_of_version = lru_cache(maxsize=4096)(lambda path, _mtime_ns: hash_file(path))


def hash_folder(folder: Path) -> dict[str, str]:
    """Return name and hash of every file below a folder, sorted by name.

    Hidden files and folders are skipped.
    """
    hashes = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        is_hidden = "/." in f"/{name}"
        if path.is_file() and not is_hidden:
            hashes[name] = _hash_of_version(path, path.stat().st_mtime_ns)
    return hashes


def commit_part(
    work: Path,
    folder: Path,
    index: int,
    counts: Mapping[str, Any],
    seconds: float,
    *,
    peak_bytes: int | None = None,
) -> TaskPart:
    """Move a task's files from its private folder `work` into the step's `folder`.

    Write its marker last and return it.
    """

    def commit(path: Path) -> _RecordedFile:
        sync(path)
        stat = path.stat()
        digest = hash_file(path)
        path.replace(folder / path.name)
        return {"bytes": stat.st_size, "xxh3": digest, "mtime_ns": stat.st_mtime_ns}

    paths = sorted(work.iterdir())
    names = [path.name for path in paths]
    records = _together(commit, paths)
    marker: TaskPart = {
        "index": index,
        "files": dict(zip(names, records, strict=True)),
        "counts": dict(counts),
        "seconds": round(seconds, 3),
    }
    if peak_bytes is not None:
        marker["peak_bytes"] = peak_bytes
    # The marker comes last: where it is, all files are.
    temporary = work / "marker"
    temporary.write_text(json.dumps(marker), encoding="utf-8")
    temporary.replace(folder / _MARKER.format(index))
    work.rmdir()
    return marker


def confirmed_parts(folder: Path, *, among: Iterable[int]) -> dict[int, TaskPart]:
    """Return the markers, by task, of tasks of an unfinished step with intact files.

    Of those tasks `among`. A file is intact if it has its recorded size and
    modification time, or else its recorded hash. So a run of hundreds of terabytes
    resumes without reading them again.
    """
    names = {_MARKER.format(index) for index in among}
    paths = sorted(path for path in folder.glob(".part-*.json") if path.name in names)
    markers = {}
    for marker in _together(partial(_confirmed, folder), paths):
        if marker is not None:
            markers[marker["index"]] = marker
    return markers


def _confirmed(folder: Path, path: Path) -> TaskPart | None:
    """Return the marker at a path, None unless all its files are intact."""
    # After a power failure, a marker may be damaged: the task runs again.
    with suppress(ValueError, KeyError, OSError):
        marker: TaskPart = json.loads(path.read_text(encoding="utf-8"))
        for name, record in marker["files"].items():
            is_intact = _seems_intact((folder / name, record), trust="time")
            if is_intact is None:
                is_intact = hash_file(folder / name) == record["xxh3"]
            if not is_intact:
                return None
        return marker
    return None


def delete_parts(folder: Path, indices: Iterable[int]) -> None:
    """Delete the files of tasks, each marker after its files.

    So a kill leaves no file without a marker.
    """
    for index in indices:
        marker = folder / _MARKER.format(index)
        with suppress(FileNotFoundError, ValueError):
            part = json.loads(marker.read_text(encoding="utf-8"))
            for name in part["files"]:
                (folder / name).unlink(missing_ok=True)
        marker.unlink(missing_ok=True)


def check_files(
    folder: Path, manifest: Mapping[str, Any], *, trust: Trust = "time"
) -> None:
    """Raise RunError if a file of a finished step is missing, truncated or altered.

    trust="size" compares sizes only; "time" compares size and modification time, and
    hashes files with another time; "hash" hashes every file.
    """
    files: list[tuple[Path, _RecordedFile]] = []
    for part in manifest["parts"]:
        for name, record in part["files"].items():
            files.append((folder / name, record))
    verdicts = _together(partial(_seems_intact, trust=trust), files)
    # Most files are intact by their time alone; only the others are read.
    doubtful = []
    for (path, _), is_intact in zip(files, verdicts, strict=True):
        if is_intact is None:
            doubtful.append(path)
    hashes = dict(zip(doubtful, _together(hash_file, doubtful, few=1), strict=True))
    for (path, record), is_intact in zip(files, verdicts, strict=True):
        has_other_hash = hashes.get(path, record["xxh3"]) != record["xxh3"]
        if is_intact is False or has_other_hash:
            state = "was altered or truncated" if path.exists() else "is missing"
            raise RunError(
                where=path,
                problem=(
                    f"it {state} since it was written ({record['bytes']:,} bytes, xxh3 "
                    f"{record['xxh3']})"
                ),
                fix=f"delete the folder {folder.resolve()} and run again to rebuild it",
            )


def _together(
    function: Callable[[_Item], _T], items: Sequence[_Item], *, few: int = _AT_ONCE
) -> list[_T]:
    """Map a function that waits for the file system.

    Threads take longer to start than `few` files to be looked at.
    """
    if len(items) <= few:
        return list(map(function, items))
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(function, items))


def _seems_intact(file: tuple[Path, _RecordedFile], *, trust: Trust) -> bool | None:
    """Return whether a file is as recorded, None if only its hash can tell."""
    path, record = file
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    if stat.st_size != record["bytes"]:
        return False
    if trust == "size":
        return True
    if trust == "time" and stat.st_mtime_ns == record["mtime_ns"]:
        return True
    return None


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of killed processes.

    These are private folders of tasks, partial files, and markers that a manifest
    replaces.
    """
    for path in folder.glob(".work-*"):
        shutil.rmtree(path, ignore_errors=True)
    leftovers = list(folder.glob(".*.tmp"))
    if (folder / MANIFEST).exists():
        leftovers += folder.glob(".part-*.json")
    for path in leftovers:
        path.unlink(missing_ok=True)


@contextmanager
def locked(
    run_dir: Path, *, mode: Literal["alone", "together"] = "alone"
) -> Iterator[None]:
    """Lock the run directory for this process.

    Raises RunError if another process holds it or it cannot be written. Processes that
    lock it "together" (array jobs) leave the files of others alone.
    """
    kind = fcntl.LOCK_EX if mode == "alone" else fcntl.LOCK_SH
    with explained(run_dir):
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:
            # Linux raises this in folders such as /proc, in which nothing can be
            # created.
            raise RunError(
                where=error.filename,
                problem="it cannot be created",
                fix=_OTHER_FOLDER,
            ) from None
        lock = _hold(run_dir / ".lock", kind | fcntl.LOCK_NB)
    # A process that holds the directory alone may remove what killed processes left.
    with lock:
        if mode == "alone":
            remove_leftovers(run_dir)
        yield


def alone(path: Path) -> IO[str]:
    """Lock a small file that several processes write, until the result is closed.

    This waits for the others.
    """
    with explained(path):
        return _hold(path.with_name(f".{path.name}.lock"), fcntl.LOCK_EX)


def _hold(path: Path, kind: int) -> IO[str]:
    """Return the locked file `path`.

    The kernel releases the lock when the file is closed or the process ends.
    """
    file = path.open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, kind)
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
    except BlockingIOError:
        file.seek(0)
        with file:
            holder = file.read().strip() or "another run"
        raise RunError(
            where=path.parent,
            problem=f"it is in use by {holder}",
            fix="wait for it, or stop it first",
        ) from None
    except OSError as error:
        file.close()
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        raise RunError(
            where=path.parent,
            problem=f"it lies on a file system without file locks ({error.strerror})",
            fix="mount it with them (Lustre: -o flock), or choose another run_dir",
        ) from None
    return file


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the operating system into a RunError with the fix.

    These are a full disk, no permission, a deleted file and others. The message names
    the file of the error, or `path`. Any other OSError is passed on.
    """
    try:
        yield
    except OSError as error:
        refusal = _REFUSALS.get(error.errno or 0)
        if error.errno is None and _NUMPY_SHORT_WRITE.search(str(error)):
            refusal = _FULL_DISK
        if refusal is None:
            raise
        raise RunError(
            where=error.filename or path,
            problem=refusal.problem.format(reason=error.strerror),
            fix=refusal.fix,
        ) from None


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
