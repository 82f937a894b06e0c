"""Frames: where the frames of a zstd file begin, so that several tasks read it.

In:  a local file. Out: the bytes at which its frames begin and end.
A frame is compressed by itself. `zstd` writes one a file; `pzstd`, writers of the seekable format and `cat a.zst b.zst` give
several. Frames are found without decompressing, by the sizes that stand before each block (RFC 8878, 3.1.1).
"""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import Final

import zstandard

_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_SKIPPABLE: Final = b"\x2a\x4d\x18"  # after a first byte of 0x50 to 0x5f
_MOST_HEADER_BYTES: Final = 18
_CHECKSUM_BYTES: Final = 4


@lru_cache(maxsize=64)
def frame_bounds(path: str, *, version: str) -> tuple[int, ...]:
    """Return where frames begin, ascending, and where the last ends: a file of n frames gives n + 1 numbers.

    Skippable frames count to the frame before them, or to the first. () if the file is no whole number of frames: reading it
    says why.
    `version` sets one content of the file apart from another.
    """
    del version
    size = Path(path).stat().st_size
    if not size:
        return ()
    bounds: list[int] = []
    at = 0
    with Path(path).open("rb", buffering=0) as file:  # not mapped: one that is cut meanwhile would kill the process
        while at < size:
            head = os.pread(file.fileno(), _MOST_HEADER_BYTES, at)
            is_skipped = head[1:4] == _SKIPPABLE and head[0] >> 4 == 5
            end = at + 8 + int.from_bytes(head[4:8], "little") if is_skipped else _frame_end(file.fileno(), head, at)
            if end is None or end > size:
                return ()
            if not is_skipped:
                bounds.append(at if bounds else 0)
            at = end
    return (*bounds, size) if bounds else ()


def content_bytes(path: str) -> int | None:
    """Return how much the first frame of a file says that it holds, None where it does not."""
    with Path(path).open("rb") as file:
        head = file.read(_MOST_HEADER_BYTES)
    try:
        size = zstandard.get_frame_parameters(head).content_size
    except zstandard.ZstdError:
        return None
    return None if size == zstandard.CONTENTSIZE_UNKNOWN else size


def _frame_end(file: int, head: bytes, at: int) -> int | None:
    """Return where the frame that begins at `at`, with `head`, ends; None where none begins there, or it is cut short."""
    if not head.startswith(_MAGIC):
        return None
    try:
        has_checksum = zstandard.get_frame_parameters(head).has_checksum
        at += zstandard.frame_header_size(head)
    except zstandard.ZstdError:
        return None
    is_last = False
    while not is_last:
        block = os.pread(file, 3, at)
        if len(block) < 3:
            return None
        described = int.from_bytes(block, "little")
        is_last, kind, size = bool(described & 1), described >> 1 & 3, described >> 3
        at += 3 + (1 if kind == 1 else size)  # of a run, the byte that is repeated
    return at + _CHECKSUM_BYTES * has_checksum
