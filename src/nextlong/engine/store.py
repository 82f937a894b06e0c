"""Store: write files that are either complete or absent, and check them later.

In:  the private folder of a task. Out: files and a marker in the folder of the step. `commit_part` runs in the process that
wrote the files: it syncs, hashes and renames them and writes the marker last, so a marker guarantees complete files, also after
a power failure and on network file systems, where another machine could not have synced them. A step is finished once its
manifest exists.
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
from typing import IO, Any, Literal, NotRequired, TypedDict, TypeVar

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
_REFUSALS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        "the disk is full, or your quota is exceeded: {where} could not be written; free space (`nextlong plan` estimates it), "
        "then run again: finished steps are kept",
    ),
    **dict.fromkeys(
        (errno.EACCES, errno.EPERM, errno.EROFS),
        "{where} cannot be written ({reason}); " + _OTHER_FOLDER,
    ),
    errno.EFBIG: "{where} exceeds the file size limit of this process; raise it (`ulimit -f`), then run again",
    errno.EMFILE: "{where} cannot be opened: too many open files; raise the limit (`ulimit -n`), then run again",
    errno.ENOENT: "{where} was deleted during the run; do not change run_dir meanwhile, then run again",
    errno.ENOTDIR: "{where} cannot be created, because a part of this path is a file; "
    + _OTHER_FOLDER,
    errno.EEXIST: "{where} is a file; " + _OTHER_FOLDER,
    errno.EIO: "{where}: disk error ({reason}); choose another folder",
}
# NumPy reports a full disk as text, without an errno.
_NUMPY_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written|Not enough free space")


class _RecordedFile(TypedDict):
    bytes: int
    xxh3: str
    mtime_ns: NotRequired[int]


class TaskPart(TypedDict):
    """What one task wrote and returned; `closes` marks the task that runs after all others."""

    index: int
    files: dict[str, _RecordedFile]
    counts: Json
    seconds: float
    peak_bytes: NotRequired[int]
    closes: NotRequired[bool]


def write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_file(path: Path, content: str | bytes) -> None:
    """Write a small file (text in UTF-8) atomically: it holds either the old or the new content, also after a power failure."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
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
    """Read JSON that nextlong wrote. Raises RunError if the file is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; run again to rebuild it") from None
    except ValueError as error:
        raise RunError(
            f"{path} is damaged ({error}); delete this file and run again to rebuild it"
        ) from None


def hash_file(path: Path) -> str:
    """Return the XXH3 128-bit hash of a file's bytes, in hex."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


# A command builds its steps several times, and a model may have gigabytes: an unchanged file is hashed once.
_hash_of_version = lru_cache(maxsize=4096)(lambda path, _mtime_ns: hash_file(path))


def hash_folder(folder: Path) -> dict[str, str]:
    """Return name and hash of every file below a folder, sorted by name; hidden files and folders are skipped."""
    files = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    visible = {name: path for name, path in files.items() if not f"/{name}".count("/.")}
    return {
        name: _hash_of_version(path, path.stat().st_mtime_ns)
        for name, path in visible.items()
    }


def commit_part(
    work: Path,
    folder: Path,
    index: int,
    counts: Mapping[str, Any],
    seconds: float,
    *,
    peak_bytes: int | None = None,
) -> TaskPart:
    """Move a task's files from its private folder `work` into the step's `folder`; write its marker last and return it."""

    def commit(path: Path) -> _RecordedFile:
        sync(path)
        stat, digest = path.stat(), hash_file(path)
        path.replace(folder / path.name)
        return {"bytes": stat.st_size, "xxh3": digest, "mtime_ns": stat.st_mtime_ns}

    paths = sorted(work.iterdir())
    files = {
        path.name: record
        for path, record in zip(paths, _together(commit, paths), strict=True)
    }
    marker: TaskPart = {
        "index": index,
        "files": files,
        "counts": dict(counts),
        "seconds": round(seconds, 3),
    }
    if peak_bytes is not None:
        marker["peak_bytes"] = peak_bytes
    temporary = work / "marker"
    temporary.write_text(json.dumps(marker), encoding="utf-8")
    temporary.replace(folder / _MARKER.format(index))
    work.rmdir()
    return marker


def confirmed_parts(folder: Path, *, among: Iterable[int]) -> dict[int, TaskPart]:
    """Return the markers, by task, of those tasks `among` of an unfinished step whose files are all intact.

    A file is intact if it has its recorded size and modification time, or else its recorded hash. So a run of hundreds of
    terabytes resumes without reading them again.
    """

    def confirmed(path: Path) -> TaskPart | None:
        with suppress(
            ValueError, KeyError, OSError
        ):  # a marker damaged by a power failure: the task runs again
            marker: TaskPart = json.loads(path.read_text(encoding="utf-8"))
            for name, record in marker["files"].items():
                is_intact = _seems_intact((path := folder / name, record), trust="time")
                if is_intact is False or (
                    is_intact is None and hash_file(path) != record["xxh3"]
                ):
                    return None
            return marker
        return None

    names = {_MARKER.format(index) for index in among}
    paths = sorted(path for path in folder.glob(".part-*.json") if path.name in names)
    return {
        marker["index"]: marker
        for marker in _together(confirmed, paths)
        if marker is not None
    }


