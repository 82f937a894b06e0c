"""Files: what the files of a source are known by, and how they are opened.

Which files those are is `listing.py`, how tasks share them `split.py`, what they hold `records.py`.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, NamedTuple

import fsspec
import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.inputs import file_systems
from nextlong.inputs.retries import RetriedFile, again, open_binary

_PIECE_BYTES: Final = 64 << 10
COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}

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


class Inside(NamedTuple):
    """What is in the zstd frames of a part: so many bytes; `begins_line`: the first of them begins a line."""

    bytes: int
    begins_line: bool


@dataclass(frozen=True, slots=True)
class Part:
    """A file, or of JSON lines those that begin in bytes [start, stop) of it, or of Parquet the row groups [first, last).

    `lines_before` are the lines or rows further up. Of a file in several zstd frames the bytes are those of whole frames, and
    `inside` says what is in them, once it is known. Of any other compressed file they are bytes of what it holds: a reader
    `skips` what stands above, and counts its lines on the way.
    """

    file: InputFile
    start: int = 0
    stop: int | None = None
    lines_before: int = 0
    row_groups: tuple[int, int] | None = None
    inside: Inside | None = None
    skips: bool = False

    @property
    def begins_file(self) -> bool:
        """Whether nothing of the file stands above it."""
        return not self.start and (self.row_groups is None or not self.row_groups[0])


def compression_of(name: str) -> str:
    """Return gzip, zstd or ""."""
    return COMPRESSIONS.get(posixpath.splitext(name.lower())[1], "")


def version_of(info: Mapping[str, Any]) -> str:
    """Return what changes when a file does, from what its file system tells of it."""
    version = next((info[key] for key in _VERSION_KEYS if info.get(key) is not None), "")
    # A listing may give as seconds what a look at one file gives as a date.
    return f"{info['size']}:{version.timestamp() if isinstance(version, datetime) else version}"


def full_path(fs: Any, path: str) -> str:
    """Return a full URL, or the path itself where the file system is local."""
    return path if file_systems.is_local(fs) else str(fs.unstrip_protocol(path))


def check_unchanged(file: InputFile) -> None:
    """Raise CorpusError if a file is not what it was when it was listed."""
    fs, path = fsspec.core.url_to_fs(file.path)
    fs.invalidate_cache()
    try:
        version = version_of(again(lambda: fs.info(path), fs=fs))
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


def read_head(file: InputFile, head_bytes: int) -> tuple[bytes, int]:
    """Return the first bytes of lines or plain text, decompressed, and how many bytes on disk held them."""
    with open_binary(file.path) as stream:
        raw = stream.read(head_bytes)
    if not compression_of(file.name):
        return raw, len(raw)
    pieces = []
    decompressed = pa.CompressedInputStream(pa.BufferReader(raw), compression_of(file.name))
    with suppress(OSError):  # the head of a compressed file ends early by nature
        while piece := decompressed.read(_PIECE_BYTES):
            pieces.append(piece)
    return b"".join(pieces), len(raw)
