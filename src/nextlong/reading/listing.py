"""Listing: a path, folder or glob of the recipe, on any fsspec file system → its files, sorted by path.

Links are followed, hidden files and folders are skipped, and of a Hugging Face dataset folder only the data is taken.
"""

from __future__ import annotations

import glob
import posixpath
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import orjson
from fsspec import AbstractFileSystem
from fsspec.utils import glob_translate

from nextlong.errors import CorpusError
from nextlong.reading.file_systems import is_local, reach, retried
from nextlong.reading.files import InputFile, version_of
from nextlong.reading.formats import format_by_name, format_of, input_formats, known_format, known_suffixes
from nextlong.recipe import Source

# Written by `datasets` and the hub beside data.
_SIDE_FILES: Final = frozenset({"state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"})
_ABOUT_FILES: Final = frozenset({"readme.md", "readme.txt", "license.md", "license.txt"})
_RUN_SUFFIXES: Final = (".json", ".jsonl", ".arrow", ".parquet", ".md")  # of files in a run directory
_FILE_KINDS: Final = {
    stat.S_IFLNK: "a broken link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}

_Listing = dict[str, Any]  # path → what its file system reports of it


def list_files(source: Source, *, where: str) -> list[InputFile]:
    """Return the files of a source, sorted by path, each with a version that changes with its content.

    Raises CorpusError, naming `where` (the recipe key, e.g. `ingest.sources[0].path`), if there is none or the file system
    cannot be reached.
    """
    place = f"{where}={source.path!r}"
    fs, root = reach(source.path, where=place, error=CorpusError)
    try:
        base, matched, kind = retried(lambda: _match(fs, root), fs=fs)
    except (CorpusError, MemoryError):
        raise
    except Exception as error:  # each file system has errors of its own, many of them no OSError
        raise CorpusError(f"{place} cannot be listed: {error}; check the path and your credentials") from None
    if not matched:
        nothing = {
            "glob": "matches no file; check the pattern (** crosses folders)",
            "folder": f"is an empty folder; put files there ({known_suffixes()})",
            "file": f"does not exist (looked for {root}); correct the path",
        }
        raise CorpusError(f"{place} {nothing[kind]}")
    files = []
    for path, info in _of_known_format(matched, source, kind).items():
        mode = info.get("mode")
        # A pipe, socket or device gives its bytes only once, or never ends.
        if is_local(fs) and mode is not None and not stat.S_ISREG(mode):
            fix = "repair or remove it" if stat.S_ISLNK(mode) else "write its output to a file first"
            what = _FILE_KINDS.get(stat.S_IFMT(mode), "something else")
            raise CorpusError(f"{place}: {path} is not a regular file but {what}; {fix}")
        full_path = path if is_local(fs) else str(fs.unstrip_protocol(path))
        name = posixpath.relpath(path, base)
        files.append(InputFile(full_path, int(info["size"] or 0), version_of(info), name))
    if not files:
        wanted = "known format" if source.format == "auto" else f"format {source.format!r}"
        raise CorpusError(
            f"{place} has no file of a {wanted}, only such as {posixpath.basename(min(matched))!r}; known are {known_suffixes()}; "
            f"for other names give a file or a glob and set its format, one of {', '.join(input_formats())} (source code: text)"
        )
    return sorted(files, key=lambda file: file.path)


def is_document_name(name: str) -> bool:
    """Return whether a file of this name may hold documents: its suffix is known, and it does not describe other files."""
    return format_by_name(name) is not None and name[0] != "." and name.lower() not in _ABOUT_FILES | _SIDE_FILES


def is_side_file(name: str) -> bool:
    """Return whether a file of this name belongs to a Hugging Face dataset without holding documents."""
    return name in _SIDE_FILES


def reaches(source: Source, folder: Path) -> bool:
    """Return whether a source's folder or glob includes what will be in a local folder, whether that exists yet or not."""
    fs, root = reach(source.path, where="ingest.sources", error=CorpusError)
    if not is_local(fs):
        return False
    folder = folder.resolve()
    if fs.isdir(root):
        base = Path(root).resolve()
        return folder.is_relative_to(base) and not any(part[0] == "." for part in folder.relative_to(base).parts)
    if not glob.has_magic(root):
        return False
    matches = re.compile(glob_translate(root)).match
    below = ["", *(f"{place}{suffix}" for place in ("/file", "/01-step/file") for suffix in _RUN_SUFFIXES)]
    return any(matches(f"{folder}{path}") for path in below) or any(matches(str(parent)) for parent in folder.parents)


def _of_known_format(matched: Mapping[str, Any], source: Source, kind: str) -> _Listing:
    """Return the files whose format is known; a format in the recipe covers every file that is named or matched."""
    if kind == "file":
        return {path: info for path, info in matched.items() if known_format(posixpath.basename(path), source)}
    data = {path: info for path, info in matched.items() if posixpath.basename(path).lower() not in _SIDE_FILES}
    if kind == "folder" and source.format != "auto":
        return {path: info for path, info in data.items() if format_by_name(path) is input_formats()[source.format]}
    kept = {path: info for path, info in data.items() if known_format(path, source)}
    if any(format_of(path, source).has_columns for path in kept):
        return {path: info for path, info in kept.items() if posixpath.basename(path).lower() not in _ABOUT_FILES}
    return kept


def _match(fs: AbstractFileSystem, root: str) -> tuple[str, _Listing, str]:
    """Return the folder that names are relative to, path → info of all files, and what the path is: file, folder or glob."""
    # A look at the literal path first, because a real file may be called data[1].jsonl.
    try:
        kind = "directory" if fs.isdir(root) else (info := fs.info(root))["type"]
    except FileNotFoundError:  # fsspec's `exists` would take any error for that
        kind = ""
    if kind == "directory":
        return root, _below(fs, root), "folder"
    if kind:
        return posixpath.dirname(root), {root: info}, "file"
    if not glob.has_magic(root):
        return root, {}, "file"
    parts = root.split("/")
    base = "/".join(parts[: next(i for i, part in enumerate(parts) if glob.has_magic(part))])
    matched: _Listing = {}
    for path, listed in fs.glob(root, detail=True).items():
        info = _followed(fs, path, listed)
        if not posixpath.basename(path).startswith("."):
            matched.update(_below(fs, path) if info["type"] == "directory" else {path: info})
    return base or "/", matched, "glob"


def _below(fs: AbstractFileSystem, folder: str, above: tuple[Path, ...] = ()) -> _Listing:
    """Return path → info of every file below a folder that is not hidden; `above` are the folders of links on the way."""
    files: _Listing = {}
    for path, listed in fs.find(folder, detail=True).items():
        if any(part.startswith(".") for part in posixpath.relpath(path, folder).split("/")):
            continue
        info = _followed(fs, path, listed)
        if info["type"] != "directory":
            files[path] = info
            continue
        target, through = Path(path).resolve(), (*above, Path(path).parent.resolve())
        if not any(passed.is_relative_to(target) for passed in through):  # else the link leads back
            files |= _below(fs, path, through)
    for state_path in [path for path in files if posixpath.basename(path) == "state.json"]:
        _resolve_saved_dataset(fs, state_path, files)
    return files


def _followed(fs: AbstractFileSystem, path: str, listed: Any) -> Any:
    """Return what a listing says of a path; of a link what it leads to."""
    if not listed.get("islink"):
        return listed
    try:
        return fs.info(path)
    except FileNotFoundError:
        return listed  # a broken link


def _resolve_saved_dataset(fs: AbstractFileSystem, state_path: str, files: _Listing) -> None:
    """Remove from `files` what is not data in a `Dataset.save_to_disk` folder: caches of later maps are there too."""
    folder = posixpath.dirname(state_path)
    try:
        state = orjson.loads(fs.cat_file(state_path))
        data = {f"{folder}/{entry['filename']}" for entry in state["_data_files"]}
    except (orjson.JSONDecodeError, KeyError, TypeError):
        return
    if f"{folder}/indices.arrow" in files or any(state.get(key) for key in ("_indices_files", "_indices_data_files")):
        raise CorpusError(
            f"{folder} is a datasets folder with an index over its rows (indices.arrow), so its files are not the rows "
            "that were selected; save it again: dataset.flatten_indices().save_to_disk(...)"
        )
    absent = sorted(data - files.keys())
    if absent:
        raise CorpusError(f"{state_path} names {absent[0]}, which does not exist; copy the whole folder again")
    for path in [p for p in files if posixpath.dirname(p) == folder and p not in data]:
        del files[path]
