"""Delivered: an export where it was put, against the record that came with it, and against the run that it is of.

In:  a folder that `nextlong export … --into` filled; the run, if it is at hand. Out: `Outcome`s: whether the record is whole, every
file by its hash, the rows and tokens of every split, and with the run every row by what it should hold.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NotRequired, TypedDict

import xxhash

from nextlong.errors import RunError
from nextlong.plain_data import Json
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.export_readers import BROKEN, Reader, reader_of
from nextlong.verify.exports import Walk, check_side_by_side, eod_of
from nextlong.verify.files import problem_of
from nextlong.verify.named import with_names
from nextlong.verify.outcome import Outcome, in_words
from nextlong.verify.step import FileEntry, Manifest, Step, open_step

RECORD = "manifest.json"
_STEP_FOLDER = re.compile(r"\d\d-")  # of a run, perhaps one that has not finished
# What people and hubs put beside data.
ALLOWED = frozenset({RECORD, "LICENSE", "LICENSE.md", "LICENSE.txt"})


class RecordedRun(TypedDict):
    """A run that an export is of: its name, and the fingerprints of its steps."""

    name: str
    steps: dict[str, str]


class RecordedSplit(TypedDict):
    """What one split holds, and how it was written."""

    step: str
    config: Json
    rows: int
    sequences: int
    tokens: int
    folder: NotRequired[str]


class Record(TypedDict):
    """The record that came with an export."""

    format: str
    rows: str
    runs: list[RecordedRun]
    splits: dict[str, RecordedSplit]
    files: dict[str, FileEntry]
    xxh3: str


def delivered_in(folder: Path) -> list[Path]:
    """Return the delivered exports that a folder is, or holds one a format; none where it is a run or something else.

    A record counts even if it is damaged.
    """
    folder = folder.expanduser()
    if not folder.is_dir() or (folder / "variants").exists():
        return []
    if (folder / RECORD).is_file():
        return [folder]
    below = (path.parent for path in folder.glob(f"*/{RECORD}"))
    return sorted(path for path in below if not _STEP_FOLDER.match(path.name))


def verify_delivered(
    folder: Path, run_dir: Path | None = None, *, starting: Callable[[str], None] = lambda _: None
) -> Iterator[Outcome]:
    """Yield the outcome of each check. Raises RunError if there is no such run, or if it is not the one that this is of."""
    folder = folder.expanduser()
    starting("record")
    record, outcome = read_record(lambda: (folder / RECORD).read_text(encoding="utf-8"))
    if record is not None and "parts" in record:
        raise RunError(f"{folder} is a step of a run; verify that: nextlong verify {folder.resolve().parent}")
    yield outcome
    if record is None:
        return
    run = None if run_dir is None else run_of(record, run_dir)
    starting("hashes")
    yield _check_files(folder, record)
    for split in record["splits"]:
        starting(f"{record['format']} {split}")
        yield _check_split(folder, record, split, run)


def read_record(read: Callable[[], str]) -> tuple[Record | None, Outcome]:
    """Return the record, None where it cannot be read; and whether it is the one that was written. `read` returns its text."""
    outcome = Outcome("record", "files", checked=1)
    try:
        record = json.loads(read())
        if "parts" in record:
            return record, outcome
        plain = {key: value for key, value in record.items() if key != "xxh3"}
        true = xxhash.xxh3_128_hexdigest(json.dumps(plain, sort_keys=True, separators=(",", ":")).encode())
        if record["xxh3"] != true:
            outcome.breach(f"{RECORD} has been altered: it says that its hash is {record['xxh3']}, it is {true}")
        files = all({"bytes", "xxh3"} <= entry.keys() for entry in record["files"].values())
        splits = all(
            {"step", "config", "rows", "sequences", "tokens"} <= split.keys() for split in record["splits"].values()
        )
        if not files or not splits or not {"format", "rows", "runs"} <= record.keys():
            raise ValueError("keys are missing")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        outcome.breach(f"{RECORD} is not the record of an export ({in_words(error)}); deliver it again")
        return None, outcome
    return record, outcome


def _check_files(folder: Path, record: Record) -> Outcome:
    """Hash every file that the record names, and find those beside them that a reader would take for the data set's."""
    outcome = Outcome("hashes", "files")
    for name, entry in record["files"].items():
        outcome.checked += 1
        if problem := problem_of(folder / name, entry["bytes"], entry["xxh3"]):
            outcome.breach(f"{name} {problem}")
    there = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    for path in there:
        is_hidden = any(part.startswith(".") for part in path.parts)
        if not is_hidden and str(path) not in record["files"] and str(path) not in ALLOWED:
            outcome.breach(f"{path} lies among the files, the record names it not")
    return outcome


