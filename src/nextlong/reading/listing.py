"""Listing: find the files of the recipe's sources, and recognize files that a run directory has read before.

In:  a path, folder or glob on any fsspec file system, and `inputs.json` of the run directory.
Out: files sorted by path, with the identity under which the run directory knows them. Modification times are not reliable
(files are copied and restored), so a local file of equal size is recognized by its hash, a remote one by its version. Links are
followed, hidden files are skipped, and of a data set folder only one split is listed.
"""

from __future__ import annotations

import glob
import itertools
import os
import posixpath
import re
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import unquote

import fsspec
import orjson
from fsspec import AbstractFileSystem
from fsspec.utils import glob_translate

from nextlong.artifacts.results import IngestResult
from nextlong.artifacts.variant_records import INPUTS
from nextlong.engine import store
from nextlong.engine.step import Artifact
from nextlong.errors import CorpusError, RunError
from nextlong.reading.dataset_folder import (
    README,
    SAVED,
    YAML_FILE,
    ChosenSplit,
    choose_split,
    read_metadata,
)
from nextlong.reading.files import (
    InputFile,
    SourceFiles,
    check_unchanged,
    is_local,
    reach,
    retried,
    version_of,
)
from nextlong.reading.formats import (
    format_by_name,
    format_of,
    input_formats,
    known_suffixes,
)
from nextlong.reading.records import explained
from nextlong.recipe import Ingest, Source
from nextlong.text import counted

# Files that `datasets` and the hub write next to data.
_SIDE_FILES: Final = frozenset(
    {"state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"}
)
_ABOUT_FILES: Final = frozenset(
    {"readme.md", "readme.txt", "license.md", "license.txt"}
)
_RUN_SUFFIXES: Final = (
    ".json",
    ".jsonl",
    ".arrow",
    ".parquet",
    ".md",
)  # in a run directory
_FILE_KINDS: Final = {
    stat.S_IFLNK: "a broken link", stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}  # fmt: skip

_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
_WHOLE_NUMBER: Final = re.compile(r"-?\d{1,18}")

_Listing = dict[str, Any]  # path → info from the file system
_HASHING_THREADS = 8  # hashing waits for the disk


def list_files(
    source: Source, *, where: str, tell: Callable[[str], object] = lambda _: None
) -> list[InputFile]:
    """Return the files of a source, sorted by path, each with a version that changes with its content.

    Of a data set folder, only the files of one split; `tell` gets a note on the others if the recipe does not choose it.
    Raises CorpusError, which names `where` (the recipe key, e.g. `ingest.sources[0].path`), if there is none or the file system
    cannot be accessed.
    """
    found = _find(source, where=where)
    chosen = found.chosen
    if chosen is not None and chosen.note and source.split is None:
        change = "set the source's split (all: every file) or config to change this"
        tell(f"{source.label}: {chosen.note}; {change}")
    return _input_files(found)


def split_of(source: Source, *, where: str) -> ChosenSplit | None:
    """Return what is read of a data set folder; None for a source that is none. Raises CorpusError as `list_files` does."""
    return _find(source, where=where).chosen


@dataclass(frozen=True)
class _Found:
    """The files of a source that are read: path → info, and the split that they are."""

    fs: AbstractFileSystem
    base: str
    files: _Listing
    place: str
    chosen: ChosenSplit | None


