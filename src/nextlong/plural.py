"""Plural: a number with its noun, as messages say it."""

from __future__ import annotations


def plural(count: int, noun: str) -> str:
    """Return "1 chunk", "2 chunks" or "1,024 chunks"; a noun in y takes ies."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun[-1] == "y" else f"{count:,} {noun}s"
