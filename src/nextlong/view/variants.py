"""Variants: the variants of a run directory, opened when they are first asked for, and what is held of each.

In:  a run directory. Out: its variants by name, with the few sequences that were looked at last.
"""

from __future__ import annotations

from functools import cached_property, lru_cache

from nextlong.artifacts import record
from nextlong.picture import pieces
from nextlong.report.page.sequences import SAMPLED_TEXTS
from nextlong.runs.measures import sample_chunks
from nextlong.runs.run import Run
from nextlong.text import Json
from nextlong.view.documents import sources
from nextlong.view.sequences import SequenceIndex

_HELD_SEQUENCES = 8
_MOST_SHARDS = 40  # whose sources a form offers


class OpenVariant:
    """One variant, opened; the last few sequences that were looked at stay in memory."""

    def __init__(self, run: Run) -> None:
        self.run, self.index = run, SequenceIndex(run)
        self.rows: dict[tuple[int, int, str], Json] = {}  # of lists: by sequence, chunk that is shown, and search text
        self.sequence = lru_cache(maxsize=_HELD_SEQUENCES)(run.sequence)  # raises IndexError

    @cached_property
    def sources(self) -> list[str]:
        """The sources that a form offers: those of the first documents of some shards."""
        return sources(self.run.corpus, most=_MOST_SHARDS)

    @cached_property
    def frequencies(self) -> pieces.Frequencies:
        """How many chunks of a sample of the corpus hold each word."""
        return pieces.frequencies(self.run.corpus.texts(sample_chunks(self.run, SAMPLED_TEXTS)).tolist())

    def pair(self, number: int, place: int) -> Json:
        """Return the text of a piece, that of its partner, and the words that they share. Raises IndexError."""
        one = self.sequence(number)
        if not 0 <= place < len(one.spans):
            raise IndexError(f"piece {place} of {len(one.spans)}")
        partner, (text,) = pieces.partners(one.spans)[place], one.texts_of([place])
        if partner < 0:
            return {"text": text, "partner": None, "words": []}
        (beside,) = one.texts_of([partner])
        return {"text": text, "partner": beside, "words": pieces.shared_words(text, beside, self.frequencies)}


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
