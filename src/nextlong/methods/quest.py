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
import xxhash
from numpy.typing import NDArray
from pydantic import Field

from nextlong.methods.base import Citation, DocumentMethod, Documents, Drafted, Need, Request, stretches, whole
from nextlong.methods.keywords import Keywords
from nextlong.recipe import Positive
from nextlong.rng import keyed_hash, rng_for


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

    def draft(self, documents: Documents, options: Quest, request: Request) -> Drafted:
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


class Index(NamedTuple):
    """The inverted index, read from the documents' side: each document has one keyword or none."""

    keywords: list[str]  # the distinct ones that were sampled, in alphabetical order
    keyword_of: NDArray[np.int64]  # (n,) index into `keywords`, -1 for none


def draw_keywords(
    candidates: pa.ListArray | pa.LargeListArray,
    content_hashes: NDArray[np.uint64],
    *,
    seed: int,
    min_keyword_documents: int = 2,
    max_keyword_share: float = 0.05,
) -> Index:
    """Sample one keyword for each document, by key, from its candidates, list<string> (n,), distinct within a document.

    Candidates of fewer than `min_keyword_documents` documents connect nothing, and those of more than the share
    `max_keyword_share` of all documents are uninformative; neither is sampled.
    """
    # (m,) each: every candidate of every document, document after document, as the code of its word and its document.
    offsets = candidates.offsets.to_numpy()
    words = candidates.values.slice(offsets[0], offsets[-1] - offsets[0]).dictionary_encode()
    codes, owner = words.indices.to_numpy(), np.repeat(np.arange(len(candidates)), np.diff(offsets))
    documents = np.bincount(codes, minlength=len(words.dictionary))
    usable = (documents >= min_keyword_documents) & (documents <= max_keyword_share * len(candidates))
    codes, owner = codes[usable[codes]], owner[usable[codes]]
    # (n,) how many usable candidates a document has, and the place in `codes` of the one that its hash selects.
    choices = np.bincount(owner, minlength=len(candidates))
    drawn = keyed_hash(content_hashes, seed=seed, stage="quest.keyword") % np.maximum(choices, 1).astype(np.uint64)
    place = np.cumsum(choices) - choices + drawn.astype(np.int64)
    keyword_of = np.full(len(candidates), -1, np.int64)
    keyword_of[choices > 0] = codes[place[choices > 0]]
    # Codes in order of appearance become places in the alphabet; the last entry stays -1, for documents without a keyword.
    sampled = np.unique(keyword_of[keyword_of >= 0])
    keywords = words.dictionary.take(pa.array(sampled)).to_pylist()
    order = sorted(range(len(sampled)), key=keywords.__getitem__)
    new_code = np.full(len(words.dictionary) + 1, -1, np.int64)
    new_code[sampled[order]] = np.arange(len(sampled))
    return Index([keywords[place] for place in order], new_code[keyword_of])


def draft_pieces(
    index: Index,
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
    index: Index, content_hashes: NDArray[np.uint64], *, seed: int, split_ratio: float, oversample: int
) -> NDArray[np.int64]:
    """Return the documents of all sampled keywords, one keyword after the other."""
    # `by_keyword` (d,): the documents with a keyword, sorted by keyword, within one by keyed hash; the documents of keyword k
    # are by_keyword[first[k] : first[k] + counts[k]].
    positions = np.flatnonzero(index.keyword_of >= 0)
    shuffled = np.argsort(keyed_hash(content_hashes[positions], seed=seed, stage="quest.documents"), kind="stable")
    by_keyword = positions[shuffled[np.argsort(index.keyword_of[positions[shuffled]], kind="stable")]]
    counts = np.bincount(index.keyword_of[positions], minlength=len(index.keywords))
    first = np.cumsum(counts) - counts
    names = np.array([xxhash.xxh3_64_intdigest(keyword.encode()) for keyword in index.keywords], np.uint64)
    rare = np.lexsort((keyed_hash(names, seed=seed, stage="quest.rare"), counts))[: round(split_ratio * len(names))]
    draws = [np.arange(len(names)), *[rare] * (oversample - 1)]
    keys = [keyed_hash(names[keyword], seed=seed, stage=f"quest.draw.{turn}") for turn, keyword in enumerate(draws)]
    row = np.concatenate(draws)[np.argsort(np.concatenate(keys), kind="stable")]
    pieces = [by_keyword[first[keyword] : first[keyword] + counts[keyword]] for keyword in row.tolist()]
    return np.concatenate([np.empty(0, np.int64), *pieces])


METHOD = QuestMethod()
