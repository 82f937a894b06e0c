"""Deduplicate: of documents that are nearly the same, one stays.

In:  the documents of every shard, and which of them were kept so far.
Out: one bool per row and shard, as `select` writes them; the longest document of each cluster stays (of equals, that with
the smallest hash of its content), so that no sharding or file order decides.

MinHash signatures (Broder 1997) over runs of five words come from rensa, a small library in Rust with no dependencies; the
clusters are ours, because they must fit in memory at any size: signatures stay on disk, one band of them is sorted at a
time, and only pairs that agree on a whole band are compared. Held for each document are 8 bytes, and the pairs found.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.errors import RecipeError
from nextlong.results import MinhashResult, NearDuplicatesResult
from nextlong.similarity.words import bounds_of, hash_words, ngrams, runs_on

PERMUTATIONS: Final = 128  # the estimate's standard error at Jaccard 0.8 is 0.035
_SHINGLE_WORDS: Final = 5
_SIGNATURE_SEED: Final = 1
_ALGORITHM_VERSION: Final = 2  # of rensa's signatures; another would decide otherwise for documents near the threshold
_LEAST_RECALL: Final = 0.99  # of the pairs exactly at the threshold; those above it are found more surely
_HELD_DOCUMENTS: Final = 4_000_000
_COMPARED_PAIRS: Final = 16_384
_EXAMPLES: Final = 5

Pairs = NDArray[np.int64]  # (p, 2) rows of the corpus: rows of all shards, numbered one after the other


def minhash_shard(out: Path, *, documents: Path, keep: Path) -> MinhashResult:
    """Write `{out}.signatures.npy`, uint32 (rows, PERMUTATIONS), of one shard; rows that are not kept stay 0.

    Raises RecipeError if rensa is not installed, or is a version with other signatures.
    """
    minhash = minhash_class()
    kept = np.load(keep)
    signatures = np.lib.format.open_memmap(
        f"{out}.signatures.npy", mode="w+", dtype=np.uint32, shape=(len(kept), PERMUTATIONS)
    )
    first = 0
    with pa.ipc.open_file(pa.memory_map(str(documents))) as reader:
        for number in range(reader.num_record_batches):
            batch = reader.get_batch(number)
            rows = np.flatnonzero(kept[first : first + batch.num_rows])
            if len(rows):
                texts = batch.column("text").take(pa.array(rows)).to_pylist()
                hashes, offsets = _shingles(texts, batch.column("content_hash").to_numpy()[rows])
                digests = minhash.digest_matrix_from_flat_token_hashes(hashes, offsets, PERMUTATIONS, _SIGNATURE_SEED)
                signatures[first + rows] = np.array(digests.to_rows(), np.uint32)
            first += batch.num_rows
    return MinhashResult(documents=int(kept.sum()))


def minhash_class() -> Any:
    """Return rensa's MinHash. Raises RecipeError, with the cure, if rensa is not installed or makes other signatures."""
    try:
        from rensa import RMinHash
    except ImportError:
        raise RecipeError(
            "ingest.dedup=minhash needs the package rensa, which is not installed; pip install 'nextlong[dedup]', "
            "or set ingest.dedup: exact"
        ) from None
    if (algorithm := getattr(RMinHash, "ALGORITHM_VERSION", 1)) != _ALGORITHM_VERSION:
        raise RecipeError(
            f"ingest.dedup=minhash needs signatures of rensa's algorithm {_ALGORITHM_VERSION}, but the installed rensa makes "
            f"those of algorithm {algorithm}; pip install 'nextlong[dedup]'"
        )
    return RMinHash


