"""Quest: documents that answer the same queries, grouped by keyword (arXiv 2405.19846, ICLR 2025).

The paper's method, as quoted from its v7 (§3, App. A.4) in public reading notes; its code is not published
(github.com/caskcsg/longcontext has none of Quest's):

- a doc2query model predicts queries; long documents are segmented, a query is generated for each segment;
- RAKE on the queries: "we filter out keywords with a Rake score below 3.0", then "frequent but non-informative keywords
  such as 'following sentence' or 'best way'"; "we randomly select one of the remaining keywords";
- "Documents with an identical representative keyword are indexed together";
- keywords are sorted by document count, the top split-ratio % form a short-index set that is oversampled; "The best
  results occur when oversampled indexes comprise 10-30%";
- "We perform sampling without replacement from the documents within a sampled keyword and concatenate the selected
  documents up to the target context length L".

Ours, where these notes are silent: `split_ratio` is 0.2, the middle of that range, of the keywords with the fewest
documents; "oversampled" keywords are used `oversample` times instead of once; RAKE reads all queries of a document
together; a keyword whose documents do not fill a sequence is followed by the next sampled keyword, and one that overfills
it continues in the next sequence. A document is in a sequence only once. Documents without a keyword are not used.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from nextlong.artifacts.lookup import ranges
from nextlong.methods.base import (
    Citation,
    CorpusArrays,
    DocumentMethod,
    Draft,
    Drafted,
    DraftRequest,
    Need,
    stretches,
)
from nextlong.methods.keywords import Keywords
from nextlong.recipe.keys import Positive
from nextlong.rng import keyed_hash, rng_for

_Ids = NDArray[np.int64]
_Hashes = NDArray[np.uint64]

_RANGES = 64  # of hashes, a power of two: for 240 million documents, a range has 38 million of 2.4 billion candidates
_DRAWN_AT_ONCE = 1 << 22  # documents for which a keyword is sampled at a time


class Quest(Keywords):
    """Options of `compose.method: quest`: documents that answer similar queries."""

    split_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2,
        description="share of the keywords, those with the fewest documents, that is oversampled",
    )
    oversample: Positive = Field(
        2, description="number of times that an oversampled keyword is used"
    )


class _QuestMethod(DocumentMethod[Quest]):
    name = "quest"
    citation = Citation(
        "gao2024quest",
        "Quest: Query-centric Data Synthesis Approach for Long-context Scaling of Large Language Model",
        "Gao, Chaochen and Wu, Xing and Fu, Qi and Hu, Songlin",
        "2405.19846",
    )
    version = 2  # counts the documents without a shared keyword
    Options = Quest
    needs = frozenset({Need.KEYWORDS})

    def describe(self, options: Quest) -> str:
        """Return the name and the origin of the queries, which decides the quality of the data."""
        made = (
            "extractive stand-in for queries"
            if options.queries == "extractive"
            else f"queries by {options.queries}"
        )
        return f"{self.name} ({made})"

    def repeats_documents(self, options: Quest) -> bool:
        return True  # documents of oversampled keywords are

    def draft(
        self, documents: CorpusArrays, options: Quest, request: DraftRequest
    ) -> Drafted:
        assert documents.keywords is not None
        keywords, keyword_of, unshared = _draw_keywords(
            documents.keywords, documents.content_hashes, seed=request.seed
        )
        drafts = _draft_keywords(keywords, keyword_of, documents, options, request)
        return Drafted(drafts=drafts, unshared_keywords=unshared)


def _draw_keywords(
    candidates: pa.ChunkedArray,
    hashes: _Hashes,
    *,
    seed: int,
    min_documents: int = 2,
    max_share: float = 0.05,
) -> tuple[_Hashes, _Ids, int]:
    """Sample one keyword for each document, by its content hash, from its distinct `candidates`, list<uint64> (n,).

    Candidates of fewer than `min_documents` documents connect nothing, and those of more than the share `max_share` of all
    documents are uninformative; neither are sampled. Returns the sampled keywords, (d,) ascending; the index into these for
    each document, (n,), -1 for none; and the number of documents all of whose candidates are excluded.
    """
    # (m,) the concatenated candidates of all documents: those of document i are [offsets[i], offsets[i + 1]).
    counts = np.concatenate(
        [
            np.empty(0, np.int32),
            *(piece.value_lengths().to_numpy() for piece in candidates.chunks),
        ]
    )
    offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
    words = np.concatenate(
        [
            np.empty(0, np.uint64),
            *(piece.flatten().to_numpy() for piece in candidates.chunks),
        ]
    )
    # Count candidates by ranges of hashes: sorting takes several times the memory, so sort one of _RANGES parts at a time.
    is_usable = np.zeros(len(words), np.bool_)
    range_of = words.view(np.uint8)[7::8] // (
        256 // _RANGES
    )  # (m,) uint8, from the highest byte of each hash
    for number in range(_RANGES):
        places = np.flatnonzero(range_of == number)
        _, word, documents = np.unique(
            words[places], return_inverse=True, return_counts=True
        )
        is_usable[places] = (
            (documents >= min_documents) & (documents <= max_share * len(candidates))
        )[word]
    # (n,) the usable candidate of each document that the document's own hash selects.
    drawn, has_one = (
        np.zeros(len(candidates), np.uint64),
        np.zeros(len(candidates), np.bool_),
    )
    for first in range(0, len(candidates), _DRAWN_AT_ONCE):
        ends = offsets[first : first + _DRAWN_AT_ONCE + 1]
        usable_places = ends[0] + np.flatnonzero(is_usable[ends[0] : ends[-1]])
        before = np.searchsorted(usable_places, ends)
        choices = np.diff(before)
        some = np.flatnonzero(choices)
        nth = keyed_hash(
            hashes[first + some], seed=seed, stage="quest.keyword"
        ) % choices[some].astype(np.uint64)
        drawn[first + some] = words[usable_places[before[some] + nth.astype(np.int64)]]
        has_one[first + some] = True
    del (
        words,
        range_of,
        is_usable,
        offsets,
    )  # frees 98 bytes a document before the next arrays take 50
    keyword_of = np.full(len(candidates), -1, np.int64)
    keywords, keyword_of[has_one] = np.unique(drawn[has_one], return_inverse=True)
    return keywords, keyword_of, int(((counts > 0) & ~has_one).sum())


def _draft_keywords(
    keywords: _Hashes,
    keyword_of: _Ids,
    documents: CorpusArrays,
    options: Quest,
    request: DraftRequest,
) -> list[Draft]:
    """Return sequences of the documents of the sampled `keywords`, (d,), keyword after keyword; see `_draw_keywords`.

    Keywords are in random order, each once, and the `split_ratio` of them with the fewest documents `oversample` times; the
    documents of a keyword are in random order. The resulting row of documents is cut into sequences, some of which are sampled.
    """
    hashed = partial(keyed_hash, seed=request.seed)
    # `by_keyword`: the documents that have a keyword, sorted by keyword and then by keyed hash; those of keyword k are
    # by_keyword[first[k] : first[k] + counts[k]].
    positions = np.flatnonzero(keyword_of >= 0)
    shuffled = hashed(documents.content_hashes[positions], stage="quest.documents")
    positions = positions[np.argsort(shuffled, kind="stable")]
    by_keyword = positions[np.argsort(keyword_of[positions], kind="stable")]
    counts = np.bincount(keyword_of[positions], minlength=len(keywords))
    first = np.cumsum(counts) - counts
    rarest = np.lexsort((hashed(keywords, stage="quest.rare"), counts))
    draws = [np.arange(len(keywords))]
    draws += [rarest[: round(options.split_ratio * len(keywords))]] * (
        options.oversample - 1
    )
    keys = [
        hashed(keywords[drawn], stage=f"quest.draw.{turn}")
        for turn, drawn in enumerate(draws)
    ]
    row = np.concatenate(draws)[np.argsort(np.concatenate(keys), kind="stable")]
    pieces = stretches(
        by_keyword[ranges(first[row], counts[row])],
        documents.tokens,
        enough=request.target_tokens,
    )
    drafts: list[Draft] = []
    # A document that an oversampled keyword repeats in a sequence is kept once; sequences that are then short are dropped.
    for number in (
        rng_for(request.seed, "quest.stretches").permutation(len(pieces)).tolist()
    ):
        if len(drafts) == request.sequences:
            break
        piece = pieces[number]
        piece = piece[np.sort(np.unique(piece, return_index=True)[1])]
        if documents.tokens[piece].sum() >= request.target_tokens:
            drafts.append(Draft(piece))
    return drafts


METHOD = _QuestMethod()
