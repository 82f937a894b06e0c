"""Lengths: `128k` as people write it, and as a recipe, a command and a table read it.

k is 1,024 and M is 1,048,576, in either case, as in the names of models and benchmarks: 128k is 131,072 tokens. Only lengths
are written so; documents and sequences are counted in full, because 500k of them could be either number.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}
_WRITTEN = re.compile(r"(\d{1,15})([kKmM]?)", re.ASCII)

_WITH_A_UNIT = re.compile(r"[\d.,_]+\s*[^\W\d_]+")


def read_length(text: str) -> int | None:
    """Return the length that 8192, 8k, 64K or 1M stands for; None if the text is none."""
    match = _WRITTEN.fullmatch(text.strip())
    return int(match[1]) * _UNITS[match[2].lower()] if match else None


def _in_full(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    length = read_length(value)
    if length is None and _WITH_A_UNIT.fullmatch(value.strip()):
        raise ValueError("a length is a whole number: 131072, or in short 128k (k is 1,024) or 1M (M is 1,048,576)")
    return value if length is None else length


# An int of a recipe that may be written as 128k.
Length = Annotated[int, BeforeValidator(_in_full)]
PositiveLength = Annotated[Length, Field(gt=0)]
