"""Plural: counts in words, as commands, pages and errors say them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return `1 chunk`, `2 chunks`, `1,000 chunks`, `2 queries`, `2 keys`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") and noun[-2] not in "aeiou" else f"{count:,} {noun}s"
