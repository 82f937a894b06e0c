"""Sources: the recipe's paths → the files behind them.

In:  one `Source` of the recipe: a file, a folder or a glob on any fsspec file system.
Out: its files, sorted by path, each with a version by which a run notices that it changed; grouped into tasks.
What a file holds is `records.py`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any, Final, NamedTuple, NoReturn

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq

from nextlong.errors import CorpusError
from nextlong.inputs import file_systems
from nextlong.inputs.retries import RetriedFile, again
from nextlong.inputs.walk import Listing, check_regular, match
from nextlong.inputs.zstd_frames import frame_bounds
from nextlong.recipe import Source

_FORMATS: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".csv": "csv",
    ".tsv": "tsv",
    ".warc": "warc",
    ".wet": "warc",
    ".html": "html",
    ".htm": "html",
    ".txt": "text",
    ".md": "text",
}
_COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}
_PARTED: Final = 2  # a file is parted if it holds more parts
_COMPRESSED: Final = ("jsonl", "csv", "tsv", "text", "warc", "html")
_KNOWN: Final = (
    f"{', '.join(_FORMATS)} (.gz or .zst after any of jsonl, ndjson, json, csv, tsv, warc, wet, html, htm, txt, md)"
)

# What `datasets` and the hub put beside data: about the documents, none of them.
_SIDE_FILES: Final = frozenset({"state.json", "dataset_info.json", "dataset_dict.json", "dataset_infos.json"})
_ABOUT_FILES: Final = frozenset({"readme.md", "readme.txt", "license.md", "license.txt"})

# Content marks first: they agree between a listing and a look at one file, where times may differ in precision.
_VERSION_KEYS: Final = (
    "ETag", "etag", "blob_id", "generation", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source.

    `path` is a full URL or an absolute local path; `name` the path below the source's folder, the same on every
    machine; `version` a string that changes when the file does, if only its time; `known_as` the version under which a
    run directory has read the same bytes, if another.
    """

    path: str
    bytes: int
    version: str
    name: str
    known_as: str | None = None

    @property
    def identity(self) -> str:
        """What stands for the file's content in a run directory."""
        return self.version if self.known_as is None else self.known_as


def list_files(source: Source, *, where: str) -> list[InputFile]:
    """Return the files of a source, sorted by path.

    Raises CorpusError, naming `where` (the recipe key, e.g. `ingest.sources[0].path`), if there is none or the file
    system cannot be reached.
    """
    fs, root = file_systems.reach(source.path, where=f"{where}={source.path!r}", error=CorpusError)
    try:
        base, matched, asked_for = again(lambda: match(fs, root), fs=fs)
    except (CorpusError, MemoryError):
        raise
    except Exception as error:  # each file system has errors of its own, many of them no OSError
        raise CorpusError(
            f"{where}={source.path!r} cannot be listed: {error}; check the path and your credentials"
        ) from None
    if not matched:
        _refuse_nothing(source, where, root, asked_for)
    kept = _known_files(matched, source, asked_for)
    if not kept:
        _refuse_unknown(source, where, matched)
    for path, info in kept.items():
        check_regular(fs, path, info, where=f"{where}={source.path!r}")
    files = [
        InputFile(_full_path(fs, path), int(info["size"] or 0), _version(info), posixpath.relpath(path, base))
        for path, info in kept.items()
    ]
    return sorted(files, key=lambda file: file.path)


