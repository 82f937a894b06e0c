"""Files: compare every file with its recorded size and hash.

In:  a run directory; or a folder that `nextlong export … --into` filled, on any file
     system, and its run if available.
Out: one outcome per check.

The files of a run include replaced exports, finished rows in `data/`, and mixes of
several runs. Of mixes, hashes and shares are checked, because all runs together are
needed to know their rows. Of a delivered export, the record, every file, the rows and
tokens of every split, and, with the run, the content of each row are checked. Remote
files are streamed and only hashed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import xxhash

from nextlong.errors import RunError
from nextlong.export.formats.base import UNREADABLE, Format
from nextlong.text import Json
from nextlong.verify.exports import Comparison, compare, open_format, rows_in
from nextlong.verify.outcome import CheckOutcome, in_words
from nextlong.verify.run_files import StepFiles, StoredRun

_MIX: Final = "mix.json"  # next to the rows of a mix: the runs in it
_RECORD: Final = "manifest.json"
# Added by users and hubs.
_ALLOWED: Final = frozenset({_RECORD, "LICENSE", "LICENSE.md", "LICENSE.txt"})
_STEP_FOLDER: Final = re.compile(r"\d\d-")  # of a run, finished or not
_RECORD_KEYS: Final = {"format", "rows", "runs", "splits", "files", "xxh3"}
_SPLIT_KEYS: Final = {"step", "config", "rows", "sequences", "tokens"}
# What reading damaged or foreign JSON raises.
_UNPARSED: Final = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)


def check_files(run: StoredRun, *, known: Collection[Path] = ()) -> list[CheckOutcome]:
    """Hash every file in a manifest, except those in the `known` folders."""
    files = CheckOutcome("hashes", "files")
    manifests = CheckOutcome("manifests", "steps")
    # Device and inode, because `data/` has hard links to files of steps.
    hashed: set[tuple[int, int]] = set()
    every_step = (*run.steps.values(), *run.rows.values(), *run.earlier_exports)
    steps = {step.folder: step for step in every_step}
    for folder, step in steps.items():
        if folder in known:
            continue
        manifests.checked += 1
        if step.damage:
            manifests.breach(f"{folder.name}/{_RECORD} {step.damage}")
            continue
        manifests.breach_each(_origin_problems(run, step))
        _check_step(step, files)
        paths = [folder / name for name in step.entries]
        hashed |= {_inode(path) for path in paths if path.is_file()}

    _check_data(run, hashed, files)
    return [manifests, files]


def _check_data(
    run: StoredRun,
    hashed: Collection[tuple[int, int]],
    outcome: CheckOutcome,
) -> None:
    """Hash the finished rows in `data/`, except files that are `hashed` already."""
    for folder, entries in _rows_in_data(run):
        for name, entry in entries.items():
            outcome.checked += 1
            path = folder / name
            if path.is_file() and _inode(path) in hashed:
                continue
            problem = _problem_of(path, entry)
            if problem:
                outcome.breach(f"{folder.relative_to(run.path)}/{name} {problem}")


def _origin_problems(run: StoredRun, step: StepFiles) -> Iterator[str]:
    """Yield the inputs of a step that were made again since.

    The fingerprint of a step includes its inputs', so a different one means that it was
    made from something else. An unreadable manifest is reported for its own step.
    """
    for name, fingerprint in step.manifest["inputs"].items():
        if name == "rows":
            source = run.rows.get(fingerprint)
        else:
            source = run.steps.get(name)
        present = "not among the run's steps"
        if source is not None:
            if source.damage:
                continue
            present = source.manifest["fingerprint"]
        if present != fingerprint:
            origin = f"{step.folder.name} was made from {name} {fingerprint}"
            yield f"{origin}, which is now {present}"


def _rows_in_data(run: StoredRun) -> Iterator[tuple[Path, dict[str, Json]]]:
    """Yield the folders in `data/` with rows of this run, and the files they record.

    Any other record belongs to the user, or was damaged.
    """
    exports = {
        name
        for name, step in run.steps.items()
        if step.damage or "rows" in step.manifest["inputs"]
    }
    for path in _records_in_data(run):
        folder = path.parent
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            composed = [exported["steps"]["compose"] for exported in record["runs"]]
            is_format = record["format"] == folder.name and "compose" in run.steps
            if is_format and run.steps["compose"].manifest["fingerprint"] in composed:
                yield folder, dict(record["files"])
        # A record that cannot be read is the run's if the run has such an export.
        except _UNPARSED:
            if folder.name in exports:
                never_matches = {"bytes": -1, "xxh3": ""}
                yield folder, {path.name: never_matches}


def _records_in_data(run: StoredRun) -> list[Path]:
    """Return the records in `data/`, of the run, its variants and mixes."""
    data = run.path / "data"
    folders = [data, *data.glob("mix-*")]
    folders += [data / path.stem for path in (run.path / "variants").glob("*.json")]
    records: list[Path] = []
    for folder in folders:
        records += folder.glob(f"*/{_RECORD}")
    return sorted(records)


def _check_step(step: StepFiles, outcome: CheckOutcome) -> None:
    """Hash every file of a step."""
    outcome.checked += len(step.entries)
    for name, entry in step.entries.items():
        problem = _problem_of(step.folder / name, entry)
        if problem:
            outcome.breach(f"{step.folder.name}/{name} {problem}")


def _inode(path: Path) -> tuple[int, int]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino


def _problem_of(path: Path, entry: Json) -> str:
    if not path.is_file():
        return "is missing"
    with path.open("rb") as file:
        return _content_problem(file, path.stat().st_size, entry)


def _content_problem(file: Any, size: int, entry: Json) -> str:
    """Return how an open binary file differs from its record, "" if it does not."""
    if size != entry["bytes"]:
        return f"has {size:,} bytes, {entry['bytes']:,} were recorded"
    state = xxhash.xxh3_128()
    while piece := file.read(1 << 22):
        state.update(piece)
    found = state.hexdigest()
    if found != entry["xxh3"]:
        return f"has the hash {found}, {entry['xxh3']} was recorded"
    return ""


def other_variants(run: StoredRun) -> list[tuple[str, StoredRun]]:
    """Return the other variants of the run directory, by name, that verify must check.

    One per set of sequences, without that of this run.
    """
    variants: dict[tuple[str, ...], tuple[str, StoredRun]] = {}
    # The run comes first, so that variants with its sequences are left out.
    variants[_sequences_of(run)] = ("", run)
    for record in sorted((run.path / "variants").glob("[!.]*.json")):
        variant = StoredRun(Path(f"{run.path}@{record.stem}"))
        variants.setdefault(_sequences_of(variant), (record.stem, variant))
    return list(variants.values())[1:]


def _sequences_of(run: StoredRun) -> tuple[str, ...]:
    """Return what tells which sequences a variant has."""
    composed = ""
    if "compose" in run.steps:
        composed = run.steps["compose"].manifest["fingerprint"]
    return (composed, *map(str, run.sequences_per_part))


def check_mixes(run: StoredRun) -> list[CheckOutcome]:
    """Hash every file of each mix in this run directory, and recompute its shares.

    The contents of rows are not checked.
    """
    outcomes = []
    for rows in run.all_steps:
        if not rows.is_mix and not (rows.folder / _MIX).exists():
            continue
        outcome = CheckOutcome(f"mix {rows.folder.name}", "files")
        if rows.damage:
            outcome.breach(f"{rows.folder.name}/{_RECORD} {rows.damage}")
        fingerprint = rows.folder.name.rpartition("-")[2]  # also for a damaged manifest
        exports = [
            step
            for step in run.all_steps
            if step.manifest["inputs"].get("rows") == fingerprint
        ]
        for step in (rows, *exports):
            _check_step(step, outcome)
        if not rows.damage:
            outcome.breach_each(_mixture_problems(rows))
        written = ", ".join(step.folder.name for step in exports) or "no export"
        outcome.note = (
            f"only hashes and shares are checked, not the rows of {written}. "
            f"Verify each run: {_runs_of_mix(rows.folder)}"
        )
        outcomes.append(outcome)
    return outcomes


def _mixture_problems(rows: StepFiles) -> Iterator[str]:
    """Yield what contradicts the record of a mix: runs, lengths, repeats and order.

    Counted one sequence at a time, unlike in the pipeline.
    """
    name = rows.folder.name
    try:
        mix: Json = json.loads((rows.folder / _MIX).read_text(encoding="utf-8"))
        (path,) = rows.files(".train.index.npy")
        sequences = np.load(path).tolist()
    except _UNPARSED as error:
        yield f"{name} could not be counted: {in_words(error)}"
        return
    tokens_of_runs = Counter[int]()
    uses = Counter[tuple[int, int, int]]()
    for run, part, place, length, _ in sequences:
        tokens_of_runs[run] += length
        uses[run, part, place] += 1
    for number, run in enumerate(mix["runs"]):
        recorded = run["taken"]["train"]["tokens"]
        counted = tokens_of_runs[number]
        if counted != recorded:
            yield f"{name} has {counted:,} tokens of run {number}, not {recorded:,}"
    mixture = mix.get("mixture", {})
    if max(uses.values(), default=0) > mixture.get("repeat", 1):
        yield f"{name} repeats a sequence more often than recorded"
    buckets = [length.bit_length() for _, _, _, length, _ in sequences]
    is_packed = rows.manifest["config"]["pack"] is not None
    # In a packed row, sequences of several buckets may stand.
    is_ordered = is_packed or buckets == sorted(buckets)
    if mixture.get("order") == "curriculum" and not is_ordered:
        yield f"{name} is not in the order of length buckets"
    if mixture.get("components") == "lengths":
        yield from _length_problems(name, sequences, mix["components"]["train"])


def _length_problems(
    name: str, sequences: Iterable[Any], recorded: Iterable[Any]
) -> Iterator[str]:
    """Yield a problem if the tokens of the length buckets are not as recorded."""
    tokens_of_buckets = Counter[int]()
    for _, _, _, length, _ in sequences:
        tokens_of_buckets[length.bit_length()] += length
    counted = [tokens_of_buckets[bucket] for bucket in sorted(tokens_of_buckets)]
    expected = [tokens for _, _, tokens in recorded if tokens]
    if counted != expected:
        yield f"{name} has {counted} tokens by length, not {expected}"


def _runs_of_mix(folder: Path) -> str:
    """Return the names of the runs in a mix, for a note."""
    try:
        mix: Json = json.loads((folder / _MIX).read_text(encoding="utf-8"))
        return ", ".join(str(mixed["run"]) for mixed in mix["runs"])
    except _UNPARSED:
        return f"unknown ({_MIX} cannot be read; export the mix again)"


def is_delivered(folder: Path) -> bool:
    """Return whether a local folder is a delivered export, or has one per format.

    It may be damaged, but is not a run.
    """
    # A run has folders of steps with such a file, too, but also `variants`.
    folder = folder.expanduser()
    if (folder / "variants").exists():
        return False
    names = [path.parent.name for path in folder.glob(f"*/{_RECORD}")]
    return (folder / _RECORD).is_file() or not all(map(_STEP_FOLDER.match, names))


def verify_delivered(
    fs: Any,
    root: str,
    run_dir: Path | None = None,
    *,
    starting: Callable[[str], None] = lambda _: None,
) -> Iterator[CheckOutcome]:
    """Yield the outcome of each check of the exports in a folder.

    `root` is a folder of the fsspec file system `fs`. Raises RunError if it has none,
    if it cannot be listed, or if the export is not from the run `run_dir`.
    """
    root = root.rstrip("/")
    sizes = _sizes_below(fs, root)
    folders = _export_folders(sizes)
    if not folders:
        raise RunError(
            where=fs.unstrip_protocol(root),
            problem=f"it has no {_RECORD} of a delivered export",
            fix="use a folder that `nextlong export --into` filled",
        )
    for folder in folders:
        below = f"{folder}/" if folder else ""
        own_sizes = {
            name.removeprefix(below): size
            for name, size in sizes.items()
            if name.startswith(below)
        }
        outcomes = _verify_export(
            fs,
            f"{root}/{below}",
            sizes=own_sizes,
            run_dir=run_dir,
            starting=starting,
        )
        for outcome in outcomes:
            if len(folders) > 1:
                outcome = replace(outcome, check=f"{folder}: {outcome.check}")
            yield outcome


def _export_folders(names: Iterable[str]) -> list[str]:
    """Return the folders of exports among files, given by their paths from the root.

    [""] if the root itself is one; otherwise those in it, sorted.
    """
    folders = []
    for name in names:
        folder, base = posixpath.split(name)
        is_record = base == _RECORD and name.count("/") < 2
        if is_record and not _STEP_FOLDER.match(folder):
            folders.append(folder)
    return [""] if "" in folders else sorted(folders)


def _sizes_below(fs: Any, root: str) -> dict[str, int]:
    """Return the size of each file below a folder, by its path from there."""
    try:
        # Object stores cache listings, which would hide files that were replaced
        # recently.
        fs.invalidate_cache()
        found = fs.find(root, detail=True)
    except Exception as error:  # every file system has errors of its own
        raise RunError(
            where=fs.unstrip_protocol(root),
            problem=f"it cannot be listed: {in_words(error)}",
            fix="check the path and your credentials, then try again",
        ) from None
    return {
        posixpath.relpath(path, root): int(info["size"] or 0)
        for path, info in found.items()
    }


def _verify_export(
    fs: Any,
    root: str,
    *,
    sizes: dict[str, int],
    run_dir: Path | None,
    starting: Callable[[str], None],
) -> Iterator[CheckOutcome]:
    """Yield the outcome of each check of one export; `sizes` are those of its files."""
    starting("record")
    outcome = CheckOutcome("record", "files", checked=1)
    record = _checked_record(fs, root, outcome)
    yield outcome
    if record is None:
        return
    run = None if run_dir is None else _run_of(record, run_dir)
    starting("hashes")
    yield _check_hashes(fs, root, sizes, record)
    protocols = fs.protocol
    if not isinstance(protocols, tuple | list):
        protocols = (protocols,)
    for split in record["splits"]:
        name = f"{record['format']} {split}"
        starting(name)
        outcome = CheckOutcome(f"{name} rows", "rows")
        if "file" in protocols:
            _check_rows(
                Path(root),
                record,
                split,
                run=run,
                outcome=outcome,
            )
        else:
            reason = "if all hashes match, they are the delivered ones"
            outcome.skipped = f"remote rows are not read; {reason}"
        yield outcome


def _checked_record(fs: Any, root: str, outcome: CheckOutcome) -> Json | None:
    """Return the record of an export; None if it is not one, which is a breach.

    It is a breach, too, that the record was altered. Raises RunError for the manifest
    of a step.
    """
    try:
        record: Json = json.loads(fs.cat_file(root + _RECORD))
        if "parts" in record:
            run_dir = posixpath.dirname(root.rstrip("/"))
            raise RunError(
                where=root,
                problem="it is a step of a run",
                fix=f"verify the run: nextlong verify {run_dir}",
            )
        # The record has the hash of all its other keys.
        hashed = {key: value for key, value in record.items() if key != "xxh3"}
        canonical = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
        true = xxhash.xxh3_128_hexdigest(canonical.encode())
        if record["xxh3"] != true:
            hashes = f"it records the hash {record['xxh3']}, its content has {true}"
            outcome.breach(f"{_RECORD} has been altered: {hashes}")
        entries = record["files"].values()
        has_files = all({"bytes", "xxh3"} <= entry.keys() for entry in entries)
        splits = record["splits"].values()
        has_splits = all(split.keys() >= _SPLIT_KEYS for split in splits)
        if not has_files or not has_splits or not record.keys() >= _RECORD_KEYS:
            raise ValueError("keys are missing")
    except _UNPARSED as error:
        reason = f"is not the record of an export ({in_words(error)})"
        outcome.breach(f"{_RECORD} {reason}; deliver it again")
        return None
    return record


def _run_of(record: Json, run_dir: Path) -> StoredRun:
    """Return the run of an export.

    Raises RunError if the export is from another run, or from several.
    """
    if len(record["runs"]) != 1:
        names = ", ".join(f"{run['name']}@{run['variant']}" for run in record["runs"])
        raise RunError(
            where=f"--run {run_dir}",
            problem=f"this export is a mix of several runs ({names})",
            fix="verify it without --run, and each run by itself",
        )
    run = StoredRun(run_dir)
    (source,) = record["runs"]
    exported = source["steps"]["compose"]
    composed = run.steps["compose"].manifest["fingerprint"]
    # The fingerprint says whether the sequences were made from the same inputs.
    if exported != composed:
        sequences = f"compose-{exported} of a run named {source['name']}"
        raise RunError(
            where=f"--run {run_dir}",
            problem=f"its sequences are compose-{composed}, but those of this export "
            f"are {sequences}",
            fix=(
                "use that run, or the exported variant of it; "
                "if it was deleted, omit --run to check files and counts only"
            ),
        )
    return run


def _check_hashes(
    fs: Any,
    root: str,
    sizes: dict[str, int],
    record: Json,
) -> CheckOutcome:
    """Hash every recorded file, and find others that a reader would load."""
    outcome = CheckOutcome("hashes", "files", checked=len(record["files"]))

    def problem_of(name: str) -> str:
        if name not in sizes:
            return "is missing"
        try:
            with fs.open(root + name, "rb") as file:
                return _content_problem(file, sizes[name], record["files"][name])
        except Exception as error:  # every file system has errors of its own
            return f"cannot be read ({in_words(error)})"

    with ThreadPoolExecutor(8) as pool:
        problems = pool.map(problem_of, record["files"])
        for name, problem in zip(record["files"], problems, strict=True):
            if problem:
                outcome.breach(f"{name} {problem}")
    for name in sorted(sizes.keys() - record["files"].keys() - _ALLOWED):
        # Readers pass over hidden files.
        is_hidden = any(part.startswith(".") for part in name.split("/"))
        if not is_hidden:
            reason = "but readers may load it as part of the data set"
            outcome.breach(f"{name} is not in the record, {reason}")
    return outcome


def _check_rows(
    folder: Path,
    record: Json,
    split: str,
    *,
    run: StoredRun | None,
    outcome: CheckOutcome,
) -> None:
    """Compare the rows of one split with those of the run.

    Without the run, count rows, and tokens without padding.
    """
    file_format = open_format(record["format"], outcome)
    if file_format is None:
        return
    # Read the split with the same code as the folder of the step that wrote it.
    step = _step_of_split(folder, record, split)
    note = "counted only; --run RUN compares each row with the run"
    if len(record["runs"]) > 1:
        note = "counted only; a mix of several runs, so verify each run separately"
    if run is not None:
        rows = run.open_rows(record["rows"])
        if not rows.damage:
            compare(run, rows, split, [Comparison(run, step, file_format, outcome)])
            run.name_marks([outcome])
            return
        missing = f"{run.path} no longer has the rows {record['rows']} (deleted by gc?)"
        note = f"counted only: {missing}, so the order of the rows is unknown"

    tokens = _count_rows(step, file_format, outcome)
    if tokens is None:
        return
    recorded = record["splits"][split]
    units = recorded["rows"] if file_format.unit == "rows" else recorded["sequences"]
    for unit, counted, true in (
        (file_format.unit, outcome.checked, units),
        ("tokens", tokens, recorded["tokens"]),
    ):
        if counted != true:
            outcome.breach(f"{counted:,} {unit}, but {true:,} are recorded")
    outcome.note = note


def _count_rows(
    step: StepFiles,
    file_format: Format,
    outcome: CheckOutcome,
) -> int | None:
    """Count rows as checked, and return their tokens; None if they cannot be read."""
    tokens = 0
    try:
        for row in rows_in(step, file_format):
            outcome.checked += 1
            if "seq_lengths" in row:  # the tokens without padding
                tokens += sum(row["seq_lengths"])
            else:
                tokens += len(row["input_ids"])
    except UNREADABLE as error:
        read = outcome.checked
        outcome.breach(f"cannot be read from row {read} on: {in_words(error)}")
        return None
    return tokens


def _step_of_split(folder: Path, record: Json, split: str) -> StepFiles:
    """Return the files of a split like the folder of the step that wrote them."""
    recorded = record["splits"][split]
    below = recorded.get("folder", "")
    files: dict[str, Json] = {}
    for path, entry in record["files"].items():
        name = path.removeprefix(below)
        if path.startswith(below) and "/" not in name:
            files[name] = entry
    manifest = {"parts": [{"files": files}], "config": recorded["config"]}
    return StepFiles(f"{record['format']} {split}", folder / below, manifest)
