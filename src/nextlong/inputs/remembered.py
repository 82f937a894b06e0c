"""Inputs: what a run directory remembers of the files that it has read.

In:  the files of the recipe's sources as they are now, and `inputs.json` of the run directory.
Out: the same files under the identity by which the directory knows them, and which of them have changed.
A time of change says nothing of a file that was copied, restored or checked out again, so a file of the same size is
known by the hash of its bytes, which was taken when they were read. Files of other file systems are known by the version
that these give.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import fsspec

from nextlong.engine import store
from nextlong.engine.shared import alone
from nextlong.engine.step import Done
from nextlong.errors import CorpusError, RunError
from nextlong.inputs import file_systems
from nextlong.inputs.files import InputFile, check_unchanged
from nextlong.inputs.listing import list_files
from nextlong.inputs.walk import reaches
from nextlong.plain_data import Json
from nextlong.plural import counted
from nextlong.recipe import Recipe, Source
from nextlong.results import IngestResult

_INPUTS_FILE = "inputs.json"
_HASHING_THREADS = 8  # hashing waits for the disk

Known = Mapping[str, Mapping[str, Mapping[str, Any]]]  # source path → file name → identity, version, xxh3


class Recognised(NamedTuple):
    """The files of each source under the identities that a run directory knows them by, and what has changed, in words."""

    files: list[list[InputFile]]
    changes: list[str]


def recognise(
    sources: Sequence[Source],
    files: Sequence[Sequence[InputFile]],
    run_dir: Path,
    *,
    stored: Path | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Recognised:
    """Find the files that a run directory has read; those of another time but of equal size are hashed, and it is told.

    Files that are new to it are known as the store `stored` has read them, which changes nothing for the directory.
    """
    known = _read_known(run_dir / _INPUTS_FILE)
    others = {} if stored is None else _read_known(stored / _INPUTS_FILE)
    records = [{**others.get(source.path, {}), **known.get(source.path, {})} for source in sources]
    touched = [
        file
        for source_files, record in zip(files, records, strict=True)
        for file in source_files
        if file.name in record and _may_be_touched(file, record[file.name])
    ]
    if touched:
        megabytes = sum(file.bytes for file in touched) / 1_000_000
        tell(
            f"inputs: comparing the bytes of {counted(len(touched), 'file')} that have another time ({megabytes:,.1f} MB)"
        )
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        now = dict(zip(touched, pool.map(hash_of, touched), strict=True))
    recognised = [
        [_recognised(file, record.get(file.name), now.get(file)) for file in source_files]
        for source_files, record in zip(files, records, strict=True)
    ]
    changes: dict[str, None] = {}
    for path in dict.fromkeys(source.path for source in sources):  # of which several sources may read one format each
        source_files = [
            file
            for source, source_files in zip(sources, recognised, strict=True)
            if source.path == path
            for file in source_files
        ]
        changes |= dict.fromkeys(_changes(path, source_files, known.get(path, {})))
    return Recognised(recognised, list(changes))


def remember(
    ingested: Done,
    *,
    sources: Sequence[Source],
    files: Sequence[Sequence[InputFile]],
    run_dir: Path,
    stored: Path | None = None,
) -> None:
    """Write down the files of a finished ingest, in the store too; those of other sources stay remembered."""
    # In the order of the files.
    hashes = iter([input_hash for part in ingested.results(IngestResult) for input_hash in part.input_hashes])
    now: dict[str, dict[str, dict[str, str | None]]] = {source.path: {} for source in sources}
    for source, source_files in zip(sources, files, strict=True):
        for file in source_files:
            record = {"identity": file.identity, "version": file.version, "xxh3": next(hashes, None)}
            now[source.path][file.name] = record
    for path in (folder / _INPUTS_FILE for folder in (run_dir, stored) if folder is not None):
        with alone(path) if path.parent == stored else nullcontext():  # a run directory is this run's own already
            store.write_json(path, {**_read_known(path), **now})


def _read_known(path: Path) -> Known:
    """Return what a run directory remembers; earlier versions wrote the identity alone."""
    plain: dict[str, Json] = store.read_json(path) if path.exists() else {}
    return {
        source: {
            name: {"identity": entry, "version": entry, "xxh3": None} if isinstance(entry, str) else entry
            for name, entry in names.items()
        }
        for source, names in plain.items()
    }


def hash_of(file: InputFile) -> str | None:
    """Return the hash of a local file's bytes, None of another. Raises CorpusError if it changes meanwhile."""
    fs, path = fsspec.core.url_to_fs(file.path)
    if not file_systems.is_local(fs):
        return None
    try:
        digest = store.hash_file(Path(path))
    except OSError as error:
        raise CorpusError(f"{file.path} cannot be read ({error.strerror}); change its permissions") from None
    check_unchanged(file)
    return digest