class Inside(NamedTuple):
    """What is in the zstd frames of a part: so many bytes; `begins_line`: the first of them begins a line."""

    bytes: int
    begins_line: bool


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or of JSON lines those that begin in bytes [start, stop) of it, or of Parquet the row groups [first, last).

    `lines_before` are the lines or rows further up. Of a zstd file the bytes are those of whole frames, and `inside` says what is
    in them, once it is known.
    """

    file: InputFile
    start: int = 0
    stop: int | None = None
    lines_before: int = 0
    row_groups: tuple[int, int] | None = None
    inside: Inside | None = None

    @property
    def begins_file(self) -> bool:
        """Whether nothing of the file stands above it."""
        return not self.start and (self.row_groups is None or not self.row_groups[0])


def split_inputs(
    files: Iterable[InputFile], source: Source, *, shard_bytes: int, part_bytes: int
) -> list[tuple[Part, ...]]:
    """Group consecutive files into tasks of at most about `shard_bytes`.

    A bigger file is a task of its own, or several of about `part_bytes` where a reader can begin in its midst (`can_be_parted`).
    """
    tasks: list[list[Part]] = []
    held_bytes = full = shard_bytes + 1
    for file in files:
        if file.bytes > _PARTED * part_bytes and can_be_parted(file, source):
            tasks += [[part] for part in _parts_of(file, source, part_bytes)]
            held_bytes = full
            continue
        if held_bytes + file.bytes > shard_bytes:
            tasks.append([])
            held_bytes = 0
        tasks[-1].append(Part(file))
        held_bytes += file.bytes
    return [tuple(task) for task in tasks]


def can_be_parted(file: InputFile, source: Source) -> bool:
    """Say whether a reader can begin in the midst of a file on a local disk: of JSON lines, plain or in zstd frames, or Parquet."""
    is_parted = format_of(file.name, source) in ("jsonl", "parquet") and compression_of(file.name) != "gzip"
    return is_parted and file_systems.is_local(fsspec.core.url_to_fs(file.path)[0])


def _parts_of(file: InputFile, source: Source, part_bytes: int) -> list[Part]:
    """Return a file in parts of about `part_bytes`; whole where it is one row group or one frame, or these are not to be read."""
    if format_of(file.name, source) == "parquet":
        return _row_group_parts(file, part_bytes)
    if compression_of(file.name):
        return _frame_parts(file, part_bytes)
    count = -(-file.bytes // part_bytes)
    bounds = [file.bytes * number // count for number in range(count + 1)]
    return [Part(file, start, stop) for start, stop in pairwise(bounds)]


def has_frames(file: InputFile, source: Source) -> bool:
    """Say whether a file is of JSON lines in more than one zstd frame, on a local disk."""
    if (
        format_of(file.name, source) != "jsonl"
        or compression_of(file.name) != "zstd"
        or not can_be_parted(file, source)
    ):
        return False
    return len(_frame_bounds(file)) > 2


def _frame_parts(file: InputFile, part_bytes: int) -> list[Part]:
    """Return consecutive zstd frames of about `part_bytes` together."""
    _, *ends = _frame_bounds(file) or (0,)
    parts, start = [], 0
    for end in ends:
        if end - start >= part_bytes or end == ends[-1]:
            parts.append(Part(file, start, end))
            start = end
    return parts if len(parts) > 1 else [Part(file)]


def _frame_bounds(file: InputFile) -> tuple[int, ...]:
    try:
        return frame_bounds(file.path, version=file.version)
    except OSError:
        return ()  # reading it says what is wrong with it


def _row_group_parts(file: InputFile, part_bytes: int) -> list[Part]:
    """Return consecutive row groups of about `part_bytes` together; the whole file if its footer cannot be read."""
    try:
        with closing(open_file(file)) as stream:
            groups = pq.read_metadata(stream)
    except (OSError, pa.ArrowException):
        return [Part(file)]  # reading it says what is wrong with it
    parts, first, rows, held, rows_before = [], 0, 0, 0, 0
    for number in range(groups.num_row_groups):
        group = groups.row_group(number)
        held += sum(group.column(column).total_compressed_size for column in range(group.num_columns))
        rows += group.num_rows
        if held >= part_bytes or number == groups.num_row_groups - 1:
            parts.append(Part(file, lines_before=rows_before, row_groups=(first, number + 1)))
            first, rows_before, held = number + 1, rows, 0
    return parts if len(parts) > 1 else [Part(file)]


def _known_files(matched: Mapping[str, Any], source: Source, asked_for: str) -> Listing:
    """Return the files whose format is known; a format in the recipe covers every file that was named or matched."""
    if asked_for == "file":
        return {path: info for path, info in matched.items() if format_of(posixpath.basename(path), source)}
    data = {path: info for path, info in matched.items() if posixpath.basename(path).lower() not in _SIDE_FILES}
    if asked_for == "folder" and source.format != "auto":
        return {path: info for path, info in data.items() if _format_by_name(path) == source.format}
    kept = {path: info for path, info in data.items() if format_of(path, source)}
    if any(format_of(path, source) != "text" for path in kept):
        return {path: info for path, info in kept.items() if posixpath.basename(path).lower() not in _ABOUT_FILES}
    return kept


def _format_by_name(name: str) -> str:
    """Return the format that a file's suffix names, "" if none; Parquet and Arrow come compressed inside."""
    stem, suffix = posixpath.splitext(name.lower())
    if suffix in _COMPRESSIONS:
        inner = _FORMATS.get(posixpath.splitext(stem)[1], "")
        return inner if inner in _COMPRESSED else ""
    return _FORMATS.get(suffix, "")


