"""Variants: the variants of a run directory, opened when they are first asked for, and what is held of each.

In:  a run directory. Out: its variants by name, with the few sequences that were looked at last.
"""

from __future__ import annotations

from collections import OrderedDict
from functools import cached_property

from nextlong.artifacts import record
from nextlong.picture import pieces, shared_words
from nextlong.report.page.sequences import SAMPLED_TEXTS
from nextlong.runs.measures import sample_chunks
from nextlong.runs.run import Run, Sequence
from nextlong.text import Json
from nextlong.view.documents import sources
from nextlong.view.sequences import SequenceIndex

_HELD_SEQUENCES = 8
_MOST_SHARDS = 40  # whose sources a form offers


class OpenVariant:
    """One variant, opened."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.rows: dict[tuple[int, int, str], Json] = {}  # of lists: by sequence, chunk that is shown, and search text
        self._sequences: OrderedDict[int, Sequence] = OrderedDict()

    @cached_property
    def index(self) -> SequenceIndex:
        """Its sequences."""
        return SequenceIndex(self.run)

    @cached_property
    def sources(self) -> list[str]:
        """The sources that a form offers: those of the first documents of some shards."""
        return list(sources(self.run.corpus, most=_MOST_SHARDS))

    def sequence(self, number: int) -> Sequence:
        """Return a sequence; the last few stay in memory. Raises IndexError."""
        if number not in self._sequences:
            self._sequences[number] = self.run.sequence(number)
            if len(self._sequences) > _HELD_SEQUENCES:
                self._sequences.popitem(last=False)
        self._sequences.move_to_end(number)
        return self._sequences[number]

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
        return {"text": text, "partner": beside, "words": shared_words.shared(text, beside, self.frequencies)}

    @cached_property
    def frequencies(self) -> shared_words.Frequencies:
        """How many chunks of a sample of the corpus hold each word."""
        sampled = sample_chunks(self.run, SAMPLED_TEXTS)
        return shared_words.frequencies(self.run.corpus.texts(sampled).tolist())

    def _text(self, number: int, place: int) -> str:
        return self.sequence(number).texts_of([place])[0]


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
