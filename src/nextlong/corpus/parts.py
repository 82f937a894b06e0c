"""Parts: how the tasks of ingest share large files, and which files cannot be shared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

from nextlong.engine.step import Config
from nextlong.inputs.files import InputFile, Inside, Part, compression_of
from nextlong.inputs.split import most_tasks
from nextlong.recipe import Source
from nextlong.results import LineCountResult

_WORTH_TELLING_BYTES: Final = 16_000_000  # compressed: reads in a second or two

Splits = Sequence[Sequence[tuple[Part, ...]]]  # of each source, of each task


def every_part(splits: Splits) -> list[Part]:
    """Return the parts of all tasks, in their order."""
    return [part for of_source in splits for split in of_source for part in split]


def places(splits: Splits) -> Config:
    """Return how large Parquet files and files that are compressed as a whole are parted; nothing where none is."""
    parts = every_part(splits)
    row_groups = [[part.file.name, *part.row_groups] for part in parts if part.row_groups]
    skipping = [[part.file.name, part.start] for part in parts if part.skips]
    return {key: given for key, given in (("row_groups", row_groups), ("decompressed_from", skipping)) if given}


def task_bytes(splits: Splits) -> list[float]:
    """Return about how many bytes each task reads, in task order."""
    pieces: Counter[str] = Counter()  # row groups of a file, or parts of what it holds decompressed
    for part in every_part(splits):
        if part.row_groups is not None:
            pieces[part.file.path] = max(pieces[part.file.path], part.row_groups[1])
        elif part.skips:
            pieces[part.file.path] += 1
    tasks = [parts for of_source in splits for parts in of_source]
    return [sum(_bytes_of(part, pieces=max(1, pieces[part.file.path])) for part in parts) for parts in tasks]


def _bytes_of(part: Part, *, pieces: int) -> float:
    """Return about how much a part is of its file, which has so many pieces."""
    if part.row_groups is not None:
        return part.file.bytes * (part.row_groups[1] - part.row_groups[0]) / pieces
    if part.skips:
        return part.file.bytes / pieces
    return (part.file.bytes if part.stop is None else part.stop) - part.start


def whole_files(
    sources: Sequence[Source], files: Sequence[Sequence[InputFile]], *, shard_bytes: int, workers: int
) -> list[str]:
    """Say of each compressed file that holds several shards how many tasks may read it, where those are fewer than the workers."""
    shared = [
        (file, most_tasks(file, source))
        for source, source_files in zip(sources, files, strict=True)
        for file in source_files
        if compression_of(file.name) and file.bytes > max(2 * shard_bytes, _WORTH_TELLING_BYTES)
    ]
    return [
        f"{file.path} ({file.bytes / 1e6:,.0f} MB) is compressed as a whole, so {_tasks(most)}; several smaller files, plain JSON "
        "lines, JSON lines in several zstd frames (pzstd, or .zst files put together by cat) or Parquet are read by as many "
        "tasks as there are workers"
        for file, most in shared
        if most is not None and most < workers
    ]


def _tasks(most: int) -> str:
    return "one task reads it" if most == 1 else f"at most {most} tasks read it, each from its beginning"


def numbered(splits: Sequence[tuple[Part, ...]], counted: Iterator[LineCountResult]) -> Iterator[tuple[Part, ...]]:
    """Tell each part of a file how many lines end above it; `counted` is what each such part holds."""
    above, begins_line = 0, True
    for parts in splits:
        if parts[0].stop is None or parts[0].skips:
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
