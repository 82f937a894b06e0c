"""Split: the files of a source → what each task reads, a large file shared by several where a reader can begin in its midst."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Final

import fsspec

from nextlong.inputs import file_systems
from nextlong.inputs.files import InputFile, Part, compression_of
from nextlong.inputs.formats import format_of
from nextlong.inputs.zstd_frames import frame_bounds
from nextlong.recipe import Source

_PARTED: Final = 2  # a file is parted if it holds more parts


def split_inputs(
    files: Iterable[InputFile], source: Source, *, shard_bytes: int, part_bytes: int
) -> list[tuple[Part, ...]]:
    """Group consecutive files into tasks of at most about `shard_bytes`.

    A bigger file is a task of its own, or several of about `part_bytes` where a reader can begin in its midst (`can_be_parted`).
    """
    tasks: list[list[Part]] = []
    held_bytes = full = shard_bytes + 1
    for file in files:
        if file.bytes > _PARTED * part_bytes and can_be_parted(file, source):
            tasks += [[part] for part in _parts_of(file, source, part_bytes)]
            held_bytes = full
            continue
        if held_bytes + file.bytes > shard_bytes:
            tasks.append([])
            held_bytes = 0
        tasks[-1].append(Part(file))
        held_bytes += file.bytes
    return [tuple(task) for task in tasks]


def can_be_parted(file: InputFile, source: Source) -> bool:
    """Say whether a reader can begin in the midst of a file on a local disk: of JSON lines, plain or in zstd frames, or Parquet."""
    kind = format_of(file.name, source)
    is_parted = (kind.is_lines or kind.split is not None) and compression_of(file.name) != "gzip"
    return is_parted and file_systems.is_local(fsspec.core.url_to_fs(file.path)[0])


def _parts_of(file: InputFile, source: Source, part_bytes: int) -> list[Part]:
    """Return a file in parts of about `part_bytes`; whole where it is one row group or one frame, or these are not to be read."""
    in_parts = format_of(file.name, source).split
    if in_parts is not None:
        return in_parts(file, part_bytes)
    if compression_of(file.name):
        return _frame_parts(file, part_bytes)
    count = -(-file.bytes // part_bytes)
    bounds = [file.bytes * number // count for number in range(count + 1)]
    return [Part(file, start, stop) for start, stop in pairwise(bounds)]


def has_frames(file: InputFile, source: Source) -> bool:
    """Say whether a file is of JSON lines in more than one zstd frame, on a local disk."""
    is_framed = format_of(file.name, source).is_lines and compression_of(file.name) == "zstd"
    return is_framed and can_be_parted(file, source) and len(_frame_bounds(file)) > 2


def _frame_parts(file: InputFile, part_bytes: int) -> list[Part]:
    """Return consecutive zstd frames of about `part_bytes` together."""
    _, *ends = _frame_bounds(file) or (0,)
    parts, start = [], 0
    for end in ends:
        if end - start >= part_bytes or end == ends[-1]:
            parts.append(Part(file, start, end))
            start = end
    return parts if len(parts) > 1 else [Part(file)]


def _frame_bounds(file: InputFile) -> tuple[int, ...]:
    try:
        return frame_bounds(file.path, version=file.version)
    except OSError:
        return ()  # reading it says what is wrong with it
