"""Parts: the files of a source → what each task reads; a large file is shared by several tasks.

A compressed file of JSON lines can be read from the beginning of any zstd frame: `zstd` writes one per file; `pzstd`, writers
of the seekable format and `cat a.zst b.zst` write several. Any other compressed file is shared by a few tasks, each of which
decompresses and skips what is above its part; that takes a fraction of the time of parsing it.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import fsspec
import pyarrow as pa
import zstandard

from nextlong.artifacts.results import LineCountResult
from nextlong.reading.file_systems import is_local
from nextlong.reading.files import FilePart, InputFile, check_unchanged, compression_of, read_head
from nextlong.reading.formats import format_of
from nextlong.reading.records import explained
from nextlong.recipe import Source

_MIN_PARTS: Final = 2  # a file that would make no more parts than this is not divided
# All parts of a file that is compressed as a whole together decompress it a few times over, at most …
_MAX_SKIPPING_PARTS: Final = {"zstd": 8, "gzip": 4}
_SKIPPING_PART_BYTES: Final = 64_000_000  # … and parts with less decompressed content would save no second
_HEAD_BYTES: Final = 1 << 20  # predicts the decompressed size to some percent; the last part takes the rest
_COUNT_BUFFER_BYTES: Final = 1 << 20

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"  # after a first byte of 0x50 to 0x5f
_MAX_FRAME_HEADER_BYTES: Final = 18
_CHECKSUM_BYTES: Final = 4


def split_inputs(
    files: Iterable[InputFile], source: Source, *, shard_bytes: int, part_bytes: int
) -> list[tuple[FilePart, ...]]:
    """Group consecutive files into tasks of at most about `shard_bytes`.

    A larger file is a task of its own, or several of about `part_bytes` if tasks can share it (`can_be_shared`).
    """
    tasks: list[list[FilePart]] = []
    held_bytes = full = shard_bytes + 1
    for file in files:
        if file.bytes > _MIN_PARTS * part_bytes and can_be_shared(file, source):
            tasks += [[part] for part in _parts_of(file, source, part_bytes)]
            held_bytes = full
            continue
        if held_bytes + file.bytes > shard_bytes:
            tasks.append([])
            held_bytes = 0
        tasks[-1].append(FilePart(file))
        held_bytes += file.bytes
    return [tuple(parts) for parts in tasks]


def can_be_shared(file: InputFile, source: Source) -> bool:
    """Return whether several tasks can share a file: JSON lines, compressed or not, or Parquet, on a local disk."""
    return format_of(file.name, source).is_splittable and is_local(fsspec.core.url_to_fs(file.path)[0])


def max_tasks(file: InputFile, source: Source) -> int | None:
    """Return how many tasks may share a file that is compressed as a whole; None if there is no such limit."""
    if not can_be_shared(file, source):
        return 1
    compression = compression_of(file.name)
    is_framed = compression == "zstd" and len(_frame_bounds(file)) > 2
    return len(_skipping_parts(file)) if compression and not is_framed else None


def _parts_of(file: InputFile, source: Source, part_bytes: int) -> list[FilePart]:
    """Return a file in parts of about `part_bytes`; whole if it is one row group or cannot be read."""
    file_format = format_of(file.name, source)
    if not file_format.is_lines:
        return file_format.split(file, part_bytes)
    if compression := compression_of(file.name):
        parts = _frame_parts(file, part_bytes) if compression == "zstd" else []
        return parts or _skipping_parts(file)
    count = -(-file.bytes // part_bytes)
    bounds = [file.bytes * number // count for number in range(count + 1)]
    return [FilePart(file, start, stop) for start, stop in pairwise(bounds)]


def _frame_parts(file: InputFile, part_bytes: int) -> list[FilePart]:
    """Return consecutive zstd frames of about `part_bytes` together; none if the file is one frame."""
    _, *ends = _frame_bounds(file) or (0,)
    parts, start = [], 0
    for end in ends:
        if end - start >= part_bytes or end == ends[-1]:
            parts.append(FilePart(file, start, end))
            start = end
    return parts if len(parts) > 1 else []


def _skipping_parts(file: InputFile) -> list[FilePart]:
    """Return parts of about equal decompressed size; the file itself if that is small."""
    try:
        size = _decompressed_bytes(file.path, file.bytes, file.name, version=file.version)
    except OSError:
        return [FilePart(file)]  # reading it reports what is wrong
    count = min(_MAX_SKIPPING_PARTS[compression_of(file.name)], size // _SKIPPING_PART_BYTES)
    if count < 2:
        return [FilePart(file)]
    starts = [size * number // count for number in range(count)]
    return [FilePart(file, start, stop, skips=True) for start, stop in zip(starts, [*starts[1:], None], strict=True)]


@lru_cache(maxsize=64)
def _decompressed_bytes(path: str, size: int, name: str, *, version: str) -> int:
    """Return or estimate the decompressed size of a file; `version` distinguishes contents of one path in the cache."""
    if compression_of(name) == "zstd":
        with Path(path).open("rb") as file:
            head = file.read(_MAX_FRAME_HEADER_BYTES)
        try:
            stated = zstandard.get_frame_parameters(head).content_size
        except zstandard.ZstdError:
            stated = zstandard.CONTENTSIZE_UNKNOWN
        if stated != zstandard.CONTENTSIZE_UNKNOWN:
            return int(stated)
    content, head_bytes = read_head(InputFile(path, size, version, name), _HEAD_BYTES)
    return len(content) * size // max(1, head_bytes)


def _frame_bounds(file: InputFile) -> tuple[int, ...]:
    try:
        return frame_bounds(file.path, version=file.version)
    except OSError:
        return ()  # reading it reports what is wrong


@lru_cache(maxsize=64)
def frame_bounds(path: str, *, version: str) -> tuple[int, ...]:
    """Return where the frames of a zstd file begin, ascending, and where the last one ends: n + 1 numbers for n frames.

    Skippable frames belong to the frame before them, or to the first. Returns () if the file is not a whole number of frames;
    reading it reports why. `version` distinguishes contents of one path in the cache.
    """
    del version
    size = Path(path).stat().st_size
    bounds: list[int] = []
    offset = 0
    with Path(path).open("rb", buffering=0) as file:  # not mapped: truncating a mapped file kills the process
        while offset < size:
            head = os.pread(file.fileno(), _MAX_FRAME_HEADER_BYTES, offset)
            is_skippable = head[1:4] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5
            if is_skippable:
                end: int | None = offset + 8 + int.from_bytes(head[4:8], "little")
            else:
                end = _frame_end(file.fileno(), head, offset)
            if end is None or end > size:
                return ()
            if not is_skippable:
                bounds.append(offset if bounds else 0)
            offset = end
    return (*bounds, size) if bounds else ()


def _frame_end(file: int, head: bytes, offset: int) -> int | None:
    """Return where the frame at `offset`, which begins with `head`, ends; None if it is no frame, or cut short.

    Nothing is decompressed: three bytes before each block give its size (RFC 8878, 3.1.1).
    """
    if not head.startswith(_ZSTD_MAGIC):
        return None
    try:
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        offset += zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        return None
    is_last = False
    while not is_last:
        block = os.pread(file, 3, offset)
        if len(block) < 3:
            return None
        header = int.from_bytes(block, "little")
        is_last, kind, size = bool(header & 1), header >> 1 & 3, header >> 3
        offset += 3 + (1 if kind == 1 else size)  # kind 1 is a run: one byte that is repeated
    return offset + _CHECKSUM_BYTES * has_checksum


def count_lines(part: FilePart) -> LineCountResult:
    """Return what a part of a local file holds. Raises CorpusError if it cannot be read."""
    lines, size, last = 0, 0, b""
    compression = compression_of(part.file.name)
    with explained(part.file), Path(part.file.path).open("rb", buffering=0) as file:
        file.seek(part.start)
        stop = part.file.bytes if part.stop is None else part.stop
        stream: Any = _Limited(file, stop - part.start)
        if compression:
            stream = pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), compression)
        while block := stream.read(_COUNT_BUFFER_BYTES):
            lines, size, last = lines + block.count(b"\n"), size + len(block), block[-1:]
        check_unchanged(part.file)
    return LineCountResult(lines=lines, bytes=size, ends_line=last == b"\n")


class _Limited(io.RawIOBase):
    """The next `size` bytes of a file."""

    def __init__(self, file: io.FileIO, size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        block = self._file.read(self._left if size < 0 else min(size, self._left))
        self._left -= len(block)
        return block
