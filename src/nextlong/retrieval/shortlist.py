"""Shortlist the chunks to embed by BM25, so that a transformer encodes only part of the corpus.

In:  DOCUMENTS and CHUNKS, and the sampled META_DOCUMENTS.
Out: SHORTLIST, uint8 (chunks,) for each shard: the bits _SHORTLISTED and _CONTROL. Chunks with either bit are embedded.

The shortlist holds the chunks of the meta-documents and, for each meta-chunk, its share of the `mine.shortlist_chunks` best
chunks by BM25 (after LiteLong, arXiv 2509.15568). A sample of the corpus gives the score of the chunk at that rank, and each
shard marks its chunks that reach this score for some meta-chunk, so no rankings are merged. Up to SAMPLED_CHUNKS chunks, the
sample is the whole corpus and the ranks are exact.

_CONTROL marks a random 1 % of all chunks, all embedded. The control chunk nearest to a meta-chunk has rank 100 on average, so
the share of meta-chunks for which it is shortlisted estimates the coverage of chunks around that rank (docs/search.md).
Control chunks among the nearest *embedded* chunks would measure deeper ranks instead.

BM25 is Lucene's (k1 = 1.2, b = 0.75). Only the words of a meta-chunk with the highest weights are looked up, as in Lucene's
"more like this": words of most chunks take most of the time and hardly change the ranking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.corpus_files import (
    chunk_keys,
    count_chunks,
    iter_chunk_texts,
    sample_texts,
)
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
)
from nextlong.recipe.keys import Compose, Mine, shortlist_chunks
from nextlong.retrieval.near_duplicates.shingles import bounds_of, hash_words
from nextlong.retrieval.sample import MetaDocumentsFiles, query_ranges
from nextlong.rng import threshold_for
from nextlong.text import Json, counted

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_SHORTLISTED, _CONTROL = 1, 2  # bits of SHORTLIST
CONTROL_SHARE: Final = 0.01
# Share of the meta-chunks with a control chunk among their candidates from which the estimate is shown (others bias it).
_LEAST_JUDGED: Final = 0.95
SAMPLED_CHUNKS: Final = 1 << 17  # chunks
_LEAST_RANK: Final = 2  # in the sample; the score at a lower rank would be chance
QUERY_WORDS: Final = 48
_K1, _B = 1.2, 0.75
_TEXTS_AT_ONCE: Final = 512
_PRODUCTS_AT_ONCE: Final = (
    1 << 24
)  # products of query words and chunk words; their scores take about 200 MB


class _WordsResult(TaskResult):
    """Counts of the sampled words: `words` in the vocabulary, `mean_words` a chunk, `chars` of the sampled chunks."""

    chunks: int
    sampled: int
    chars: int
    words: int
    mean_words: float


class _ShortlistResult(TaskResult):
    """Chunks of a shard, and the number that is embedded: shortlisted or control."""

    chunks: int
    embedded: int


class MineResult(TaskResult):
    """Queries, candidates, and the `judged` queries with a control chunk among them, `shortlisted` if the nearest one is."""

    queries: int
    candidates: int
    judged: int = 0
    shortlisted: int = 0


class _Vocabulary(NamedTuple):
    """The words of at least two sampled chunks: hashes (V,), ascending, idf (V,), and the mean number of words of a chunk."""

    hashes: NDArray[np.uint64]
    idf: NDArray[np.float32]
    mean_words: float


_Counted = tuple[
    Path, _WordsResult
]  # the stem of what `_count_words` wrote, and its result
_Shard = tuple[Path, Path]  # the DOCUMENTS and the CHUNKS of a shard


def _count_words(
    out: Path, *, corpus: corpus_files.CorpusFiles, sampled: int, seed: int
) -> _WordsResult:
    """Count the words of a sample of all chunks; write a _Vocabulary and `{out}.sample.npz`, BM25 weights, CSR (V, chunks)."""
    from scipy import sparse

    total = sum(map(count_chunks, corpus.chunks))
    texts = sample_texts(
        corpus.documents, corpus.chunks, fraction=sampled / max(1, total), seed=seed
    )
    hashes, bounds = _hash_texts(texts)
    words = np.unique(hashes)
    counts = _count_known(hashes, bounds, words)
    frequency = np.bincount(counts.indices, minlength=len(words))
    several = np.flatnonzero(frequency >= 2)
    idf = np.log1p(
        (len(texts) - frequency[several] + 0.5) / (frequency[several] + 0.5)
    ).astype(np.float32)
    vocabulary = _Vocabulary(words[several], idf, len(hashes) / max(1, len(texts)))
    np.save(f"{out}.words.npy", vocabulary.hashes)
    np.save(f"{out}.idf.npy", vocabulary.idf)
    sparse.save_npz(
        f"{out}.sample.npz",
        _weights(counts[:, several], np.diff(bounds), vocabulary),
        compressed=False,
    )
    size = {"chunks": total, "sampled": len(texts), "chars": sum(map(len, texts))}
    return _WordsResult(words=len(several), mean_words=vocabulary.mean_words, **size)


def _choose_words(
    out: Path,
    *,
    meta_documents: Path,
    rows: slice,
    corpus: corpus_files.CorpusFiles,
    words: _Counted,
    share: int,
) -> TaskResult:
    """Choose the words by which the meta-chunks of some `rows` of META_DOCUMENTS are looked up, and their least scores.

    Writes `{out}.queries.npz`, the counts of these words, CSR float32 (queries, V), and `{out}.least.npy`, float32 (queries,).
    """
    from scipy import sparse

    metas, vocabulary, (stem, summary) = (
        np.load(meta_documents)[rows],
        _read_vocabulary(words),
        words,
    )
    texts = corpus.texts(
        corpus_files.ranges(metas["first_chunk"], metas["chunks"])
    ).tolist()
    counts = _count_known(*_hash_texts(texts), vocabulary.hashes)
    # Keep the words of each query with the highest weights; equal weights in the order of the vocabulary.
    weights, chosen = (
        counts.data * vocabulary.idf[counts.indices],
        [np.empty(0, np.int64)],
    )
    for low, high in pairwise(counts.indptr.tolist()):
        chosen.append(
            low + np.sort(np.argsort(-weights[low:high], kind="stable")[:QUERY_WORDS])
        )
    chosen_places, ends = np.concatenate(chosen), np.cumsum([*map(len, chosen)])
    queries = sparse.csr_matrix(
        (counts.data[chosen_places], counts.indices[chosen_places], ends),
        shape=counts.shape,
    )
    # The document's own chunks score best for each of its chunks, but do not count among the chunks that it is given.
    own = np.repeat(metas["chunks"], metas["chunks"])
    in_sample = (share / own + own) * summary.sampled / max(1, summary.chunks)
    ranks = np.maximum(_LEAST_RANK, np.ceil(in_sample)).astype(np.int64)
    least = np.full(counts.shape[0], np.inf, np.float32)
    for begin, scores in _scores(queries, sparse.load_npz(f"{stem}.sample.npz")):
        for row, (low, high) in enumerate(
            zip(scores.indptr[:-1], scores.indptr[1:], strict=True), start=begin
        ):
            query_scores = scores.data[low:high]
            if len(query_scores):
                place = max(0, len(query_scores) - int(ranks[row]))
                least[row] = np.partition(query_scores, place)[place]
    sparse.save_npz(f"{out}.queries.npz", queries, compressed=False)
    np.save(f"{out}.least.npy", least)
    return TaskResult()


def _mark_shard(
    out: Path,
    shard: int,
    files: _Shard,
    *,
    meta_documents: Path,
    words: _Counted,
    queries: Sequence[Path],
    seed: int,
) -> _ShortlistResult:
    """Mark the chunks of a shard to embed; write `{out}.shortlist.npy`. `queries` are the stems that `_choose_words` wrote."""
    from scipy import sparse

    vocabulary = _read_vocabulary(words)
    # (chunks,) the bits of each chunk; 0 if it is not embedded.
    marks = np.zeros(count_chunks(files[1]), np.uint8)
    marks[
        chunk_keys(*files, seed=seed, stage="shortlist.control")
        < threshold_for(CONTROL_SHARE)
    ] = _CONTROL
    batches = []
    for batch in iter_chunk_texts(*files):
        hashes, bounds = _hash_texts(batch.texts)
        batches.append(
            _weights(
                _count_known(hashes, bounds, vocabulary.hashes),
                np.diff(bounds),
                vocabulary,
            )
        )
    if batches:
        weights = sparse.hstack(batches, format="csr")
        for stem in queries:
            least = np.load(f"{stem}.least.npy")
            for begin, scores in _scores(
                sparse.load_npz(f"{stem}.queries.npz"), weights
            ):
                reached = least[begin : begin + scores.shape[0]]
                marks[
                    scores.indices[
                        scores.data >= np.repeat(reached, np.diff(scores.indptr))
                    ]
                ] |= _SHORTLISTED
    metas = np.load(meta_documents)
    metas = metas[schemas.shard_of(metas["first_chunk"]) == shard]
    marks[
        schemas.row_of(corpus_files.ranges(metas["first_chunk"], metas["chunks"]))
    ] |= _SHORTLISTED
    np.save(f"{out}.shortlist.npy", marks)
    return _ShortlistResult(chunks=len(marks), embedded=int(np.count_nonzero(marks)))


def embedded_rows(chunks: Path, shortlist: Path | None) -> NDArray[np.int64]:
    """Return the rows of the shard's chunks that are embedded, ascending: all of them without a shortlist."""
    return (
        np.arange(count_chunks(chunks))
        if shortlist is None
        else np.flatnonzero(corpus_files.opened(shortlist))
    )


