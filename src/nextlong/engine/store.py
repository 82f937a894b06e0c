"""Store: files on disk that are either whole or not there.

A task writes into a private folder; `commit_part` hashes its files, renames them into the step's folder and writes the
part's marker last. A step is done when its manifest is there, which is written after every file has reached the disk.
Until then nothing is trusted that its recorded hash does not confirm, so a power cut costs work but never data.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Container, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import IO, Any, Literal, NotRequired, TypedDict

import xxhash

from nextlong.errors import RunError
from nextlong.plain_data import Json

MANIFEST = "manifest.json"
Trust = Literal["size", "time", "hash"]
_HASH_BLOCK_BYTES = 1 << 22
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)
_FULL = (
    "the disk is full, or your quota used up: {where} could not be written; free space (`nextlong plan` says how much), "
    "then run again: what is finished is kept"
)
_NOT_WRITABLE = "{where} cannot be written ({reason}); give run_dir a folder that you may write to"
_REFUSALS = {
    errno.ENOSPC: _FULL,
    errno.EDQUOT: _FULL,
    errno.EFBIG: "{where} is longer than this process may write; raise the limit (`ulimit -f`), then run again",
    errno.EMFILE: "{where} cannot be opened beside so many others; raise the limit (`ulimit -n`), then run again",
    errno.ENOENT: "{where} vanished while it was needed; leave run_dir alone meanwhile, then run again",
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
    errno.EROFS: _NOT_WRITABLE,
    errno.ENOTDIR: _NOT_WRITABLE,
    errno.EEXIST: _NOT_WRITABLE,
}
# NumPy says so in words, without an errno.
_NUMPY_SHORT_WRITE = re.compile(r"\d+ requested and \d+ written|Not enough free space")


class FileEntry(TypedDict):
    """What a marker or manifest says of a file."""

    bytes: int
    xxh3: str
    mtime_ns: NotRequired[int]


class Part(TypedDict):
    """What one task wrote and returned; `closes` marks the task that came after all others."""

    index: int
    files: dict[str, FileEntry]
    counts: Json
    seconds: float
    peak_bytes: NotRequired[int]
    closes: NotRequired[bool]


def write_json(path: Path, value: Any) -> None:
    """Write JSON as `write_text` does."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it holds either the old text or the whole new one, even after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def remove_file(path: Path) -> None:
    """Remove a small file so that it stays removed, even after a power cut."""
    path.unlink(missing_ok=True)
    _sync_folder(path.parent)


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
    state = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def hash_folder(folder: Path) -> dict[str, str]:
    """Return the name and `hash_file` of every file below a folder, in order; hidden files and folders are passed over."""
    files = {path.relative_to(folder): path for path in sorted(folder.rglob("*")) if path.is_file()}
    return {
        name.as_posix(): _known_hash(path, path.stat().st_mtime_ns)
        for name, path in files.items()
        if not any(part.startswith(".") for part in name.parts)
    }


@lru_cache(maxsize=4096)
def _known_hash(path: Path, mtime_ns: int) -> str:  # noqa: ARG001 (of a change since)
    # A route is made several times a command, and a model may be gigabytes.
    return hash_file(path)


def commit_part(
    work: Path, folder: Path, index: int, counts: Mapping[str, Any], seconds: float, *, peak_bytes: int | None = None
) -> Part:
    """Move a task's files from its private folder `work` into the step's `folder`; the marker, written last, is returned."""
    files: dict[str, FileEntry] = {}
    for path in sorted(work.iterdir()):
        stat = path.stat()
        files[path.name] = {"bytes": stat.st_size, "xxh3": hash_file(path), "mtime_ns": stat.st_mtime_ns}
        path.replace(folder / path.name)
    marker: Part = {"index": index, "files": files, "counts": dict(counts), "seconds": round(seconds, 3)}
    if peak_bytes is not None:
        marker["peak_bytes"] = peak_bytes
    temporary = work / "marker"
    temporary.write_text(json.dumps(marker), encoding="utf-8")
    temporary.replace(folder / _marker_name(index))
    work.rmdir()
    return marker