def _may_be_touched(file: InputFile, record: Mapping[str, Any]) -> bool:
    is_changed = file.version != record["version"]
    return is_changed and record["xxh3"] is not None and _size(file.version) == _size(record["version"])


def _recognised(file: InputFile, record: Mapping[str, Any] | None, xxh3: str | None) -> InputFile:
    if record is None or (file.version != record["version"] and (xxh3 is None or xxh3 != record["xxh3"])):
        return file
    return replace(file, known_as=record["identity"])


def _changes(path: str, files: Iterable[InputFile], record: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Say of each remembered file of a source's path that is another now, or gone, what became of it."""
    there = {file.name: file for file in files}
    gone = [name for name in record if name not in there]
    changed = [
        f"{there[name].path} {_how(there[name].version, was)}"
        for name, was in record.items()
        if name in there and there[name].known_as is None
    ]
    at = {name: path if posixpath.basename(path) == name else f"{name} of {path}" for name in gone}
    return [*changed, *(f"{at[name]} is gone, or no longer asked for" for name in gone)]


def _how(now: str, was: Mapping[str, Any]) -> str:
    """Say how a file differs; a version is `size:version`."""
    if _size(now) != _size(was["version"]):
        return f"has {_size(now)} bytes and had {_size(was['version'])}"
    if was["xxh3"] is not None:
        return f"has other content of the same size ({_size(now)} bytes)"
    return f"is of another version (time or ETag {now.partition(':')[2]}, was {was['version'].partition(':')[2]})"


def _size(version: str) -> str:
    return version.partition(":")[0]


def input_files(recipe: Recipe) -> list[list[InputFile]]:
    """Return the files of each source. Raises CorpusError if a source has none."""
    return [
        list_files(source, where=f"ingest.sources[{place}].path") for place, source in enumerate(recipe.ingest.sources)
    ]


def check_apart(recipe: Recipe, run_dir: Path) -> None:
    """Raise RunError if a source takes in the run directory: the next run would read what this one wrote."""
    for place, source in enumerate(recipe.ingest.sources):
        if recipe.store is not None and reaches(source, Path(recipe.store).expanduser()):
            raise RunError(
                f"store={recipe.store} lies inside ingest.sources[{place}].path={source.path!r}, so a run would read its own "
                "files; give it a folder elsewhere"
            )
        if reaches(source, run_dir):
            raise RunError(
                f"run_dir={recipe.run_dir} lies inside ingest.sources[{place}].path={source.path!r}, so a run would read its "
                "own files; give it a folder elsewhere"
            )


def recognise_inputs(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    run_dir: Path,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    tell: Callable[[str], None],
) -> list[list[InputFile]]:
    """Return the files as the run directory knows them. Raises RunError if one that it has read is another now or gone."""
    own_outputs = [
        file.path
        for source_files in files
        for file in source_files
        if Path(file.path).is_relative_to(run_dir.resolve())
    ]
    if own_outputs:
        raise RunError(
            f"ingest.sources reach into run_dir={recipe.run_dir} ({own_outputs[0]}); give it a folder elsewhere"
        )
    stored = None if recipe.store is None else Path(recipe.store).expanduser()
    recognised, changes = recognise(recipe.ingest.sources, files, run_dir, stored=stored, tell=tell)
    if changes and changed_inputs != "accept":
        more = f", and {len(changes) - 1} other file{'s' if len(changes) > 2 else ''}" if len(changes) > 1 else ""
        raise RunError(
            f"input files have changed since a run in {run_dir} read them: {changes[0]}{more}; put the old ones back, "
            "give the recipe another run_dir, or say --accept-changed-inputs to read them again here"
        )
    return recognised
