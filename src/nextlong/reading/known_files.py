"""Known files: which input files a run directory has read, and which of them have changed since.

In:  the files of the recipe's sources as they are now, and `inputs.json` of the run directory.
Out: the same files under the identity by which the directory knows them.
The modification time of a file that was copied, restored or checked out again says nothing, so a local file of equal size
is recognised by the hash of its bytes, taken when they were read. Remote files are recognised by their version.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import fsspec

from nextlong.artifacts.results import IngestResult
from nextlong.engine import store
from nextlong.engine.step import Artifact
from nextlong.errors import CorpusError, RunError
from nextlong.reading.file_systems import is_local
from nextlong.reading.files import InputFile, check_unchanged
from nextlong.reading.listing import list_files, reaches
from nextlong.recipe import Ingest, Source
from nextlong.text import counted

_INPUTS_FILE = "inputs.json"
_HASHING_THREADS = 8  # hashing waits for the disk

_Known = Mapping[str, Mapping[str, Mapping[str, Any]]]  # source path → file name → identity, version, xxh3


def input_files(ingest: Ingest) -> list[list[InputFile]]:
    """Return the files of each source. Raises CorpusError if a source has none."""
    return [list_files(source, where=f"ingest.sources[{place}].path") for place, source in enumerate(ingest.sources)]


def check_apart(sources: Sequence[Source], *, run_dir: str) -> None:
    """Raise RunError if a source includes the run directory: the next run would read what this one wrote."""
    for place, source in enumerate(sources):
        if reaches(source, Path(run_dir).expanduser()):
            raise RunError(
                f"run_dir={run_dir} is inside ingest.sources[{place}].path={source.path!r}, so a run would read its own "
                "files; choose a folder elsewhere"
            )


def recognise_inputs(
    sources: Sequence[Source],
    files: Sequence[Sequence[InputFile]],
    run_dir: Path,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    tell: Callable[[str], None],
) -> list[list[InputFile]]:
    """Return the files as the run directory knows them. Raises RunError if one that it has read has changed or is gone."""
    own_outputs = [
        file.path
        for source_files in files
        for file in source_files
        if Path(file.path).is_relative_to(run_dir.resolve())
    ]
    if own_outputs:
        raise RunError(f"ingest.sources reach into run_dir={run_dir} ({own_outputs[0]}); choose a folder elsewhere")
    recognised, changes = recognise(sources, files, run_dir, tell=tell)
    if changes and changed_inputs != "accept":
        more = f", and {counted(len(changes) - 1, 'other file')}" if len(changes) > 1 else ""
        raise RunError(
            f"input files have changed since a run in {run_dir} read them: {changes[0]}{more}; restore the files, choose "
            "another run_dir, or add --accept-changed-inputs to read them again here"
        )
    return recognised


def recognise(
    sources: Sequence[Source],
    files: Sequence[Sequence[InputFile]],
    run_dir: Path,
    *,
    tell: Callable[[str], None] = lambda _: None,
) -> tuple[list[list[InputFile]], list[str]]:
    """Return the files of each source under the identities that a run directory knows, and what has changed, in words.

    Files with another version but of equal size are hashed.
    """
    known = _read_known(run_dir)
    records = [known.get(source.path, {}) for source in sources]
    touched = [
        file
        for source_files, record in zip(files, records, strict=True)
        for file in source_files
        if (entry := record.get(file.name)) is not None
        and file.version != entry["version"]
        and entry["xxh3"] is not None
        and _size(file.version) == _size(entry["version"])
    ]
    if touched:
        megabytes = sum(file.bytes for file in touched) / 1_000_000
        tell(f"inputs: hashing {counted(len(touched), 'file')} with a new modification time ({megabytes:,.1f} MB)")
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        hashes = dict(zip(touched, pool.map(hash_of, touched), strict=True))

    def known_as(file: InputFile, entry: Mapping[str, Any] | None) -> InputFile:
        if entry is None:
            return file
        is_same = file.version == entry["version"] or (hashes.get(file) or "") == entry["xxh3"]
        return replace(file, known_as=entry["identity"]) if is_same else file

    recognised = [
        [known_as(file, record.get(file.name)) for file in source_files]
        for source_files, record in zip(files, records, strict=True)
    ]
    # Several sources may read files of one path, each of another format.
    now: dict[str, dict[str, InputFile]] = {}
    for source, source_files in zip(sources, recognised, strict=True):
        now.setdefault(source.path, {}).update({file.name: file for file in source_files})
    return recognised, [change for path in now for change in _changes(path, now[path], known.get(path, {}))]


def remember(
    ingested: Artifact,
    *,
    sources: Sequence[Source],
    files: Sequence[Sequence[InputFile]],
    run_dir: Path,
) -> None:
    """Record the files of a finished ingest in the run directory; entries of other sources stay."""
    # In the order of the files.
    hashes = iter([input_hash for part in ingested.results(IngestResult) for input_hash in part.input_hashes])
    now: dict[str, dict[str, dict[str, str | None]]] = {source.path: {} for source in sources}
    for source, source_files in zip(sources, files, strict=True):
        for file in source_files:
            entry = {"identity": file.identity, "version": file.version, "xxh3": next(hashes, None)}
            now[source.path][file.name] = entry
    store.write_json(run_dir / _INPUTS_FILE, {**_read_known(run_dir), **now})


def hash_of(file: InputFile) -> str | None:
    """Return the hash of a local file's bytes, None for a remote one. Raises CorpusError if it changes meanwhile."""
    fs, path = fsspec.core.url_to_fs(file.path)
    if not is_local(fs):
        return None
    try:
        digest = store.hash_file(Path(path))
    except OSError as error:
        raise CorpusError(f"{file.path} cannot be read ({error.strerror}); change its permissions") from None
    check_unchanged(file)
    return digest


def _read_known(folder: Path) -> _Known:
    path = folder / _INPUTS_FILE
    known: _Known = store.read_json(path) if path.exists() else {}
    return known


def _changes(path: str, now: Mapping[str, InputFile], entries: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Describe each known file of a source's path that has changed or is gone."""
    changed, gone = [], []
    for name, entry in entries.items():
        file = now.get(name)
        if file is None:
            shown = path if posixpath.basename(path) == name else f"{name} of {path}"
            gone.append(f"{shown} is gone, or no longer named")
        elif file.known_as is None:
            size, _, mark = file.version.partition(":")
            if size != _size(entry["version"]):
                how = f"has {size} bytes and had {_size(entry['version'])}"
            elif entry["xxh3"] is not None:
                how = f"has other content of the same size ({size} bytes)"
            else:
                how = f"has another version (time or ETag {mark}, was {entry['version'].partition(':')[2]})"
            changed.append(f"{file.path} {how}")
    return [*changed, *gone]


def _size(version: str) -> str:
    return version.partition(":")[0]
