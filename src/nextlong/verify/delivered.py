"""Delivered: an export outside its run, in a local folder or on an object store, against the record that came with it.

In:  a folder that `nextlong export … --into` filled, on any file system; the run, if it is at hand. Out: `Outcome`s: whether the
record is intact, every file by its hash, the rows and tokens of every split, and with the run each row by its content. Remote
files are streamed and only hashed: where all hashes hold, the rows are those that were delivered.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

import xxhash

from nextlong.errors import RunError
from nextlong.export.formats.base import UNREADABLE, Format
from nextlong.text import Json
from nextlong.verify.exports import Comparison, compare, no_reader, readable, rows_in
from nextlong.verify.files import content_problem
from nextlong.verify.outcome import CheckOutcome, in_words
from nextlong.verify.run_files import FileEntry, Manifest, RunFiles, StepFiles, open_step

RECORD: Final = "manifest.json"
_ALLOWED: Final = frozenset({RECORD, "LICENSE", "LICENSE.md", "LICENSE.txt"})  # what users and hubs put beside data
_STEP_FOLDER: Final = re.compile(r"\d\d-")  # of a run, perhaps one that has not finished
_THREADS: Final = 8
_COUNTED: Final = "counted; --run RUN compares each with what it should hold"
_COUNTED_MIX: Final = "counted; a mix of several runs, so verify each run by itself"


class _RecordedRun(TypedDict):
    """A run that an export is of: its name, and the fingerprints of its steps."""

    name: str
    steps: dict[str, str]


class _RecordedSplit(TypedDict):
    """What one split holds, and how it was written."""

    step: str
    config: Json
    rows: int
    sequences: int
    tokens: int
    folder: NotRequired[str]


class _DeliveredRecord(TypedDict):
    """The record that came with an export."""

    format: str
    rows: str
    runs: list[_RecordedRun]
    splits: dict[str, _RecordedSplit]
    files: dict[str, FileEntry]
    xxh3: str


def is_delivered(folder: Path) -> bool:
    """Return whether a local folder is a delivered export, or holds one per format; a run is neither. A damaged record counts."""
    folder = folder.expanduser()
    if not folder.is_dir() or (folder / "variants").exists():
        return False
    records = folder.glob(f"*/{RECORD}")
    return (folder / RECORD).is_file() or any(not _STEP_FOLDER.match(path.parent.name) for path in records)


def verify_delivered(
    fs: Any, root: str, run_dir: Path | None = None, *, starting: Callable[[str], None] = lambda _: None
) -> Iterator[CheckOutcome]:
    """Yield the outcome of each check of the exports in the folder `root` of an fsspec file system.

    Raises RunError if there is none, if it cannot be listed, or if it is not an export of the run `run_dir`.
    """
    root = root.rstrip("/")
    try:
        # Object stores cache listings; a file that was replaced a moment ago must be seen.
        fs.invalidate_cache()
        found = fs.find(root, detail=True)
    except Exception as error:  # every file system has errors of its own
        raise RunError(
            f"{fs.unstrip_protocol(root)} cannot be listed: {in_words(error)}; check it and try again"
        ) from None
    sizes = {posixpath.relpath(path, root): int(info["size"] or 0) for path, info in found.items()}
    records = (posixpath.dirname(name) for name in sizes if posixpath.basename(name) == RECORD and name.count("/") < 2)
    folders = sorted(folder for folder in records if not _STEP_FOLDER.match(folder))
    if not folders:
        raise RunError(
            f"{fs.unstrip_protocol(root)} holds no {RECORD} of a delivered export; name one that `nextlong export --into` filled"
        )
    for folder in [""] if "" in folders else folders:
        below = f"{folder}/" if folder else ""
        own = {name.removeprefix(below): size for name, size in sizes.items() if name.startswith(below)}
        for outcome in _verify_one(fs, f"{root}/{below}", own, run_dir, starting):
            yield replace(outcome, check=f"{folder}: {outcome.check}") if len(folders) > 1 else outcome


def _verify_one(
    fs: Any, place: str, sizes: Mapping[str, int], run_dir: Path | None, starting: Callable[[str], None]
) -> Iterator[CheckOutcome]:
    starting("record")
    record, outcome = _read_record(lambda: fs.cat_file(place + RECORD))
    if record is not None and "parts" in record:
        raise RunError(
            f"{place} is a step of a run; verify that run: nextlong verify {posixpath.dirname(place.rstrip('/'))}"
        )
    yield outcome
    if record is None:
        return
    run = None if run_dir is None else _run_of(record, run_dir)
    starting("hashes")
    yield _check_hashes(fs, place, sizes, record)
    is_local = "file" in (fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,))
    for split in record["splits"]:
        starting(f"{record['format']} {split}")
        outcome = CheckOutcome(f"{record['format']} {split} rows", "rows")
        if is_local:
            _check_rows(Path(place), record, split, run, outcome)
        else:
            outcome.skipped = "remote rows are not read; where all hashes hold, they are those that were delivered"
        yield outcome


def _read_record(read: Callable[[], bytes]) -> tuple[_DeliveredRecord | None, CheckOutcome]:
    """Return the record, None where it cannot be read, and whether it is the one that was written."""
    outcome = CheckOutcome("record", "files", checked=1)
    try:
        record = json.loads(read())
        if "parts" in record:
            return record, outcome
        plain = {key: value for key, value in record.items() if key != "xxh3"}
        true = xxhash.xxh3_128_hexdigest(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
        if record["xxh3"] != true:
            outcome.breach(f"{RECORD} has been altered: it records the hash {record['xxh3']}, its content has {true}")
        files = all({"bytes", "xxh3"} <= entry.keys() for entry in record["files"].values())
        splits = all(_RecordedSplit.__required_keys__ <= split.keys() for split in record["splits"].values())
        if not files or not splits or not {"format", "rows", "runs"} <= record.keys():
            raise ValueError("keys are missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        outcome.breach(f"{RECORD} is not the record of an export ({in_words(error)}); deliver it again")
        return None, outcome
    return record, outcome


def _run_of(record: _DeliveredRecord, run_dir: Path) -> RunFiles:
    """Return the run that an export is of. Raises RunError if it is another one's, or of several runs."""
    if len(record["runs"]) != 1:
        names = ", ".join(run["name"] for run in record["runs"])
        raise RunError(
            f"this export is a mix of several runs ({names}); verify it without --run, and each run by itself"
        )
    run = RunFiles(run_dir)
    (of,) = record["runs"]
    exported, composed = of["steps"]["compose"], run.steps["compose"].manifest["fingerprint"]
    if exported != composed:
        raise RunError(
            f"this export is of the sequences compose-{exported} of a run called {of['name']}, {run_dir} has compose-{composed}; "
            "name that run, or the variant of it that was exported; if it was deleted, omit --run: files and counts are checked"
        )
    return run