def judge_shortlist(
    neighbours: Sequence[NDArray[np.int64]], shortlist: Sequence[Path]
) -> tuple[int, int]:
    """Return how many queries have a control chunk as neighbour, and for how many the nearest one is shortlisted."""
    marks = corpus_files.array_rows(
        np.concatenate([np.empty(0, np.int64), *neighbours]), shortlist
    )
    query_of = np.repeat(np.arange(len(neighbours)), [len(row) for row in neighbours])
    controls = np.flatnonzero(marks & _CONTROL)
    _, first = np.unique(query_of[controls], return_index=True)
    return len(first), int(np.count_nonzero(marks[controls[first]] & _SHORTLISTED))


def describe_shortlist(done: Artifacts) -> str:
    """Return the share of chunks embedded and the estimated coverage of the shortlist; empty without a shortlist."""
    if "shortlist" not in done:
        return ""
    shards, mined = (
        done["shortlist"].results(_ShortlistResult),
        done["mine"].results(MineResult),
    )
    total, embedded = (
        sum(shard.chunks for shard in shards),
        sum(shard.embedded for shard in shards),
    )
    share = f"bm25: {embedded:,} of {total:,} chunks embedded ({embedded / max(1, total):.1%})"
    judged, queries = (
        sum(one.judged for one in mined),
        sum(one.queries for one in mined),
    )
    if judged < max(1, _LEAST_JUDGED * queries):
        return share
    coverage = sum(one.shortlisted for one in mined) / judged
    return (
        f"{share}; the shortlist has about {coverage:.0%} of the chunks around rank {1 / CONTROL_SHARE:.0f} of a meta-chunk "
        f"(estimated from {counted(judged, 'meta-chunk')} and a random {CONTROL_SHARE:.0%} of all chunks)"
    )


