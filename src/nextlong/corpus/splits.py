"""Splits: which part of which file each task of ingest reads.

In:  the input files. Out: the size of a shard, the parts of files per task, a function
     of recipe and files only, and the number of lines before each part.

Several tasks share a large file. A compressed file of JSON lines can be read from the
start of any zstd frame, of which `pzstd` and `cat a.zst b.zst` write several. For any
other compressed file, each task decompresses and skips the content before its part,
which takes a fraction of the time of parsing it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Final

import fsspec
import pyarrow as pa
import zstandard

from nextlong.engine.step import Step, TaskResult
from nextlong.reading.compression import compression_of, decompressed
from nextlong.reading.files import (
    FilePart,
    InputFile,
    check_unchanged,
    is_local,
    read_head,
)
from nextlong.reading.formats import estimate_text_bytes, format_of
from nextlong.reading.records import SplittableFormat, explained
from nextlong.recipe import Source
from nextlong.recipe.keys import Ingest

# Compressed size above which an indivisible file is reported; it is read in seconds.
_REPORTED_BYTES: Final = 16_000_000
_MIN_PARTS: Final = 2  # files of fewer parts than this are not divided
# Limits for a file compressed as a whole, so that its parts together decompress it only
# a few times, and each part saves at least a second. bz2 decompresses at 10 MB/s, so
# reading it twice saves nothing.
_MAX_SKIPPING_PARTS: Final = {"zstd": 8, "lz4": 8, "gzip": 4, "xz": 2, "bz2": 1}
_SKIPPING_PART_BYTES: Final = 64_000_000
# Predicts the decompressed size within some percent; the last part has the rest.
_HEAD_BYTES: Final = 1 << 20
_COUNT_BUFFER_BYTES: Final = 1 << 20

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"  # after a first byte of 0x50 to 0x5f
_MAX_FRAME_HEADER_BYTES: Final = 18
_BLOCK_HEADER_BYTES: Final = 3
_CHECKSUM_BYTES: Final = 4

Parts = tuple[FilePart, ...]  # of one task
Splits = Sequence[Sequence[Parts]]  # of each source, of each task
_Files = Sequence[Sequence[InputFile]]  # of each source


class LineCountResult(TaskResult):
    """Lines that end in a part of a file, and its decompressed bytes.

    `ends_line`: whether it ends with a line break.
    """

    lines: int
    bytes: int = 0
    ends_line: bool = True


def shard_bytes_of(
    ingest: Ingest, files: _Files = (), *, text_bytes: float | None = None
) -> int:
    """Return the text bytes of a shard.

    `auto`: a 32nd of the corpus (estimated without `text_bytes`), 1 MB to 128 MB.
    """
    if ingest.shard_mb != "auto":
        return int(ingest.shard_mb * 1_000_000)
    if text_bytes is None:
        text_bytes = sum(map(estimate_text_bytes, files, ingest.sources))
    share = int(text_bytes) // 32
    return min(max(share, 1_000_000), 128_000_000)


def splits_of(sources: Sequence[Source], files: _Files, *, shard_bytes: int) -> Splits:
    """Return the parts of files that each task reads, by source.

    A part has about as much text as a shard.
    """
    splits = []
    for source, source_files in zip(sources, files, strict=True):
        large = [
            file
            for file in source_files
            if file.bytes > shard_bytes and _shared_format(file, source)
        ]
        text_bytes = estimate_text_bytes(large, source)
        part_bytes = shard_bytes
        if text_bytes:
            large_bytes = sum(file.bytes for file in large)
            part_bytes = shard_bytes * large_bytes // text_bytes
        source_splits = _split_inputs(
            source_files, source, shard_bytes=shard_bytes, part_bytes=part_bytes
        )
        splits.append(source_splits)
    return splits


def _split_inputs(
    files: Iterable[InputFile], source: Source, *, shard_bytes: int, part_bytes: int
) -> list[Parts]:
    """Group consecutive files into tasks of at most about `shard_bytes`.

    A larger file is one task, or several of about `part_bytes` if tasks can share it
    (`_shared_format`). It is not divided if it has one row group or cannot be read.
    """
    tasks: list[list[FilePart]] = []
    # The first file, and one behind a shared file, begins a task.
    is_full = True
    task_bytes = 0
    for file in files:
        file_format = None
        if file.bytes > _MIN_PARTS * part_bytes:
            file_format = _shared_format(file, source)
        if file_format is not None:
            tasks += [[part] for part in _parts_of(file, file_format, part_bytes)]
            is_full = True
            continue
        if is_full or task_bytes + file.bytes > shard_bytes:
            tasks.append([])
            is_full = False
            task_bytes = 0
        tasks[-1].append(FilePart(file))
        task_bytes += file.bytes
    return [tuple(parts) for parts in tasks]


def _parts_of(
    file: InputFile, file_format: SplittableFormat, part_bytes: int
) -> Sequence[FilePart]:
    """Return the parts of a file that several tasks can share."""
    if not compression_of(file.name):
        return file_format.split(file, part_bytes)
    # Consecutive zstd frames of about `part_bytes` together.
    parts: list[FilePart] = []
    start = 0
    bounds = _frame_bounds(file)
    for end in bounds[1:]:
        if end - start >= part_bytes or end == bounds[-1]:
            parts.append(FilePart(file, start, end))
            start = end
    return parts if len(parts) > 1 else _skipping_parts(file)


def _shared_format(file: InputFile, source: Source) -> SplittableFormat | None:
    """Return the format of a file that several tasks can share, None for any other one.

    It is JSON lines in UTF-8, compressed or not, or Parquet, on a local disk.
    """
    file_format = format_of(file.name, source)
    if not isinstance(file_format, SplittableFormat) or source.encoding is not None:
        return None
    fs, _ = fsspec.core.url_to_fs(file.path)
    return file_format if is_local(fs) else None


def _skipping_parts(file: InputFile) -> list[FilePart]:
    """Return parts of about equal decompressed size; the whole file if it is small."""
    try:
        size = _decompressed_bytes(file)
    except OSError:
        # Reading it reports the error.
        return [FilePart(file)]
    max_count = _MAX_SKIPPING_PARTS[compression_of(file.name)]
    count = min(max_count, size // _SKIPPING_PART_BYTES)
    if count < 2:
        return [FilePart(file)]
    starts = [size * index // count for index in range(count)]
    # The last part has no end, because the size may be an estimate.
    stops = [*starts[1:], None]
    return [
        FilePart(file, start, stop, skips=True, share=1 / count)
        for start, stop in zip(starts, stops, strict=True)
    ]


def _decompressed_bytes(file: InputFile) -> int:
    """Return the decompressed size, declared by zstd or estimated from the head."""
    if compression_of(file.name) == "zstd":
        with Path(file.path).open("rb") as stream, suppress(zstandard.ZstdError):
            header = stream.read(_MAX_FRAME_HEADER_BYTES)
            size = zstandard.get_frame_parameters(header).content_size
            if size != zstandard.CONTENTSIZE_UNKNOWN:
                return int(size)
    content, head_bytes = read_head(file, _HEAD_BYTES)
    return len(content) * file.bytes // max(1, head_bytes)


@lru_cache(maxsize=64)
def _frame_bounds(file: InputFile) -> tuple[int, ...]:
    """Return the n + 1 bounds of the n frames of a zstd file, ascending.

    Skippable frames belong to the frame before them, or to the first frame. Returns ()
    if the file does not consist of whole frames or cannot be opened; reading it reports
    the error. Nothing is decompressed: blocks begin with their size (RFC 8878, 3.1.1).
    """
    bounds: list[int] = []
    offset = 0
    try:
        # Not memory-mapped, because truncating a mapped file kills the process.
        with Path(file.path).open("rb", buffering=0) as stream:
            descriptor = stream.fileno()
            while offset < os.fstat(descriptor).st_size:
                head = os.pread(descriptor, _MAX_FRAME_HEADER_BYTES, offset)
                is_skippable = head[1:4] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5
                if is_skippable:
                    offset += 8 + int.from_bytes(head[4:8], "little")
                    continue
                if not head.startswith(_ZSTD_MAGIC):
                    return ()
                bounds.append(offset if bounds else 0)
                end = _frame_end(descriptor, head, offset)
                if end is None:
                    return ()
                offset = end
            if not bounds or offset != os.fstat(descriptor).st_size:
                return ()
            return (*bounds, offset)
    except (OSError, zstandard.ZstdError):
        return ()


def _frame_end(descriptor: int, head: bytes, start: int) -> int | None:
    """Return where a zstd frame ends that begins with `head`; None if it is cut."""
    offset = start + zstandard.frame_header_size(head)
    is_last = False
    while not is_last:
        block = os.pread(descriptor, _BLOCK_HEADER_BYTES, offset)
        if len(block) < _BLOCK_HEADER_BYTES:
            return None
        # One bit says whether the block is the last, two its type, the others its size.
        header = int.from_bytes(block, "little")
        is_last = bool(header & 1)
        size = header >> 3
        # A run is one byte that is repeated.
        if header >> 1 & 3 == 1:
            size = 1
        offset += _BLOCK_HEADER_BYTES + size
    if zstandard.get_frame_parameters(head).has_checksum:
        offset += _CHECKSUM_BYTES
    return offset


def whole_files(
    sources: Sequence[Source], files: _Files, *, shard_bytes: int, workers: int
) -> list[str]:
    """Return a message for each large compressed file that keeps workers waiting.

    Fewer tasks can read it than there are workers.
    """
    min_bytes = max(2 * shard_bytes, _REPORTED_BYTES)
    messages = []
    for source, source_files in zip(sources, files, strict=True):
        for file in source_files:
            if not compression_of(file.name) or file.bytes <= min_bytes:
                continue
            is_shared = _shared_format(file, source) is not None
            tasks = len(_skipping_parts(file)) if is_shared else 1
            if tasks >= workers or (is_shared and len(_frame_bounds(file)) > 2):
                continue
            who = "one task reads it"
            if tasks > 1:
                who = f"at most {tasks} tasks read it, each from its beginning"
            messages.append(
                f"{file.path} ({file.bytes / 1e6:,.0f} MB) is compressed as a whole, "
                f"so {who}; all workers can read several smaller files, plain JSON "
                "lines, JSON lines in several zstd frames (pzstd, or .zst files joined "
                "by cat), and Parquet"
            )
    return messages


def numbered(
    splits: Sequence[Parts], counts: Iterator[LineCountResult]
) -> Iterator[Parts]:
    """Yield the parts of each task with the number of lines before them.

    `counts` has a result for each counted part.
    """
    lines_above = 0
    begins_line = True
    for parts in splits:
        if not _is_counted(parts[0]):
            yield parts
            continue
        (part,) = parts
        if not part.start:
            lines_above = 0
            begins_line = True
        count = next(counts)
        is_compressed = bool(compression_of(part.file.name))
        numbered_part = replace(
            part,
            lines_before=lines_above,
            inside_bytes=count.bytes if is_compressed else None,
            begins_line=begins_line,
        )
        yield (numbered_part,)
        lines_above += count.lines
        if count.bytes:
            begins_line = count.ends_line


def _is_counted(part: FilePart) -> bool:
    """Return whether the lines of a part are counted: it is one of several by bytes."""
    return part.stop is not None and not part.skips


def line_counts_steps(splits: Splits) -> list[Step]:
    """Return the step that counts the lines in parts of large files.

    None if no file is divided by bytes.
    """
    every_part = chain.from_iterable(chain.from_iterable(splits))
    parts = [part for part in every_part if _is_counted(part)]
    if not parts:
        return []
    config = [
        [part.file.name, part.file.identity, part.start, part.stop] for part in parts
    ]
    tasks = [partial(_count_lines, part=part) for part in parts]
    step = Step(
        name="line_counts",
        phase="read",
        version=1,
        config={"parts": config},
        inputs=(),
        tasks=lambda _: tasks,
        result=LineCountResult,
    )
    return [step]


def _count_lines(_: Path, *, part: FilePart) -> LineCountResult:
    """Count the lines and bytes of a part of a local file.

    Raises CorpusError if it cannot be read.
    """
    lines = 0
    size = 0
    last = b""
    with explained(part.file), pa.OSFile(part.file.path) as file:
        stop = part.file.bytes if part.stop is None else part.stop
        stream = file.get_stream(part.start, stop - part.start)
        compression = compression_of(part.file.name)
        if compression:
            stream = decompressed(stream, compression)
        while block := stream.read(_COUNT_BUFFER_BYTES):
            lines += block.count(b"\n")
            size += len(block)
            last = block[-1:]
        check_unchanged(part.file)
    return LineCountResult(lines=lines, bytes=size, ends_line=last == b"\n")
