"""Walk: a path, a folder or a glob of the user's → what it reaches on its file system, links followed.

In:  an fsspec file system and a path within it. Out: path → info of every file, as a look at that one file gives it.
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
from fsspec.utils import glob_translate

from nextlong.errors import CorpusError
from nextlong.inputs import file_systems
from nextlong.recipe import Source

Listing = dict[str, Any]  # path → what its file system says of it

_WRITTEN: Final = (".json", ".jsonl", ".arrow", ".parquet", ".md")  # of what a run directory holds


def match(fs: Any, root: str) -> tuple[str, Listing, str]:
    """Return the folder that names are relative to, path → info of what the user's path reaches, and what it was."""
    # A look at the literal path first, because a real file may be called data[1].jsonl.
    if fs.isdir(root) or (info := _info(fs, root))["type"] == "directory":
        return root, _below(fs, root), "folder"
    if info["type"]:
        return posixpath.dirname(root), {root: info}, "file"
    if not glob.has_magic(root):
        return root, {}, "file"
    parts = root.split("/")
    base = "/".join(parts[: next(i for i, part in enumerate(parts) if glob.has_magic(part))])
    matched: Listing = {}
    for path, listed in fs.glob(root, detail=True).items():
        info = _followed(fs, path, listed)
        if not posixpath.basename(path).startswith("."):
            matched.update(_below(fs, path) if info["type"] == "directory" else {path: info})
    return base or "/", matched, "glob"


def _info(fs: Any, path: str) -> Mapping[str, Any]:
    """Return what a file system says of a path, type "" if there is nothing; fsspec's `exists` takes any error for that."""
    try:
        info: Mapping[str, Any] = fs.info(path)
    except FileNotFoundError:
        return {"type": ""}
    return info


def _below(fs: Any, folder: str, above: tuple[Path, ...] = ()) -> Listing:
    """Return path → info of every file below a folder that is not hidden, HF dataset folders resolved."""
    files: Listing = {}
    for path, listed in fs.find(folder, detail=True).items():
        if any(part.startswith(".") for part in posixpath.relpath(path, folder).split("/")):
            continue
        info = _followed(fs, path, listed)
        files |= _below_link(fs, path, above) if info["type"] == "directory" else {path: info}
    for state_path in [path for path in files if posixpath.basename(path) == "state.json"]:
        _resolve_saved_dataset(fs, state_path, files)
    return files


def _followed(fs: Any, path: str, listed: Any) -> Any:
    """Return what a listing says of a path; of a link what it leads to, as a look at the one file gives it."""
    if not listed.get("islink"):
        return listed
    try:
        return fs.info(path)
    except FileNotFoundError:
        return listed  # a link to nothing


def reaches(source: Source, folder: Path) -> bool:
    """Say whether a source's folder or glob takes in what will lie in a local folder, there or not."""
    fs, root = file_systems.reach(source.path, where="ingest.sources", error=CorpusError)
    if not file_systems.is_local(fs):
        return False
    folder = folder.resolve()
    if fs.isdir(root):
        base = Path(root).resolve()
        return folder.is_relative_to(base) and not any(part[0] == "." for part in folder.relative_to(base).parts)
    if not glob.has_magic(root):
        return False
    matches = re.compile(glob_translate(root)).match
    below = ["", *(f"{place}{suffix}" for place in ("/file", "/01-step/file") for suffix in _WRITTEN)]
    return any(matches(f"{folder}{path}") for path in below) or any(matches(str(parent)) for parent in folder.parents)


def _below_link(fs: Any, path: str, above: tuple[Path, ...]) -> Listing:
    """Return what lies in the folder that a link leads to; nothing if it leads back to one that was come through."""
    target = Path(path).resolve()
    through = (*above, Path(path).parent.resolve())
    return {} if any(folder.is_relative_to(target) for folder in through) else _below(fs, path, through)


def check_regular(fs: Any, path: str, info: Mapping[str, Any], *, where: str) -> None:
    """Raise CorpusError for a pipe, socket or device, which gives its bytes once or for ever."""
    mode = info.get("mode")
    if file_systems.is_local(fs) and mode is not None and not stat.S_ISREG(mode):
        cure = "mend or remove it" if stat.S_ISLNK(mode) else "write what it gives into a file first"
        raise CorpusError(f"{where}: {path} is not a regular file but {_kind(mode)}; {cure}")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFLNK: "a link to nothing",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


def _resolve_saved_dataset(fs: Any, state_path: str, files: Listing) -> None:
    """Leave in `files`, of a `Dataset.save_to_disk` folder, only its data: caches of later maps lie there too."""
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
        raise CorpusError(f"{state_path} names {absent[0]}, which is not there; copy the whole folder again")
    for path in [p for p in files if posixpath.dirname(p) == folder and p not in data]:
        del files[path]
