"""Shortlist: choose by words which chunks are embedded, so that a transformer encodes a part of the corpus.

In:  DOCUMENTS and CHUNKS, the sampled META_DOCUMENTS.
Out: SHORTLIST, uint8 (chunks,) for each shard: the bits _SHORTLISTED and _CONTROL; chunks with either are embedded.

Shortlisted are the chunks of the meta-documents, and for each meta-chunk about as many of the best chunks by BM25 as its share
of `mine.shortlist_chunks` (the idea: LiteLong, arXiv 2509.15568). A ranking of the whole corpus for each meta-chunk would have to
be merged from all shards. Instead, a sample of chunks tells which score the chunk at that rank has, and each shard marks its
chunks that reach this score for some meta-chunk. Up to _SAMPLED chunks the sample is the whole corpus, and the ranks are exact.

_CONTROL is a random 1 % of all chunks, shortlisted or not. All of them are embedded, so the nearest of them to a meta-chunk is
known, and so is whether the shortlist has it. Among all chunks, the nearest of a random share s has the rank r with probability
s·(1 − s)^(r − 1), 100 on average: how often it is shortlisted is a nearly unbiased estimate of the share of chunks at such ranks
that are. The control chunks among the nearest *embedded* chunks would not tell that: these reach deeper ranks.

BM25 is Lucene's (k1 = 1.2, b = 0.75). Of a meta-chunk, only the words with the highest weight are looked up, as in Lucene's
"more like this": words that most chunks have cost most of the time and decide little.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.finished import CorpusFiles, chunks_of
from nextlong.artifacts.lookup import chunk_keys, count_chunks, iter_chunk_texts, sample_texts
from nextlong.artifacts.results import MineResult, ShortlistResult, ShortlistWordsResult
from nextlong.engine.step import Artifacts, Estimate, Step, Task, TaskResult, per_shard
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import blocks, shortlist_chunks
from nextlong.retrieval.near_duplicates.shingles import bounds_of, hash_words
from nextlong.retrieval.sample import chunk_ids_of, query_ranges
from nextlong.rng import threshold_for
from nextlong.text import Json, counted

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

_SHORTLISTED: Final = 1
_CONTROL: Final = 2
CONTROL_SHARE: Final = 0.01
# Of the meta-chunks. Those without a control chunk among their candidates are left out: their ranks are the deeper ones.
_LEAST_JUDGED: Final = 0.95
_SAMPLED: Final = 1 << 17  # chunks
_LEAST_RANK: Final = 2  # in the sample: the score at a lower rank would be chance
_QUERY_WORDS: Final = 48
_K1, _B = 1.2, 0.75
_TEXTS_AT_ONCE: Final = 512
_PRODUCTS_AT_ONCE: Final = 1 << 24  # of words of queries and chunks; their scores take some 200 MB


class _Vocabulary(NamedTuple):
    """The words of at least two sampled chunks: hashes (V,) ascending, idf (V,), and the mean number of words of a chunk."""

    hashes: NDArray[np.uint64]
    idf: NDArray[np.float32]
    mean_words: float


def count_words(
    out: Path, *, documents: Sequence[Path], chunks: Sequence[Path], sampled: int, seed: int
) -> ShortlistWordsResult:
    """Count the words of a sample of all chunks.

    Writes `{out}.words.npy` and `{out}.idf.npy`, a _Vocabulary, and `{out}.sample.npz`, the BM25 weights of the sample as CSR
    (V, sampled chunks).
    """
    from scipy import sparse

    total = sum(map(count_chunks, chunks))
    texts = sample_texts(documents, chunks, fraction=sampled / max(1, total), seed=seed)
    hashes, bounds = _hashed(texts)
    words, columns = np.unique(hashes, return_inverse=True)
    counts = _counts(columns, bounds, width=len(words))
    frequency = np.bincount(counts.indices, minlength=len(words))
    several = np.flatnonzero(frequency >= 2)
    idf = np.log1p((len(texts) - frequency[several] + 0.5) / (frequency[several] + 0.5)).astype(np.float32)
    vocabulary = _Vocabulary(words[several], idf, len(hashes) / max(1, len(texts)))
    weights = _weights(counts[:, several], np.diff(bounds), vocabulary)
    np.save(f"{out}.words.npy", vocabulary.hashes)
    np.save(f"{out}.idf.npy", vocabulary.idf)
    sparse.save_npz(f"{out}.sample.npz", weights, compressed=False)
    chars = sum(map(len, texts))
    return ShortlistWordsResult(
        chunks=total, sampled=len(texts), chars=chars, words=len(several), mean_words=vocabulary.mean_words
    )


def choose_words(
    out: Path,
    *,
    meta_documents: Path,
    first: int,
    last: int,
    corpus: CorpusFiles,
    words: Path,
    summary: ShortlistWordsResult,
    chunks_per_document: int,
) -> TaskResult:
    """Choose the words that the meta-chunks of the META_DOCUMENTS [first, last) are looked up by, and the score to reach.

    Writes `{out}.queries.npz`, how often each query has which words, CSR float32 (queries, V), and `{out}.least.npy`, float32
    (queries,), the score.
    """
    from scipy import sparse

    metas = np.load(meta_documents)[first:last]
    vocabulary = _vocabulary(words, summary)
    texts = corpus.texts(chunk_ids_of(metas)).tolist()
    hashes, bounds = _hashed(texts)
    queries = _chosen(_looked_up(hashes, bounds, vocabulary), vocabulary.idf)
    sample = sparse.load_npz(f"{words}.sample.npz")
    # A document's own chunks are the best of each of its chunks, but not among those that it gets.
    own = np.repeat(metas["chunks"], metas["chunks"])
    wanted = (chunks_per_document / own + own) * summary.sampled / max(1, summary.chunks)
    ranks = np.maximum(_LEAST_RANK, np.ceil(wanted)).astype(np.int64)
    least = np.full(len(texts), np.inf, np.float32)
    for begin, scores in _scores(queries, sample):
        for row, (low, high) in enumerate(zip(scores.indptr[:-1], scores.indptr[1:], strict=True), start=begin):
            found = scores.data[low:high]
            if len(found):
                place = max(0, len(found) - int(ranks[row]))
                least[row] = np.partition(found, place)[place]
    sparse.save_npz(f"{out}.queries.npz", queries, compressed=False)
    np.save(f"{out}.least.npy", least)
    return TaskResult()


def mark_shard(
    out: Path,
    *,
    shard: int,
    documents: Path,
    chunks: Path,
    meta_documents: Path,
    words: Path,
    summary: ShortlistWordsResult,
    queries: Sequence[Path],
    seed: int,
) -> ShortlistResult:
    """Mark the chunks of a shard that are embedded; writes `{out}.shortlist.npy`. `queries` are stems of `choose_words`."""
    from scipy import sparse

    vocabulary = _vocabulary(words, summary)
    # (chunks,): bits that say why a chunk is embedded, as a control or because it is on the shortlist; 0 if it is not.
    marks = np.zeros(count_chunks(chunks), np.uint8)
    keys = chunk_keys(documents, chunks, seed=seed, stage="shortlist.control")
    marks[keys < threshold_for(CONTROL_SHARE)] = _CONTROL
    hashed = [_hashed(batch.texts) for batch in iter_chunk_texts(documents, chunks)]
    found = [_weights(_looked_up(*one, vocabulary), np.diff(one[1]), vocabulary) for one in hashed]
    del hashed
    if found:
        weights = sparse.hstack(found, format="csr")
        for stem in queries:
            least = np.load(f"{stem}.least.npy")
            for begin, scores in _scores(sparse.load_npz(f"{stem}.queries.npz"), weights):
                reached = least[begin : begin + scores.shape[0]]
                marks[scores.indices[scores.data >= np.repeat(reached, np.diff(scores.indptr))]] |= _SHORTLISTED
    metas = np.load(meta_documents)
    own = chunk_ids_of(metas[schemas.shard_of(metas["first_chunk"]) == shard])
    marks[schemas.row_of(own)] |= _SHORTLISTED
    np.save(f"{out}.shortlist.npy", marks)
    return ShortlistResult(chunks=len(marks), embedded=int(np.count_nonzero(marks)))


def embedded_rows(chunks: Path, shortlist: Path | None) -> NDArray[np.int64]:
    """Return the rows of a shard's chunks that are embedded, ascending: all of them without a shortlist."""
    return np.arange(count_chunks(chunks)) if shortlist is None else np.flatnonzero(lookup.opened(shortlist))


