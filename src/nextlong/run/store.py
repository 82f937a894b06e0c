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
import shutil
import socket
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import xxhash

from nextlong.errors import RunError

MANIFEST = "manifest.json"
_HASH_BLOCK_BYTES = 1 << 22


def write_json(path: Path, value: Any) -> None:
    """Write JSON as `write_text` does."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False) + "\n")


def write_text(path: Path, text: str) -> None:
    """Write a small file so that it holds either the old text or the whole new one, even after a power cut."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync_folder(path.parent)


def read_json(path: Path) -> Any:
    """Read JSON that this package wrote. Raises RunError if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise RunError(f"{path} is damaged ({error}); delete the folder {path.parent} and run again") from None


def hash_file(path: Path) -> str:
    """Return the XXH3 128-bit hash of a file's bytes, in hex."""
    state = xxhash.xxh3_128()
    with path.open("rb", buffering=0) as file:
        while block := file.read(_HASH_BLOCK_BYTES):
            state.update(block)
    return state.hexdigest()


def commit_part(work: Path, folder: Path, index: int, counts: Mapping[str, Any], seconds: float) -> dict[str, Any]:
    """Move a task's files from its private folder `work` into the step's `folder`; the marker, written last, is returned."""
    files = {}
    for path in sorted(work.iterdir()):
        stat = path.stat()
        files[path.name] = {"bytes": stat.st_size, "xxh3": hash_file(path), "mtime_ns": stat.st_mtime_ns}
        path.replace(folder / path.name)
    marker = {"index": index, "files": files, "counts": dict(counts), "seconds": round(seconds, 3)}
    temporary = work / "marker"
    temporary.write_text(json.dumps(marker), encoding="utf-8")
    temporary.replace(folder / _marker_name(index))
    work.rmdir()
    return marker


def confirmed_parts(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the markers of an unfinished step whose files are all there with the recorded hash, by task index."""
    parts = {}
    for path in sorted(folder.glob(".part-*.json")):
        try:
            marker = json.loads(path.read_text(encoding="utf-8"))
            if all(_is_intact(folder / name, record, trust="hash") for name, record in marker["files"].items()):
                parts[int(marker["index"])] = marker
        except (ValueError, KeyError, OSError):
            continue  # torn by a power cut: the task simply runs again
    return parts


def finish(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Bring every file of a step to the disk, then write its manifest, then drop the markers."""
    paths = [folder / name for part in manifest["parts"] for name in part["files"]]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(_sync_file, paths))
    write_json(folder / MANIFEST, manifest)
    for marker in folder.glob(".part-*.json"):
        marker.unlink()


def check_files(folder: Path, manifest: Mapping[str, Any]) -> None:
    """Raise RunError if a file of a finished step is missing, truncated or altered.

    A file with its recorded size and time of change is taken as intact, any other is hashed.
    """
    for part in manifest["parts"]:
        for name, record in part["files"].items():
            if not _is_intact(folder / name, record, trust="time"):
                state = "was altered or truncated" if (folder / name).exists() else "is missing"
                raise RunError(
                    f"{folder / name} {state} since it was written ({record['bytes']:,} bytes, xxh3 {record['xxh3']}); "
                    f"delete the folder {folder} and run again to make it anew"
                )


def _is_intact(path: Path, record: Mapping[str, Any], *, trust: str) -> bool:
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    if stat.st_size != record["bytes"]:
        return False
    if trust == "time" and stat.st_mtime_ns == record["mtime_ns"]:
        return True
    return bool(hash_file(path) == record["xxh3"])


def remove_leftovers(folder: Path) -> None:
    """Remove the private folders of tasks that were killed."""
    for path in folder.glob(".work-*"):
        shutil.rmtree(path, ignore_errors=True)


@contextmanager
def locked(run_dir: Path) -> Iterator[None]:
    """Hold the run directory for this process. Raises RunError if another holds it or it cannot be written."""
    path = run_dir / ".lock"
    with explained(run_dir):
        run_dir.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="utf-8")
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise RunError(
                f"{run_dir} is in use by {file.read().strip() or 'another run'}; wait for it, or stop it first"
            ) from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the operating system's refusals (full disk, no permission, read-only) into a RunError that names the path."""
    try:
        yield
    except OSError as error:
        where = error.filename or path
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise RunError(
                f"the disk is full: {where} could not be written; free space (`nextlong plan` says how much), then run "
                "again: what is finished is kept"
            ) from None
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise RunError(
                f"{where} cannot be written ({error.strerror}); give run_dir a folder that you may write to"
            ) from None
        raise


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
