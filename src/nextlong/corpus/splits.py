"""Splits: how large a shard is, what each task of ingest reads, and how many lines are above each part of a file.

A large file is shared by several tasks. A compressed file of JSON lines can be read from the beginning of any zstd frame: `zstd`
writes one per file; `pzstd`, writers of the seekable format and `cat a.zst b.zst` write several. Any other compressed file is
shared by a few tasks, each of which decompresses and skips what is above its part; that takes a fraction of the time of parsing it.
"""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import fsspec
import pyarrow as pa
import zstandard

from nextlong.artifacts.results import LineCountResult
from nextlong.engine.step import Estimate, Step, per_shard
from nextlong.reading.files import FilePart, InputFile, check_unchanged, compression_of, is_local, read_head
from nextlong.reading.formats import estimate_text_bytes, format_of
from nextlong.reading.records import explained
from nextlong.recipe import Source
from nextlong.recipe.keys import Ingest
from nextlong.text import Json

_WORTH_TELLING_BYTES: Final = 16_000_000  # compressed: reads in a second or two
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

Splits = Sequence[Sequence[tuple[FilePart, ...]]]  # of each source, of each task


def shard_bytes_of(ingest: Ingest, files: Sequence[Sequence[InputFile]]) -> int:
    """Return the text bytes of a shard; with `auto`, the heads of a few files decide."""
    if ingest.shard_mb != "auto":
        return shard_bytes_for(ingest, 0)
    return shard_bytes_for(ingest, sum(map(estimate_text_bytes, files, ingest.sources)))


