"""Quest: documents that answer the same queries, by keyword (arXiv 2405.19846, ICLR 2025).

In:  the keywords of each document's queries (`keywords.py`).
Out: sequences of documents that share a keyword.

What the paper says, as quoted from its v7 (§3, App. A.4) in public reading notes; its own code is not published
(github.com/caskcsg/longcontext has none of Quest's):

- a doc2query model predicts queries; long documents are segmented, a query is generated for each segment;
- RAKE on the queries: "we filter out keywords with a Rake score below 3.0", then "frequent but non-informative keywords
  such as 'following sentence' or 'best way'"; "we randomly select one of the remaining keywords";
- "Documents with an identical representative keyword are indexed together";
- keywords are sorted by document count, the top split-ratio % form a short-index set that is oversampled; "The best
  results occur when oversampled indexes comprise 10-30%";
- "We perform sampling without replacement from the documents within a sampled keyword and concatenate the selected
  documents up to the target context length L".

Ours, where those notes are silent: `split_ratio` 0.2, the middle of that range, taken from the keywords with the fewest
documents; "oversampled" means that they come `oversample` times where others come once; RAKE reads all queries of a
document at once; a keyword whose documents do not fill a sequence is followed by the next sampled keyword, and one that
overfills it continues in the next sequence. A document is in a sequence once. Documents without a keyword are not used.
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import Field

from nextlong.methods.base import Citation, CorpusArrays, DocumentMethod, Drafted, DraftRequest, Need, stretches, whole
from nextlong.methods.keywords import Keywords
from nextlong.recipe import Positive
from nextlong.rng import keyed_hash, rng_for

_RANGES = 64  # a power of two; of 2.4 billion candidates, those of 240 million documents, one holds 38 million
_DRAWN_AT_ONCE = 1 << 22  # documents


class Quest(Keywords):
    """Options of `compose.method: quest`: documents that answer like queries."""

    split_ratio: Annotated[float, Field(ge=0, le=1)] = Field(
        0.2, description="the share of the keywords, those with the fewest documents, that is oversampled"
    )
    oversample: Positive = Field(2, description="how many times the oversampled keywords are used")


class QuestMethod(DocumentMethod[Quest]):
    """Documents that share a keyword."""

    name = "quest"
    citation = Citation(
        "gao2024quest",
        "Quest: Query-centric Data Synthesis Approach for Long-context Scaling of Large Language Model",
        "Gao, Chaochen and Wu, Xing and Fu, Qi and Hu, Songlin",
        arxiv="2405.19846",
        year=2024,
    )
    version = 2  # counts what it leaves out
    Options = Quest
    needs = frozenset({Need.KEYWORDS})

    def describe(self, options: Quest) -> str:
        """Return the name with what made the queries, which decides what the data are worth."""
        made = "extractive stand-in for queries" if options.queries == "extractive" else f"queries by {options.queries}"
        return f"{self.name} ({made})"

    def repeats_documents(self, options: Quest) -> bool:  # noqa: ARG002
        """Say that the documents of oversampled keywords may come back."""
        return True

    def draft(self, documents: CorpusArrays, options: Quest, request: DraftRequest) -> Drafted:
        """Return sequences of documents that share a keyword."""
        assert documents.keywords is not None
        index = draw_keywords(documents.keywords, documents.content_hashes, seed=request.seed)
        pieces = draft_pieces(
            index,
            documents.content_hashes,
            documents.tokens,
            enough=request.target_tokens,
            sequences=request.sequences,
            seed=request.seed,
            split_ratio=options.split_ratio,
            oversample=options.oversample,
        )
        with_keywords = documents.keywords.value_lengths().to_numpy(zero_copy_only=False) > 0
        unshared = int((with_keywords & (index.keyword_of < 0)).sum())
        return Drafted(drafts=[whole(piece) for piece in pieces], unshared_keywords=unshared)


class KeywordIndex(NamedTuple):
    """The inverted index, read from the documents' side: each document has one keyword or none."""

    keywords: NDArray[np.uint64]  # (d,) the hashes of the distinct ones that were sampled, ascending
    keyword_of: NDArray[np.int64]  # (n,) index into `keywords`, -1 for none