def _shingles(texts: Sequence[str], content: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the hashed word runs of all texts and where each text's begin and end.

    A text of fewer words is one run; one without words has the hash of its content, so that it resembles nothing.
    """
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    is_long = np.diff(bounds) >= _SHINGLE_WORDS
    sizes = np.where(is_long, np.diff(bounds) - _SHINGLE_WORDS + 1, 1)
    of_long = np.repeat(is_long, sizes)
    hashes = np.empty(len(of_long), np.uint64)
    hashes[of_long] = ngrams(words.hashes, _SHINGLE_WORDS)[
        runs_on(bounds, _SHINGLE_WORDS)[: max(len(words.hashes) - _SHINGLE_WORDS + 1, 0)]
    ]
    short = []
    for text in np.flatnonzero(~is_long):
        text_hashes = words.hashes[bounds[text] : bounds[text + 1]]
        short.append(ngrams(text_hashes, len(text_hashes))[0] if len(text_hashes) else content[text])
    hashes[~of_long] = short
    return hashes, np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)


def near_duplicates(
    out: Path,
    *,
    signatures: Sequence[Path],
    keep: Sequence[Path],
    hashes: Sequence[Path],
    chars: Sequence[Path],
    threshold: float,
    held_documents: int = _HELD_DOCUMENTS,
) -> NearDuplicatesResult:
    """Write `{out}.{shard:05d}.keep.npy`: False also where a near-duplicate stays instead.

    `keep`, `hashes` (uint64) and `chars` (int64) are .npy files of one value a row, as select and ingest write them. Two
    documents are near-duplicates if their estimated Jaccard similarity is at least `threshold`; duplicates of duplicates count.
    """
    corpus = _Corpus(signatures, keep, hashes)
    clusters = np.arange(corpus.rows)  # the smallest row of each row's cluster
    width = band_width(threshold)
    for band in range(PERMUTATIONS // width):
        for pairs in _banded_pairs(corpus, band, width, held_documents):
            apart = pairs[clusters[pairs[:, 0]] != clusters[pairs[:, 1]]]
            _join(clusters, apart[_similar(corpus, apart, threshold)])
    members = np.flatnonzero(np.bincount(clusters, minlength=corpus.rows)[clusters] > 1)
    losers = _losers(members, clusters, corpus.gather(chars, members), corpus.gather(hashes, members))
    for shard, path in enumerate(keep):
        kept = np.load(path)
        first, last = corpus.starts[shard : shard + 2]
        kept[losers[np.searchsorted(losers, first) : np.searchsorted(losers, last)] - first] = False
        np.save(f"{out}.{shard:05d}.keep.npy", kept)
    clustered = np.unique(clusters[members], return_counts=True)[1]
    return NearDuplicatesResult(
        near_duplicates=len(losers),
        clusters=len(clustered),
        largest_cluster=int(clustered.max(initial=0)),
        examples=_some_losers(losers, members, clusters),
    )


def _some_losers(
    losers: NDArray[np.int64], members: NDArray[np.int64], clusters: NDArray[np.int64]
) -> tuple[tuple[int, int], ...]:
    """Return a few rows that go, spread over the corpus, each with the row that stays in its stead."""
    some = losers[:: max(1, len(losers) // _EXAMPLES)][:_EXAMPLES]
    stays = np.setdiff1d(members, losers)
    order = np.argsort(clusters[stays])
    at = np.searchsorted(clusters[stays][order], clusters[some])
    return tuple(zip(some.tolist(), stays[order][at].tolist(), strict=True))


def band_width(threshold: float) -> int:
    """Return how many values make a band: the most with which a pair at the threshold still agrees on one of the bands."""
    for width in range(PERMUTATIONS, 1, -1):
        if 1 - (1 - threshold**width) ** (PERMUTATIONS // width) >= _LEAST_RECALL:
            return width
    return 1


class _Corpus:
    """The files of all shards, mapped and not held, with rows numbered through."""

    def __init__(self, signatures: Sequence[Path], keep: Sequence[Path], hashes: Sequence[Path]) -> None:
        self._signatures = [np.load(path, mmap_mode="r") for path in signatures]
        self._keep = keep
        self._hashes = hashes
        self.starts = np.cumsum([0, *map(len, self._signatures)])
        self.rows = int(self.starts[-1])

    def band(self, band: int, width: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]]:
        """Yield (rows, band hash, content hash) of each shard's kept documents."""
        for start, signatures, keep, hashes in zip(
            self.starts, self._signatures, self._keep, self._hashes, strict=False
        ):
            kept = np.flatnonzero(np.load(keep, mmap_mode="r"))
            values = signatures[:, band * width : (band + 1) * width].astype(np.uint64)[kept]
            yield kept + start, ngrams(values.ravel(), width)[::width], np.load(hashes, mmap_mode="r")[kept]

    def signatures(self, rows: NDArray[np.int64]) -> NDArray[np.uint32]:
        """Return the signatures of rows in any order, shape (n, PERMUTATIONS)."""
        return self._lookup(self._signatures, rows)

    def gather(self, paths: Sequence[Path], rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return the values of rows, shape (n,), from .npy files of one value a row."""
        return self._lookup([np.load(path, mmap_mode="r") for path in paths], rows)

    def _lookup(self, columns: Sequence[NDArray[Any]], rows: NDArray[np.int64]) -> NDArray[Any]:
        shards = np.searchsorted(self.starts, rows, side="right") - 1
        values = np.empty((len(rows), *columns[0].shape[1:]), columns[0].dtype)
        for shard in np.unique(shards).tolist():
            of_shard = shards == shard
            values[of_shard] = columns[shard][rows[of_shard] - self.starts[shard]]
        return values


def _banded_pairs(corpus: _Corpus, band: int, width: int, held_documents: int) -> Iterator[Pairs]:
    """Yield pairs that agree on a band: each document with the first of its group, and with the one before it.

    Not every pair of a group, which would be a square; what these leave out, transitivity and the other bands find. Groups
    are in order of content hash, so that sharding does not matter. About `held_documents` are sorted at a time.
    """
    passes = max(1, -(-corpus.rows // held_documents))
    for step in range(passes):
        first, last = np.uint64(2**64 * step // passes), np.uint64(2**64 * (step + 1) // passes - 1)
        rows, keys, hashes = (
            np.concatenate(column)
            for column in zip(*(_within(first, last, *shard) for shard in corpus.band(band, width)), strict=True)
        )
        order = np.lexsort((hashes, keys))
        rows, keys = rows[order], keys[order]
        follows = np.flatnonzero(keys[1:] == keys[:-1]) + 1
        heads = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))[: len(keys)]
        leaders = heads[np.searchsorted(heads, follows, side="right") - 1]
        second = follows - 1 == leaders
        yield np.concatenate(
            [
                np.stack([rows[leaders], rows[follows]], axis=1),
                np.stack([rows[follows - 1], rows[follows]], axis=1)[~second],
            ]
        )


def _within(
    first: np.uint64, last: np.uint64, rows: NDArray[np.int64], keys: NDArray[np.uint64], hashes: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    inside = (keys >= first) & (keys <= last)
    return rows[inside], keys[inside], hashes[inside]


def _similar(corpus: _Corpus, pairs: Pairs, threshold: float) -> NDArray[np.bool_]:
    """Return which pairs have an estimated Jaccard similarity of at least `threshold`: the share of equal values."""
    similar = np.empty(len(pairs), np.bool_)
    for start in range(0, len(pairs), _COMPARED_PAIRS):
        part = pairs[start : start + _COMPARED_PAIRS]
        equal = corpus.signatures(part[:, 0]) == corpus.signatures(part[:, 1])
        similar[start : start + len(part)] = equal.sum(axis=1) >= threshold * PERMUTATIONS
    return similar


def _join(clusters: NDArray[np.int64], pairs: Pairs) -> None:
    """Unite in place the clusters that pairs connect; each keeps the smallest row as its name."""
    if not len(pairs):
        return
    names, ends = np.unique(clusters[pairs], return_inverse=True)
    ends = ends.reshape(-1, 2)
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components  # a quarter of a second, at every start of nextlong

    graph = coo_matrix((np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])), shape=(len(names), len(names)))
    _, component = connected_components(graph, directed=False)
    _, smallest = np.unique(component, return_index=True)  # names ascend, so the first of a component is its smallest
    places = np.minimum(np.searchsorted(names, clusters), len(names) - 1)
    touched = names[places] == clusters
    clusters[touched] = names[smallest[component]][places[touched]]


def _losers(
    rows: NDArray[np.int64], clusters: NDArray[np.int64], chars: NDArray[np.int64], hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the rows, ascending, that are not the longest of their cluster."""
    order = np.lexsort((hashes, -chars, clusters[rows]))
    sorted_clusters = clusters[rows[order]]
    return np.sort(rows[order][1:][sorted_clusters[1:] == sorted_clusters[:-1]])
