"""Files: compare every file with its recorded size and hash, in a run or in a delivered export.

In:  a run directory; or a folder that `nextlong export … --into` filled, on any file system, and its run if available. Out: one
outcome per check.

The files of a run include replaced exports, finished rows in `data/`, and mixes of several runs. Only hashes of mixes are
checked, because all runs together are needed to know their rows. Of a delivered export, the record, every file, the rows and
tokens of every split, and, with the run, the content of each row are checked. Remote files are streamed and only hashed.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import xxhash

from nextlong.errors import RunError
from nextlong.export.formats.base import UNREADABLE
from nextlong.text import Json
from nextlong.verify.exports import Comparison, compare, open_format, rows_in
from nextlong.verify.outcome import CheckOutcome, in_words
from nextlong.verify.run_files import StepFiles, StoredRun

_MIX: Final = "mix.json"  # next to the rows of a mix: the runs in it
_RECORD: Final = "manifest.json"
_ALLOWED: Final = frozenset(
    {_RECORD, "LICENSE", "LICENSE.md", "LICENSE.txt"}
)  # added by users and hubs
_STEP_FOLDER: Final = re.compile(r"\d\d-")  # of a run, finished or not
_UNPARSED: Final = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
)  # for damaged or foreign JSON


def check_files(run: StoredRun, *, known: Collection[Path] = ()) -> list[CheckOutcome]:
    """Hash every file in a manifest, except those in the `known` folders."""
    files, manifests = (
        CheckOutcome("hashes", "files"),
        CheckOutcome("manifests", "steps"),
    )
    hashed: set[tuple[int, int]] = set()  # device and inode
    steps = {
        step.folder: step
        for step in (*run.steps.values(), *run.rows.values(), *run.earlier_exports)
    }
    for step in (step for folder, step in steps.items() if folder not in known):
        manifests.checked += 1
        if step.damage:
            manifests.breach(f"{step.folder.name}/{_RECORD} {step.damage}")
            continue
        for name, fingerprint in step.manifest["inputs"].items():
            made_from = (
                run.rows.get(fingerprint) if name == "rows" else run.steps.get(name)
            )
            present = (
                made_from.manifest["fingerprint"]
                if made_from
                else "not among the run's steps"
            )
            # The fingerprint of a step includes its inputs', so a different one means that it was made from something else. An
            # unreadable manifest is reported for its own step.
            if present != fingerprint and not (made_from and made_from.damage):
                manifests.breach(
                    f"{step.folder.name} was made from {name} {fingerprint}, which is now {present}"
                )
        _check_step(step, files)
        hashed |= {
            _inode(step.folder / name)
            for name in step.entries
            if (step.folder / name).is_file()
        }
    # The folders in `data/` with rows of this run; any other record belongs to the user, or was damaged.
    exports = {
        name
        for name, step in run.steps.items()
        if step.damage or "rows" in step.manifest["inputs"]
    }
    data = run.path / "data"
    places = [
        data,
        *data.glob("mix-*"),
        *(data / path.stem for path in (run.path / "variants").glob("*.json")),
    ]
    for path in sorted(path for place in places for path in place.glob(f"*/{_RECORD}")):
        folder, entries = path.parent, {}
        try:
            record = json.loads(path.read_text(encoding="utf-8"))
            composed = [made["steps"]["compose"] for made in record["runs"]]
            is_ours = record["format"] == folder.name and "compose" in run.steps
            if is_ours and run.steps["compose"].manifest["fingerprint"] in composed:
                entries = dict(record["files"])
        except _UNPARSED:
            if folder.name in exports:
                entries = {path.name: {"bytes": -1, "xxh3": ""}}  # never matches
        for name, entry in entries.items():
            files.checked += 1
            is_hashed = (folder / name).is_file() and _inode(
                folder / name
            ) in hashed  # a hard link
            if not is_hashed and (problem := _problem_of(folder / name, entry)):
                files.breach(f"{folder.relative_to(run.path)}/{name} {problem}")
    return [manifests, files]


def _check_step(step: StepFiles, outcome: CheckOutcome) -> None:
    problems = (
        (name, _problem_of(step.folder / name, entry))
        for name, entry in step.entries.items()
    )
    found = (
        f"{step.folder.name}/{name} {problem}" for name, problem in problems if problem
    )
    outcome.breach_each(found, checked=len(step.entries))


def _inode(path: Path) -> tuple[int, int]:
    return (stat := path.stat()).st_dev, stat.st_ino


def _problem_of(path: Path, entry: Json) -> str:
    if not path.is_file():
        return "is missing"
    with path.open("rb") as file:
        return _content_problem(file, path.stat().st_size, entry)


def _content_problem(file: Any, size: int, entry: Json) -> str:
    """Return how an open binary file of `size` bytes differs from its record, "" if it does not."""
    if size != entry["bytes"]:
        return f"has {size:,} bytes, {entry['bytes']:,} were recorded"
    state = xxhash.xxh3_128()
    while piece := file.read(1 << 22):
        state.update(piece)
    found = state.hexdigest()
    return (
        ""
        if found == entry["xxh3"]
        else f"has the hash {found}, {entry['xxh3']} was recorded"
    )


def other_variants(run: StoredRun) -> list[tuple[str, StoredRun]]:
    """Return the other variants of the run directory, by name, one per set of sequences, without that of this run."""
    variants: dict[tuple[str, ...], tuple[str, StoredRun]] = {}
    for record in [None, *sorted((run.path / "variants").glob("[!.]*.json"))]:
        variant = (
            run if record is None else StoredRun(Path(f"{run.path}@{record.stem}"))
        )
        composed = (
            variant.steps["compose"].manifest["fingerprint"]
            if "compose" in variant.steps
            else ""
        )
        variants.setdefault(
            (composed, *map(str, variant.takes)),
            (record.stem if record else "", variant),
        )
    return [*variants.values()][1:]


def check_mixes(run: StoredRun) -> list[CheckOutcome]:
    """Hash every file of each mix of runs in this run directory; its rows are not checked."""
    outcomes = []
    for rows in run.all_steps:
        if (
            not rows.manifest.get("config", {}).get("others")
            and not (rows.folder / _MIX).exists()
        ):
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
        written = ", ".join(step.folder.name for step in exports) or "no export"
        try:
            description: Json = json.loads(
                (rows.folder / _MIX).read_text(encoding="utf-8")
            )
            runs = ", ".join(str(run["run"]) for run in description["runs"])
        except _UNPARSED:
            runs = f"unknown ({_MIX} cannot be read; export the mix again)"
        outcome.note = f"only hashes are checked, not the rows of {written}. Verify each run: {runs}"
        outcomes.append(outcome)
    return outcomes


def is_delivered(folder: Path) -> bool:
    """Return whether a local folder is a delivered export, or has one per format; it may be damaged, but is not a run."""
    folder = folder.expanduser()
    names = (path.parent.name for path in folder.glob(f"*/{_RECORD}"))
    is_record = (folder / _RECORD).is_file() or not all(map(_STEP_FOLDER.match, names))
    return is_record and not (folder / "variants").exists()


def verify_delivered(
    fs: Any,
    root: str,
    run_dir: Path | None = None,
    *,
    starting: Callable[[str], None] = lambda _: None,
) -> Iterator[CheckOutcome]:
    """Yield the outcome of each check of the exports in the folder `root` of an fsspec file system.

    Raises RunError if there is none, if the folder cannot be listed, or if the export is not from the run `run_dir`.
    """
    root = root.rstrip("/")
    try:
        # Object stores cache listings, which would hide files that were replaced recently.
        fs.invalidate_cache()
        found = fs.find(root, detail=True)
    except Exception as error:  # every file system has errors of its own
        problem = f"{fs.unstrip_protocol(root)} cannot be listed: {in_words(error)}"
        raise RunError(f"{problem}; check it and try again") from None
    sizes = {
        posixpath.relpath(path, root): int(info["size"] or 0)
        for path, info in found.items()
    }
    records = (
        posixpath.dirname(name)
        for name in sizes
        if posixpath.basename(name) == _RECORD and name.count("/") < 2
    )
    folders = sorted(folder for folder in records if not _STEP_FOLDER.match(folder))
    if not folders:
        place, cure = (
            fs.unstrip_protocol(root),
            "use a folder that `nextlong export --into` filled",
        )
        raise RunError(f"{place} has no {_RECORD} of a delivered export; {cure}")
    for folder in [""] if "" in folders else folders:
        below = f"{folder}/" if folder else ""
        own = {
            name.removeprefix(below): size
            for name, size in sizes.items()
            if name.startswith(below)
        }
        for outcome in _verify_one(fs, f"{root}/{below}", own, run_dir, starting):
            yield (
                replace(outcome, check=f"{folder}: {outcome.check}")
                if len(folders) > 1
                else outcome
            )


def _verify_one(
    fs: Any,
    place: str,
    sizes: dict[str, int],
    run_dir: Path | None,
    starting: Callable[[str], None],
) -> Iterator[CheckOutcome]:
    starting("record")
    outcome = CheckOutcome("record", "files", checked=1)
    try:
        record: Json = json.loads(fs.cat_file(place + _RECORD))
        if "parts" in record:
            step_of = posixpath.dirname(place.rstrip("/"))
            raise RunError(
                f"{place} is a step of a run; verify the run: nextlong verify {step_of}"
            )
        hashed = {key: value for key, value in record.items() if key != "xxh3"}
        plain = json.dumps(hashed, sort_keys=True, separators=(",", ":"))
        if record["xxh3"] != (true := xxhash.xxh3_128_hexdigest(plain.encode())):
            outcome.breach(
                f"{_RECORD} has been altered: it records the hash {record['xxh3']}, its content has {true}"
            )
        files = all(
            {"bytes", "xxh3"} <= entry.keys() for entry in record["files"].values()
        )
        split_keys = {"step", "config", "rows", "sequences", "tokens"}
        splits = all(split_keys <= split.keys() for split in record["splits"].values())
        if (
            not files
            or not splits
            or not record.keys()
            >= {"format", "rows", "runs", "splits", "files", "xxh3"}
        ):
            raise ValueError("keys are missing")
    except _UNPARSED as error:
        outcome.breach(
            f"{_RECORD} is not the record of an export ({in_words(error)}); deliver it again"
        )
        yield outcome
        return
    yield outcome
    run = None if run_dir is None else _run_of(record, run_dir)
    starting("hashes")
    yield _check_hashes(fs, place, sizes, record)
    is_local = "file" in (
        fs.protocol if isinstance(fs.protocol, tuple | list) else (fs.protocol,)
    )
    for split in record["splits"]:
        starting(f"{record['format']} {split}")
        outcome = CheckOutcome(f"{record['format']} {split} rows", "rows")
        if is_local:
            _check_rows(Path(place), record, split, run, outcome)
        else:
            outcome.skipped = "remote rows are not read; if all hashes match, they are the delivered ones"
        yield outcome


def _run_of(record: Json, run_dir: Path) -> StoredRun:
    """Return the run of an export. Raises RunError if the export is from another run, or from several."""
    if len(record["runs"]) != 1:
        names = ", ".join(f"{run['name']}@{run['variant']}" for run in record["runs"])
        cure = "verify it without --run, and each run by itself"
        raise RunError(f"this export is a mix of several runs ({names}); {cure}")
    run, (of,) = StoredRun(run_dir), record["runs"]
    exported, composed = (
        of["steps"]["compose"],
        run.steps["compose"].manifest["fingerprint"],
    )
    if exported != composed:
        made_of = f"the sequences compose-{exported} of a run called {of['name']}, but {run_dir} has compose-{composed}"
        cure = "if it was deleted, omit --run to check files and counts only"
        raise RunError(
            f"this export has {made_of}; use that run, or the exported variant of it; {cure}"
        )
    return run


def _check_hashes(
    fs: Any, place: str, sizes: dict[str, int], record: Json
) -> CheckOutcome:
    """Hash every recorded file, and find others that a reader would load as part of the data set."""
    outcome = CheckOutcome("hashes", "files", checked=len(record["files"]))

    def problem_of(name: str) -> str:
        if name not in sizes:
            return "is missing"
        try:
            with fs.open(place + name, "rb") as file:
                return _content_problem(file, sizes[name], record["files"][name])
        except Exception as error:  # every file system has errors of its own
            return f"cannot be read ({in_words(error)})"

    with ThreadPoolExecutor(8) as pool:
        problems = zip(
            record["files"], pool.map(problem_of, record["files"]), strict=True
        )
        outcome.breach_each(
            f"{name} {problem}" for name, problem in problems if problem
        )
    for name in sorted(sizes.keys() - record["files"].keys() - _ALLOWED):
        if not any(part.startswith(".") for part in name.split("/")):
            outcome.breach(
                f"{name} is not in the record, but readers may load it as part of the data set"
            )
    return outcome


def _check_rows(
    folder: Path, record: Json, split: str, run: StoredRun | None, outcome: CheckOutcome
) -> None:
    """Compare the rows of one split with those of the run; without the run, count rows and tokens without padding."""
    recorded = record["splits"][split]
    if (made := open_format(record["format"], outcome)) is None:
        return
    # Present the files of the split like the folder of the step that wrote them.
    below = recorded.get("folder", "")
    named = {
        name.removeprefix(below): entry
        for name, entry in record["files"].items()
        if name.startswith(below)
    }
    files = {name: entry for name, entry in named.items() if "/" not in name}
    manifest = {"parts": [{"files": files}], "config": recorded["config"]}
    step = StepFiles(f"{record['format']} {split}", folder / below, manifest)
    note = "counted only; --run RUN compares each row with the run"
    if len(record["runs"]) > 1:
        note = "counted only; a mix of several runs, so verify each run separately"
    if run is not None:
        rows = run.open_rows(record["rows"])
        if not rows.damage:
            compare(run, rows, split, [Comparison(run, step, made, outcome)])
            run.name_marks([outcome])
            return
        missing = f"{run.path} no longer has the rows {record['rows']} (deleted by gc?)"
        note = f"counted only: {missing}, so the order of the rows is unknown"
    tokens = 0
    try:
        for row in rows_in(step, made):
            outcome.checked += 1
            tokens += (
                sum(row["seq_lengths"])
                if "seq_lengths" in row
                else len(row["input_ids"])
            )
    except UNREADABLE as error:
        outcome.breach(
            f"cannot be read from row {outcome.checked} on: {in_words(error)}"
        )
        return
    expected = recorded["rows"] if made.unit == "rows" else recorded["sequences"]
    for unit, counted, true in (
        (made.unit, outcome.checked, expected),
        ("tokens", tokens, recorded["tokens"]),
    ):
        if counted != true:
            outcome.breach(f"{counted:,} {unit}, but {true:,} are recorded")
    outcome.note = note
