"""Split: the files of a source → what each task reads, a large file shared by several where a reader can begin in its midst.

A compressed file of JSON lines can be entered only where a zstd frame begins. One without such places is shared all the same, by a
few tasks: each decompresses what stands above its part, which takes a fraction of the time of reading it as documents.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import Final

import fsspec

from nextlong.inputs import file_systems
from nextlong.inputs.files import InputFile, Part, compression_of, read_head
from nextlong.inputs.formats import format_of
from nextlong.inputs.zstd_frames import content_bytes, frame_bounds
from nextlong.recipe import Source

_PARTED: Final = 2  # a file is parted if it holds more parts
# Parts of a file that is compressed as a whole, so that all of them together decompress it a few times over at most …
_MOST_PARTS: Final = {"zstd": 8, "gzip": 4}
_SKIPPING_PART_BYTES: Final = 64_000_000  # … and how much of what it holds makes one: smaller ones would save no second
_HEAD_BYTES: Final = 1 << 20  # tell what a file holds to some percent; the last part takes what is left


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
    """Say whether several tasks can share a file: JSON lines, compressed or not, or Parquet, on a local disk."""
    kind = format_of(file.name, source)
    return (kind.is_lines or kind.split is not None) and file_systems.is_local(fsspec.core.url_to_fs(file.path)[0])


def _parts_of(file: InputFile, source: Source, part_bytes: int) -> list[Part]:
    """Return a file in parts of about `part_bytes`; whole where it is one row group or one frame, or these are not to be read."""
    in_parts = format_of(file.name, source).split
    if in_parts is not None:
        return in_parts(file, part_bytes)
    if compression := compression_of(file.name):
        parts = _frame_parts(file, part_bytes) if compression == "zstd" else []
        return parts or _skipping_parts(file)
    count = -(-file.bytes // part_bytes)
    bounds = [file.bytes * number // count for number in range(count + 1)]
    return [Part(file, start, stop) for start, stop in pairwise(bounds)]


def most_tasks(file: InputFile, source: Source) -> int | None:
    """Return how many tasks may share a compressed file that cannot be entered in its midst; None of one that can."""
    if not can_be_parted(file, source):
        return 1
    compression = compression_of(file.name)
    is_framed = compression == "zstd" and len(_frame_bounds(file)) > 2
    return len(_skipping_parts(file)) if compression and not is_framed else None


def _frame_parts(file: InputFile, part_bytes: int) -> list[Part]:
    """Return consecutive zstd frames of about `part_bytes` together; none where the file is one frame."""
    _, *ends = _frame_bounds(file) or (0,)
    parts, start = [], 0
    for end in ends:
        if end - start >= part_bytes or end == ends[-1]:
            parts.append(Part(file, start, end))
            start = end
    return parts if len(parts) > 1 else []


def _skipping_parts(file: InputFile) -> list[Part]:
    """Return parts of about the same size of what a compressed file holds; the file itself where that is little."""
    try:
        size = _decompressed_bytes(file.path, file.bytes, file.name, version=file.version)
    except OSError:
        return [Part(file)]  # reading it says what is wrong with it
    count = min(_MOST_PARTS[compression_of(file.name)], size // _SKIPPING_PART_BYTES)
    if count < 2:
        return [Part(file)]
    starts = [size * number // count for number in range(count)]
    return [Part(file, start, stop, skips=True) for start, stop in zip(starts, [*starts[1:], None], strict=True)]


@lru_cache(maxsize=64)
def _decompressed_bytes(path: str, size: int, name: str, *, version: str) -> int:
    """Return or estimate what a compressed file holds; `version` sets one content of the file apart from another."""
    if compression_of(name) == "zstd" and (said := content_bytes(path)) is not None:
        return said
    head, head_bytes = read_head(InputFile(path, size, version, name), _HEAD_BYTES)
    return len(head) * size // max(1, head_bytes)


def _frame_bounds(file: InputFile) -> tuple[int, ...]:
    try:
        return frame_bounds(file.path, version=file.version)
    except OSError:
        return ()  # reading it says what is wrong with it
