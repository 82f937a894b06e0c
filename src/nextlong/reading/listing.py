"""Listing: find the files of sources, and recognize those that a run has read before.

In:  a path, folder or glob on any fsspec file system, and `inputs.json` of the run
     directory.
Out: files sorted by path, with the identity under which the run directory knows them.

Modification times are not reliable (files are copied and restored), so a local file of
equal size is recognized by its hash, a remote one by its version. Links are followed,
hidden files are skipped, and of a data set folder only one split is listed.
"""

from __future__ import annotations

import glob
import itertools
import os
import posixpath
import re
import shlex
import stat
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
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
from nextlong.reading.records import InputFormat, explained
from nextlong.recipe import Ingest, Source
from nextlong.text import counted

# Files that `datasets` and the hub write next to data.
_SIDE_FILES: Final = frozenset(
    {"state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"}
)
_ABOUT_FILES: Final = frozenset(
    {"readme.md", "readme.txt", "license.md", "license.txt"}
)
# Archives that people give for the files in them, and how to unpack them.
_UNPACK: Final = {
    ".zip": "unzip",
    ".tar": "tar -xf",
    ".tar.gz": "tar -xf",
    ".tgz": "tar -xf",
    ".tar.bz2": "tar -xf",
    ".tar.xz": "tar -xf",
    ".tar.zst": "tar -xf",
}
# Of the files in a run directory.
_RUN_SUFFIXES: Final = (".json", ".jsonl", ".arrow", ".parquet", ".md")
_FILE_KINDS: Final = {
    stat.S_IFLNK: "a broken link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

# What Hive writes in place of a missing value.
_HIVE_NULL: Final = "__HIVE_DEFAULT_PARTITION__"
# Of so many digits that it fits into 64 bits.
_WHOLE_NUMBER: Final = re.compile(r"-?\d{1,18}")

_Listing = dict[str, Any]  # path → info from the file system
_Entries = dict[str, dict[str, Any]]  # file name → identity, version, xxh3
_HASHING_THREADS = 8  # hashing waits for the disk


def list_files(
    source: Source, *, where: str, tell: Callable[[str], object] = lambda _: None
) -> list[InputFile]:
    """Return the files of a source, sorted by path.

    Each has a version that changes with its content. Of a data set folder, only the
    files of one split; `tell` gets a note on the others if the recipe does not choose
    it. Raises CorpusError, which names `where` (the recipe key, e.g.
    `ingest.sources[0].path`), if there is none or the file system cannot be accessed.
    """
    found = _find(source, where=where)
    chosen = found.chosen
    if chosen is not None and chosen.note and source.split is None:
        tell(
            f"{source.label}: {chosen.note}; set the source's split (all: every file) "
            "or config to change this"
        )
    return _input_files(found)


def split_of(source: Source, *, where: str) -> ChosenSplit | None:
    """Return what is read of a data set folder; None for a source that is none.

    Raises CorpusError as `list_files` does.
    """
    return _find(source, where=where).chosen


@dataclass(frozen=True)
class _Found:
    """The files of a source that are read: path → info, and the split that they are.

    where: the recipe's key and the path in it, for messages
    """

    fs: AbstractFileSystem
    base: str
    files: _Listing
    where: str
    chosen: ChosenSplit | None


def _find(source: Source, *, where: str) -> _Found:
    shown_path = repr(source.path)
    key_and_path = f"{where}={shown_path}"
    fs, root = reach(source.path, where=key_and_path, error=CorpusError)
    try:
        base, matched, kind = retried(_match, fs, root, fs=fs)
        contents: tuple[bytes, ...] = ()
        if kind == "folder":
            contents = retried(_metadata_files, fs, base, matched, fs=fs)
    except (CorpusError, MemoryError):
        raise
    # Each file system has its own errors, many of which are not OSErrors.
    except Exception as error:
        raise CorpusError(
            where=where,
            value=shown_path,
            problem=f"cannot be listed: {error}",
            fix="check the path and your credentials",
        ) from None
    if not matched:
        problem, fix = _why_no_file(source, root, kind)
        raise CorpusError(where=where, value=shown_path, problem=problem, fix=fix)
    kept = _of_known_formats(source, matched, kind)
    if not kept:
        problem, fix = _why_unsupported(source, min(matched), kind)
        raise CorpusError(where=where, value=shown_path, problem=problem, fix=fix)
    chosen = None
    if kind == "folder":
        names = {posixpath.relpath(path, base): path for path in kept}
        chosen = choose_split(
            list(names),
            read_metadata(*contents, where=key_and_path),
            split=source.split,
            config=source.config,
            where=key_and_path,
        )
        if chosen is not None:
            kept = [names[name] for name in chosen.names]
    elif source.split is not None or source.config is not None:
        raise CorpusError(
            where=where,
            value=shown_path,
            problem="is not a folder, so it has no split or config",
            fix="remove the key",
        )
    files = {path: matched[path] for path in kept}
    return _Found(fs, base, files, key_and_path, chosen)


def _why_unsupported(source: Source, path: str, kind: str) -> tuple[str, str]:
    """Return why no file of a source is read, of which `path` is one, and the fix."""
    name = posixpath.basename(path)
    for suffix, command in _UNPACK.items():
        if name.lower().endswith(suffix):
            fix = f"unpack it ({command} {shlex.quote(name)}) and name its files"
            return "is an archive of files", fix
    expected = "supported format"
    if source.format != "auto":
        expected = f"format {source.format!r}"
    problem = f"has no file of a {expected}, only files such as {name!r}"
    if kind == "file":
        problem = "has an unsupported extension"
    formats = ", ".join(input_formats())
    return problem, (
        f"supported: {known_suffixes()}; for other suffixes set "
        f"ingest.sources[].format to one of {formats} (source code: text)"
    )


def _why_no_file(source: Source, root: str, kind: str) -> tuple[str, str]:
    """Return why a source has no file, and the fix."""
    if kind == "glob":
        return "matches no file", "check the pattern (** matches nested folders)"
    if kind == "folder":
        return "is an empty folder", f"put files there ({known_suffixes()})"
    resolved = "" if root == source.path else f" (resolved to {root})"
    return f"does not exist{resolved}", "correct the path"


def _of_known_formats(source: Source, matched: _Listing, kind: str) -> list[str]:
    """Return the matched files to read, without those that describe the others."""
    if source.format == "auto":
        kept = [path for path in matched if format_by_name(path) is not None]
    elif kind == "folder":
        # In a folder, a format in the recipe applies only to files with its suffixes.
        named = input_formats()[source.format]
        kept = [path for path in matched if format_by_name(path) is named]
    else:
        kept = list(matched)
    if kind == "file":
        return kept
    formats = {format_of(path, source) for path in kept}
    beside = (file_format.side_files for file_format in formats)
    kept = _without(_SIDE_FILES.union(*beside), kept)
    # Beside tables, README.md is no document; beside plain texts it may be one. Of a
    # folder with a format in the recipe, all files are of that format.
    may_describe = source.format == "auto" or kind == "glob"
    if may_describe and any(map(_may_be_described, formats)):
        kept = _without(_ABOUT_FILES, kept)
    return kept


def _may_be_described(file_format: InputFormat) -> bool:
    """Return whether a README beside its files is about them."""
    return file_format.has_columns or file_format.has_token_ids


def _without(names: Container[str], paths: Iterable[str]) -> list[str]:
    return [path for path in paths if _lower_name(path) not in names]


def _lower_name(path: str) -> str:
    return posixpath.basename(path).lower()


def _metadata_files(
    fs: AbstractFileSystem, folder: str, matched: _Listing
) -> tuple[bytes, bytes, bytes]:
    """Return the contents of the files that describe a data set folder.

    b"" for missing ones.
    """
    contents = []
    for name in (README, SAVED):
        path = f"{folder.rstrip('/')}/{name}"
        is_file = path in matched and matched[path]["type"] == "file"
        contents.append(fs.cat_file(path) if is_file else b"")
    readme, saved = contents
    # This one is hidden, so it is not listed.
    path = f"{folder.rstrip('/')}/{YAML_FILE}"
    yaml_file = b""
    try:
        if fs.info(path)["type"] == "file":
            yaml_file = fs.cat_file(path)
    except FileNotFoundError:
        pass
    return readme, yaml_file, saved


def _input_files(found: _Found) -> list[InputFile]:
    """Return the files, sorted by path.

    Raises CorpusError for one that is not a regular file.
    """
    files = []
    names = {path: posixpath.relpath(path, found.base) for path in found.files}
    partitions = _partitions(names.values())
    full_paths = {}
    for path in found.files:
        is_url = not is_local(found.fs)
        full_path = str(found.fs.unstrip_protocol(path)) if is_url else path
        full_paths[full_path] = path
    for full_path, path in sorted(full_paths.items()):
        info = found.files[path]
        _check_regular(found, path, info.get("mode"))
        file = InputFile(
            path=full_path,
            bytes=int(info["size"] or 0),
            version=version_of(info),
            name=names[path],
            partitions=partitions[names[path]],
        )
        files.append(file)
    return files


def _check_regular(found: _Found, path: str, mode: int | None) -> None:
    """Raise CorpusError for a pipe, socket or device.

    It can be read only once, or never ends.
    """
    if not is_local(found.fs) or mode is None or stat.S_ISREG(mode):
        return
    kind = _FILE_KINDS.get(stat.S_IFMT(mode), "a special file")
    fix = "write its output to a file first"
    if stat.S_ISLNK(mode):
        fix = "repair or remove it"
    raise CorpusError(
        where=found.where,
        problem=f"{path} is not a regular file but {kind}",
        fix=fix,
    )


def _partitions(
    names: Iterable[str],
) -> dict[str, tuple[tuple[str, str | int | None], ...]]:
    """Return the columns in the folders of each file, as Hive names them.

    The file lang=en/a.parquet has the column lang. A column of whole numbers in all
    files is of numbers.
    """
    columns_by_name: dict[str, dict[str, str | None]] = {}
    values_by_column: dict[str, set[str | None]] = {}
    for name in names:
        columns: dict[str, str | None] = {}
        for folder in name.split("/")[:-1]:
            column, mark, text = folder.partition("=")
            if mark and column:
                columns[column] = None if text == _HIVE_NULL else unquote(text)
        columns_by_name[name] = columns
        for column, value in columns.items():
            values_by_column.setdefault(column, set()).add(value)
    are_numbers = {
        column: _are_whole_numbers(values)
        for column, values in values_by_column.items()
    }
    partitions = {}
    for name, columns in columns_by_name.items():
        typed: list[tuple[str, str | int | None]] = []
        for column, value in columns.items():
            if value is not None and are_numbers[column]:
                typed.append((column, int(value)))
            else:
                typed.append((column, value))
        partitions[name] = tuple(typed)
    return partitions


def _are_whole_numbers(values: Iterable[str | None]) -> bool:
    return all(value is None or _WHOLE_NUMBER.fullmatch(value) for value in values)


def kind_of_name(name: str) -> Literal["documents", "about documents", "unknown"]:
    """Classify a file by its name.

    README, license and files that `datasets` writes are about documents.
    """
    if format_by_name(name) is None:
        return "about documents" if name in _SIDE_FILES else "unknown"
    is_about = name[0] == "." or name.lower() in _ABOUT_FILES | _SIDE_FILES
    return "about documents" if is_about else "documents"


def reaches(source: Source, folder: Path) -> bool:
    """Return whether a source's folder or glob includes the files of a local folder.

    The folder may not exist yet.
    """
    fs, root = reach(source.path, where="ingest.sources", error=CorpusError)
    if not is_local(fs):
        return False
    folder = folder.resolve()
    if fs.isdir(root):
        base = Path(root).resolve()
        if not folder.is_relative_to(base):
            return False
        # Hidden folders are not listed.
        return not any(part[0] == "." for part in folder.relative_to(base).parts)
    if not glob.has_magic(root):
        return False
    # The names of files that a run would have, also in the folder of a step.
    candidates = [str(folder), *map(str, folder.parents)]
    for suffix in _RUN_SUFFIXES:
        candidates += [f"{folder}/file{suffix}", f"{folder}/01-step/file{suffix}"]
    pattern = re.compile(glob_translate(root))
    return any(map(pattern.match, candidates))


def _match(fs: AbstractFileSystem, root: str) -> tuple[str, _Listing, str]:
    """Return the folder that names are relative to, all files, and the kind of path.

    The files are path → info; the kind is file, folder or glob.
    """
    # Try the literal path first, because a file may be called data[1].jsonl. fsspec's
    # `exists` would return False for any error.
    info = None
    try:
        is_folder = fs.isdir(root)
        if not is_folder:
            info = fs.info(root)
            is_folder = info["type"] == "directory"
    except FileNotFoundError:
        is_folder = False
    if is_folder:
        return root, _below(fs, root), "folder"
    if info is not None:
        return posixpath.dirname(root), {root: info}, "file"
    if not glob.has_magic(root):
        return root, {}, "file"
    literal_parts = itertools.takewhile(
        lambda part: not glob.has_magic(part), root.split("/")
    )
    base = "/".join(literal_parts) or "/"
    matched: _Listing = {}
    for path, listed in fs.glob(root, detail=True).items():
        info = _followed(fs, path, listed)
        if posixpath.basename(path).startswith("."):
            continue
        if info["type"] == "directory":
            matched.update(_below(fs, path))
        else:
            matched[path] = info
    return base, matched, "glob"


def _below(
    fs: AbstractFileSystem, folder: str, above: tuple[Path, ...] = ()
) -> _Listing:
    """Return path → info of all visible files below a folder.

    `above` are the folders of links on the way.
    """
    files: _Listing = {}
    for path, listed in fs.find(folder, detail=True).items():
        parts = posixpath.relpath(path, folder).split("/")
        if any(part.startswith(".") for part in parts):
            continue
        info = _followed(fs, path, listed)
        if info["type"] != "directory":
            files[path] = info
            continue
        # A link to a folder that leads back to one on the way is not followed.
        target = Path(path).resolve()
        through = (*above, Path(path).parent.resolve())
        if not any(passed.is_relative_to(target) for passed in through):
            files |= _below(fs, path, through)
    # A folder of `Dataset.save_to_disk` may also contain caches of later maps.
    for path in list(files):
        if posixpath.basename(path) == "state.json":
            files = _only_saved_data(fs, path, files)
    return files


def _only_saved_data(
    fs: AbstractFileSystem, state_path: str, files: _Listing
) -> _Listing:
    """Return the files without those in a saved data set's folder that are no data."""
    folder = posixpath.dirname(state_path)
    try:
        state = orjson.loads(fs.cat_file(state_path))
        data = {f"{folder}/{entry['filename']}" for entry in state["_data_files"]}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return files
    has_indices = f"{folder}/indices.arrow" in files
    if has_indices or state.get("_indices_files") or state.get("_indices_data_files"):
        raise CorpusError(
            where=folder,
            problem="it is a datasets folder with selected rows (indices.arrow), which "
            "its files do not reflect",
            fix="save it again: dataset.flatten_indices().save_to_disk(...)",
        )
    missing = sorted(data - files.keys())
    if missing:
        raise CorpusError(
            where=state_path,
            problem=f"it names {missing[0]}, which does not exist",
            fix="copy the whole folder again",
        )
    return {
        path: info
        for path, info in files.items()
        if path in data or posixpath.dirname(path) != folder
    }


def _followed(fs: AbstractFileSystem, path: str, listed: Any) -> Any:
    """Return the listed info of a path, or for a link that of its target, if any."""
    try:
        return fs.info(path) if listed.get("islink") else listed
    except FileNotFoundError:
        return listed


# the input files of a run directory


def input_files(
    ingest: Ingest, *, tell: Callable[[str], object] = lambda _: None
) -> list[list[InputFile]]:
    """Return the files of each source; `tell` gets notes on splits.

    Raises CorpusError if a source has none.
    """
    return [
        list_files(source, where=f"ingest.sources[{index}].path", tell=tell)
        for index, source in enumerate(ingest.sources)
    ]


def check_apart(sources: Sequence[Source], *, run_dir: str) -> None:
    """Raise RunError if a source includes the run directory.

    The next run would read the files of this one.
    """
    for index, source in enumerate(sources):
        if reaches(source, Path(run_dir).expanduser()):
            raise RunError(
                where="run_dir",
                value=run_dir,
                problem=f"is inside ingest.sources[{index}].path={source.path!r}, so a "
                "run would read its own files",
                fix="choose a folder elsewhere",
            )


def recognise_inputs(
    sources: Sequence[Source],
    files: SourceFiles,
    run_dir: Path,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    tell: Callable[[str], None] = lambda _: None,
) -> list[list[InputFile]]:
    """Return the files with their known identities.

    Raises RunError if a file that was read before has changed or is missing.
    """
    # Such a run would read what it has written itself; `check_apart` sees most of these
    # before the files are listed.
    for file in itertools.chain.from_iterable(files):
        if Path(file.path).is_relative_to(run_dir.resolve()):
            raise RunError(
                where="run_dir",
                value=run_dir,
                problem=f"contains files of ingest.sources ({file.path})",
                fix="choose a folder elsewhere",
            )
    known = _known_entries(run_dir)
    hashes = _hashes_of_touched(sources, files, known, tell=tell)
    recognised = []
    for source, source_files in zip(sources, files, strict=True):
        source_path = _absolute_path(source)
        recognised_files = []
        for file in source_files:
            entry = known.get((source_path, file.name))
            if entry is not None and _is_same(file, entry, hashes.get(file)):
                file = replace(file, known_as=entry["identity"])
            recognised_files.append(file)
        recognised.append(recognised_files)
    if changed_inputs == "accept":
        return recognised
    changes = _changes(sources, recognised, known)
    if changes:
        others = ""
        if len(changes) > 1:
            others = f", and {counted(len(changes) - 1, 'other file')}"
        raise RunError(
            where=run_dir,
            problem="input files have changed since a run there read them: "
            f"{changes[0]}{others}",
            fix="restore the files, choose another run_dir, or add "
            "--accept-changed-inputs to read them again here",
        )
    return recognised


def _known_entries(run_dir: Path) -> dict[tuple[str, str], dict[str, Any]]:
    """Return what a run directory knows of each file, by source path and file name.

    By both, because several sources may read the same path in different formats.
    """
    known = {}
    for path, entries in _read_known(run_dir).items():
        for name, entry in entries.items():
            known[path, name] = entry
    return known


def _hashes_of_touched(
    sources: Sequence[Source],
    files: SourceFiles,
    known: Mapping[tuple[str, str], Mapping[str, Any]],
    *,
    tell: Callable[[str], None],
) -> dict[InputFile, str | None]:
    """Return the hashes of files with another time, but the same size as before."""
    touched = []
    for source, source_files in zip(sources, files, strict=True):
        source_path = _absolute_path(source)
        for file in source_files:
            entry = known.get((source_path, file.name))
            if entry is None or entry["xxh3"] is None:
                continue
            is_new_version = file.version != entry["version"]
            if is_new_version and _size(file.version) == _size(entry["version"]):
                touched.append(file)
    if touched:
        megabytes = sum(file.bytes for file in touched) / 1_000_000
        tell(
            f"inputs: hashing {counted(len(touched), 'file')} with a new modification "
            f"time ({megabytes:,.1f} MB)"
        )
    with ThreadPoolExecutor(_HASHING_THREADS) as pool:
        return dict(zip(touched, pool.map(hash_of, touched), strict=True))


def _is_same(file: InputFile, entry: Mapping[str, Any], file_hash: str | None) -> bool:
    """Return whether a file is as it was read: by its version, or by its hash."""
    if file.version == entry["version"]:
        return True
    return file_hash is not None and file_hash == entry["xxh3"]


def _changes(
    sources: Sequence[Source],
    recognised: SourceFiles,
    known: Mapping[tuple[str, str], Mapping[str, Any]],
) -> list[str]:
    """Return what has happened to known files: changed ones, then missing ones."""
    files_now: dict[tuple[str, str], InputFile] = {}
    for source, source_files in zip(sources, recognised, strict=True):
        for listed in source_files:
            files_now[_absolute_path(source), listed.name] = listed
    source_paths = set(map(_absolute_path, sources))
    changes: list[str] = []
    missing: list[str] = []
    for (path, name), entry in known.items():
        file = files_now.get((path, name))
        if file is not None and file.known_as is None:
            changes.append(f"{file.path} {_change(file, entry)}")
        elif file is None and path in source_paths:
            shown = path if posixpath.basename(path) == name else f"{name} of {path}"
            missing.append(f"{shown} is missing or no longer part of the source")
    return [*changes, *missing]


def _change(file: InputFile, entry: Mapping[str, Any]) -> str:
    """Return how a file differs from what was read, as the end of a sentence."""
    size, _, mark = file.version.partition(":")
    known_size, _, known_mark = entry["version"].partition(":")
    if size != known_size:
        return f"has {size} bytes and had {known_size}"
    if entry["xxh3"] is not None:
        return f"has other content of the same size ({size} bytes)"
    return f"has another version (time or ETag {mark}, was {known_mark})"


def check_documents(
    sources: Sequence[Source], files: SourceFiles, run_dir: Path
) -> None:
    """Raise RunError if earlier runs in a directory read none of these files.

    `RUN` would open other documents than before.
    """
    known = _read_known(run_dir)
    if not known or not known.keys().isdisjoint(map(_absolute_path, sources)):
        return
    hashes: dict[tuple[str, str], set[str | None]] = {}
    for entries in known.values():
        for name, entry in entries.items():
            name_and_size = (posixpath.basename(name), _size(entry["version"]))
            hashes.setdefault(name_and_size, set()).add(entry["xxh3"])
    every_file = itertools.chain.from_iterable(files)
    if not any(_was_read(file, hashes) for file in every_file):
        raise RunError(
            where=f"ingest.sources[0].path={sources[0].path!r}",
            problem=f"run_dir={run_dir} has runs of other documents ({min(known)!r})",
            fix="choose another run_dir, or name the new variant (--set name=NAME)",
        )


def _was_read(
    file: InputFile, hashes: Mapping[tuple[str, str], set[str | None]]
) -> bool:
    """Return whether a file was read before, though it was moved or linked.

    Such a file has the name, size and content of one that was; `hashes` are by name and
    size, None for remote files, of which name and size must do.
    """
    known = hashes.get((posixpath.basename(file.path), _size(file.version)))
    if not known:
        return False
    return None in known or hash_of(file) in {*known, None}


def remember(
    ingested: Artifact, *, sources: Sequence[Source], files: SourceFiles, run_dir: Path
) -> None:
    """Record the files of a finished ingest in the run directory.

    The entries of other sources are kept.
    """
    # In the order of the files.
    input_hashes: list[str | None] = []
    for part in ingested.results(IngestResult):
        input_hashes += part.input_hashes
    next_hash = iter(input_hashes)
    known = _read_known(run_dir)
    for source in sources:
        known[_absolute_path(source)] = {}
    for source, source_files in zip(sources, files, strict=True):
        entries = known[_absolute_path(source)]
        for file in source_files:
            entries[file.name] = {
                "identity": file.identity,
                "version": file.version,
                "xxh3": next(next_hash, None),
            }
    # Local paths are stored as seen from the run directory: both may move together.
    stored = {}
    for path, entries in known.items():
        key = path if "://" in path else os.path.relpath(path, run_dir)
        stored[key] = entries
    store.write_json(run_dir / INPUTS, stored)


def hash_of(file: InputFile) -> str | None:
    """Return the hash of a local file, None for a remote one.

    Raises CorpusError if the file changes meanwhile.
    """
    fs, path = fsspec.core.url_to_fs(file.path)
    if not is_local(fs):
        return None
    with explained(file):
        digest = store.hash_file(Path(path))
    check_unchanged(file)
    return digest


def _read_known(run_dir: Path) -> dict[str, _Entries]:
    """Return the recorded files of each source, by its absolute path or URL."""
    path = run_dir / INPUTS
    if not path.exists():
        return {}
    known = {}
    for name, entries in store.read_json(path).items():
        is_url = "://" in name
        key = name if is_url else os.path.normpath(run_dir.absolute() / name)
        known[key] = entries
    return known


def _absolute_path(source: Source) -> str:
    """Return the absolute path of a source, or its URL."""
    path = source.path
    if "://" in path:
        return path
    return os.path.normpath(Path(path).expanduser().absolute())


def _size(version: str) -> str:
    return version.partition(":")[0]
