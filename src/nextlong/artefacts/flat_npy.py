"""Flat NPY: one-dimensional `.npy` files that are written piece by piece, their length known only at the end."""

from __future__ import annotations

from typing import Any, BinaryIO

import numpy as np


def write_header(sink: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    """Write the header of a flat `.npy`; NumPy pads it to one size for any number of rows, which may be put in at the end."""
    header = {"descr": dtype.str, "fortran_order": False, "shape": (rows,)}
    np.lib.format.write_array_header_1_0(sink, header)
