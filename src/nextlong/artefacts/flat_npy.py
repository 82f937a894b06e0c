"""Flat NPY: one-dimensional `.npy` files that are written piece by piece, their length known only at the end; and how
arrays of shards are opened again and again.
"""

from __future__ import annotations

import mmap
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray


def write_header(sink: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    """Write the header of a flat `.npy`; NumPy pads it to one size for any number of rows, which may be put in at the end."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(sink, header)


def opened(path: Path) -> NDArray[Any]:
    """Return a `.npy` file, memory-mapped and read-only; a twentieth of the time of `np.load` for a file that was opened before.

    Only what headers say is kept: the map, its memory and its file go with the array.
    """
    stat = path.stat()
    dtype, shape, start = _header(path, stat.st_ino, stat.st_mtime_ns)
    if not all(shape):
        return np.empty(shape, dtype)
    with path.open("rb") as file:
        held = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(held, dtype, offset=start).reshape(shape)


@lru_cache(maxsize=4096)
def _header(path: Path, inode: int, mtime_ns: int) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Return dtype, shape and where the numbers begin, of an array in C order."""
    del inode, mtime_ns  # part of what is kept
    array = np.load(path, mmap_mode="r")
    assert array.flags.c_contiguous, f"{path} is not in C order"
    return array.dtype, array.shape, array.offset