def confirmed_parts(folder: Path, *, among: Container[int] | None = None) -> dict[int, Part]:
    """Return the markers of an unfinished step whose files are all there with the recorded hash, by task index.

    Only those of the tasks `among` are looked at, if they are given.
    """
    parts = {}
    for path in sorted(folder.glob(".part-*.json")):
        if among is not None and int(path.stem.rpartition("-")[2]) not in among:
            continue
        try:
            marker = json.loads(path.read_text(encoding="utf-8"))
            if all(_is_intact(folder / name, record, trust="hash") for name, record in marker["files"].items()):
                parts[int(marker["index"])] = marker
        except (ValueError, KeyError, OSError):
            continue  # torn by a power cut: the task simply runs again
    return parts


@contextmanager
def early_syncing(folder: Path) -> Iterator[Callable[[Part], None]]:
    """Yield what brings a part's files to the disk while others are computed; all are there at the end."""
    under_way: list[Future[None]] = []

    def start(part: Part) -> None:
        under_way.extend(pool.submit(_sync_file, folder / name) for name in part["files"])

    with ThreadPoolExecutor(8) as pool:
        yield start
    for sync in under_way:
        sync.result()  # a disk tells of an error once, so `finish` would not hear of it


def finish(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Bring every file of a step to the disk, then write its manifest, then drop the markers."""
    paths = [folder / name for part in manifest["parts"] for name in part["files"]]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_sync_file, paths))
    write_json(folder / MANIFEST, manifest)
    remove_leftovers(folder)


def check_files(folder: Path, manifest: Mapping[str, Any], *, trust: Trust = "time") -> None:
    """Raise RunError if a file of a finished step is missing, truncated or altered.

    A file of its recorded size is taken as intact under trust="size"; under "time" if it has its recorded time of change
    too, else it is hashed; under "hash" it is hashed in any case.
    """
    for part in manifest["parts"]:
        for name, record in part["files"].items():
            if not _is_intact(folder / name, record, trust=trust):
                state = "was altered or truncated" if (folder / name).exists() else "is missing"
                raise RunError(
                    f"{folder / name} {state} since it was written ({record['bytes']:,} bytes, xxh3 {record['xxh3']}); "
                    f"delete the folder {folder.resolve()} and run again to rebuild it"
                )


def _is_intact(path: Path, record: FileEntry, *, trust: Trust) -> bool:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    if stat.st_size != record["bytes"]:
        return False
    if trust == "size" or (trust == "time" and stat.st_mtime_ns == record["mtime_ns"]):
        return True
    return bool(hash_file(path) == record["xxh3"])


def remove_leftovers(folder: Path) -> None:
    """Remove what killed processes left: private folders of tasks, half small files, markers that a manifest replaces."""
    for path in folder.glob(".work-*"):
        shutil.rmtree(path, ignore_errors=True)
    for path in folder.glob(".*.tmp"):
        path.unlink(missing_ok=True)
    if (folder / MANIFEST).exists():
        for path in folder.glob(".part-*.json"):
            path.unlink(missing_ok=True)


@contextmanager
def locked(run_dir: Path, *, mode: Literal["alone", "together"] = "alone") -> Iterator[None]:
    """Hold the run directory for this process. Raises RunError if another holds it or it cannot be written.

    Those that hold it "together" (array jobs) leave everything as it is that is not their own.
    """
    with explained(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        file = (run_dir / ".lock").open("a+", encoding="utf-8")
    with file:
        _lock(file, run_dir, fcntl.LOCK_EX if mode == "alone" else fcntl.LOCK_SH)
        with explained(run_dir):
            file.truncate(0)
            file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
            file.flush()
        if mode == "alone":
            remove_leftovers(run_dir)
        yield


def _lock(file: IO[str], run_dir: Path, kind: int) -> None:
    # The kernel frees the lock when its holder dies, however it dies.
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        file.seek(0)
        holder = file.read().strip() or "another run"
        raise RunError(f"{run_dir} is in use by {holder}; wait for it, or stop it first") from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        raise RunError(
            f"{run_dir} lies on a file system without file locks ({error.strerror}); mount it with them (Lustre: -o flock), "
            "or choose another run_dir"
        ) from None


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the operating system refuses (full disk, no permission, a file taken away) into a RunError with a cure.

    The error names the file at fault, else `path`. Any other OSError passes.
    """
    try:
        yield
    except OSError as error:
        refusal = _REFUSALS.get(error.errno) if error.errno else None
        if error.errno is None and _NUMPY_SHORT_WRITE.search(str(error)):
            refusal = _FULL
        if refusal is None:
            raise
        raise RunError(refusal.format(where=error.filename or path, reason=error.strerror)) from None


def _marker_name(index: int) -> str:
    return f".part-{index:05d}.json"


def _sync_file(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