def format_of(name: str, source: Source) -> str:
    """Return jsonl, parquet, arrow, csv, tsv, warc, html or text; "" where neither the recipe nor the file name says."""
    return _format_by_name(name) if source.format == "auto" else source.format


def compression_of(name: str) -> str:
    """Return gzip, zstd or ""."""
    return _COMPRESSIONS.get(posixpath.splitext(name.lower())[1], "")


def _refuse_nothing(source: Source, where: str, root: str, asked_for: str) -> NoReturn:
    if asked_for == "glob":
        raise CorpusError(f"{where}={source.path!r} matches no file; check the pattern (** crosses folders)")
    if asked_for == "folder":
        raise CorpusError(f"{where}={source.path!r} is an empty folder; put files there ({_KNOWN})")
    raise CorpusError(f"{where}={source.path!r} does not exist (looked for {root}); correct the path")


def _refuse_unknown(source: Source, where: str, matched: Mapping[str, Any]) -> NoReturn:
    wanted = "known format" if source.format == "auto" else f"format {source.format!r}"
    raise CorpusError(
        f"{where}={source.path!r} has no file of a {wanted}, only such as {posixpath.basename(min(matched))!r}; "
        f"known are {_KNOWN}; for other names give a file or a glob and set format, e.g. format: jsonl"
    )


def _full_path(fs: Any, path: str) -> str:
    return path if file_systems.is_local(fs) else str(fs.unstrip_protocol(path))


def _version(info: Mapping[str, Any]) -> str:
    version = next((info[key] for key in _VERSION_KEYS if info.get(key) is not None), "")
    # A listing may give as seconds what a look at one file gives as a date.
    return f"{info['size']}:{version.timestamp() if isinstance(version, datetime) else version}"


def check_unchanged(file: InputFile) -> None:
    """Raise CorpusError if a file is not what it was when it was listed."""
    fs, path = fsspec.core.url_to_fs(file.path)
    fs.invalidate_cache()
    try:
        version = _version(again(lambda: fs.info(path), fs=fs))
    except OSError as error:
        version = f"gone: {error}"
    if version != file.version:
        raise CorpusError(f"{file.path} changed while it was read (was {file.version}, is {version}); run again")


def open_file(file: InputFile, *, start: int = 0) -> Any:
    """Open a file as an Arrow stream, decompressed where its name says so, from the zstd frame at `start` on.

    None is mapped: one that is cut meanwhile would kill the process.
    """
    fs, path = fsspec.core.url_to_fs(file.path)
    raw = pa.OSFile(path) if file_systems.is_local(fs) else pa.PythonFile(RetriedFile(fs, path), mode="r")
    compression = compression_of(file.name)
    if not compression:
        return raw
    if start:
        raw.seek(start)
    return pa.CompressedInputStream(raw, compression)