def _check_split(folder: Path, record: Record, split: str, run: Artefacts | None) -> Outcome:
    recorded, name = record["splits"][split], record["format"]
    reader = reader_of(name)
    outcome = Outcome(f"{name} {split} rows", reader.unit if reader else "rows", note=reader.note if reader else "")
    if reader is None:
        outcome.skipped = f"the format {name} brings no reader, or is not installed here: hashes only"
        return outcome
    step = _as_step(folder, record, split)
    if run is None:
        _count(step, recorded, reader, outcome, instead=_COUNTED if len(record["runs"]) == 1 else _COUNTED_MIX)
        return outcome
    rows = open_step("rows", next(iter(sorted(run.path.glob(f"*-rows-{record['rows']}"))), run.path / "rows"))
    if rows.damage:
        gone = f"{run.path} holds the rows {record['rows']} no more (removed by gc?), so their order is not known"
        _count(step, recorded, reader, outcome, instead=f"{gone}: counted, not compared")
        return outcome
    walk = Walk(step, reader, outcome, eod_of(run, step, outcome))
    check_side_by_side(run, rows, split, [walk])
    return with_names(run, [outcome])[0]


def _as_step(folder: Path, record: Record, split: str) -> Step:
    """Return one split's files as if they lay in the folder of the step that wrote them."""
    recorded = record["splits"][split]
    below = recorded.get("folder", "")
    names = [name for name in record["files"] if name.startswith(below) and "/" not in name.removeprefix(below)]
    files = {name.removeprefix(below): record["files"][name] for name in names}
    manifest: Manifest = {
        "parts": [{"files": files}],
        "inputs": {"rows": record["rows"]},
        "fingerprint": recorded["step"],
        "config": recorded["config"],
    }
    return Step(f"{record['format']} {split}", folder / below, manifest)


_COUNTED = "counted; --run RUN compares each with what it should hold"
_COUNTED_MIX = "counted; a mix of several runs, so verify each run by itself"


def _count(step: Step, recorded: RecordedSplit, reader: Reader, outcome: Outcome, *, instead: str) -> None:
    """Read every row, and compare how many there are, and how many tokens, with the record; `instead` says why no more."""
    tokens = 0
    try:
        for row in reader.rows(step):
            outcome.checked += 1
            tokens += row.names["length"] if row.input_ids is None else len(row.input_ids)
    except BROKEN as error:
        outcome.breach(f"cannot be read from row {outcome.checked} on: {in_words(error)}")
        return
    rows = recorded["rows"] if reader.unit == "rows" else recorded["sequences"]
    for what, counted, true in ((reader.unit, outcome.checked, rows), ("tokens", tokens, recorded["tokens"])):
        if counted != true:
            outcome.breach(f"{counted:,} {what}, the record says {true:,}")
    outcome.note = "; ".join(filter(None, (outcome.note, instead)))


def run_of(record: Record, run_dir: Path) -> Artefacts:
    """Return the run that an export is of. Raises RunError if it is another's, or of several runs."""
    if len(record["runs"]) != 1:
        names = ", ".join(run["name"] for run in record["runs"])
        raise RunError(
            f"this export is a mix of several runs ({names}); verify it without --run, and each run by itself"
        )
    run = Artefacts(run_dir)
    (of,) = record["runs"]
    exported, composed = of["steps"]["compose"], run.steps["compose"].manifest["fingerprint"]
    if exported != composed:
        raise RunError(
            f"this export is of the sequences compose-{exported} of a run called {of['name']}, {run_dir} has compose-{composed}; "
            "name that run, or the variant of it that was exported; where it was removed, leave --run out: files "
            "and counts are checked"
        )
    return run
