"""Flat NPY: one-dimensional `.npy` files that are written piece by piece, their length known only at the end."""

from __future__ import annotations

from typing import Any, BinaryIO, Final

import numpy as np

_HEADER_BYTES: Final = 128


def write_header(sink: BinaryIO, dtype: np.dtype[Any], rows: int) -> None:
    """Write the header of a flat `.npy` (format 1.0), always 128 bytes: the row count can be put in at the end."""
    fields = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({rows},), }}"
    sink.write(b"\x93NUMPY\x01\x00" + (_HEADER_BYTES - 10).to_bytes(2, "little"))
    sink.write(fields.ljust(_HEADER_BYTES - 11).encode("ascii") + b"\n")
