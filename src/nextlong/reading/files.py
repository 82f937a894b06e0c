"""Files: what identifies an input file, the part of it that a task reads, and how it is opened."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

import fsspec
import pyarrow as pa

from nextlong.errors import CorpusError
from nextlong.reading.file_systems import RetriedFile, is_local, open_binary, retried

_BLOCK_BYTES: Final = 64 << 10
COMPRESSIONS: Final = {".gz": "gzip", ".zst": "zstd"}

# Content marks first: a listing and a look at one file agree on them, but may give times in different precision.
_VERSION_KEYS: Final = (
    "ETag", "etag", "blob_id", "generation", "md5Hash", "mtime", "LastModified", "last_modified", "updated", "created",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source.

    `path` is a full URL or an absolute local path; `name` the path below the source's folder, the same on every machine;
    `version` a string that changes with the file, if only with its modification time; `known_as` the version under which
    a run directory has read the same bytes before, if that was another.
    """

    path: str
    bytes: int
    version: str
    name: str
    known_as: str | None = None

    @property
    def identity(self) -> str:
        """The version by which a run directory identifies the content of the file."""
        return self.version if self.known_as is None else self.known_as


@dataclass(frozen=True, slots=True)
class FilePart:
    """What a task reads of a file: all of it, the JSON lines that begin in bytes [start, stop), or the Parquet `row_groups`.

    `lines_before` is the number of lines or rows above the part. Bytes of a file of several zstd frames are those of whole
    frames; `inside_bytes` is then their decompressed size and `begins_line` says whether a line begins with the first of
    them. Bytes of any other compressed file (`skips`) are decompressed ones: a reader skips what is above, counting lines.
    """

    file: InputFile
    start: int = 0
    stop: int | None = None
    lines_before: int = 0
    row_groups: tuple[int, int] | None = None
    inside_bytes: int | None = None
    begins_line: bool = True
    skips: bool = False

    @property
    def begins_file(self) -> bool:
        """Whether the part includes the beginning of the file."""
        return not self.start and (self.row_groups is None or not self.row_groups[0])


def compression_of(name: str) -> str:
    """Return gzip, zstd or ""."""
    return COMPRESSIONS.get(posixpath.splitext(name.lower())[1], "")


def version_of(info: Mapping[str, Any]) -> str:
    """Return `size:mark` of a file from what its file system reports; the mark is an ETag, a hash or a time."""
    mark = next((info[key] for key in _VERSION_KEYS if info.get(key) is not None), "")
    # A listing may report seconds where a look at one file reports a date.
    return f"{info['size']}:{mark.timestamp() if isinstance(mark, datetime) else mark}"


def check_unchanged(file: InputFile) -> None:
    """Raise CorpusError if a file is not what it was when it was listed."""
    fs, path = fsspec.core.url_to_fs(file.path)
    fs.invalidate_cache()
    try:
        version = version_of(retried(lambda: fs.info(path), fs=fs))
    except OSError as error:
        version = f"gone: {error}"
    if version != file.version:
        raise CorpusError(f"{file.path} changed while it was read (was {file.version}, is {version}); run again")


def open_file(file: InputFile, *, start: int = 0) -> pa.NativeFile:
    """Open a file as an Arrow stream, decompressed by its suffix; `start` is the position of a zstd frame.

    Files are never memory-mapped: truncating a mapped file kills the process.
    """
    fs, path = fsspec.core.url_to_fs(file.path)
    raw = pa.OSFile(path) if is_local(fs) else pa.PythonFile(RetriedFile(fs, path), mode="r")
    compression = compression_of(file.name)
    if not compression:
        return raw
    if start:
        raw.seek(start)
    return pa.CompressedInputStream(raw, compression)


def read_head(file: InputFile, head_bytes: int) -> tuple[bytes, int]:
    """Return the decompressed content of the first `head_bytes` on disk, and how many bytes on disk these were."""
    with open_binary(file.path) as stream:
        raw = stream.read(head_bytes)
    if not compression_of(file.name):
        return raw, len(raw)
    blocks = []
    decompressed = pa.CompressedInputStream(pa.BufferReader(raw), compression_of(file.name))
    with suppress(OSError):  # a compressed file that is cut off always ends in an error
        while block := decompressed.read(_BLOCK_BYTES):
            blocks.append(block)
    return b"".join(blocks), len(raw)
