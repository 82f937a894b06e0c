"""Pack: several sequences a row, best fit first."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import RecipeError


@dataclass(frozen=True)
class Packed:
    """Rows of whole sequences: row i holds sequences order[offsets[i]:offsets[i + 1]], ascending.

    Rows stand in the order of their first sequence.
    """

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]


def pack(lengths: NDArray[np.int64], *, row_tokens: int) -> Packed:
    """Put each sequence, lengths (n,), whole into a row of at most `row_tokens`: the longest first, where it fits best.

    Sequences of one length come out in order. Raises RecipeError for a sequence that is longer than a row.
    """
    if len(lengths) and lengths.max() > row_tokens:
        longest = int(np.argmax(lengths))
        raise RecipeError(
            f"pack={row_tokens} tokens a row cannot hold sequence {longest}, which has {int(lengths[longest])}; "
            "raise it to at least that (a multiple leaves no gap)"
        )
    row_of = np.empty(len(lengths), np.int64)
    rows = _OpenRows(row_tokens)
    descending = np.argsort(-lengths, kind="stable")
    row_of[descending] = [rows.place(length) for length in lengths[descending].tolist()]
    _, first = np.unique(row_of, return_index=True)
    place = np.empty(len(first), np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    row_of = place[row_of]
    offsets = np.concatenate([[0], np.cumsum(np.bincount(row_of, minlength=len(first)))])
    return Packed(np.argsort(row_of, kind="stable"), offsets)


class _OpenRows:
    """Rows by the room that they have left; `place` gives the one with the least room that suffices, else a new one.

    Which rooms there are is a bitmap of two levels, so that the next one is found in two steps however many there are.
    """

    def __init__(self, row_tokens: int) -> None:
        self._row_tokens = row_tokens
        self._width = isqrt(row_tokens) + 1
        self._words = [0] * self._width  # bit b of word w: there is a row with room w · width + b
        self._used_words = 0
        self._rows: dict[int, list[int]] = {}
        self._count = 0

    def place(self, length: int) -> int:
        """Return the number of the row that takes a sequence of `length` tokens."""
        room = self._least_room(length)
        if room is None:
            row, room = self._count, self._row_tokens
            self._count += 1
        else:
            row = self._rows[room].pop()
            if not self._rows[room]:
                self._close(room)
        if room > length:
            self._open(room - length, row)
        return row

    def _least_room(self, length: int) -> int | None:
        word, bit = divmod(length, self._width)
        open_rooms = self._words[word] >> bit
        if open_rooms:
            return length + _lowest_bit(open_rooms)
        later = self._used_words >> (word + 1)
        if not later:
            return None
        word += 1 + _lowest_bit(later)
        return word * self._width + _lowest_bit(self._words[word])

    def _open(self, room: int, row: int) -> None:
        rows = self._rows.setdefault(room, [])
        if not rows:
            word, bit = divmod(room, self._width)
            self._words[word] |= 1 << bit
            self._used_words |= 1 << word
        rows.append(row)

    def _close(self, room: int) -> None:
        word, bit = divmod(room, self._width)
        self._words[word] ^= 1 << bit
        if not self._words[word]:
            self._used_words ^= 1 << word


def _lowest_bit(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
