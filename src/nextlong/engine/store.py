"""Store: files on disk that are either whole or not there.

A task writes into a private folder; `commit_part`, in the process that wrote the files, brings them to the disk, hashes them,
renames them into the step's folder and writes the part's marker last. So a marker vouches for whole files, also after a power
cut and on file systems of a network, where no other machine could have flushed them. A step is done when its manifest is there.
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
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, NotRequired, TypedDict

import xxhash

from nextlong.errors import RunError
from nextlong.text import Json

MANIFEST = "manifest.json"
_MARKER = ".part-{:05d}.json"
Trust = Literal["size", "time", "hash"]
_AT_ONCE = 32  # files that are checked, or brought to the disk, together
_OTHER_FOLDER = "set run_dir to a folder that you can write to"
_REFUSALS = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT),
        "the disk is full, or your quota used up: {where} could not be written; free space (`nextlong plan` says how much), "
        "then run again: finished steps are kept",
    ),
    **dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), "{where} cannot be written ({reason}); " + _OTHER_FOLDER),
    errno.EFBIG: "{where} is longer than this process may write; raise the limit (`ulimit -f`), then run again",
    errno.EMFILE: "{where} cannot be opened beside so many others; raise the limit (`ulimit -n`), then run again",
    errno.ENOENT: "{where} vanished while it was needed; leave run_dir alone meanwhile, then run again",
    errno.ENOTDIR: "{where} cannot be created, because a part of this path is a file; " + _OTHER_FOLDER,
    errno.EEXIST: "{where} is a file; " + _OTHER_FOLDER,
    errno.EIO: "{where}: the disk fails ({reason}); choose another folder",
}
# NumPy says so in words, without an errno.
_NUMPY_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written|Not enough free space")


class _RecordedFile(TypedDict):
    bytes: int
    xxh3: str
    mtime_ns: NotRequired[int]


class TaskPart(TypedDict):
    """What one task wrote and returned; `closes` marks the task that came after all others."""

    index: int
    files: dict[str, _RecordedFile]
    counts: Json
    seconds: float
    peak_bytes: NotRequired[int]
    closes: NotRequired[bool]


def write_json(path: Path, value: Any) -> None:
    write_file(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_file(path: Path, content: str | bytes) -> None:
    """Write a small file, text in UTF-8, so that it holds either the old content or the whole new one, also after a power cut."""
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
    """Remove a small file so that it stays removed, even after a power cut."""
    path.unlink(missing_ok=True)
    sync(path.parent)


def read_json(path: Path) -> Any:
    """Read JSON that this package wrote. Raises RunError if it is missing or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{path} is missing; run again to rebuild it") from None
    except ValueError as error:
        raise RunError(f"{path} is damaged ({error}); delete this file and run again to rebuild it") from None


def hash_file(path: Path) -> str:
    """Return the XXH3 128-bit hash of a file's bytes, in hex."""
    with path.open("rb", buffering=0) as file:
        return hashlib.file_digest(file, xxhash.xxh3_128).hexdigest()


# A route is made several times a command, and a model may be gigabytes: one that has not changed since is hashed once.
_hash_of_version = lru_cache(maxsize=4096)(lambda path, _mtime_ns: hash_file(path))


def hash_folder(folder: Path) -> dict[str, str]:
    """Return the name and `hash_file` of every file below a folder, in order; hidden files and folders are passed over."""
    files = {path.relative_to(folder).as_posix(): path for path in sorted(folder.rglob("*")) if path.is_file()}
    shown = {name: path for name, path in files.items() if not f"/{name}".count("/.")}
    return {name: _hash_of_version(path, path.stat().st_mtime_ns) for name, path in shown.items()}


def commit_part(
    work: Path, folder: Path, index: int, counts: Mapping[str, Any], seconds: float, *, peak_bytes: int | None = None
) -> TaskPart:
    """Move a task's files from its private folder `work` into the step's `folder`; the marker, written last, is returned."""

    def commit(path: Path) -> _RecordedFile:
        sync(path)
        stat, digest = path.stat(), hash_file(path)
        path.replace(folder / path.name)
        return {"bytes": stat.st_size, "xxh3": digest, "mtime_ns": stat.st_mtime_ns}

    paths = sorted(work.iterdir())
    if len(paths) > _AT_ONCE:  # a task of a whole corpus writes a file for each shard, and each waits for the disk
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            records = list(pool.map(commit, paths))
    else:
        records = [commit(path) for path in paths]
    files = {path.name: record for path, record in zip(paths, records, strict=True)}
    marker: TaskPart = {"index": index, "files": files, "counts": dict(counts), "seconds": round(seconds, 3)}
    if peak_bytes is not None:
        marker["peak_bytes"] = peak_bytes
    temporary = work / "marker"
    temporary.write_text(json.dumps(marker), encoding="utf-8")
    temporary.replace(folder / _MARKER.format(index))
    work.rmdir()
    return marker


