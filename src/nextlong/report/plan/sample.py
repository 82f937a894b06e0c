"""Sample: the size of the corpus, and documents drawn from it.

In:  what `corpus.look` read of each source. Out: the `Amounts` of the corpus up to its
meta-chunks, and the documents that were looked at with their weights.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from nextlong.arrays import Doubles, Ints
from nextlong.checks import Corpus
from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.long_documents import LONG_CHARS
from nextlong.corpus.look import Look, kept_shares
from nextlong.errors import CorpusError
from nextlong.reading.records import RejectKind
from nextlong.recipe import Recipe
from nextlong.recipe.keys import MIN_GAP_CHUNKS, TYPICAL_CHARS_PER_TOKEN, checked_chars
from nextlong.report.plan.amounts import Amounts
from nextlong.sequences.shortfall import has_gaps
from nextlong.text import counted

_SHOWN_CHARS: Final = 40  # of the longest document
_SHOWN_KINDS: Final = 3  # of rejected or skipped records


@dataclass(frozen=True)
class CorpusSample:
    """The size of the corpus, and documents drawn from it.

    `stands_for`, `chars` and `chunks` have shape (n,), one row for each document of
    `looked_at`: how many documents of the corpus it stands for, its characters, and its
    chunks. `size` is exact if `is_whole`, and ends with `meta_chunks`. `rejects` counts
    the records of the whole corpus that are no documents.
    """

    size: Amounts
    is_whole: bool
    looked_at: list[str]
    stands_for: Doubles
    chars: Ints
    chunks: Ints
    rejects: Mapping[RejectKind, float]

    def drawn(self, chars: int) -> list[str]:
        """Return random documents of about this many characters, two at least.

        Sources have their shares after caps and weights.
        """
        random = np.random.default_rng(0)
        # A document is as likely as the documents that it stands for are many.
        chances = self.stands_for / self.stands_for.max()
        is_likely = random.random(len(self.chars)) < chances
        rows = random.permutation(np.flatnonzero(is_likely))
        read_chars = np.cumsum(self.chars[rows])
        count = int(np.searchsorted(read_chars, chars, side="right"))
        return [self.looked_at[row] for row in rows[: max(2, count)]]

    def dropped(self, recipe: Recipe, *, chars_per_token: float) -> tuple[float, float]:
        """Return how many documents are longer than a sequence, or nearly.

        The second number is of those that leave too little room for negatives.
        """
        longest = recipe.sequence_tokens * chars_per_token
        is_eligible = self.chunks >= recipe.compose.min_meta_chunks
        # Documents of too few chunks are negatives at any length, so they are not lost.
        is_long = is_eligible & (self.chars >= longest)
        gaps = self._gap_chars(recipe, chars_per_token=chars_per_token)
        is_tight = is_eligible & ~is_long & (self.chars + gaps >= longest)
        long = float(self.stands_for[is_long].sum())
        tight = float(self.stands_for[is_tight].sum())
        return long, tight

    def _gap_chars(self, recipe: Recipe, *, chars_per_token: float) -> Doubles:
        """Return the characters of negatives that each document needs at least."""
        if not has_gaps(recipe.compose):
            return np.zeros(len(self.chars))
        # All but the last negative are whole chunks, so a gap takes one of them, or
        # more if min_gap_tokens asks for more.
        chunks = self.chunks.sum()
        chunk_chars = self.chars.sum() / max(1, chunks)
        min_gap_tokens = recipe.compose.min_gap_tokens
        if min_gap_tokens == "auto":
            gap = MIN_GAP_CHUNKS * chunk_chars
        else:
            gap = min_gap_tokens * chars_per_token
        gap_chars: Doubles
        gap_chars = (self.chunks - 1) * max(gap, chunk_chars) + gap
        return gap_chars

    def longest(self) -> str:
        """Return the beginning of the longest document, and its characters."""
        row = int(self.chars.argmax())
        words = self.looked_at[row][:_SHOWN_CHARS].split()
        return f"'{' '.join(words)}…', {self.chars[row]:,} characters"

    def documents_of(self, chunks: float) -> float:
        """Return how many documents a random `chunks` of the corpus come from.

        That is on average, with each chunk used once.
        """
        # A document of k chunks is missed if all of them are: with a probability of
        # (1 - used) ** k.
        used = min(1.0, chunks / max(1.0, self.size.chunks))
        found_shares = 1 - (1 - used) ** self.chunks
        return float((self.stands_for * found_shares).sum())


def sample(recipe: Recipe, corpus: Corpus) -> CorpusSample:
    """Look at every source. Raises CorpusError if no document is found."""
    looks = [look for look in corpus.looks if look.documents]
    rejects = _rejects(corpus.looks)
    if not looks:
        raise _nothing_found(recipe, corpus, rejects)
    texts: list[str] = []
    for look in looks:
        texts += look.texts
    options = recipe.chunk.model_dump()
    chars = np.array([len(text) for text in texts])
    chunks_of_texts = [chunk_text(text, **options) for text in texts]
    chunks = np.array(list(map(len, chunks_of_texts)))

    # (sources,): the share of the documents that caps and weights keep, …
    kept_share = kept_shares(looks)
    # … and for how many of its source's documents each text stands.
    text_scales = np.multiply(kept_share, [look.text_scale for look in looks])
    stands_for = np.repeat(text_scales, [len(look.texts) for look in looks])

    is_eligible = chunks >= recipe.compose.min_meta_chunks
    # Documents that are longer than a sequence are not searched for.
    max_chars = checked_chars(recipe.sequence_tokens, TYPICAL_CHARS_PER_TOKEN)
    is_searched = is_eligible & (chars <= max_chars)
    meta_chunks = float((stands_for * chunks)[is_searched].sum())
    size = replace(
        _read_amounts(looks, kept_share),
        kept_chars=float(stands_for @ chars),
        long_chars=float(stands_for @ (chars * (chars >= LONG_CHARS))),
        chunks=float(stands_for @ chunks),
        eligible=float(stands_for[is_eligible].sum()),
        meta_chunks=meta_chunks,
    )
    return CorpusSample(
        size=size,
        is_whole=all(look.is_whole for look in looks),
        looked_at=texts,
        stands_for=stands_for,
        chars=chars,
        chunks=chunks,
        rejects=rejects,
    )


def _read_amounts(
    looks: Sequence[Look], kept_share: Doubles | Sequence[float]
) -> Amounts:
    """Return the amounts that are read, and how many documents are kept of them."""
    text_bytes = 0.0
    documents = 0.0
    kept_documents = 0.0
    for look, share in zip(looks, kept_share, strict=True):
        text_bytes += look.text_bytes
        documents += look.scale * look.documents
        kept_documents += share * look.scale * look.distinct_documents
    return Amounts(
        text_bytes=text_bytes,
        documents=documents,
        kept_documents=float(kept_documents),
    )


def _rejects(looks: Sequence[Look]) -> dict[RejectKind, float]:
    """Return how many records of the whole corpus are rejected, by kind."""
    # What was read of a source is scaled to the size of the source.
    rejects: dict[RejectKind, float] = {}
    for look in looks:
        for kind, count in look.rejects.items():
            rejects[kind] = rejects.get(kind, 0) + look.scale * count
    return rejects


def _nothing_found(
    recipe: Recipe, corpus: Corpus, rejects: Mapping[RejectKind, float]
) -> CorpusError:
    if recipe.ingest.exclude is not None and not rejects:
        return CorpusError(
            where="ingest.exclude",
            problem="it excludes all documents of a sample",
            fix="delete lines of it, or set it to null",
        )
    # Of what was read, as a run would list it.
    rejected: Counter[RejectKind] = Counter()
    skipped: Counter[str] = Counter()
    for look in corpus.looks:
        rejected.update(look.rejects)
        skipped.update(look.skipped)
    kinds = [*rejected.most_common(_SHOWN_KINDS), *skipped.most_common(_SHOWN_KINDS)]
    found = ", ".join(f"{counted(count, 'record')}: {kind}" for kind, count in kinds)
    return CorpusError(
        where="ingest.sources",
        problem=(
            f"no document was found in a sample of {corpus.files[0][0].path} or other "
            f"files ({found or 'they are empty'})"
        ),
        fix="correct ingest.sources; `nextlong run` names every reject",
    )