def draw_keywords(
    candidates: pa.ListArray | pa.LargeListArray,
    content_hashes: NDArray[np.uint64],
    *,
    seed: int,
    min_keyword_documents: int = 2,
    max_keyword_share: float = 0.05,
) -> KeywordIndex:
    """Sample one keyword for each document, by key, from its candidates, list<uint64> (n,), distinct within a document.

    Candidates of fewer than `min_keyword_documents` documents connect nothing, and those of more than the share
    `max_keyword_share` of all documents are uninformative; neither is sampled.
    """
    # (m,) every candidate of every document, document after document: those of document i are [offsets[i], offsets[i + 1]).
    offsets = candidates.offsets.to_numpy().astype(np.int64)
    words = candidates.values.to_numpy()[offsets[0] : offsets[-1]]
    offsets -= offsets[0]
    # Counted by ranges of the hash, so that sorting, which takes several times the memory, holds 1 of _RANGES parts.
    is_usable = np.empty(len(words), np.bool_)
    top_bytes = words.view(np.uint8)[7::8]
    for low in range(0, 256, 256 // _RANGES):
        places = np.flatnonzero((top_bytes >= low) & (top_bytes < low + 256 // _RANGES))
        _, word, documents = np.unique(words[places], return_inverse=True, return_counts=True)
        usable = (documents >= min_keyword_documents) & (documents <= max_keyword_share * len(candidates))
        is_usable[places] = usable[word]
    # (n,) the hash of the usable candidate that a document's own hash selects.
    drawn, has_one = np.zeros(len(candidates), np.uint64), np.zeros(len(candidates), np.bool_)
    keys = keyed_hash(content_hashes, seed=seed, stage="quest.keyword")
    for first in range(0, len(candidates), _DRAWN_AT_ONCE):
        ends = offsets[first : first + _DRAWN_AT_ONCE + 1]
        usable_places = ends[0] + np.flatnonzero(is_usable[ends[0] : ends[-1]])
        before = np.searchsorted(usable_places, ends)
        choices = np.diff(before)
        some = np.flatnonzero(choices)
        nth = keys[first + some] % choices[some].astype(np.uint64)
        drawn[first + some] = words[usable_places[before[some] + nth.astype(np.int64)]]
        has_one[first + some] = True
    keyword_of = np.full(len(candidates), -1, np.int64)
    keywords, keyword_of[has_one] = np.unique(drawn[has_one], return_inverse=True)
    return KeywordIndex(keywords, keyword_of)


def draft_pieces(
    index: KeywordIndex,
    content_hashes: NDArray[np.uint64],
    tokens: NDArray[np.int64],
    *,
    enough: int,
    sequences: int | None,
    seed: int,
    split_ratio: float = 0.2,
    oversample: int = 2,
) -> list[NDArray[np.int64]]:
    """Return at most `sequences` (None: all) lists of positions of `enough` tokens each, keyword after keyword.

    Every keyword comes once, the `split_ratio` of them with the fewest documents `oversample` times, in random order;
    its documents follow in random order. That row is cut into sequences, of which `sequences` are sampled. A document
    that an oversampled keyword would put into one sequence twice is there once; sequences that this leaves short are dropped.
    """
    order = _row(index, content_hashes, seed=seed, split_ratio=split_ratio, oversample=oversample)
    pieces = stretches(order, tokens, enough=enough)
    drafts: list[NDArray[np.int64]] = []
    for place in rng_for(seed, "quest.stretches").permutation(len(pieces)).tolist():
        if len(drafts) == sequences:
            break
        _, first = np.unique(pieces[place], return_index=True)
        piece = pieces[place][np.sort(first)]
        if tokens[piece].sum() >= enough:
            drafts.append(piece)
    return drafts


def _row(
    index: KeywordIndex, content_hashes: NDArray[np.uint64], *, seed: int, split_ratio: float, oversample: int
) -> NDArray[np.int64]:
    """Return the documents of all sampled keywords, one keyword after the other."""
    # `by_keyword` (d,): the documents with a keyword, sorted by keyword, within one by keyed hash; the documents of keyword k
    # are by_keyword[first[k] : first[k] + counts[k]].
    positions = np.flatnonzero(index.keyword_of >= 0)
    shuffled = np.argsort(keyed_hash(content_hashes[positions], seed=seed, stage="quest.documents"), kind="stable")
    by_keyword = positions[shuffled[np.argsort(index.keyword_of[positions[shuffled]], kind="stable")]]
    counts = np.bincount(index.keyword_of[positions], minlength=len(index.keywords))
    first = np.cumsum(counts) - counts
    names = index.keywords
    rare = np.lexsort((keyed_hash(names, seed=seed, stage="quest.rare"), counts))[: round(split_ratio * len(names))]
    draws = [np.arange(len(names)), *[rare] * (oversample - 1)]
    keys = [keyed_hash(names[keyword], seed=seed, stage=f"quest.draw.{turn}") for turn, keyword in enumerate(draws)]
    row = np.concatenate(draws)[np.argsort(np.concatenate(keys), kind="stable")]
    sizes = counts[row]
    within = np.arange(sizes.sum()) - np.repeat(
        np.cumsum(sizes) - sizes, sizes
    )  # the place of a document in its keyword's
    documents: NDArray[np.int64] = by_keyword[np.repeat(first[row], sizes) + within]
    return documents


METHOD = QuestMethod()