def _find(source: Source, *, where: str) -> _Found:
    place = f"{where}={source.path!r}"
    fs, root = reach(source.path, where=place, error=CorpusError)
    try:
        base, matched, kind = retried(_match, fs, root, fs=fs)
        contents: tuple[bytes, ...] = ()
        if kind == "folder":
            contents = retried(_metadata_files, fs, base, matched, fs=fs)
    except (CorpusError, MemoryError):
        raise
    except (
        Exception
    ) as error:  # each file system has its own errors, many of which are not OSErrors
        raise CorpusError(
            f"{place} cannot be listed: {error}; check the path and your credentials"
        ) from None
    if not matched:
        resolved = "" if root == source.path else f" (resolved to {root})"
        problems = {
            "glob": "matches no file; check the pattern (** matches nested folders)",
            "folder": f"is an empty folder; put files there ({known_suffixes()})",
            "file": f"does not exist{resolved}; correct the path",
        }
        raise CorpusError(f"{place} {problems[kind]}")
    # A format in the recipe applies to every named or matched file, but in a folder only to files with its suffixes.
    named = None if source.format == "auto" else input_formats()[source.format]
    formats = {
        path: format_by_name(path) if named is None or kind == "folder" else named
        for path in matched
    }
    kept = [
        path
        for path in matched
        if formats[path] is not None and (named is None or formats[path] is named)
    ]
    if kind != "file":
        kept = [
            path for path in kept if posixpath.basename(path).lower() not in _SIDE_FILES
        ]
        if (named is None or kind == "glob") and any(
            format_of(path, source).has_columns for path in kept
        ):
            kept = [
                path
                for path in kept
                if posixpath.basename(path).lower() not in _ABOUT_FILES
            ]
    if not kept:
        expected = "supported format" if named is None else f"format {source.format!r}"
        raise CorpusError(
            f"{place} has no file of a {expected}, only files such as {posixpath.basename(min(matched))!r}; "
            f"supported: {known_suffixes()}; for other suffixes set ingest.sources[].format to one of "
            f"{', '.join(input_formats())} (source code: text)"
        )
    names = {posixpath.relpath(path, base): path for path in kept}
    chosen = None
    if kind == "folder":
        chosen = choose_split(
            list(names),
            read_metadata(*contents, place=place),
            split=source.split,
            config=source.config,
            place=place,
        )
    elif source.split is not None or source.config is not None:
        raise CorpusError(
            f"{place} is not a folder, so it has no split or config; remove the key"
        )
    if chosen is not None:
        kept = [names[name] for name in chosen.names]
    return _Found(fs, base, {path: matched[path] for path in kept}, place, chosen)


def _metadata_files(
    fs: AbstractFileSystem, folder: str, matched: _Listing
) -> tuple[bytes, bytes, bytes]:
    """Return the contents of the files that describe a data set folder, b"" for missing ones."""
    contents = []
    for name in (README, SAVED):
        path = f"{folder.rstrip('/')}/{name}"
        is_file = path in matched and matched[path]["type"] == "file"
        contents.append(fs.cat_file(path) if is_file else b"")
    readme, saved = contents
    path = f"{folder.rstrip('/')}/{YAML_FILE}"  # hidden, so it is not listed
    try:
        is_file = fs.info(path)["type"] == "file"
    except FileNotFoundError:
        is_file = False
    return readme, fs.cat_file(path) if is_file else b"", saved


def _input_files(found: _Found) -> list[InputFile]:
    """Return the files, sorted by path. Raises CorpusError for one that is not a regular file."""
    fs, place = found.fs, found.place
    files = []
    names = {path: posixpath.relpath(path, found.base) for path in found.files}
    partitions = _partitions(names.values())
    full_paths = {
        path if is_local(fs) else str(fs.unstrip_protocol(path)): path
        for path in found.files
    }
    for full_path, path in sorted(full_paths.items()):
        info = found.files[path]
        mode = info.get("mode")
        # A pipe, socket or device can be read only once, or never ends.
        if is_local(fs) and mode is not None and not stat.S_ISREG(mode):
            fix = (
                "repair or remove it"
                if stat.S_ISLNK(mode)
                else "write its output to a file first"
            )
            kind_of_file = _FILE_KINDS.get(stat.S_IFMT(mode), "a special file")
            raise CorpusError(
                f"{place}: {path} is not a regular file but {kind_of_file}; {fix}"
            )
        files.append(
            InputFile(
                full_path,
                int(info["size"] or 0),
                version_of(info),
                names[path],
                partitions=partitions[names[path]],
            )
        )
    return files


