"""Parts: how the tasks of ingest share large files, and which files cannot be shared."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

from nextlong.engine.step import Config
from nextlong.inputs.files import InputFile, Inside, Part, compression_of
from nextlong.inputs.split import can_be_parted, has_frames
from nextlong.recipe import Source
from nextlong.results import LineCountResult

Splits = Sequence[Sequence[tuple[Part, ...]]]  # of each source, of each task


def row_groups(splits: Splits) -> Config:
    """Return how large Parquet files are parted; nothing where none is."""
    parts = [part for of_source in splits for split in of_source for part in split if part.row_groups is not None]
    return {"row_groups": [[part.file.name, *part.row_groups] for part in parts if part.row_groups]} if parts else {}


def task_bytes(splits: Splits) -> list[float]:
    """Return about how many bytes each task reads, in task order."""
    tasks = [parts for of_source in splits for parts in of_source]
    groups: dict[str, int] = {}
    for part in itertools.chain.from_iterable(tasks):
        if part.row_groups is not None:
            groups[part.file.path] = max(groups.get(part.file.path, 1), part.row_groups[1])
    return [sum(_bytes_of(part, row_groups=groups.get(part.file.path, 1)) for part in parts) for parts in tasks]


def _bytes_of(part: Part, *, row_groups: int) -> float:
    """Return about how much a part is of its file, which has so many row groups."""
    if part.row_groups is not None:
        return part.file.bytes * (part.row_groups[1] - part.row_groups[0]) / row_groups
    return (part.file.bytes if part.stop is None else part.stop) - part.start


def whole_files(sources: Sequence[Source], files: Sequence[Sequence[InputFile]], *, shard_bytes: int) -> list[str]:
    """Say of each compressed file that holds several shards and cannot be parted that one task reads it."""
    large = [
        (file, source)
        for source, source_files in zip(sources, files, strict=True)
        for file in source_files
        if compression_of(file.name) and file.bytes > 2 * shard_bytes and not has_frames(file, source)
    ]
    return [
        f"{file.path} ({file.bytes / 1e6:,.0f} MB) is compressed as {_whole(file, source)}, so one task reads it; several smaller "
        "files, plain JSON lines, JSON lines in several zstd frames (pzstd, or .zst files put together by cat) or Parquet are "
        "read by as many tasks as there are workers"
        for file, source in large
    ]


def _whole(file: InputFile, source: Source) -> str:
    is_frame = compression_of(file.name) == "zstd" and can_be_parted(file, source)
    return "one zstd frame" if is_frame else "a whole"


def numbered(splits: Sequence[tuple[Part, ...]], counted: Iterator[LineCountResult]) -> Iterator[tuple[Part, ...]]:
    """Tell each part of a file how many lines end above it; `counted` is what each such part holds."""
    above, begins_line = 0, True
    for parts in splits:
        if parts[0].stop is None:
            yield parts
            continue
        (part,) = parts
        if not part.start:
            above, begins_line = 0, True
        counts = next(counted)
        inside = Inside(counts.bytes, begins_line) if compression_of(part.file.name) else None
        yield (replace(part, lines_before=above, inside=inside),)
        above += counts.lines
        begins_line = counts.ends_line if counts.bytes else begins_line
