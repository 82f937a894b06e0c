"""Plural: counts in words, as commands, pages and errors say them."""

from __future__ import annotations


def counted(count: int, noun: str) -> str:
    """Return `1 chunk`, `2 chunks`, `1,000 chunks`."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