def judge_shortlist(neighbours: Sequence[NDArray[np.int64]], shortlist: Sequence[Path]) -> tuple[int, int]:
    """Return how many queries have a control chunk among their neighbours, and the nearest of how many is shortlisted."""
    ids = np.concatenate([np.empty(0, np.int64), *neighbours])
    if not len(ids):
        return 0, 0
    (marks,) = lookup.by_shard(ids, lambda shard, rows: [lookup.opened(shortlist[shard])[rows]])
    query_of = np.repeat(np.arange(len(neighbours)), [len(row) for row in neighbours])
    controls = np.flatnonzero(marks & _CONTROL)
    _, first = np.unique(query_of[controls], return_index=True)
    return len(first), int(np.count_nonzero(marks[controls[first]] & _SHORTLISTED))


def describe_shortlist(done: Artifacts) -> str:
    """Return how much of a finished run was embedded, and which share of the nearest that is; empty without a shortlist."""
    if "shortlist" not in done:
        return ""
    shards, mined = done["shortlist"].results(ShortlistResult), done["mine"].results(MineResult)
    total, embedded = sum(shard.chunks for shard in shards), sum(shard.embedded for shard in shards)
    share = f"bm25: {embedded:,} of {total:,} chunks embedded ({embedded / max(1, total):.1%})"
    judged, queries = sum(one.judged for one in mined), sum(one.queries for one in mined)
    if judged < max(1, _LEAST_JUDGED * queries):
        return share
    found = sum(one.shortlisted for one in mined) / judged
    return (
        f"{share}; the shortlist has about {found:.0%} of the chunks around rank {1 / CONTROL_SHARE:.0f} of a meta-chunk "
        f"(estimated from {counted(judged, 'meta-chunk')} and a random {CONTROL_SHARE:.0%} of all chunks)"
    )


