"""Lengths: what `--lengths 8k..512k` means.

8k,32k        these           8k..128k      8,192 and its doublings up to 131,072       4096      4,096       1M      1,048,576
"""

from __future__ import annotations

from nextlong.errors import EvaluateError
from nextlong.recipe.lengths import read_length


def parse_lengths(text: str) -> list[int]:
    """Return the lengths in tokens, ascending, each once. Raises EvaluateError."""
    lengths: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        low = _one(first)
        high = _one(last) if dots else low
        if high < low:
            raise EvaluateError(
                f"--lengths {part.strip()}: the second is smaller than the first; write them as 8k..128k"
            )
        while low <= high:
            lengths.add(low)
            low *= 2
    return sorted(lengths)


def _one(text: str) -> int:
    length = read_length(text)
    if not length:
        raise EvaluateError(f"--lengths: {text.strip()!r} is not a length; write 8192, 8k, 8k,32k or 8k..128k")
    return length


def short(length: int | None) -> str:
    """Return a length as people write it: 8K, 512, 1M."""
    if length is None:
        return "–"
    for unit, size in (("M", 1024 * 1024), ("K", 1024)):
        if length % size == 0:
            return f"{length // size}{unit}"
    return f"{length:,}"
