"""Quest: documents that answer the same queries, by keyword (arXiv 2405.19846).

The paper's method, as quoted from its v7 (§3, App. A.4) in public reading notes; its
code is not published (github.com/caskcsg/longcontext has none of Quest's):

- a doc2query model predicts queries; long documents are segmented, a query is generated
  for each segment;
- RAKE on the queries: "we filter out keywords with a Rake score below 3.0", then
  "frequent but non-informative keywords such as 'following sentence' or 'best way'";
  "we randomly select one of the remaining keywords";
- "Documents with an identical representative keyword are indexed together";
- keywords are sorted by document count, the top split-ratio % form a short-index set
  that is oversampled; "The best results occur when oversampled indexes comprise
  10-30%";
- "We perform sampling without replacement from the documents within a sampled keyword
  and concatenate the selected documents up to the target context length L".

Ours, where these notes are silent: `split_ratio` is 0.2, the middle of that range, of
the keywords with the fewest documents; "oversampled" keywords are used `oversample`
times instead of once; RAKE reads all queries of a document together; a keyword whose
documents do not fill a sequence is followed by the next sampled keyword, and one that
overfills it continues in the next sequence. A document is in a sequence only once.
Documents without a keyword are not used.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated

import numpy as np
import pyarrow as pa
from pydantic import Field

from nextlong.arrays import Bools, Hashes, Ints
from nextlong.artifacts.corpus_files import ranges
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

_Ids = Ints

# Of hashes, a power of two: for 240 million documents, a range has 38 million of 2.4
# billion candidates.
_RANGES = 64
_DRAWN_AT_ONCE = 1 << 22  # documents for which a keyword is sampled at a time


class Quest(Keywords):
    """Options of `compose.method: quest`: documents that answer similar queries."""

    split_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2,
        description=(
            "share of the keywords, those with the fewest documents, that is "
            "oversampled"
        ),
    )
    oversample: Positive = Field(
        2, description="number of times that an oversampled keyword is used"
    )


class _QuestMethod(DocumentMethod[Quest]):
    name = "quest"
    citation = Citation(
        key="gao2024quest",
        title=(
            "Quest: Query-centric Data Synthesis Approach for Long-context Scaling of "
            "Large Language Model"
        ),
        authors="Gao, Chaochen and Wu, Xing and Fu, Qi and Hu, Songlin",
        arxiv="2405.19846",
    )
    version = 2  # counts the documents without a shared keyword
    Options = Quest
    needs = frozenset({Need.KEYWORDS})

    def describe(self, options: Quest) -> str:
        """Return the name and the origin of the queries.

        The origin decides the quality of the data.
        """
        if options.queries == "extractive":
            return f"{self.name} (extractive stand-in for queries)"
        return f"{self.name} (queries by {options.queries})"

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
    hashes: Hashes,
    *,
    seed: int,
    min_documents: int = 2,
    max_share: float = 0.05,
) -> tuple[Hashes, _Ids, int]:
    """Sample one keyword for each document, by its content hash.

    From its distinct `candidates`, list<uint64> (n,). Candidates of fewer than
    `min_documents` documents connect nothing, and those of more than the share
    `max_share` of all documents are uninformative; neither are sampled.

    Returns the sampled keywords, (d,) ascending; the index into these for each
    document, (n,), -1 for none; and the number of documents all of whose candidates are
    excluded.
    """
    # (m,) the concatenated candidates of all documents: those of document i are
    # [offsets[i], offsets[i + 1]).
    counts = [np.empty(0, np.int32)]
    hashed_words = [np.empty(0, np.uint64)]
    for piece in candidates.chunks:
        counts.append(piece.value_lengths().to_numpy())
        hashed_words.append(piece.flatten().to_numpy())
    candidate_counts = np.concatenate(counts)
    words = np.concatenate(hashed_words)
    del counts, hashed_words
    offsets = np.concatenate([[0], np.cumsum(candidate_counts, dtype=np.int64)])

    is_usable = _usable_words(
        words,
        min_documents=min_documents,
        max_documents=max_share * len(candidates),
    )
    # (n,) the usable candidate of each document that the document's own hash selects.
    drawn = np.zeros(len(candidates), np.uint64)
    has_one = np.zeros(len(candidates), np.bool_)
    for first in range(0, len(candidates), _DRAWN_AT_ONCE):
        bounds = offsets[first : first + _DRAWN_AT_ONCE + 1]
        usable = bounds[0] + np.flatnonzero(is_usable[bounds[0] : bounds[-1]])
        # Those of document `first + i` are usable[before[i] : before[i + 1]].
        before = np.searchsorted(usable, bounds)
        choices = np.diff(before)
        some = np.flatnonzero(choices)
        keys = keyed_hash(hashes[first + some], seed=seed, stage="quest.keyword")
        nth = (keys % choices[some].astype(np.uint64)).astype(np.int64)
        drawn[first + some] = words[usable[before[some] + nth]]
        has_one[first + some] = True
    # Frees 98 bytes per document before the next arrays take 50.
    del words, is_usable, offsets
    keyword_of = np.full(len(candidates), -1, np.int64)
    keywords, indices = np.unique(drawn[has_one], return_inverse=True)
    keyword_of[has_one] = indices
    is_unshared = (candidate_counts > 0) & ~has_one
    return keywords, keyword_of, int(is_unshared.sum())


def _usable_words(words: Hashes, *, min_documents: int, max_documents: float) -> Bools:
    """Return whether each of the words, (m,), is that of a right number of documents.

    Counted by ranges of hashes: sorting takes several times the memory, so only the
    words of one range are sorted at a time.
    """
    is_usable = np.zeros(len(words), np.bool_)
    # (m,) uint8, from the highest byte of each hash.
    range_of = words.view(np.uint8)[7::8] // (256 // _RANGES)
    for number in range(_RANGES):
        positions = np.flatnonzero(range_of == number)
        _, word, documents = np.unique(
            words[positions], return_inverse=True, return_counts=True
        )
        is_word_usable = (documents >= min_documents) & (documents <= max_documents)
        is_usable[positions] = is_word_usable[word]
    return is_usable


def _draft_keywords(
    keywords: Hashes,
    keyword_of: _Ids,
    documents: CorpusArrays,
    options: Quest,
    request: DraftRequest,
) -> list[Draft]:
    """Return sequences of the documents of the sampled `keywords`, (d,), one by one.

    See `_draw_keywords`. Keywords are in random order, each once, and the `split_ratio`
    of them with the fewest documents `oversample` times; the documents of a keyword are
    in random order. The resulting row of documents is cut into sequences, some of which
    are sampled.
    """
    hashed = partial(keyed_hash, seed=request.seed)
    # `by_keyword`: the documents that have a keyword, sorted by keyword and then by
    # keyed hash; those of keyword k are by_keyword[first[k] : first[k] + counts[k]].
    positions = np.flatnonzero(keyword_of >= 0)
    shuffled = hashed(documents.content_hashes[positions], stage="quest.documents")
    positions = positions[np.argsort(shuffled, kind="stable")]
    by_keyword = positions[np.argsort(keyword_of[positions], kind="stable")]
    counts = np.bincount(keyword_of[positions], minlength=len(keywords))
    first = np.cumsum(counts) - counts

    # Every keyword once, and the rarest ones again, all in one random order.
    rarest = np.lexsort((hashed(keywords, stage="quest.rare"), counts))
    oversampled = rarest[: round(options.split_ratio * len(keywords))]
    draws = [np.arange(len(keywords))] + [oversampled] * (options.oversample - 1)
    keys = [
        hashed(keywords[drawn], stage=f"quest.draw.{turn}")
        for turn, drawn in enumerate(draws)
    ]
    order = np.argsort(np.concatenate(keys), kind="stable")
    row = np.concatenate(draws)[order]
    pieces = stretches(
        by_keyword[ranges(first[row], counts[row])],
        documents.tokens,
        enough=request.target_tokens,
    )

    # A document that an oversampled keyword repeats in a sequence is kept once;
    # sequences that are then short are dropped.
    drafts: list[Draft] = []
    rng = rng_for(request.seed, "quest.stretches")
    for index in rng.permutation(len(pieces)).tolist():
        if len(drafts) == request.sequences:
            break
        piece = pieces[index]
        first_positions = np.unique(piece, return_index=True)[1]
        piece = piece[np.sort(first_positions)]
        if documents.tokens[piece].sum() >= request.target_tokens:
            drafts.append(Draft(piece))
    return drafts


METHOD = _QuestMethod()
