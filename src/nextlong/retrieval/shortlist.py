"""Shortlist the chunks to embed by BM25, so that a transformer encodes fewer.

In:  DOCUMENTS and CHUNKS, and the sampled META_DOCUMENTS.
Out: SHORTLIST, uint8 (chunks,) for each shard: the bits _SHORTLISTED and _CONTROL.
     Chunks with either bit are embedded.

The shortlist holds the chunks of the meta-documents and, for each meta-chunk, its share
of the `mine.shortlist_chunks` best chunks by BM25 (after LiteLong, arXiv 2509.15568). A
sample of the corpus gives the score of the chunk at that rank, and each shard marks its
chunks that reach this score for some meta-chunk, so no rankings are merged. Up to
SAMPLED_CHUNKS chunks, the sample is the whole corpus and the ranks are exact.

_CONTROL marks a random 1 % of all chunks, all embedded. The control chunk nearest to a
meta-chunk has rank 100 on average, so the share of meta-chunks for which it is
shortlisted estimates the coverage of chunks around that rank (docs/retrieval.md).
Control chunks among the nearest *embedded* chunks would measure deeper ranks instead.

Only the words of a meta-chunk with the highest
weights are looked up, as in Lucene's "more like this": words of most chunks take most
of the time and hardly change the ranking. Shapes: V words of the vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from nextlong import schemas
from nextlong.arrays import Floats, Ints
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
from nextlong.retrieval.bm25 import (
    Vocabulary,
    count_known,
    hash_texts,
    idf_of,
    scores_of,
    weights_of,
)
from nextlong.retrieval.sample import MetaDocumentsFiles, query_ranges
from nextlong.rng import threshold_for
from nextlong.text import Json, counted

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

# Bits of SHORTLIST.
_SHORTLISTED = 1
_CONTROL = 2
CONTROL_SHARE: Final = 0.01
# Share of the meta-chunks with a control chunk among their candidates from which the
# estimate is shown (others bias it).
_MIN_JUDGED: Final = 0.95
SAMPLED_CHUNKS: Final = 1 << 17
# In the sample; the score at a lower rank would be chance.
_MIN_RANK: Final = 2
QUERY_WORDS: Final = 48


class _WordsResult(TaskResult):
    """Counts of the sample: `words` in the vocabulary, `mean_words` per chunk."""

    chunks: int  # of the corpus
    sampled: int
    chars: int  # of the sampled chunks
    words: int
    mean_words: float


class _ShortlistResult(TaskResult):
    """Chunks of a shard, and the number that is embedded: shortlisted or control."""

    chunks: int
    embedded: int


class MineResult(TaskResult):
    """Queries and candidates.

    `judged` queries have a control chunk among their candidates; of these, the nearest
    one of `shortlisted` is.
    """

    queries: int
    candidates: int
    judged: int = 0
    shortlisted: int = 0


# The stem of what `_count_words` wrote, and its result.
_Counted = tuple[Path, _WordsResult]
# The DOCUMENTS and the CHUNKS of a shard.
_Shard = tuple[Path, Path]


def _count_words(
    out: Path, *, corpus: corpus_files.CorpusFiles, sampled: int, seed: int
) -> _WordsResult:
    """Count the words of a sample of all chunks.

    Writes a Vocabulary and `{out}.sample.npz`, BM25 weights, CSR (V, chunks).
    """
    from scipy import sparse

    total = sum(count_chunks(path) for path in corpus.chunks)
    texts = sample_texts(
        corpus.documents, corpus.chunks, fraction=sampled / max(1, total), seed=seed
    )
    hashes, bounds = hash_texts(texts)
    words = np.unique(hashes)
    counts = count_known(hashes, bounds, words)
    chunks_of_word = np.bincount(counts.indices, minlength=len(words))
    chosen = np.flatnonzero(chunks_of_word >= 2)
    frequency = chunks_of_word[chosen]
    vocabulary = Vocabulary(
        hashes=words[chosen],
        idf=idf_of(frequency, texts=len(texts)),
        mean_words=len(hashes) / max(1, len(texts)),
    )
    np.save(f"{out}.words.npy", vocabulary.hashes)
    np.save(f"{out}.idf.npy", vocabulary.idf)
    weights = weights_of(counts[:, chosen], np.diff(bounds), vocabulary)
    sparse.save_npz(f"{out}.sample.npz", weights, compressed=False)
    return _WordsResult(
        chunks=total,
        sampled=len(texts),
        chars=sum(len(text) for text in texts),
        words=len(chosen),
        mean_words=vocabulary.mean_words,
    )


def _choose_words(
    out: Path,
    *,
    meta_documents: Path,
    rows: slice,
    corpus: corpus_files.CorpusFiles,
    words: _Counted,
    share: int,
) -> TaskResult:
    """Choose the words by which meta-chunks are looked up, and their least scores.

    They are those of some `rows` of META_DOCUMENTS. Writes `{out}.queries.npz`, the
    counts of these words, CSR float32 (queries, V), and `{out}.least.npy`, float32
    (queries,).
    """
    from scipy import sparse

    metas = np.load(meta_documents)[rows]
    vocabulary = _read_vocabulary(words)
    stem, summary = words
    ids = corpus_files.ranges(metas["first_chunk"], metas["chunks"])
    texts = corpus.texts(ids).tolist()
    hashes, bounds = hash_texts(texts)
    counts = count_known(hashes, bounds, vocabulary.hashes)
    queries = _heaviest_words(counts, counts.data * vocabulary.idf[counts.indices])

    # The document's own chunks score best for each of its chunks, but do not count
    # among the chunks that it is given.
    own = np.repeat(metas["chunks"], metas["chunks"])
    in_sample = (share / own + own) * summary.sampled / max(1, summary.chunks)
    ranks = np.maximum(_MIN_RANK, np.ceil(in_sample)).astype(np.int64)
    weights = sparse.load_npz(f"{stem}.sample.npz")
    least = np.full(counts.shape[0], np.inf, np.float32)
    for begin, scores in scores_of(queries, weights):
        bounds_of_rows = pairwise(scores.indptr)
        for query, (low, high) in enumerate(bounds_of_rows, start=begin):
            query_scores = scores.data[low:high]
            if len(query_scores):
                rank = int(ranks[query])
                index = max(0, len(query_scores) - rank)
                least[query] = np.partition(query_scores, index)[index]
    sparse.save_npz(f"{out}.queries.npz", queries, compressed=False)
    np.save(f"{out}.least.npy", least)
    return TaskResult()


def _heaviest_words(counts: csr_matrix, weights: Floats) -> csr_matrix:
    """Return the counts of the words of each query with the highest weights.

    Equal weights in the order of the vocabulary. `weights` are those of `counts.data`.
    """
    from scipy import sparse

    chosen = [np.empty(0, np.int64)]
    for low, high in pairwise(counts.indptr.tolist()):
        order = np.argsort(-weights[low:high], kind="stable")
        chosen.append(low + np.sort(order[:QUERY_WORDS]))
    ends = np.cumsum([len(entries) for entries in chosen])  # (queries + 1,), from 0
    entries = np.concatenate(chosen)
    return sparse.csr_matrix(
        (counts.data[entries], counts.indices[entries], ends), shape=counts.shape
    )


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
    """Mark the chunks of a shard to embed.

    `queries` are the stems that `_choose_words` wrote. Writes `{out}.shortlist.npy`.
    """
    from scipy import sparse

    vocabulary = _read_vocabulary(words)
    # (chunks,) the bits of each chunk; 0 if it is not embedded.
    marks = np.zeros(count_chunks(files[1]), np.uint8)
    keys = chunk_keys(*files, seed=seed, stage="shortlist.control")
    marks[keys < threshold_for(CONTROL_SHARE)] = _CONTROL
    batches = []
    for batch in iter_chunk_texts(*files):
        hashes, bounds = hash_texts(batch.texts)
        counts = count_known(hashes, bounds, vocabulary.hashes)
        weights = weights_of(counts, np.diff(bounds), vocabulary)
        batches.append(weights)
    if batches:
        weights = sparse.hstack(batches, format="csr")
        for stem in queries:
            least = np.load(f"{stem}.least.npy")
            query_words = sparse.load_npz(f"{stem}.queries.npz")
            for begin, scores in scores_of(query_words, weights):
                bars = least[begin : begin + scores.shape[0]]
                is_near = scores.data >= np.repeat(bars, np.diff(scores.indptr))
                marks[scores.indices[is_near]] |= _SHORTLISTED
    metas = np.load(meta_documents)
    metas = metas[schemas.shard_of(metas["first_chunk"]) == shard]
    meta_chunks = corpus_files.ranges(metas["first_chunk"], metas["chunks"])
    marks[schemas.row_of(meta_chunks)] |= _SHORTLISTED
    np.save(f"{out}.shortlist.npy", marks)
    return _ShortlistResult(chunks=len(marks), embedded=int(np.count_nonzero(marks)))


def embedded_rows(chunks: Path, shortlist: Path | None) -> Ints:
    """Return the rows of the shard's chunks that are embedded, ascending.

    All of them without a shortlist.
    """
    if shortlist is None:
        return np.arange(count_chunks(chunks))
    return np.flatnonzero(corpus_files.opened(shortlist))


def judge_shortlist(
    neighbours: Sequence[Ints], shortlist: Sequence[Path]
) -> tuple[int, int]:
    """Return how many queries have a control chunk as neighbour.

    And for how many the nearest one is shortlisted.
    """
    ids = np.concatenate([np.empty(0, np.int64), *neighbours])
    marks = corpus_files.array_rows(ids, shortlist)
    counts = [len(row) for row in neighbours]
    query_numbers = np.arange(len(neighbours))
    query_of = np.repeat(query_numbers, counts)
    controls = np.flatnonzero(marks & _CONTROL)
    _, first = np.unique(query_of[controls], return_index=True)
    is_shortlisted = marks[controls[first]] & _SHORTLISTED
    return len(first), int(np.count_nonzero(is_shortlisted))


def describe_shortlist(done: Artifacts) -> str:
    """Return the share of chunks embedded and the coverage of the shortlist.

    The coverage is estimated. Empty without a shortlist.
    """
    if "shortlist" not in done:
        return ""
    shards = done["shortlist"].results(_ShortlistResult)
    total = sum(shard.chunks for shard in shards)
    embedded = sum(shard.embedded for shard in shards)
    share = (
        f"bm25: {embedded:,} of {total:,} chunks embedded "
        f"({embedded / max(1, total):.1%})"
    )
    mined = done["mine"].results(MineResult)
    judged = sum(part.judged for part in mined)
    queries = sum(part.queries for part in mined)
    if judged < max(1, _MIN_JUDGED * queries):
        return share
    coverage = sum(part.shortlisted for part in mined) / judged
    return (
        f"{share}; the shortlist has about {coverage:.0%} of the chunks around rank "
        f"{1 / CONTROL_SHARE:.0f} of a meta-chunk (estimated from "
        f"{counted(judged, 'meta-chunk')} and a random {CONTROL_SHARE:.0%} of all "
        "chunks)"
    )


def _read_vocabulary(words: _Counted) -> Vocabulary:
    stem, summary = words
    return Vocabulary(
        hashes=np.load(f"{stem}.words.npy"),
        idf=np.load(f"{stem}.idf.npy"),
        mean_words=summary.mean_words,
    )


class ShortlistQueriesFiles(StepFiles):
    """The scores that a chunk needs to be shortlisted, for each query of a task."""

    step = "shortlist_queries"
    min_scores = ShardFiles(".least.npy")


class ShortlistFiles(StepFiles):
    """The SHORTLIST of every shard."""

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
    """Return the steps from CHUNKS and META_DOCUMENTS to SHORTLIST.

    The last one is `shortlist`.
    """

    def shared_arguments(done: Artifacts) -> dict[str, Any]:
        """Return the arguments that `_choose_words` and `_mark_shard` share."""
        counted_words = done["shortlist_words"]
        return {
            "meta_documents": MetaDocumentsFiles.of(done).meta_documents,
            "words": (counted_words.stem(), counted_words.result(_WordsResult)),
        }

    def count(done: Artifacts) -> list[Task]:
        task = partial(
            _count_words,
            corpus=corpus_files.corpus(done),
            sampled=SAMPLED_CHUNKS,
            seed=seed,
        )
        return [task]

    def choose(done: Artifacts) -> list[Task]:
        shared = shared_arguments(done)
        _, sample = shared["words"]
        metas = np.load(shared["meta_documents"], mmap_mode="r")
        share = shortlist_chunks(
            compose,
            mine,
            chunks=sample.chunks,
            chunk_chars=sample.chars / max(1, sample.sampled),
            meta_documents=len(metas),
        )
        task = partial(
            _choose_words, corpus=corpus_files.corpus(done), share=share, **shared
        )
        ranges = query_ranges(shared["meta_documents"])
        return [partial(task, rows=slice(first, last)) for first, last in ranges]

    def mark(done: Artifacts) -> list[Task]:
        corpus = corpus_files.corpus(done)
        suffix = ShortlistQueriesFiles.min_scores.suffix
        paths = ShortlistQueriesFiles.of(done).min_scores
        stems = [path.with_name(path.name.removesuffix(suffix)) for path in paths]
        task = partial(
            _mark_shard,
            queries=stems,
            seed=seed,
            **shared_arguments(done),
        )
        shards = enumerate(zip(corpus.documents, corpus.chunks, strict=True))
        return [partial(task, shard=shard, files=files) for shard, files in shards]

    words = Step(
        name="shortlist_words",
        phase="search",
        version=2,
        config={"seed": seed},
        inputs=(ingest, chunk),
        tasks=count,
        result=_WordsResult,
    )
    choice: Json = {
        "target_tokens": compose.target_tokens,
        "draft_factor": compose.draft_factor,
        "chunks": mine.shortlist_chunks,
    }
    inputs = (ingest, chunk, meta_documents, words)
    queries = Step(
        name="shortlist_queries",
        phase="search",
        version=3,
        config=choice,
        inputs=inputs,
        tasks=choose,
    )
    shortlist = Step(
        name="shortlist",
        phase="search",
        version=2,
        config={"seed": seed},
        inputs=(*inputs, queries),
        tasks=mark,
        result=_ShortlistResult,
    )
    return [words, queries, shortlist]