def shard_bytes_for(ingest: Ingest, text_bytes: float) -> int:
    """Return the text bytes of a shard of a corpus with `text_bytes` in all; `auto`: a 32nd, between 1 MB and 128 MB."""
    if ingest.shard_mb != "auto":
        return int(ingest.shard_mb * 1_000_000)
    return min(max(int(text_bytes) // 32, 1_000_000), 128_000_000)


def splits_of(sources: Sequence[Source], files: Sequence[Sequence[InputFile]], *, shard_bytes: int) -> Splits:
    """Return what each task reads, of each source; a part of a file holds about as much text as a shard."""
    splits = []
    for source, source_files in zip(sources, files, strict=True):
        large = [file for file in source_files if file.bytes > shard_bytes and _can_be_shared(file, source)]
        text_bytes = estimate_text_bytes(large, source)
        part_bytes = shard_bytes * sum(file.bytes for file in large) // text_bytes if text_bytes else shard_bytes
        splits.append(_split_inputs(source_files, source, shard_bytes=shard_bytes, part_bytes=part_bytes))
    return splits


def _split_inputs(
    files: Iterable[InputFile], source: Source, *, shard_bytes: int, part_bytes: int
) -> list[tuple[FilePart, ...]]:
    """Group consecutive files into tasks of at most about `shard_bytes`.

    A larger file is a task of its own, or several of about `part_bytes` if tasks can share it (`_can_be_shared`).
    """
    tasks: list[list[FilePart]] = []
    held_bytes = full = shard_bytes + 1
    for file in files:
        if file.bytes > _MIN_PARTS * part_bytes and _can_be_shared(file, source):
            tasks += [[part] for part in _parts_of(file, source, part_bytes)]
            held_bytes = full
            continue
        if held_bytes + file.bytes > shard_bytes:
            tasks.append([])
            held_bytes = 0
        tasks[-1].append(FilePart(file))
        held_bytes += file.bytes
    return [tuple(parts) for parts in tasks]


def _can_be_shared(file: InputFile, source: Source) -> bool:
    """Return whether several tasks can share a file: JSON lines, compressed or not, or Parquet, on a local disk."""
    return format_of(file.name, source).is_splittable and is_local(fsspec.core.url_to_fs(file.path)[0])


def _parts_of(file: InputFile, source: Source, part_bytes: int) -> list[FilePart]:
    """Return a file in parts of about `part_bytes`; whole if it is one row group or cannot be read."""
    file_format = format_of(file.name, source)
    if not file_format.is_lines:
        return file_format.split(file, part_bytes)
    if compression := compression_of(file.name):
        parts, start = list[FilePart](), 0  # consecutive zstd frames of about `part_bytes` together
        bounds = _frame_bounds(file.path, version=file.version) if compression == "zstd" else ()
        for end in bounds[1:]:
            if end - start >= part_bytes or end == bounds[-1]:
                parts.append(FilePart(file, start, end))
                start = end
        return parts if len(parts) > 1 else _skipping_parts(file)
    count = -(-file.bytes // part_bytes)
    edges = [file.bytes * number // count for number in range(count + 1)]
    return [FilePart(file, start, stop) for start, stop in pairwise(edges)]


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


@lru_cache(maxsize=64)
def _frame_bounds(path: str, *, version: str) -> tuple[int, ...]:
    """Return where the frames of a zstd file begin, ascending, and where the last one ends: n + 1 numbers for n frames.

    Skippable frames belong to the frame before them, or to the first. Returns () if the file is not a whole number of frames, or
    cannot be opened; reading it reports why. `version` distinguishes contents of one path in the cache.
    """
    del version
    bounds: list[int] = []
    offset = 0
    try:
        with Path(path).open("rb", buffering=0) as file:  # not mapped: truncating a mapped file kills the process
            size = os.fstat(file.fileno()).st_size
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
    except OSError:
        return ()
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


def _all_parts(splits: Splits) -> list[FilePart]:
    """Return the parts of all tasks in task order."""
    return [part for of_source in splits for split in of_source for part in split]


def split_config(splits: Splits) -> Json:
    """Return how Parquet files and files compressed as a whole are divided, for the fingerprint; empty if none is."""
    parts = _all_parts(splits)
    row_groups = [[part.file.name, *part.row_groups] for part in parts if part.row_groups]
    skipping = [[part.file.name, part.start] for part in parts if part.skips]
    return {key: value for key, value in (("row_groups", row_groups), ("decompressed_from", skipping)) if value}


def task_bytes(splits: Splits) -> list[float]:
    """Return about how many bytes on disk each task reads, in task order."""
    pieces: Counter[str] = Counter()  # by file: its row groups, or its parts of decompressed content
    for part in _all_parts(splits):
        if part.row_groups is not None:
            pieces[part.file.path] = max(pieces[part.file.path], part.row_groups[1])
        elif part.skips:
            pieces[part.file.path] += 1

    def bytes_of(part: FilePart) -> float:
        if part.row_groups is not None:
            return part.file.bytes * (part.row_groups[1] - part.row_groups[0]) / pieces[part.file.path]
        if part.skips:
            return part.file.bytes / pieces[part.file.path]
        return (part.file.bytes if part.stop is None else part.stop) - part.start

    return [sum(map(bytes_of, parts)) for of_source in splits for parts in of_source]


def whole_files(
    sources: Sequence[Source], files: Sequence[Sequence[InputFile]], *, shard_bytes: int, workers: int
) -> list[str]:
    """Return a message for each large compressed file that fewer tasks can read than there are workers."""
    messages = []
    for source, source_files in zip(sources, files, strict=True):
        for file in source_files:
            if not compression_of(file.name) or file.bytes <= max(2 * shard_bytes, _WORTH_TELLING_BYTES):
                continue
            tasks = 1
            if _can_be_shared(file, source):
                if compression_of(file.name) == "zstd" and len(_frame_bounds(file.path, version=file.version)) > 2:
                    continue
                tasks = len(_skipping_parts(file))
            if tasks < workers:
                who = "one task reads it" if tasks == 1 else f"at most {tasks} tasks read it, each from its beginning"
                messages.append(
                    f"{file.path} ({file.bytes / 1e6:,.0f} MB) is compressed as a whole, so {who}; several smaller files, plain "
                    "JSON lines, JSON lines in several zstd frames (pzstd, or .zst files joined by cat) and Parquet are read by "
                    "all workers"
                )
    return messages


def numbered(
    splits: Sequence[tuple[FilePart, ...]], counts: Iterator[LineCountResult]
) -> Iterator[tuple[FilePart, ...]]:
    """Yield the splits of a source with the number of lines above each part; `counts` has a result for each counted part."""
    lines_above, begins_line = 0, True
    for parts in splits:
        if not _is_counted(parts[0]):
            yield parts
            continue
        (part,) = parts
        if not part.start:
            lines_above, begins_line = 0, True
        count = next(counts)
        inside_bytes = count.bytes if compression_of(part.file.name) else None
        yield (replace(part, lines_before=lines_above, inside_bytes=inside_bytes, begins_line=begins_line),)
        lines_above += count.lines
        begins_line = count.ends_line if count.bytes else begins_line


def _is_counted(part: FilePart) -> bool:
    return part.stop is not None and not part.skips


def line_counts_steps(splits: Splits) -> list[Step]:
    """Return the step that counts the lines in parts of large files; none if no file is divided by bytes."""
    parts = [part for part in _all_parts(splits) if _is_counted(part)]
    if not parts:
        return []
    config = [[part.file.name, part.file.identity, part.start, part.stop] for part in parts]
    tasks = [partial(_count_lines, part=part) for part in parts]
    estimate = Estimate(work="text_bytes", seconds=3e-10, tasks=per_shard, rate="")
    return [Step("line_counts", 1, {"parts": config}, (), lambda _: tasks, LineCountResult, estimate=estimate)]


def _count_lines(_: Path, *, part: FilePart) -> LineCountResult:
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