def _vocabulary(words: Path, summary: ShortlistWordsResult) -> _Vocabulary:
    return _Vocabulary(np.load(f"{words}.words.npy"), np.load(f"{words}.idf.npy"), summary.mean_words)


def _hashed(texts: Sequence[str]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Return the hashes of the words of all n texts, one after the other, and where each text's begin, shape (n + 1,)."""
    hashes, bounds = [np.empty(0, np.uint64)], [np.zeros(1, np.int64)]
    for low in range(0, len(texts), _TEXTS_AT_ONCE):
        some = texts[low : low + _TEXTS_AT_ONCE]
        words = hash_words("\n".join(some))
        hashes.append(words.hashes)
        bounds.append(bounds[-1][-1] + bounds_of(words, some)[1:])
    return np.concatenate(hashes), np.concatenate(bounds)


def _looked_up(hashes: NDArray[np.uint64], bounds: NDArray[np.int64], vocabulary: _Vocabulary) -> csr_matrix:
    """Return how often each word of the vocabulary stands in each text, CSR float32 (texts, V)."""
    places = np.searchsorted(vocabulary.hashes, hashes)
    known = np.zeros(len(hashes), np.bool_)
    if len(vocabulary.hashes):
        known = vocabulary.hashes[np.minimum(places, len(vocabulary.hashes) - 1)] == hashes
    known_before = np.concatenate([[0], np.cumsum(known)])
    return _counts(places[known], known_before[bounds], width=len(vocabulary.hashes))


def _counts(columns: NDArray[np.int64], bounds: NDArray[np.int64], *, width: int) -> csr_matrix:
    from scipy import sparse

    ones = np.ones(len(columns), np.float32)
    counts = sparse.csr_matrix((ones, columns.astype(np.int32), bounds), shape=(len(bounds) - 1, width))
    counts.sum_duplicates()
    return counts


def _weights(counts: csr_matrix, lengths: NDArray[np.int64], vocabulary: _Vocabulary) -> csr_matrix:
    """Return the BM25 weights of the words of n chunks, CSR float32 (V, n); `lengths` (n,) in words."""
    norm = (_K1 * (1 - _B + _B * lengths / max(1.0, vocabulary.mean_words))).astype(np.float32)
    weights = counts.copy()
    of_rows = np.repeat(norm, np.diff(counts.indptr))
    weights.data = vocabulary.idf[counts.indices] * counts.data / (counts.data + of_rows)
    return weights.T.tocsr()


def _chosen(counts: csr_matrix, idf: NDArray[np.float32]) -> csr_matrix:
    """Return `counts` with only the words of each query that weigh most; equal ones by their place in the vocabulary."""
    from scipy import sparse

    weights, kept = counts.data * idf[counts.indices], []
    for low, high in zip(counts.indptr[:-1].tolist(), counts.indptr[1:].tolist(), strict=True):
        kept.append(low + np.sort(np.argsort(-weights[low:high], kind="stable")[:_QUERY_WORDS]))
    places = np.concatenate([np.empty(0, np.int64), *kept])
    ends = np.concatenate([[0], np.cumsum([*map(len, kept)])]).astype(np.int64)
    return sparse.csr_matrix((counts.data[places], counts.indices[places], ends), shape=counts.shape)


def _scores(queries: csr_matrix, weights: csr_matrix) -> Iterator[tuple[int, csr_matrix]]:
    """Yield the first row of each block of queries and the block's scores, CSR (queries of the block, chunks).

    The scores of a query are sums in the order of its words: the same bits whatever the block and whatever the shard.
    """
    # (queries + 1,): how many products the queries before each one take.
    postings = np.concatenate([[0], np.cumsum(np.diff(weights.indptr)[queries.indices])])[queries.indptr]
    first = 0
    while first < queries.shape[0]:
        last = max(first + 1, int(np.searchsorted(postings, postings[first] + _PRODUCTS_AT_ONCE, side="right")) - 1)
        yield first, queries[first:last] @ weights
        first = last


def shortlist_steps(recipe: Recipe, ingest: Step, chunk: Step, meta_documents: Step) -> list[Step]:
    """CHUNKS and META_DOCUMENTS → SHORTLIST; the last step is `shortlist`."""
    seed = recipe.seed

    def sources(done: Artifacts) -> CorpusFiles:
        return CorpusFiles(
            tuple(done["ingest"].files(".documents.arrow")), tuple(chunks_of(done).files(".chunks.arrow"))
        )

    def count(done: Artifacts) -> list[Task]:
        corpus = sources(done)
        return [
            partial(count_words, documents=corpus.documents, chunks=corpus.chunks, sampled=_SAMPLED, seed=seed),
        ]

    def choose(done: Artifacts) -> list[Task]:
        summary, path = (
            done["shortlist_words"].result(ShortlistWordsResult),
            done["meta_documents"].file(".meta_documents.npy"),
        )
        each = partial(
            choose_words,
            meta_documents=path,
            corpus=sources(done),
            words=done["shortlist_words"].stem(),
            summary=summary,
            chunks_per_document=shortlist_chunks(recipe, summary.chunk_chars),
        )
        return [partial(each, first=first, last=last) for first, last in query_ranges(path)]

    def mark(done: Artifacts) -> list[Task]:
        corpus, least = sources(done), done["shortlist_queries"].files(".least.npy")
        each = partial(
            mark_shard,
            meta_documents=done["meta_documents"].file(".meta_documents.npy"),
            words=done["shortlist_words"].stem(),
            summary=done["shortlist_words"].result(ShortlistWordsResult),
            queries=[path.with_name(path.name.removesuffix(".least.npy")) for path in least],
            seed=seed,
        )
        shards = zip(corpus.documents, corpus.chunks, strict=True)
        return [
            partial(each, shard=shard, documents=documents, chunks=chunks)
            for shard, (documents, chunks) in enumerate(shards)
        ]

    words = Step("shortlist_words", 2, {"seed": seed}, (ingest, chunk), count, ShortlistWordsResult, estimate=_WORDS)
    asked: Json = {
        "chunks": recipe.mine.shortlist_chunks,
        "target_tokens": recipe.compose.target_tokens,
        "draft_factor": recipe.compose.draft_factor,
    }
    inputs = (ingest, chunk, meta_documents, words)
    queries = Step("shortlist_queries", 2, asked, inputs, choose, estimate=_QUERIES)
    shortlist = Step("shortlist", 2, {"seed": seed}, (*inputs, queries), mark, ShortlistResult, estimate=_MARKS)
    return [words, queries, shortlist]


_WORDS = Estimate(
    work=lambda amounts: min(amounts.chunks, _SAMPLED),
    seconds=1e-4,
    disk=lambda amounts: min(amounts.chunks, _SAMPLED),
    bytes=1200,
    memory=lambda amounts: 12e3 * min(amounts.chunks, _SAMPLED),
)
_QUERIES = Estimate(
    work=lambda amounts: amounts.queries * (1 + min(amounts.chunks, _SAMPLED) / 5_000),
    seconds=2e-4,
    disk="queries",
    bytes=8 * _QUERY_WORDS + 12,
    tasks=lambda amounts: blocks(amounts.drafts, amounts.queries),
    memory=lambda amounts: 2400 * min(amounts.chunks, _SAMPLED) + 400e6,
)
_MARKS = Estimate(
    # The words of queries that chunks have, too: what is looked up is in one of 250 chunks on average.
    work=lambda amounts: amounts.chunks + amounts.queries * _QUERY_WORDS * amounts.chunks / 250 / 1e4,
    seconds=1e-4,
    disk="chunks",
    bytes=1,
    tasks=per_shard,
    memory=lambda amounts: 4e3 * amounts.chunks / max(1.0, amounts.shards) + 400e6,
)
