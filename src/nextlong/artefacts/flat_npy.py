"""Flat NPY: one-dimensional `.npy` files that are written piece by piece, their length known only at the end; and how
arrays of shards are opened again and again.
"""

from __future__ import annotations

import resource
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

# A map keeps its file open: a sixth of what this process may. Opening one takes half a millisecond.
_KEPT = max(8, min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 6))


def write_header(sink: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    """Write the header of a flat `.npy`; NumPy pads it to one size for any number of rows, which may be put in at the end."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(sink, header)


def opened(path: Path) -> NDArray[Any]:
    """Return a `.npy` file, memory-mapped and kept so until another takes its place; a process keeps the last few hundred."""
    stat = path.stat()
    return _opened(path, stat.st_ino, stat.st_mtime_ns)


@lru_cache(maxsize=_KEPT)
def _opened(path: Path, inode: int, mtime_ns: int) -> NDArray[Any]:
    del inode, mtime_ns  # part of what is kept
    array: NDArray[Any] = np.load(path, mmap_mode="r").view(np.ndarray)
    return array
