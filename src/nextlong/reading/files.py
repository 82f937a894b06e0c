"""Files: identify, open and read input files on any file system.

In:  paths and URLs.
Out: `InputFile` with a version that changes with the content, the `FilePart` that a
     task reads, and Arrow streams.

Calls to remote file systems are retried, because fsspec's implementations retry only
some of their errors.
"""

from __future__ import annotations

import io
import random
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

import fsspec
import pyarrow as pa
from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from nextlong.errors import CorpusError, NextlongError
from nextlong.reading.compression import compression_of, decompressed

_BLOCK_BYTES: Final = 64 << 10
_POINTER_START: Final = b"version https://git-lfs.github.com/spec/"
_MAX_POINTER_BYTES: Final = 200  # a pointer has about 130

# Content hashes first: the listing and the info of one file agree on them, but may
# report times in different precision.
_VERSION_KEYS: Final = (
    "ETag",
    "etag",
    "blob_id",
    "generation",
    "md5Hash",
    "mtime",
    "LastModified",
    "last_modified",
    "updated",
    "created",
)

_PACKAGES: Final = {
    "s3": "nextlong[s3]",
    "s3a": "nextlong[s3]",
    "gs": "nextlong[gcs]",
    "gcs": "nextlong[gcs]",
    "hf": "nextlong[hub]",
    "http": "aiohttp",
    "https": "aiohttp",
    "abfs": "adlfs",
    "az": "adlfs",
}
_ATTEMPTS: Final = 6
# Before the second attempt, doubled before each further one: 15 s in total.
_PAUSE_S: Final = 0.5
# Errors that another attempt would not mend.
_FINAL: Final = (
    FileNotFoundError,
    PermissionError,
    IsADirectoryError,
    NotADirectoryError,
)

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class InputFile:
    """One file of a source."""

    path: str  # a full URL or an absolute local path
    bytes: int
    version: str  # changes with the file, at least with its modification time
    name: str  # the path relative to the source's folder, the same on every machine
    # The version under which a run directory read the same bytes before, if different.
    known_as: str | None = None
    # Columns and values in the names of its folders, such as lang=en.
    partitions: tuple[tuple[str, str | int | None], ...] = ()

    @property
    def identity(self) -> str:
        """The version by which a run directory identifies the content of the file."""
        return self.version if self.known_as is None else self.known_as


SourceFiles = Sequence[Sequence[InputFile]]  # by source


@dataclass(frozen=True, slots=True)
class FilePart:
    """The part of a file that a task reads.

    All of it, the JSON lines that begin in bytes [start, stop), or Parquet
    `row_groups`. For a file of several zstd frames, bytes are those of whole frames.
    For any other compressed file (`skips`) they are decompressed bytes: a reader skips
    those before the part, counting lines.
    """

    file: InputFile
    start: int = 0
    stop: int | None = None
    lines_before: int = 0  # lines or rows before the part
    row_groups: tuple[int, int] | None = None
    inside_bytes: int | None = None  # decompressed size of whole zstd frames
    begins_line: bool = True  # whether a line begins with their first byte
    skips: bool = False
    share: float = 1.0  # fraction of the bytes on disk, for row groups and `skips`

    @property
    def begins_file(self) -> bool:
        """Whether the part includes the beginning of the file."""
        if self.row_groups is None:
            return self.start == 0
        return self.start == 0 and self.row_groups[0] == 0

    @property
    def disk_bytes(self) -> float:
        """About how many bytes on disk the part takes."""
        if self.row_groups is not None or self.skips:
            return self.share * self.file.bytes
        stop = self.file.bytes if self.stop is None else self.stop
        return stop - self.start


def version_of(info: Mapping[str, Any]) -> str:
    """Return `size:mark` from the info of a file system.

    The mark is an ETag, a hash or a time.
    """
    mark = next((info[key] for key in _VERSION_KEYS if info.get(key) is not None), "")
    # A listing may report seconds where the info of one file reports a date.
    if isinstance(mark, datetime):
        mark = mark.timestamp()
    return f"{info['size']}:{mark}"


def check_unchanged(file: InputFile) -> None:
    """Raise CorpusError if a file has changed since it was listed."""
    fs, path = fsspec.core.url_to_fs(file.path)
    # A listing that fsspec remembers would not show the change.
    fs.invalidate_cache()
    try:
        version = version_of(retried(fs.info, path, fs=fs))
    except OSError as error:
        version = f"gone: {error}"
    if version != file.version:
        raise CorpusError(
            where=file.path,
            problem=f"it changed while it was read (from {file.version} to {version})",
            fix="run again",
        )


def refuse_pointer(file: InputFile) -> None:
    """Raise CorpusError for the pointer that Git LFS leaves in place of a file."""
    if file.bytes > _MAX_POINTER_BYTES:
        return
    with open_binary(file.path) as stream:
        head = stream.read(len(_POINTER_START))
    if head == _POINTER_START:
        raise CorpusError(
            where=file.path,
            problem="it is a Git LFS pointer in place of the file",
            fix="download the file: git lfs pull",
        )