def _partitions(
    names: Iterable[str],
) -> dict[str, tuple[tuple[str, str | int | None], ...]]:
    """Return the columns in the folders of each file, as Hive names them: lang=en/a.parquet.

    A column of whole numbers in all files is of numbers.
    """
    found: dict[str, dict[str, str | None]] = {}
    for name in names:
        found[name] = {}
        for folder in name.split("/")[:-1]:
            column, mark, value = folder.partition("=")
            if mark and column:
                is_null = value == _HIVE_NULL
                found[name][column] = None if is_null else unquote(value)
    values: dict[str, set[str | None]] = {}
    for of_file in found.values():
        for column, named in of_file.items():
            values.setdefault(column, set()).add(named)
    numbers = set()
    for column, of_column in values.items():
        if all(value is None or _WHOLE_NUMBER.fullmatch(value) for value in of_column):
            numbers.add(column)
    partitions = {}
    for name, of_file in found.items():
        typed: list[tuple[str, str | int | None]] = []
        for column, named in of_file.items():
            is_number = column in numbers and named is not None
            typed.append((column, int(str(named)) if is_number else named))
        partitions[name] = tuple(typed)
    return partitions


def kind_of_name(name: str) -> Literal["documents", "about documents", "unknown"]:
    """Classify a file by its name; README, license and files that `datasets` writes are about documents."""
    if format_by_name(name) is None:
        return "about documents" if name in _SIDE_FILES else "unknown"
    return (
        "about documents"
        if name[0] == "." or name.lower() in _ABOUT_FILES | _SIDE_FILES
        else "documents"
    )


def reaches(source: Source, folder: Path) -> bool:
    """Return whether a source's folder or glob includes the files of a local folder, which may not exist yet."""
    fs, root = reach(source.path, where="ingest.sources", error=CorpusError)
    if not is_local(fs):
        return False
    folder = folder.resolve()
    if fs.isdir(root):
        base = Path(root).resolve()
        return folder.is_relative_to(base) and not any(
            part[0] == "." for part in folder.relative_to(base).parts
        )
    if not glob.has_magic(root):
        return False
    matches = re.compile(glob_translate(root)).match
    below = [
        "",
        *(
            f"{place}{suffix}"
            for place in ("/file", "/01-step/file")
            for suffix in _RUN_SUFFIXES
        ),
    ]
    return any(matches(f"{folder}{path}") for path in below) or any(
        matches(str(parent)) for parent in folder.parents
    )


def _match(fs: AbstractFileSystem, root: str) -> tuple[str, _Listing, str]:
    """Return the folder that names are relative to, path → info of all files, and the kind of path: file, folder or glob."""
    # Try the literal path first, because a file may be called data[1].jsonl.
    try:
        kind = "directory" if fs.isdir(root) else (info := fs.info(root))["type"]
    except FileNotFoundError:  # fsspec's `exists` would return False for any error
        kind = ""
    if kind == "directory":
        return root, _below(fs, root), "folder"
    if kind:
        return posixpath.dirname(root), {root: info}, "file"
    if not glob.has_magic(root):
        return root, {}, "file"
    parts = root.split("/")
    base = "/".join(
        parts[: next(i for i, part in enumerate(parts) if glob.has_magic(part))]
    )
    matched: _Listing = {}
    for path, listed in fs.glob(root, detail=True).items():
        info = _followed(fs, path, listed)
        if not posixpath.basename(path).startswith("."):
            matched.update(
                _below(fs, path) if info["type"] == "directory" else {path: info}
            )
    return base or "/", matched, "glob"


def _below(
    fs: AbstractFileSystem, folder: str, above: tuple[Path, ...] = ()
) -> _Listing:
    """Return path → info of all visible files below a folder; `above` are the folders of links on the way."""
    files: _Listing = {}
    for path, listed in fs.find(folder, detail=True).items():
        if any(
            part.startswith(".") for part in posixpath.relpath(path, folder).split("/")
        ):
            continue
        info = _followed(fs, path, listed)
        if info["type"] != "directory":
            files[path] = info
            continue
        target, through = Path(path).resolve(), (*above, Path(path).parent.resolve())
        if not any(
            passed.is_relative_to(target) for passed in through
        ):  # else the link leads back
            files |= _below(fs, path, through)
    # A folder of `Dataset.save_to_disk` may also contain caches of later maps: list only its data.
    for state_path in [
        path for path in files if posixpath.basename(path) == "state.json"
    ]:
        saved = posixpath.dirname(state_path)
        try:
            state = orjson.loads(fs.cat_file(state_path))
            data = {f"{saved}/{entry['filename']}" for entry in state["_data_files"]}
        except (orjson.JSONDecodeError, KeyError, TypeError):
            continue
        indices = [state.get(key) for key in ("_indices_files", "_indices_data_files")]
        if f"{saved}/indices.arrow" in files or any(indices):
            why = "is a datasets folder with selected rows (indices.arrow), which its files do not reflect"
            raise CorpusError(
                f"{saved} {why}; save it again: dataset.flatten_indices().save_to_disk(...)"
            )
        if absent := sorted(data - files.keys()):
            raise CorpusError(
                f"{state_path} names {absent[0]}, which does not exist; copy the whole folder again"
            )
        files = {
            path: info
            for path, info in files.items()
            if posixpath.dirname(path) != saved or path in data
        }
    return files