def _check_hashes(fs: Any, place: str, sizes: Mapping[str, int], record: _DeliveredRecord) -> CheckOutcome:
    """Hash every file that the record names, and find others that a reader would load as part of the data set."""
    outcome = CheckOutcome("hashes", "files")

    def problem_of(name: str) -> str:
        if name not in sizes:
            return "is missing"
        try:
            with fs.open(place + name, "rb") as file:
                return content_problem(file, sizes[name], record["files"][name])
        except Exception as error:  # every file system has errors of its own
            return f"cannot be read ({in_words(error)})"

    with ThreadPoolExecutor(_THREADS) as pool:
        for name, problem in zip(record["files"], pool.map(problem_of, record["files"]), strict=True):
            outcome.checked += 1
            if problem:
                outcome.breach(f"{name} {problem}")
    for name in sorted(sizes.keys() - record["files"].keys() - _ALLOWED):
        if not any(part.startswith(".") for part in name.split("/")):
            outcome.breach(f"{name} is not named in the record, but readers may load it as part of the data set")
    return outcome


def _check_rows(
    folder: Path, record: _DeliveredRecord, split: str, run: RunFiles | None, outcome: CheckOutcome
) -> None:
    """Compare the rows of one split with those of the run, or count them where it is not at hand."""
    made, recorded = readable(record["format"]), record["splits"][split]
    if made is None:
        outcome.skipped = no_reader(record["format"])
        return
    outcome.unit = made.unit
    step = _as_step(folder, record, split)
    if run is None:
        _count(step, recorded, made, outcome, note=_COUNTED if len(record["runs"]) == 1 else _COUNTED_MIX)
        return
    rows = open_step("rows", next(iter(sorted(run.path.glob(f"*-rows-{record['rows']}"))), run.path / "rows"))
    if rows.damage:
        note = f"counted, not compared: {run.path} no longer holds the rows {record['rows']} (deleted by gc?)"
        _count(step, recorded, made, outcome, note=f"{note}, so their order is not known")
        return
    compare(run, rows, split, [Comparison(run, step, made, outcome)])
    run.name_marks([outcome])


def _as_step(folder: Path, record: _DeliveredRecord, split: str) -> StepFiles:
    """Return the files of one split as if they were in the folder of the step that wrote them."""
    recorded = record["splits"][split]
    below = recorded.get("folder", "")
    names = [name for name in record["files"] if name.startswith(below) and "/" not in name.removeprefix(below)]
    manifest: Manifest = {
        "parts": [{"files": {name.removeprefix(below): record["files"][name] for name in names}}],
        "inputs": {"rows": record["rows"]},
        "fingerprint": recorded["step"],
        "config": recorded["config"],
    }
    return StepFiles(f"{record['format']} {split}", folder / below, manifest)


def _count(step: StepFiles, recorded: _RecordedSplit, made: Format, outcome: CheckOutcome, *, note: str) -> None:
    """Read every row, and compare the numbers of rows and of tokens without padding with the record."""
    tokens = 0
    try:
        for row in rows_in(step, made):
            outcome.checked += 1
            tokens += sum(row["seq_lengths"]) if "seq_lengths" in row else len(row["input_ids"])
    except UNREADABLE as error:
        outcome.breach(f"cannot be read from row {outcome.checked} on: {in_words(error)}")
        return
    rows = recorded["rows"] if made.unit == "rows" else recorded["sequences"]
    for what, counted, true in ((made.unit, outcome.checked, rows), ("tokens", tokens, recorded["tokens"])):
        if counted != true:
            outcome.breach(f"{counted:,} {what}, the record says {true:,}")
    outcome.note = note