def open_file(file: InputFile, *, start: int = 0) -> pa.NativeFile:
    """Open a file as an Arrow stream, decompressed according to its suffix.

    `start` is the position of a zstd frame.
    """
    fs, path = fsspec.core.url_to_fs(file.path)
    if is_local(fs):
        # Not memory-mapped, because truncating a mapped file kills the process.
        raw = pa.OSFile(path)
    else:
        raw = pa.PythonFile(_RetriedFile(fs, path), mode="r")
    compression = compression_of(file.name)
    if not compression:
        return raw
    raw.seek(start)
    return decompressed(raw, compression)


def read_head(file: InputFile, head_bytes: int) -> tuple[bytes, int]:
    """Return the decompressed content of the first `head_bytes` on disk.

    Also returns the number of bytes read there.
    """
    with open_binary(file.path) as stream:
        raw = stream.read(head_bytes)
    compression = compression_of(file.name)
    if not compression:
        return raw, len(raw)
    content = bytearray()
    stream = decompressed(io.BytesIO(raw), compression)
    # A truncated compressed file always ends in an error.
    with suppress(OSError):
        while block := stream.read(_BLOCK_BYTES):
            content += block
    return bytes(content), len(raw)


# file systems


def reach(
    path: str, *, where: str, error: type[NextlongError]
) -> tuple[AbstractFileSystem, str]:
    """Return the file system of a local path or URL, and the path within it.

    No server is contacted. Raises `error`, whose message begins with `where` (e.g.
    `ingest.sources[0].path='s3://…'`), if a package is missing or fsspec does not know
    the protocol.
    """
    protocol, _ = fsspec.core.split_protocol(path)
    expanded = path if protocol else str(Path(path).expanduser())
    try:
        fs, root = fsspec.core.url_to_fs(expanded)
    except ImportError as missing:
        fix = str(missing)
        if protocol in _PACKAGES:
            fix = f"pip install '{_PACKAGES[protocol]}'"
        raise error(
            where=where,
            problem=f"a package for {protocol}:// is not installed",
            fix=fix,
        ) from None
    except ValueError as unknown:
        raise error(
            where=where,
            problem=str(unknown),
            fix="use a local path or a URL that fsspec knows",
        ) from None
    return fs, root


def check_kept(url: str, *, where: str, error: type[NextlongError]) -> None:
    """Raise `error` for a destination whose files end with this process."""
    # A URL may chain several file systems, such as simplecache::memory://.
    named = [fsspec.core.split_protocol(part)[0] for part in url.split("::")]
    if "memory" in named:
        raise error(
            where=where,
            problem="it is in the memory of this process, and is lost when it ends",
            fix="give a folder, or the URL of a storage service",
        )


def protocols(fs: AbstractFileSystem) -> frozenset[str]:
    """Return the URL protocols of a file system."""
    if isinstance(fs.protocol, tuple | list):
        return frozenset(fs.protocol)
    return frozenset({fs.protocol})


def is_local(fs: AbstractFileSystem) -> bool:
    """Return whether a file system is that of this machine."""
    return isinstance(fs, LocalFileSystem)


def retried(call: Callable[..., _T], *arguments: Any, fs: AbstractFileSystem) -> _T:
    """Call a function of a file system.

    On a remote one, OSErrors are retried, and the last of them is raised.
    """
    for attempt in range(0 if is_local(fs) else _ATTEMPTS - 1):
        try:
            return call(*arguments)
        except _FINAL:
            raise
        except OSError:
            # The random factor spreads the retries of many workers.
            time.sleep(_PAUSE_S * 2**attempt * random.uniform(0.5, 1.5))
    return call(*arguments)


def open_binary(path: str) -> Any:
    """Open a local path or URL for reading; reads of a remote file are retried."""
    fs, within = fsspec.core.url_to_fs(path)
    return open(within, "rb") if is_local(fs) else _RetriedFile(fs, within)


class _RetriedFile(io.RawIOBase):
    """A file on an fsspec file system.

    After a failed read it is reopened at the same position.
    """

    def __init__(self, fs: AbstractFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path
        self._position = 0
        self._file: Any = None
        self._size: int = retried(fs.info, path, fs=fs)["size"]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        starts = {
            io.SEEK_SET: 0,
            io.SEEK_CUR: self._position,
            io.SEEK_END: self._size,
        }
        self._position = starts[whence] + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        def read() -> Any:
            try:
                self._file = self._file or self._fs.open(self._path, "rb")
                if self._file.tell() != self._position:
                    self._file.seek(self._position)
                return self._file.read(len(buffer))
            except OSError:
                self._drop()
                raise

        block = retried(read, fs=self._fs)
        buffer[: len(block)] = block
        self._position += len(block)
        return len(block)

    def _drop(self) -> None:
        file = self._file
        self._file = None
        if file is not None:
            with suppress(OSError):  # it failed already
                file.close()

    def close(self) -> None:
        self._drop()
        super().close()