def _followed(fs: AbstractFileSystem, path: str, listed: Any) -> Any:
    """Return the listed info of a path, or for a link the info of its target if that exists."""
    try:
        return fs.info(path) if listed.get("islink") else listed
    except FileNotFoundError:
        return listed


# the input files of a run directory


def input_files(
    ingest: Ingest, *, tell: Callable[[str], object] = lambda _: None
) -> list[list[InputFile]]:
    """Return the files of each source; `tell` gets notes on splits. Raises CorpusError if a source has none."""
    return [
        list_files(source, where=f"ingest.sources[{place}].path", tell=tell)
        for place, source in enumerate(ingest.sources)
    ]


def check_apart(sources: Sequence[Source], *, run_dir: str) -> None:
    """Raise RunError if a source includes the run directory: the next run would read the files of this one."""
    for place, source in enumerate(sources):
        if reaches(source, Path(run_dir).expanduser()):
            where = f"inside ingest.sources[{place}].path={source.path!r}, so a run would read its own files"
            raise RunError(f"run_dir={run_dir} is {where}; choose a folder elsewhere")


def recognise_inputs(
    sources: Sequence[Source],
    files: SourceFiles,
    run_dir: Path,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    tell: Callable[[str], None] = lambda _: None,
) -> list[list[InputFile]]:
    """Return the files with their known identities. Raises RunError if a file that was read before has changed or is missing."""
    every_path = (file.path for file in itertools.chain.from_iterable(files))
    if own_outputs := [
        path for path in every_path if Path(path).is_relative_to(run_dir.resolve())
    ]:
        raise RunError(
            f"ingest.sources reach into run_dir={run_dir} ({own_outputs[0]}); choose a folder elsewhere"
        )
    # By source path and name, because several sources may read the same path in different formats.
    known = {
        (path, name): entry
        for path, of in _read_known(run_dir).items()
        for name, entry in of.items()
    }
    named = [
        (_place(source), file)
        for source, of in zip(sources, files, strict=True)
        for file in of
    ]
    touched = [
        file
        for path, file in named
        if (entry := known.get((path, file.name))) is not None
        and file.version != entry["version"]
        and entry["xxh3"] is not None
        and _size(file.version) == _size(entry["version"])
    ]
    if touched:
        megabytes = sum(file.bytes for file in touched) / 1_000_000
        tell(
            f"inputs: hashing {counted(len(touched), 'file')} with a new modification time ({megabytes:,.1f} MB)"
        )
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        hashes = dict(zip(touched, pool.map(hash_of, touched), strict=True))
    now: dict[tuple[str, str], InputFile] = {}
    for path, file in named:
        entry = known.get((path, file.name))
        is_same = entry and (
            file.version == entry["version"]
            or (hashes.get(file) or "") == entry["xxh3"]
        )
        now[path, file.name] = (
            replace(file, known_as=entry["identity"]) if entry and is_same else file
        )
    recognised = [
        [now[_place(source), file.name] for file in of]
        for source, of in zip(sources, files, strict=True)
    ]
    if changed_inputs == "accept":
        return recognised
    changes, missing = [], []
    for (path, name), entry in known.items():
        if (path, name) in now and now[path, name].known_as is None:
            file = now[path, name]
            (size, _, mark), (known_size, _, known_mark) = (
                file.version.partition(":"),
                entry["version"].partition(":"),
            )
            if size != known_size:
                how = f"has {size} bytes and had {known_size}"
            elif entry["xxh3"] is not None:
                how = f"has other content of the same size ({size} bytes)"
            else:
                how = f"has another version (time or ETag {mark}, was {known_mark})"
            changes.append(f"{file.path} {how}")
        elif (path, name) not in now and any(
            path == _place(source) for source in sources
        ):
            shown = path if posixpath.basename(path) == name else f"{name} of {path}"
            missing.append(f"{shown} is missing or no longer part of the source")
    if changes := [*changes, *missing]:
        more = (
            f", and {counted(len(changes) - 1, 'other file')}"
            if len(changes) > 1
            else ""
        )
        cure = "restore the files, choose another run_dir, or add --accept-changed-inputs to read them again here"
        raise RunError(
            f"input files have changed since a run in {run_dir} read them: {changes[0]}{more}; {cure}"
        )
    return recognised


