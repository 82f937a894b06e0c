"""Cut: where the one chunk that is cut may end, by its text.

In:  the ids and text of chunks, and SHINGLES and WEIGHTS where near-copies are left out.
Out: a `Cutter`: a cut falls between two characters where one is near, never leaves less than a character of a negative, and
what it leaves of a negative neither repeats its meta-document nor another negative (docs/decisions/0005-near-copies.md).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.artefacts.flat_npy import opened
from nextlong.artefacts.resolve import Corpus
from nextlong.artefacts.tokens import TokenStore
from nextlong.artefacts.truncated import Cuts, cuts_of
from nextlong.compose.fit import Cut, Cutter, Piece
from nextlong.similarity.near_copies import find
from nextlong.similarity.shingles import Document, Shingles, ShingleStore, document_of, shingles
from nextlong.tokens.tokenizer import tokenizer_of

TRIMMED_TOKENS: Final = 4  # a character has at most four bytes, hence byte-level tokens


@dataclass(frozen=True, kw_only=True)
class Texts:
    """Where the text of chunks is looked up; `near_copies` is (SHINGLES, WEIGHTS, threshold), None where they may stay."""

    corpus: Corpus
    token_chars: Path
    tokenizer: Path
    near_copies: tuple[ShingleStore, Path, float] | None = None


class TextCutter(Cutter):
    """Cuts the chunks of one sequence, whose meta-document, if it has one, consists of `meta_chunks`."""

    trimmed_tokens = TRIMMED_TOKENS

    def __init__(self, texts: Texts, tokens: TokenStore, meta_chunks: Sequence[int], *, joint_tokens: int) -> None:
        """Read nothing yet: most sequences need the text of one chunk, and of their meta-document."""
        super().__init__(joint_tokens)
        self._texts, self._tokens, self._meta_chunks = texts, tokens, meta_chunks
        self._looked_up = lru_cache(maxsize=1)(self._look_up)

    def negative(self, piece: Piece, budget: int, placed: Sequence[int]) -> Cut | None:
        """Return the longest cut that fills the budget, with joints behind it unless it ends in a newline."""
        if piece.tokens < budget - self.joint_tokens:
            return None
        text, cuts = self._looked_up(piece.chunk)
        for cut in self._ways(piece, budget):
            kept = int(cuts.chars[cut.tokens])
            if kept and cuts.between[cut.tokens] and text[:kept].endswith("\n") == cut.closed:
                break
        else:
            cut, kept = Cut(budget, closed=True), int(cuts.chars[budget]) if budget <= piece.tokens else 0
        return cut if kept and not self._repeats(text[:kept], placed) else None

    def end(self, piece: Piece, tokens: int) -> int:
        """Return the most tokens, of `tokens` or up to four fewer, that end between two characters; else `tokens`."""
        _, cuts = self._looked_up(piece.chunk)
        fewest = max(1, tokens - self.trimmed_tokens) if self.joint_tokens else tokens
        return next((n for n in range(tokens, fewest - 1, -1) if cuts.between[n] and cuts.chars[n]), tokens)

    def _ways(self, piece: Piece, budget: int) -> Iterator[Cut]:
        if budget <= piece.tokens:
            yield Cut(budget, closed=True)
        if self.joint_tokens:
            most = budget - self.joint_tokens
            for tokens in range(most, most - self.trimmed_tokens - 1, -1):
                if 1 <= tokens < piece.tokens or tokens == piece.tokens == most:
                    yield Cut(tokens, closed=False)

    def _look_up(self, chunk: int) -> tuple[str, Cuts]:
        """Return the text of a chunk and where it may be cut."""
        chunk_ids = np.array([chunk])
        (text,) = self._texts.corpus.texts(chunk_ids).tolist()
        starts, stops = self._tokens.bounds(chunk_ids)
        ids, _ = self._tokens.ids(chunk_ids, starts=starts, stops=stops)
        table: NDArray[Any] = np.load(self._texts.token_chars, mmap_mode="r")
        read = partial(tokenizer_of, self._texts.tokenizer)
        return text, cuts_of(ids, chars=len(text), token_chars=table, text_of=lambda: text, tokenizer=read)

    @cached_property
    def _document(self) -> Document:
        return document_of(self._texts.corpus.texts(np.array(self._meta_chunks)).tolist())

    def _repeats(self, visible: str, placed: Sequence[int]) -> bool:
        """Say whether what is left of a chunk repeats the meta-document or a chunk that is placed."""
        if self._texts.near_copies is None:
            return False
        store, weights, threshold = self._texts.near_copies
        own, others = shingles([visible]), store.of(np.array(placed, np.int64))
        owners = np.repeat(np.arange(len(placed)), np.diff(others.offsets))
        sharing = np.unique(owners[np.isin(others.hashes, own.hashes)]).tolist()
        pieces = [others.hashes[others.offsets[other] : others.offsets[other + 1]] for other in sharing]
        compared = Shingles(np.concatenate([own.hashes, *pieces]), np.cumsum([0, len(own.hashes), *map(len, pieces)]))
        copies = find(compared, document=self._document, weights=opened(weights), threshold=threshold)
        return bool(copies.of_document[0]) or bool((copies.pairs == 0).any())
