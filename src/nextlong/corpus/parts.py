"""Parts: how the tasks of ingest share large files, and which files cannot be shared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from nextlong.inputs.files import InputFile, Part, compression_of

Splits = Sequence[Sequence[tuple[Part, ...]]]  # of each source, of each task


def row_groups(splits: Splits) -> dict[str, Any]:
    """Return how large Parquet files are parted; nothing where none is."""
    parts = [part for of_source in splits for split in of_source for part in split if part.row_groups is not None]
    return {"row_groups": [[part.file.name, *part.row_groups] for part in parts if part.row_groups]} if parts else {}


def whole_files(files: Sequence[Sequence[InputFile]], *, shard_bytes: int) -> list[str]:
    """Say of each compressed file that holds several shards that one task reads it."""
    large = [
        file
        for source_files in files
        for file in source_files
        if compression_of(file.name) and file.bytes > 2 * shard_bytes
    ]
    return [
        f"{file.path} ({file.bytes / 1e6:,.0f} MB) is compressed as a whole, so one task reads it; several smaller files, plain "
        "JSON lines or Parquet are read by as many tasks as there are workers"
        for file in large
    ]


def numbered(splits: Sequence[tuple[Part, ...]], ended: Iterator[int]) -> Iterator[tuple[Part, ...]]:
    """Tell each part of a file how many lines end above it; `ended` are those that end in each such part."""
    above = 0
    for parts in splits:
        if parts[0].stop is None:
            yield parts
            continue
        (part,) = parts
        above = above if part.start else 0
        yield (replace(part, lines_before=above),)
        above += next(ended)