def check_documents(
    sources: Sequence[Source], files: SourceFiles, run_dir: Path
) -> None:
    """Raise RunError if earlier runs in a directory read none of these files: `RUN` would open other documents than before."""
    known = _read_known(run_dir)
    if not known or not known.keys().isdisjoint(map(_place, sources)):
        return
    hashes: dict[tuple[str, str], set[str | None]] = {}
    for path in known.values():
        for name, entry in path.items():
            key = posixpath.basename(name), _size(entry["version"])
            hashes.setdefault(key, set()).add(entry["xxh3"])
    if not any(
        _was_read(file, hashes) for file in itertools.chain.from_iterable(files)
    ):
        raise RunError(
            f"ingest.sources[0].path={sources[0].path!r}: run_dir={run_dir} has runs of other documents ({min(known)!r}); "
            "choose another run_dir, or name the new variant (--name NAME)"
        )


def _was_read(
    file: InputFile, hashes: Mapping[tuple[str, str], set[str | None]]
) -> bool:
    """Return whether a file that was moved, or is given by another path, was read before.

    Such a file has the name, size and content of one that was; `hashes` are by name and
    size, None for remote files, of which name and size must do.
    """
    known = hashes.get((posixpath.basename(file.path), _size(file.version)), set())
    return bool(known) and (None in known or hash_of(file) in {*known, None})


def remember(
    ingested: Artifact, *, sources: Sequence[Source], files: SourceFiles, run_dir: Path
) -> None:
    """Record the files of a finished ingest in the run directory, keeping the entries of other sources."""
    # In the order of the files.
    hashes = iter(
        [
            input_hash
            for part in ingested.results(IngestResult)
            for input_hash in part.input_hashes
        ]
    )
    now: dict[str, dict[str, dict[str, str | None]]] = {
        _place(source): {} for source in sources
    }
    for source, source_files in zip(sources, files, strict=True):
        for file in source_files:
            entry = {
                "identity": file.identity,
                "version": file.version,
                "xxh3": next(hashes, None),
            }
            now[_place(source)][file.name] = entry
    # Local paths are stored as seen from the run directory: both may move together.
    stored = {
        path if "://" in path else os.path.relpath(path, run_dir): entries
        for path, entries in {**_read_known(run_dir), **now}.items()
    }
    store.write_json(run_dir / INPUTS, stored)


def hash_of(file: InputFile) -> str | None:
    """Return the hash of a local file, None for a remote one. Raises CorpusError if the file changes meanwhile."""
    fs, path = fsspec.core.url_to_fs(file.path)
    if not is_local(fs):
        return None
    with explained(file):
        digest = store.hash_file(Path(path))
    check_unchanged(file)
    return digest


def _read_known(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the recorded files: absolute path or URL of a source → file name → identity, version, xxh3."""
    path = folder / INPUTS
    stored = store.read_json(path) if path.exists() else {}
    return {
        name if "://" in name else os.path.normpath(folder.absolute() / name): entries
        for name, entries in stored.items()
    }


def _place(source: Source) -> str:
    """Return the absolute path of a source, or its URL."""
    path = source.path
    if "://" in path:
        return path
    return os.path.normpath(Path(path).expanduser().absolute())


def _size(version: str) -> str:
    return version.partition(":")[0]
