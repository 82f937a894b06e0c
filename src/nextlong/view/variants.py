"""Variants: those of a run directory as the viewer keeps them, opened on first use.

In:  a run. Out: its variants by name, each with the index of its sequences, and the
last few sequences that were looked at.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Final

from nextlong.artifacts import variant_records
from nextlong.picture import pieces
from nextlong.report.page.sequences import sampled_words
from nextlong.runs.run import Run
from nextlong.text import Json
from nextlong.view import documents
from nextlong.view.index import RunIndex
from nextlong.view.sequences import SequenceSearch

KEPT_SEQUENCES: Final = 8
_MAX_SHARDS: Final = 40  # whose sources a form offers


class OpenVariant:
    """One variant, opened; the last few sequences that were looked at stay in memory.

    `rows` are those of lists: by sequence, chunk that is shown, and search text.
    """

    def __init__(self, run: Run) -> None:
        self.run = run
        self.index = RunIndex(run)
        self.search = SequenceSearch(run, self.index)
        self.rows: dict[tuple[int, int, str], Json] = {}
        # Raises IndexError.
        self.sequence = lru_cache(maxsize=KEPT_SEQUENCES)(run.sequence)

    @cached_property
    def sources(self) -> list[str]:
        """The sources that a form offers: those of the first documents of shards."""
        return documents.sources(self.run.corpus, max_shards=_MAX_SHARDS)

    @cached_property
    def frequencies(self) -> pieces.Frequencies:
        """How many chunks of a sample of the corpus hold each word."""
        return sampled_words(self.run)

    def pair(self, number: int, index: int) -> Json:
        """Return the texts of a piece and of its partner, and the words they share.

        Raises IndexError.
        """
        sequence = self.sequence(number)
        if not 0 <= index < len(sequence.spans):
            raise IndexError(f"piece {index} of {len(sequence.spans)}")
        partner = pieces.partners(sequence.spans)[index]
        if partner < 0:
            (text,) = sequence.texts_of([index])
            return {"text": text, "partner": None, "words": []}
        text, beside = sequence.texts_of([index, partner])
        words = pieces.shared_words(text, beside, self.frequencies)
        return {"text": text, "partner": beside, "words": words}


class Variants:
    """The variants of a run directory by name."""

    def __init__(self, run: Run) -> None:
        self.first = run.variant.name
        self.run_dir = run.path
        self._open = {self.first: OpenVariant(run)}

    @property
    def names(self) -> list[str]:
        """All of them, the oldest first."""
        return variant_records.names(self.run_dir)

    def get(self, name: str) -> OpenVariant:
        """Return a variant, opened on first use.

        Raises RunError for an unknown name.
        """
        if name not in self._open:
            self._open[name] = OpenVariant(Run(f"{self.run_dir}@{name}"))
        return self._open[name]
