"""Splits: the size of a shard, the parts of files that each task of ingest reads, and the number of lines before each part.

In:  the input files. Out: the parts per task, a function of recipe and files only. Several tasks share a large file. A
compressed file of JSON lines can be read from the start of any zstd frame, of which `pzstd` and `cat a.zst b.zst` write
several. For any other compressed file, each task decompresses and skips the content before its part, which takes a fraction of
the time of parsing it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain, pairwise
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
# Limits for a file compressed as a whole, so that its parts together decompress it only a few times, …
# bz2 decompresses at 10 MB/s, so reading it twice saves nothing.
_MAX_SKIPPING_PARTS: Final = {"zstd": 8, "lz4": 8, "gzip": 4, "xz": 2, "bz2": 1}
_SKIPPING_PART_BYTES: Final = 64_000_000  # … and each part saves at least a second
_HEAD_BYTES: Final = (
    1 << 20
)  # predicts the decompressed size within some percent; the last part has the rest
_COUNT_BUFFER_BYTES: Final = 1 << 20

_ZSTD_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_ZSTD_SKIPPABLE: Final = b"\x2a\x4d\x18"  # after a first byte of 0x50 to 0x5f
_MAX_FRAME_HEADER_BYTES: Final = 18
_CHECKSUM_BYTES: Final = 4

Parts = tuple[FilePart, ...]  # of one task
Splits = Sequence[Sequence[Parts]]  # of each source, of each task
_Files = Sequence[Sequence[InputFile]]  # of each source


class LineCountResult(TaskResult):
    """Lines that end in a part of a file, its decompressed bytes, and whether it ends with a line break."""

    lines: int
    bytes: int = 0
    ends_line: bool = True


def shard_bytes_of(
    ingest: Ingest, files: _Files = (), *, text_bytes: float | None = None
) -> int:
    """Return the text bytes of a shard; `auto`: a 32nd of the corpus (estimated without `text_bytes`), 1 MB to 128 MB."""
    if ingest.shard_mb != "auto":
        return int(ingest.shard_mb * 1_000_000)
    size = (
        sum(map(estimate_text_bytes, files, ingest.sources))
        if text_bytes is None
        else int(text_bytes)
    )
    return min(max(size // 32, 1_000_000), 128_000_000)


def splits_of(sources: Sequence[Source], files: _Files, *, shard_bytes: int) -> Splits:
    """Return the parts of files that each task reads, by source; a part has about as much text as a shard."""
    splits = []
    for source, source_files in zip(sources, files, strict=True):
        large = [
            file
            for file in source_files
            if file.bytes > shard_bytes and _shared_format(file, source)
        ]
        text_bytes = estimate_text_bytes(large, source)
        part_bytes = (
            shard_bytes * sum(file.bytes for file in large) // text_bytes
            if text_bytes
            else shard_bytes
        )
        splits.append(
            _split_inputs(
                source_files, source, shard_bytes=shard_bytes, part_bytes=part_bytes
            )
        )
    return splits


def _split_inputs(
    files: Iterable[InputFile], source: Source, *, shard_bytes: int, part_bytes: int
) -> list[Parts]:
    """Group consecutive files into tasks of at most about `shard_bytes`.

    A larger file is one task, or several of about `part_bytes` if tasks can share it (`_shared_format`). It is not divided if
    it has one row group or cannot be read.
    """
    tasks: list[list[FilePart]] = []
    held_bytes = full = shard_bytes + 1
    for file in files:
        file_format = (
            _shared_format(file, source)
            if file.bytes > _MIN_PARTS * part_bytes
            else None
        )
        if file_format is None:
            if held_bytes + file.bytes > shard_bytes:
                tasks.append([])
                held_bytes = 0
            tasks[-1].append(FilePart(file))
            held_bytes += file.bytes
            continue
        held_bytes, parts = full, list[FilePart]()
        if compression_of(file.name):
            start, bounds = (
                0,
                _frame_bounds(file),
            )  # consecutive zstd frames of about `part_bytes` together
            for end in bounds[1:]:
                if end - start >= part_bytes or end == bounds[-1]:
                    parts.append(FilePart(file, start, end))
                    start = end
            parts = parts if len(parts) > 1 else _skipping_parts(file)
        else:
            parts = file_format.split(file, part_bytes)
        tasks += [[part] for part in parts]
    return [tuple(parts) for parts in tasks]


def _shared_format(file: InputFile, source: Source) -> SplittableFormat | None:
    """Return the format of a file that several tasks can share, None for any other one.

    It is JSON lines in UTF-8, compressed or not, or Parquet, on a local disk.
    """
    found = format_of(file.name, source)
    if not isinstance(found, SplittableFormat) or source.encoding is not None:
        return None
    return found if is_local(fsspec.core.url_to_fs(file.path)[0]) else None


def _skipping_parts(file: InputFile) -> list[FilePart]:
    """Return parts of about equal decompressed size, declared or estimated from the head; the whole file if it is small."""
    compression, size = compression_of(file.name), zstandard.CONTENTSIZE_UNKNOWN
    try:
        if compression == "zstd":
            with Path(file.path).open("rb") as stream, suppress(zstandard.ZstdError):
                size = zstandard.get_frame_parameters(
                    stream.read(_MAX_FRAME_HEADER_BYTES)
                ).content_size
        if size == zstandard.CONTENTSIZE_UNKNOWN:
            content, head_bytes = read_head(file, _HEAD_BYTES)
            size = len(content) * file.bytes // max(1, head_bytes)
    except OSError:
        size = 0  # reading it reports the error
    if (
        count := min(_MAX_SKIPPING_PARTS[compression], size // _SKIPPING_PART_BYTES)
    ) < 2:
        return [FilePart(file)]
    edges = [*(size * number // count for number in range(count)), None]
    return [
        FilePart(file, start or 0, stop, skips=True, share=1 / count)
        for start, stop in pairwise(edges)
    ]


@lru_cache(maxsize=64)
def _frame_bounds(file: InputFile) -> tuple[int, ...]:
    """Return the n + 1 bounds of the n frames of a zstd file, ascending.

    Skippable frames belong to the frame before them, or to the first frame. Returns () if the file does not consist of whole
    frames or cannot be opened; reading it reports the error. Nothing is decompressed: blocks begin with their size (RFC 8878,
    3.1.1).
    """
    bounds, offset = list[int](), 0
    try:
        # Not memory-mapped, because truncating a mapped file kills the process.
        with Path(file.path).open("rb", buffering=0) as stream:
            number = stream.fileno()
            while offset < os.fstat(number).st_size:
                head = os.pread(number, _MAX_FRAME_HEADER_BYTES, offset)
                if head[1:4] == _ZSTD_SKIPPABLE and head[0] >> 4 == 5:
                    offset += 8 + int.from_bytes(head[4:8], "little")
                    continue
                if not head.startswith(_ZSTD_MAGIC):
                    return ()
                bounds.append(offset if bounds else 0)
                offset, is_last = offset + zstandard.frame_header_size(head), False
                while not is_last:
                    if len(block := os.pread(number, 3, offset)) < 3:
                        return ()
                    header = int.from_bytes(block, "little")
                    is_last, is_run = (
                        bool(header & 1),
                        header >> 1 & 3 == 1,
                    )  # a run is one byte that is repeated
                    offset += 3 + (1 if is_run else header >> 3)
                offset += (
                    _CHECKSUM_BYTES * zstandard.get_frame_parameters(head).has_checksum
                )
            return (
                (*bounds, offset)
                if bounds and offset == os.fstat(number).st_size
                else ()
            )
    except (OSError, zstandard.ZstdError):
        return ()


def whole_files(
    sources: Sequence[Source], files: _Files, *, shard_bytes: int, workers: int
) -> list[str]:
    """Return a message for each large compressed file that fewer tasks can read than there are workers."""
    messages = []
    for source, source_files in zip(sources, files, strict=True):
        for file in source_files:
            if not compression_of(file.name) or file.bytes <= max(
                2 * shard_bytes, _REPORTED_BYTES
            ):
                continue
            tasks = (
                len(_skipping_parts(file))
                if (is_shared := _shared_format(file, source) is not None)
                else 1
            )
            if tasks < workers and not (is_shared and len(_frame_bounds(file)) > 2):
                who = (
                    "one task reads it"
                    if tasks == 1
                    else f"at most {tasks} tasks read it, each from its beginning"
                )
                messages.append(
                    f"{file.path} ({file.bytes / 1e6:,.0f} MB) is compressed as a whole, so {who}; all workers can read "
                    "several smaller files, plain JSON lines, JSON lines in several zstd frames (pzstd, or .zst files joined "
                    "by cat), and Parquet"
                )
    return messages


def numbered(
    splits: Sequence[Parts], counts: Iterator[LineCountResult]
) -> Iterator[Parts]:
    """Yield the parts of each task with the number of lines before them; `counts` has a result for each counted part."""
    lines_above, begins_line = 0, True
    for parts in splits:
        if parts[0].stop is None or parts[0].skips:  # not counted
            yield parts
            continue
        (part,) = parts
        if not part.start:
            lines_above, begins_line = 0, True
        count = next(counts)
        inside_bytes = count.bytes if compression_of(part.file.name) else None
        yield (
            replace(
                part,
                lines_before=lines_above,
                inside_bytes=inside_bytes,
                begins_line=begins_line,
            ),
        )
        lines_above += count.lines
        begins_line = count.ends_line if count.bytes else begins_line


def line_counts_steps(splits: Splits) -> list[Step]:
    """Return the step that counts the lines in parts of large files; none if no file is divided by bytes."""
    every = chain.from_iterable(chain.from_iterable(splits))
    parts = [part for part in every if part.stop is not None and not part.skips]
    if not parts:
        return []
    config = [
        [part.file.name, part.file.identity, part.start, part.stop] for part in parts
    ]
    tasks = [partial(_count_lines, part=part) for part in parts]
    return [
        Step(
            "line_counts",
            1,
            {"parts": config},
            (),
            lambda _: tasks,
            LineCountResult,
        )
    ]


def _count_lines(_: Path, *, part: FilePart) -> LineCountResult:
    """Count the lines and bytes of a part of a local file. Raises CorpusError if it cannot be read."""
    lines, size, last = 0, 0, b""
    with explained(part.file), pa.OSFile(part.file.path) as file:
        stop = part.file.bytes if part.stop is None else part.stop
        stream = file.get_stream(part.start, stop - part.start)
        if compression := compression_of(part.file.name):
            stream = decompressed(stream, compression)
        while block := stream.read(_COUNT_BUFFER_BYTES):
            lines, size, last = (
                lines + block.count(b"\n"),
                size + len(block),
                block[-1:],
            )
        check_unchanged(part.file)
    return LineCountResult(lines=lines, bytes=size, ends_line=last == b"\n")
