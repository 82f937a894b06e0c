"""Variants: the variants of a run directory, opened when they are first asked for, and what is held of each.

In:  a run directory. Out: its variants by name, with the few sequences that were looked at last.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import cached_property
from typing import TypeVar

from nextlong.artefacts import record
from nextlong.picture import pieces, shared_words
from nextlong.plain_data import Json
from nextlong.runs.opened import Run, Sequence
from nextlong.view.documents import sources
from nextlong.view.listing import Listing

T = TypeVar("T")

_HELD_SEQUENCES = 8
_MOST_SHARDS = 40  # whose sources a form offers
_COMMON_SAMPLE = 12  # texts of a sequence that say which words are common


class OpenVariant:
    """One variant, opened."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()
        self._common: OrderedDict[int, frozenset[str]] = OrderedDict()

    @cached_property
    def listing(self) -> Listing:
        """Its sequences."""
        return Listing(self.run)

    @cached_property
    def sources(self) -> list[str]:
        """The sources that a form offers: those of the first documents of some shards."""
        return list(sources(self.run.corpus, most=_MOST_SHARDS))

    def sequence(self, number: int) -> Sequence:
        """Return a sequence; the last few stay in memory. Raises IndexError."""
        return _held(self._sequences, number, lambda: self.run.sequence(number))

    def pair(self, number: int, place: int) -> Json:
        """Return the text of a piece, that of its partner, and the words that they share. Raises IndexError."""
        spans = self.sequence(number).spans
        if not 0 <= place < len(spans):
            raise IndexError(f"piece {place} of {len(spans)}")
        partner = pieces.partners(spans)[place]
        text = self._text(number, place)
        if partner < 0:
            return {"text": text, "partner": None, "words": []}
        beside = self._text(number, partner)
        return {"text": text, "partner": beside, "words": shared_words.shared(text, beside, self._common_words(number))}

    def _common_words(self, number: int) -> frozenset[str]:
        spans = self.sequence(number).spans
        chunks = [place for place, span in enumerate(spans) if span.role in pieces.CHUNK_ROLES]
        some = shared_words.sample(chunks, _COMMON_SAMPLE)
        return _held(
            self._common, number, lambda: shared_words.common_words(self._text(number, place) for place in some)
        )

    def _text(self, number: int, place: int) -> str:
        return self.sequence(number).texts_of([place])[0]


def _held(held: OrderedDict[int, T], number: int, make: Callable[[], T]) -> T:
    if number not in held:
        held[number] = make()
        if len(held) > _HELD_SEQUENCES:
            held.popitem(last=False)
    held.move_to_end(number)
    return held[number]


class Variants:
    """The variants of a run directory by name."""

    def __init__(self, run: Run) -> None:
        self.first = run.variant.name
        self.run_dir = run.path
        self._open = {run.variant.name: OpenVariant(run)}

    @property
    def names(self) -> list[str]:
        """All of them, the oldest first."""
        return record.variant_names(self.run_dir)

    def get(self, name: str) -> OpenVariant:
        """Return a variant, opened if it was not. Raises RunError if there is none of that name."""
        if name not in self._open:
            self._open[name] = OpenVariant(Run(f"{self.run_dir}@{name}"))
        return self._open[name]