def confirmed_parts(folder: Path, *, among: Iterable[int]) -> dict[int, TaskPart]:
    """Return the markers of the tasks `among` of an unfinished step whose files are all as they were written, by index.

    A file counts as it was written if it has its recorded size and time of change, else if it has its recorded hash: what
    hundreds of terabytes hold is not read again to resume.
    """

    def confirmed(path: Path) -> TaskPart | None:
        with suppress(ValueError, KeyError, OSError):  # torn by a power cut: the task simply runs again
            marker: TaskPart = json.loads(path.read_text(encoding="utf-8"))
            if all(_is_intact(folder / name, record, trust="time") for name, record in marker["files"].items()):
                return marker
        return None

    names = {_MARKER.format(index) for index in among}
    paths = sorted(path for path in folder.glob(".part-*.json") if path.name in names)
    with ThreadPoolExecutor(_AT_ONCE) as pool:  # what takes long is waiting for the file system
        return {marker["index"]: marker for marker in pool.map(confirmed, paths) if marker is not None}


def delete_parts(folder: Path, indices: Iterable[int]) -> None:
    """Delete the files of tasks, each marker after what it names, so that nothing is left behind by a kill."""
    for index in indices:
        marker = folder / _MARKER.format(index)
        with suppress(FileNotFoundError, ValueError):
            for name in json.loads(marker.read_text(encoding="utf-8"))["files"]:
                (folder / name).unlink(missing_ok=True)
        marker.unlink(missing_ok=True)


def check_files(folder: Path, manifest: Mapping[str, Any], *, trust: Trust = "time") -> None:
    """Raise RunError if a file of a finished step is missing, truncated or altered.

    A file of its recorded size is taken as intact under trust="size"; under "time" if it has its recorded time of change
    too, else it is hashed; under "hash" it is hashed in any case.
    """
    files = [(folder / name, record) for part in manifest["parts"] for name, record in part["files"].items()]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        intact = list(pool.map(lambda file: _is_intact(*file, trust=trust), files))
    for (path, record), is_intact in zip(files, intact, strict=True):
        if not is_intact:
            state = "was altered or truncated" if path.exists() else "is missing"
            written = f"since it was written ({record['bytes']:,} bytes, xxh3 {record['xxh3']})"
            cure = f"delete the folder {folder.resolve()} and run again to rebuild it"
            raise RunError(f"{path} {state} {written}; {cure}")


def _is_intact(path: Path, record: _RecordedFile, *, trust: Trust) -> bool:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    if stat.st_size != record["bytes"]:
        return False
    if trust == "size" or (trust == "time" and stat.st_mtime_ns == record["mtime_ns"]):
        return True
    return hash_file(path) == record["xxh3"]


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left: private folders of tasks, half small files, markers that a manifest replaces."""
    for path in folder.glob(".work-*"):
        shutil.rmtree(path, ignore_errors=True)
    markers = folder.glob(".part-*.json") if (folder / MANIFEST).exists() else ()
    for path in (*folder.glob(".*.tmp"), *markers):
        path.unlink(missing_ok=True)


@contextmanager
def locked(run_dir: Path, *, mode: Literal["alone", "together"] = "alone") -> Iterator[None]:
    """Hold the run directory for this process. Raises RunError if another holds it or it cannot be written.

    Those that hold it "together" (array jobs) leave everything as it is that is not their own.
    """
    with explained(run_dir):
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
        except FileNotFoundError as error:
            # The kernel's word for a folder in which nothing can be created, such as /proc.
            raise RunError(f"{error.filename} cannot be created; {_OTHER_FOLDER}") from None
        lock = _hold(run_dir / ".lock", (fcntl.LOCK_EX if mode == "alone" else fcntl.LOCK_SH) | fcntl.LOCK_NB)
    with lock:
        if mode == "alone":
            remove_leftovers(run_dir)
        yield


def alone(path: Path) -> IO[str]:
    """Hold a small file beside others that write it, waiting for them, until what is returned is closed."""
    with explained(path):
        return _hold(path.with_name(f".{path.name}.lock"), fcntl.LOCK_EX)


def _hold(path: Path, kind: int) -> IO[str]:
    """Return the lock file `path`; the kernel frees the lock when it is closed or its holder dies, however it dies."""
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
        raise RunError(f"{path.parent} is in use by {holder}; wait for it, or stop it first") from None
    except OSError as error:
        file.close()
        if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
            raise
        cure = "mount it with them (Lustre: -o flock), or choose another run_dir"
        raise RunError(f"{path.parent} lies on a file system without file locks ({error.strerror}); {cure}") from None
    return file


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses (full disk, no permission, a file taken away) into a RunError with a cure.

    The error names the file at fault, else `path`. Any other OSError passes.
    """
    try:
        yield
    except OSError as error:
        refusal = _REFUSALS.get(error.errno or 0)
        if error.errno is None and _NUMPY_SHORT_WRITE.search(str(error)):
            refusal = _REFUSALS[errno.ENOSPC]
        if refusal is None:
            raise
        raise RunError(refusal.format(where=error.filename or path, reason=error.strerror)) from None


def sync(path: Path) -> None:
    """Bring a file, or the names in a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