def _read_vocabulary(words: _Counted) -> _Vocabulary:
    stem, summary = words
    return _Vocabulary(
        np.load(f"{stem}.words.npy"), np.load(f"{stem}.idf.npy"), summary.mean_words
    )


def _hash_texts(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of the words of all n texts, concatenated, and the bounds of each text, shape (n + 1,)."""
    hashes, bounds = [np.empty(0, np.uint64)], [np.zeros(1, np.int64)]
    for low in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[low : low + _TEXTS_AT_ONCE]
        words = hash_words("\n".join(some))
        hashes.append(words.hashes)
        bounds.append(bounds[-1][-1] + bounds_of(words, some)[1:])
    return np.concatenate(hashes), np.concatenate(bounds)


def _count_known(
    hashes: NDArray[np.uint64], bounds: NDArray[np.int64], words: NDArray[np.uint64]
) -> csr_matrix:
    """Return the count of each of the ascending `words`, (V,), in each text, CSR float32 (texts, V)."""
    from scipy import sparse

    places = np.searchsorted(words, hashes)
    known = (
        words[np.minimum(places, len(words) - 1)] == hashes
        if len(words)
        else np.zeros(len(hashes), np.bool_)
    )
    ends = np.append(0, np.cumsum(known))[bounds]
    stored = np.ones(ends[-1], np.float32), places[known].astype(np.int32), ends
    counts = sparse.csr_matrix(stored, shape=(len(bounds) - 1, len(words)))
    counts.sum_duplicates()
    return counts


def _weights(
    counts: csr_matrix, lengths: NDArray[np.int64], vocabulary: _Vocabulary
) -> csr_matrix:
    """Return the BM25 weights of n chunks, CSR float32 (V, n); `lengths`, (n,), are in words."""
    norm = (_K1 * (1 - _B + _B * lengths / max(1.0, vocabulary.mean_words))).astype(
        np.float32
    )
    weights = counts.copy()
    of_rows = np.repeat(norm, np.diff(counts.indptr))
    weights.data = (
        vocabulary.idf[counts.indices] * counts.data / (counts.data + of_rows)
    )
    return weights.T.tocsr()


def _scores(
    queries: csr_matrix, weights: csr_matrix
) -> Iterator[tuple[int, csr_matrix]]:
    """Yield the first row and the scores of each block of queries, CSR (queries of the block, chunks)."""
    # A score is summed in the order of the query's words: blocks and shards do not change its bits.
    # (queries + 1,): the number of products of all queries before each one.
    postings = np.concatenate(
        [[0], np.cumsum(np.diff(weights.indptr)[queries.indices])]
    )[queries.indptr]
    for first, last in corpus_files.runs_within(np.diff(postings), _PRODUCTS_AT_ONCE):
        yield first, queries[first:last] @ weights


class ShortlistQueriesFiles(StepFiles):
    """The scores that a chunk needs to be shortlisted for each query of a task."""

    step = "shortlist_queries"
    min_scores = ShardFiles(".least.npy")


class ShortlistFiles(StepFiles):
    """Whether each chunk of a shard is shortlisted, and by which weight."""

    step = "shortlist"
    marks = ShardFiles(".shortlist.npy")


def shortlist_steps(
    compose: Compose,
    mine: Mine,
    ingest: Step,
    chunk: Step,
    meta_documents: Step,
    *,
    seed: int,
) -> list[Step]:
    """Return the steps from CHUNKS and META_DOCUMENTS to SHORTLIST; the last one is `shortlist`."""

    def words_of(done: Artifacts) -> dict[str, Any]:
        """Return the arguments that `_choose_words` and `_mark_shard` share."""
        metas, words = (
            MetaDocumentsFiles.of(done).meta_documents,
            done["shortlist_words"],
        )
        return {
            "meta_documents": metas,
            "words": (words.stem(), words.result(_WordsResult)),
        }

    def count(done: Artifacts) -> list[Task]:
        return [
            partial(
                _count_words,
                corpus=corpus_files.corpus(done),
                sampled=SAMPLED_CHUNKS,
                seed=seed,
            )
        ]

    def choose(done: Artifacts) -> list[Task]:
        shared = words_of(done)
        sample, metas = (
            shared["words"][1],
            np.load(shared["meta_documents"], mmap_mode="r"),
        )
        chars, drawn = sample.chars / max(1, sample.sampled), len(metas)
        share = shortlist_chunks(
            compose, mine, chunks=sample.chunks, chunk_chars=chars, meta_documents=drawn
        )
        each = partial(
            _choose_words, corpus=corpus_files.corpus(done), share=share, **shared
        )
        return [
            partial(each, rows=slice(*some))
            for some in query_ranges(shared["meta_documents"])
        ]

    def mark(done: Artifacts) -> list[Task]:
        text, least = (
            corpus_files.corpus(done),
            ShortlistQueriesFiles.of(done).min_scores,
        )
        stems = [path.with_name(path.name.removesuffix(".least.npy")) for path in least]
        each = partial(_mark_shard, queries=stems, seed=seed, **words_of(done))
        shards = enumerate(zip(text.documents, text.chunks, strict=True))
        return [partial(each, shard=shard, files=files) for shard, files in shards]

    words = Step(
        "shortlist_words",
        2,
        {"seed": seed},
        (ingest, chunk),
        count,
        _WordsResult,
    )
    choice: Json = {
        "target_tokens": compose.target_tokens,
        "draft_factor": compose.draft_factor,
    }
    choice["chunks"] = mine.shortlist_chunks
    inputs = (ingest, chunk, meta_documents, words)
    queries = Step("shortlist_queries", 3, choice, inputs, choose)
    shortlist = Step(
        "shortlist",
        2,
        {"seed": seed},
        (*inputs, queries),
        mark,
        _ShortlistResult,
    )
    return [words, queries, shortlist]
