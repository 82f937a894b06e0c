"""Truncate: where the one chunk that is cut may end, judged by its text.

In:  the ids and text of chunks; SHINGLES and WEIGHTS where near-duplicates are filtered out.
Out: a `Cutter`. A cut falls between two characters where one is near, leaves at least a character of a negative, and what it
leaves repeats neither the meta-document nor another negative (docs/decisions/0005-near-duplicates.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path

import numpy as np

from nextlong.artifacts.finished import CorpusFiles, read_tokenizer
from nextlong.artifacts.lookup import TokenStore, opened
from nextlong.artifacts.resolve import Cuts, cuts_of
from nextlong.retrieval.near_duplicates.rule import find_near_duplicates
from nextlong.retrieval.near_duplicates.shingles import Document, Shingles, ShingleStore, document_of, shingles
from nextlong.sequences.fit import Cut, Cutter, Piece


@dataclass(frozen=True, kw_only=True)
class ComposeInputs:
    """What composing looks chunks up in; `near_duplicates`: (SHINGLES, WEIGHTS, threshold), None where they may stay."""

    tokens: TokenStore
    corpus: CorpusFiles
    token_chars: Path
    tokenizer: Path
    near_duplicates: tuple[ShingleStore, Path, float] | None = None


class TextCutter(Cutter):
    """Cuts the chunks of one sequence, whose meta-document, if it has one, consists of `meta_chunks`."""

    trimmed_tokens = 4  # a character has at most four bytes, hence byte-level tokens

    def __init__(self, inputs: ComposeInputs, meta_chunks: Sequence[int], *, separator_tokens: int) -> None:
        """Read nothing yet: most sequences need the text of one chunk and of their meta-document only."""
        super().__init__(separator_tokens)
        self._inputs, self._meta_chunks = inputs, meta_chunks
        self._looked_up = lru_cache(maxsize=1)(self._look_up)

    def negative(self, piece: Piece, budget: int, placed: Sequence[int]) -> Cut | None:
        """Return the longest cut that fills the budget, with separators behind it unless it ends in a newline."""
        if piece.tokens < budget - self.separator_tokens:
            return None
        text, cuts = self._looked_up(piece.chunk)
        for cut in self._possible_cuts(piece, budget):
            kept = int(cuts.chars[cut.tokens])
            if kept and cuts.between[cut.tokens] and text[:kept].endswith("\n") == cut.closed:
                break
        else:
            cut, kept = Cut(budget, closed=True), int(cuts.chars[budget]) if budget <= piece.tokens else 0
        return cut if kept and not self._repeats(text[:kept], placed) else None

    def end(self, piece: Piece, tokens: int) -> int:
        """Return the most tokens, of `tokens` or up to four fewer, that end between two characters; else `tokens`."""
        _, cuts = self._looked_up(piece.chunk)
        fewest = max(1, tokens - self.trimmed_tokens) if self.separator_tokens else tokens
        return next((n for n in range(tokens, fewest - 1, -1) if cuts.between[n] and cuts.chars[n]), tokens)

    def _possible_cuts(self, piece: Piece, budget: int) -> Iterator[Cut]:
        if budget <= piece.tokens:
            yield Cut(budget, closed=True)
        if self.separator_tokens:
            most = budget - self.separator_tokens
            for tokens in range(most, most - self.trimmed_tokens - 1, -1):
                if 1 <= tokens < piece.tokens or tokens == piece.tokens == most:
                    yield Cut(tokens, closed=False)

    def _look_up(self, chunk: int) -> tuple[str, Cuts]:
        """Return the text of a chunk and where it may be cut."""
        chunk_ids = np.array([chunk])
        (text,) = self._inputs.corpus.texts(chunk_ids).tolist()
        starts, stops = self._inputs.tokens.bounds(chunk_ids)
        ids, _ = self._inputs.tokens.ids(chunk_ids, starts=starts, stops=stops)
        token_chars = np.load(self._inputs.token_chars, mmap_mode="r")
        tokenizer = partial(read_tokenizer, self._inputs.tokenizer)
        return text, cuts_of(ids, chars=len(text), token_chars=token_chars, text_of=lambda: text, tokenizer=tokenizer)

    @cached_property
    def _document(self) -> Document:
        return document_of(self._inputs.corpus.texts(np.array(self._meta_chunks)).tolist())

    def _repeats(self, visible: str, placed: Sequence[int]) -> bool:
        """Say whether what is left of a chunk is a near-duplicate of the meta-document or of a chunk that is placed."""
        if self._inputs.near_duplicates is None:
            return False
        store, weights, threshold = self._inputs.near_duplicates
        own, others = shingles([visible]), store.of(np.array(placed, np.int64))
        # Only placed chunks that share a shingle with the text are compared: text 0 is the cut one, then these.
        owners = np.repeat(np.arange(len(placed)), np.diff(others.offsets))
        sharing = np.unique(owners[np.isin(others.hashes, own.hashes)]).tolist()
        pieces = [others.hashes[others.offsets[other] : others.offsets[other + 1]] for other in sharing]
        compared = Shingles(np.concatenate([own.hashes, *pieces]), np.cumsum([0, len(own.hashes), *map(len, pieces)]))
        copies = find_near_duplicates(compared, document=self._document, weights=opened(weights), threshold=threshold)
        return bool(copies.of_document[0]) or bool((copies.pairs == 0).any())
