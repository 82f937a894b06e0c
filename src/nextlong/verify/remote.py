"""Remote: a delivered export on an object store or behind any URL that fsspec knows, against the record that came with it.

In:  a file system and the folder in it. Out: `Outcome`s: whether the record is whole, and every file by the hash of the bytes that
are read. Files are streamed, never stored: where all hashes hold, the rows are those that were delivered.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import xxhash

from nextlong.errors import RunError
from nextlong.verify.delivered import ALLOWED, RECORD, Record, read_record, run_of
from nextlong.verify.outcome import Outcome, in_words
from nextlong.verify.step import FileEntry

_READ_BYTES = 1 << 22
_THREADS = 8


def verify_remote(
    fs: Any, root: str, run_dir: Path | None = None, *, starting: Callable[[str], None] = lambda _: None
) -> Iterator[Outcome]:
    """Yield the outcome of each check of an export, or of several that lie side by side.

    Raises RunError if there is none, or it cannot be listed, or it is not one of the run `run_dir`.
    """
    root = root.rstrip("/")
    try:
        sizes = {posixpath.relpath(path, root): int(info["size"] or 0) for path, info in _found(fs, root).items()}
    except Exception as error:  # every file system has errors of its own
        raise RunError(
            f"{fs.unstrip_protocol(root)} cannot be listed: {in_words(error)}; check it and try again"
        ) from None
    folders = sorted(
        {posixpath.dirname(name) for name in sizes if name.rpartition("/")[2] == RECORD and name.count("/") < 2}
    )
    if not folders:
        raise RunError(
            f"{fs.unstrip_protocol(root)} holds no {RECORD} of a delivered export; name what `nextlong export --into` filled"
        )
    for folder in [""] if "" in folders else folders:
        below = f"{folder}/" if folder else ""
        own = {name.removeprefix(below): size for name, size in sizes.items() if name.startswith(below)}
        for outcome in _verify_one(fs, f"{root}/{below}", own, run_dir, starting):
            yield replace(outcome, check=f"{folder}: {outcome.check}") if len(folders) > 1 else outcome


def _found(fs: Any, root: str) -> dict[str, Any]:
    fs.invalidate_cache()
    found: dict[str, Any] = fs.find(root, detail=True)
    return found


def _verify_one(
    fs: Any, place: str, sizes: dict[str, int], run_dir: Path | None, starting: Callable[[str], None]
) -> Iterator[Outcome]:
    starting("record")
    record, outcome = read_record(lambda: fs.cat_file(place + RECORD).decode("utf-8"))
    yield outcome
    if record is None:
        return
    if run_dir is not None:
        run_of(record, run_dir)
    starting("hashes")
    yield _check_files(fs, place, sizes, record)
    for split in record["splits"]:
        rows = Outcome(f"{record['format']} {split} rows", "rows")
        rows.skipped = "not read from here; where all hashes hold they are those that were delivered"
        yield rows


def _check_files(fs: Any, place: str, sizes: dict[str, int], record: Record) -> Outcome:
    """Hash every file that the record names, and find those beside them that a reader would take for the data set's."""
    outcome = Outcome("hashes", "files")

    def problem_of(named: tuple[str, FileEntry]) -> str:
        name, entry = named
        if name not in sizes:
            return "is missing"
        if sizes[name] != entry["bytes"]:
            return f"has {sizes[name]:,} bytes, its record says {entry['bytes']:,}"
        state = xxhash.xxh3_128()
        try:
            with fs.open(place + name, "rb") as file:
                while piece := file.read(_READ_BYTES):
                    state.update(piece)
        except Exception as error:  # every file system has errors of its own
            return f"cannot be read ({in_words(error)})"
        return (
            ""
            if state.hexdigest() == entry["xxh3"]
            else f"has the hash {state.hexdigest()}, its record says {entry['xxh3']}"
        )

    with ThreadPoolExecutor(_THREADS) as pool:
        for name, problem in zip(record["files"], pool.map(problem_of, record["files"].items()), strict=True):
            outcome.checked += 1
            if problem:
                outcome.breach(f"{name} {problem}")
    for name in sorted(sizes.keys() - record["files"].keys() - ALLOWED):
        if not any(part.startswith(".") for part in name.split("/")):
            outcome.breach(f"{name} lies among the files, the record names it not")
    return outcome