def delete_parts(folder: Path, indices: Iterable[int]) -> None:
    """Delete the files of tasks, each marker after its files, so that a kill leaves no file without a marker."""
    for index in indices:
        marker = folder / _MARKER.format(index)
        with suppress(FileNotFoundError, ValueError):
            for name in json.loads(marker.read_text(encoding="utf-8"))["files"]:
                (folder / name).unlink(missing_ok=True)
        marker.unlink(missing_ok=True)


def check_files(
    folder: Path, manifest: Mapping[str, Any], *, trust: Trust = "time"
) -> None:
    """Raise RunError if a file of a finished step is missing, truncated or altered.

    trust="size" compares sizes only; "time" compares size and modification time, and hashes files with another time; "hash"
    hashes every file.
    """
    files = [
        (folder / name, record)
        for part in manifest["parts"]
        for name, record in part["files"].items()
    ]
    intact = _together(partial(_seems_intact, trust=trust), files)
    doubtful = [
        path
        for (path, _), verdict in zip(files, intact, strict=True)
        if verdict is None
    ]
    hashes = dict(zip(doubtful, _together(hash_file, doubtful, few=1), strict=True))
    for (path, record), is_intact in zip(files, intact, strict=True):
        if is_intact is False or hashes.get(path, record["xxh3"]) != record["xxh3"]:
            state = "was altered or truncated" if path.exists() else "is missing"
            written = f"since it was written ({record['bytes']:,} bytes, xxh3 {record['xxh3']})"
            cure = f"delete the folder {folder.resolve()} and run again to rebuild it"
            raise RunError(f"{path} {state} {written}; {cure}")


def _together(
    function: Callable[[_Item], _T], items: Sequence[_Item], *, few: int = _AT_ONCE
) -> list[_T]:
    """Map a function that waits for the file system. Threads take longer to start than `few` files to be looked at."""
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
    return (
        True
        if trust == "size"
        or (trust == "time" and stat.st_mtime_ns == record["mtime_ns"])
        else None
    )


def remove_leftovers(folder: Path) -> None:
    """Remove leftovers of killed processes: private folders of tasks, partial files, markers that a manifest replaces."""
    for path in folder.glob(".work-*"):
        shutil.rmtree(path, ignore_errors=True)
    markers = folder.glob(".part-*.json") if (folder / MANIFEST).exists() else ()
    for path in (*folder.glob(".*.tmp"), *markers):
        path.unlink(missing_ok=True)


@contextmanager
def locked(
    run_dir: Path, *, mode: Literal["alone", "together"] = "alone"
) -> Iterator[None]:
    """Lock the run directory for this process. Raises RunError if another process holds it or it cannot be written.

    Processes that lock it "together" (array jobs) leave the files of others alone.
    """
    with explained(run_dir):
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:
            # Linux raises this in folders such as /proc, in which nothing can be created.
            raise RunError(
                f"{error.filename} cannot be created; {_OTHER_FOLDER}"
            ) from None
        lock = _hold(
            run_dir / ".lock",
            (fcntl.LOCK_EX if mode == "alone" else fcntl.LOCK_SH) | fcntl.LOCK_NB,
        )
    with lock:
        if mode == "alone":
            remove_leftovers(run_dir)
        yield


def alone(path: Path) -> IO[str]:
    """Lock a small file that several processes write, waiting for them, until the returned file is closed."""
    with explained(path):
        return _hold(path.with_name(f".{path.name}.lock"), fcntl.LOCK_EX)


def _hold(path: Path, kind: int) -> IO[str]:
    """Return the locked file `path`; the kernel releases the lock when the file is closed or the process ends."""
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
            f"{path.parent} is in use by {holder}; wait for it, or stop it first"
        ) from None
    except OSError as error:
        file.close()
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        cure = "mount it with them (Lustre: -o flock), or choose another run_dir"
        raise RunError(
            f"{path.parent} lies on a file system without file locks ({error.strerror}); {cure}"
        ) from None
    return file


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn errors of the operating system (full disk, no permission, deleted file) into a RunError with the fix.

    The message names the file of the error, or `path`. Any other OSError is passed on.
    """
    try:
        yield
    except OSError as error:
        refusal = _REFUSALS.get(error.errno or 0)
        if error.errno is None and _NUMPY_SHORT_WRITE.search(str(error)):
            refusal = _REFUSALS[errno.ENOSPC]
        if refusal is None:
            raise
        raise RunError(
            refusal.format(where=error.filename or path, reason=error.strerror)
        ) from None


def sync(path: Path) -> None:
    """Sync a file, or the entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
