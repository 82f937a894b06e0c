"""Deduplicate: keep one of each group of near-duplicate documents.

In:  the documents of every shard, and which of them are kept so far.
Out: one bool per row and shard, as `select` writes them. The longest document of each cluster is kept (of equally long ones,
that with the smallest content hash), so that neither sharding nor file order affects the result.

MinHash signatures (Broder 1997) of five-word shingles come from rensa, a small Rust library. Clustering is done here, because
it must scale: the task of a shard sorts the hashes of each band, one task per band and range of hashes compares the documents
of all shards that share a hash, and the last task computes connected components of the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import IngestFiles
from nextlong.corpus.select import SelectFiles
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    each_shard,
)
from nextlong.errors import RecipeError
from nextlong.retrieval.near_duplicates.shingles import (
    bounds_of,
    hash_words,
    ngrams,
    runs_on,
)

PERMUTATIONS: Final = 128  # the estimate's standard error at Jaccard 0.8 is 0.035
_SHINGLE_WORDS: Final = 5
_SIGNATURE_SEED: Final = 1
_ALGORITHM_VERSION: Final = 2  # of rensa's signatures; another version would decide differently near the threshold
_LEAST_RECALL: Final = (
    0.99  # of the pairs exactly at the threshold; recall above it is higher
)
_HELD_DOCUMENTS: Final = 4_000_000
_COMPARED_PAIRS: Final = 16_384
_HELD_PAIR_BYTES: Final = 1 << 30  # of the pairs whose clusters are found at a time
_EXAMPLES: Final = 5


class _MinhashResult(TaskResult):
    """The number of documents with a signature."""

    documents: int


class NearDuplicatesResult(TaskResult):
    """The number of removed near-duplicates and of their clusters."""

    near_duplicates: int
    clusters: int
    examples: tuple[
        tuple[int, int], ...
    ] = ()  # ids of a removed document and of the one kept instead


class MinhashFiles(StepFiles):
    """The signatures of the documents of every shard, and their bands."""

    step = "minhash"
    signatures = ShardFiles(".signatures.npy")
    band_hashes = ShardFiles(".band_hashes.npy")
    band_rows = ShardFiles(".band_rows.npy")


class SimilarPairsFiles(StepFiles):
    """The pairs of similar documents that each task found."""

    step = "similar_pairs"
    pairs = ShardFiles(".pairs.npy")


class NearDuplicatesFiles(SelectFiles):
    """Whether each document of a shard is kept, after near-duplicates are removed."""

    step = "near_duplicates"


def minhash_steps(ingest: Step, select: Step, *, threshold: float) -> list[Step]:
    """Keep the longest of near-duplicate documents; the steps are signatures, similar pairs, and clusters."""
    width = band_width(threshold)
    bands = PERMUTATIONS // width
    files = {
        "documents": (ingest, IngestFiles.documents),
        "keep": (select, SelectFiles.keep),
    }
    tasks = each_shard(partial(_minhash_shard, width=width), **files)
    minhash = Step(
        "minhash",
        2,
        {"width": width},
        (ingest, select),
        tasks,
        _MinhashResult,
    )

    def find_pairs(done: Artifacts) -> list[Task]:
        own = done["minhash"]
        passes = passes_for(sum(part.documents for part in own.results(_MinhashResult)))
        bands_of_shards = MinhashFiles(own)
        task = partial(
            _similar_pairs,
            hashes=IngestFiles.of(done).hashes,
            signatures=bands_of_shards.signatures,
            band_hashes=bands_of_shards.band_hashes,
            band_rows=bands_of_shards.band_rows,
            passes=passes,
            threshold=threshold,
        )
        return [
            partial(task, band=band, step=step)
            for band in range(bands)
            for step in range(passes)
        ]

    pairs = Step(
        "similar_pairs",
        2,
        {"threshold": threshold},
        (ingest, minhash),
        find_pairs,
    )

    def cluster(done: Artifacts) -> list[Task]:
        pairs, keep = (
            SimilarPairsFiles.of(done).pairs,
            SelectFiles.of(done).keep,
        )
        hashes, chars = (
            IngestFiles.of(done).hashes,
            IngestFiles.of(done).chars,
        )
        return [
            partial(_keep_longest, pairs=pairs, keep=keep, hashes=hashes, chars=chars)
        ]

    clusters = Step(
        "near_duplicates",
        3,
        {},
        (ingest, select, pairs),
        cluster,
        NearDuplicatesResult,
    )
    return [minhash, pairs, clusters]


def _minhash_shard(
    out: Path, *, documents: Path, keep: Path, width: int
) -> _MinhashResult:
    """Write `{out}.signatures.npy`, uint32 (rows, PERMUTATIONS), of one shard, and its bands of `width` values."""
    minhash, kept = minhash_class(), np.load(keep)
    path, shape = f"{out}.signatures.npy", (len(kept), PERMUTATIONS)
    signatures = np.lib.format.open_memmap(
        path, mode="w+", dtype=np.uint32, shape=shape
    )
    for first, batch in corpus_files.record_batches(
        documents
    ):  # rows that are not kept stay 0
        rows = np.flatnonzero(kept[first : first + batch.num_rows])
        if len(rows):
            texts = batch.column("text").take(pa.array(rows)).to_pylist()
            hashes, offsets = _shingles(
                texts, batch.column("content_hash").to_numpy()[rows]
            )
            digests = minhash.digest_matrix_from_flat_token_hashes(
                hashes, offsets, PERMUTATIONS, _SIGNATURE_SEED
            )
            signatures[first + rows] = np.array(digests.to_rows(), np.uint32)
    _write_bands(out, signatures, kept, width=width)
    return _MinhashResult(documents=int(kept.sum()))


def _write_bands(
    out: Path, signatures: NDArray[np.uint32], kept: NDArray[np.bool_], *, width: int
) -> None:
    """Write `{out}.band_hashes.npy`, uint64 (bands, kept rows), each band ascending, and `{out}.band_rows.npy`, uint32."""
    rows = np.flatnonzero(kept).astype(np.uint32)
    shape = (PERMUTATIONS // width, len(rows))
    hashes = np.lib.format.open_memmap(
        f"{out}.band_hashes.npy", mode="w+", dtype=np.uint64, shape=shape
    )
    ordered = np.lib.format.open_memmap(
        f"{out}.band_rows.npy", mode="w+", dtype=np.uint32, shape=shape
    )
    for band in range(shape[0]):
        values = signatures[rows, band * width : (band + 1) * width].astype(np.uint64)
        band_hashes = ngrams(values.ravel(), width)[::width]
        order = np.argsort(band_hashes, kind="stable")
        hashes[band], ordered[band] = band_hashes[order], rows[order]


def minhash_class() -> Any:
    """Return rensa's MinHash. Raises RecipeError if rensa is missing or computes other signatures."""
    try:
        from rensa import RMinHash
    except ImportError:
        cure = "pip install 'nextlong[dedup]', or set ingest.dedup: exact"
        raise RecipeError(
            f"ingest.dedup=minhash needs the package rensa, which is not installed; {cure}"
        ) from None
    if (algorithm := getattr(RMinHash, "ALGORITHM_VERSION", 1)) != _ALGORITHM_VERSION:
        why = f"rensa's algorithm {_ALGORITHM_VERSION}, but the installed rensa has algorithm {algorithm}"
        raise RecipeError(
            f"ingest.dedup=minhash needs {why}; pip install 'nextlong[dedup]'"
        )
    return RMinHash


def _shingles(
    texts: Sequence[str], content: NDArray[np.uint64]
) -> tuple[NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the shingle hashes of all texts, and the offsets of each text's."""
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    # (m,) for m texts; `sizes` is the number of shingles of each text, whose hashes are stored text by text.
    is_long = np.diff(bounds) >= _SHINGLE_WORDS
    sizes = np.where(is_long, np.diff(bounds) - _SHINGLE_WORDS + 1, 1)
    of_long = np.repeat(is_long, sizes)
    hashes = np.empty(len(of_long), np.uint64)
    of_runs = ngrams(words.hashes, _SHINGLE_WORDS)
    hashes[of_long] = of_runs[runs_on(bounds, _SHINGLE_WORDS)[: len(of_runs)]]
    # A text with fewer words is one shingle; one without words gets its content hash, so that it is similar to no other.
    short = [
        (words.hashes[bounds[text] : bounds[text + 1]], content[text])
        for text in np.flatnonzero(~is_long)
    ]
    hashes[~of_long] = [
        ngrams(held, len(held))[0] if len(held) else instead for held, instead in short
    ]
    return hashes, np.concatenate([[0], np.cumsum(sizes)]).astype(np.uint64)


def passes_for(documents: int, *, held_documents: int = _HELD_DOCUMENTS) -> int:
    """Return the number of hash ranges per band, so that one task holds about `held_documents` documents."""
    return max(1, -(-documents // held_documents))


def _similar_pairs(
    out: Path,
    *,
    band: int,
    step: int,
    passes: int,
    threshold: float,
    **files: Sequence[Path],
) -> TaskResult:
    """Write `{out}.pairs.npy`, int64 (pairs, 2): ids of similar documents that share a hash of a band, in one range of hashes.

    The range is number `step` of `passes`. The `files` of each shard are `signatures`, `band_hashes` and `band_rows` from
    `_minhash_shard`, and `hashes` of contents, uint64 (rows,). Each document is compared with the first one that shares its
    hash and with the one before it; comparing all of them would take quadratic time. Transitivity and the other bands find the
    missed pairs. Documents with the same hash are sorted by content hash, so that sharding does not matter.
    """
    first, last = (
        np.uint64(2**64 * step // passes),
        np.uint64(2**64 * (step + 1) // passes - 1),
    )
    # (n,) hash and id of the documents whose hash of this band is in the range.
    of_shards, ids_of_shards = [np.empty(0, np.uint64)], [np.empty(0, np.int64)]
    for shard, (hashes_path, rows_path) in enumerate(
        zip(files["band_hashes"], files["band_rows"], strict=True)
    ):
        shard_hashes = np.load(hashes_path, mmap_mode="r")[band]
        # Each band is ascending, so the range is one slice [low, high) of it.
        low, high = (
            np.searchsorted(shard_hashes, first),
            np.searchsorted(shard_hashes, last, side="right"),
        )
        # A copy, because a view would keep the file of its shard open.
        of_shards.append(np.array(shard_hashes[low:high]))
        ids_of_shards.append(
            schemas.pack_ids(shard, np.load(rows_path, mmap_mode="r")[band, low:high])
        )
    keys, ids = np.concatenate(of_shards), np.concatenate(ids_of_shards)
    order = np.argsort(keys, kind="stable")
    keys, ids = keys[order], ids[order]
    # Keep documents that share a key; those with the same key form a run, sorted by content hash.
    shared = np.zeros(len(keys), np.bool_)
    same = np.flatnonzero(keys[1:] == keys[:-1])
    shared[same] = shared[same + 1] = True
    keys, ids = keys[shared], ids[shared]
    order = np.lexsort((corpus_files.array_rows(ids, files["hashes"]), keys))
    keys, ids = keys[order], ids[order]
    # `heads` are the first positions of the runs, `follows` all others, `leaders` the head of each of these.
    follows = np.flatnonzero(keys[1:] == keys[:-1]) + 1
    heads = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))[: len(keys)]
    leaders = heads[np.searchsorted(heads, follows, side="right") - 1]
    later = follows[follows - 1 != leaders]
    pairs = ids[
        np.stack(
            [np.concatenate([leaders, later - 1]), np.concatenate([follows, later])],
            axis=1,
        )
    ]
    similar = np.empty(
        len(pairs), np.bool_
    )  # the share of equal values estimates the Jaccard similarity
    for start in range(0, len(pairs), _COMPARED_PAIRS):
        part = pairs[start : start + _COMPARED_PAIRS]
        one, other = (
            corpus_files.array_rows(column, files["signatures"]) for column in part.T
        )
        similar[start : start + len(part)] = (one == other).sum(
            axis=1
        ) >= threshold * PERMUTATIONS
    np.save(f"{out}.pairs.npy", pairs[similar])
    return TaskResult()


def _keep_longest(
    out: Path,
    *,
    pairs: Sequence[Path],
    keep: Sequence[Path],
    hashes: Sequence[Path],
    chars: Sequence[Path],
) -> NearDuplicatesResult:
    """Write `{out}.{shard:05d}.keep.npy`: False also for documents of which a near-duplicate is kept.

    `pairs` come from `_similar_pairs`; `keep`, `hashes` (uint64) and `chars` (int64) are .npy files with one value per row,
    from select and ingest. The clusters are the connected components of the pairs, so duplicates of duplicates count.
    """
    members, clusters = _connected(pairs)
    # Members of a cluster, longest first (of equally long ones, smallest hash first): only the first is kept.
    order = np.lexsort(
        (
            corpus_files.array_rows(members, hashes),
            -corpus_files.array_rows(members, chars),
            clusters,
        )
    )
    of_member = clusters[order]
    removed = np.sort(members[order][1:][of_member[1:] == of_member[:-1]])
    removed_rows = dict(corpus_files.by_shard(removed)[0])
    for shard, path in enumerate(keep):
        kept = np.load(path)
        kept[removed_rows.get(shard, [])] = False
        np.save(f"{out}.{shard:05d}.keep.npy", kept)
    some = removed[:: max(1, len(removed) // _EXAMPLES)][
        :_EXAMPLES
    ]  # spread over the corpus
    is_removed = np.isin(members, removed)
    kept_of = np.empty(
        int(clusters.max(initial=-1)) + 1, np.int64
    )  # the kept document of each cluster
    kept_of[clusters[~is_removed]] = members[~is_removed]
    examples = zip(
        some.tolist(),
        kept_of[clusters[np.searchsorted(members, some)]].tolist(),
        strict=True,
    )
    return NearDuplicatesResult(
        near_duplicates=len(removed), clusters=len(kept_of), examples=tuple(examples)
    )


def _connected(pairs: Sequence[Path]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the ids that pairs connect, ascending, shape (m,), and the number of the component of each."""
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import (
        connected_components,
    )  # a quarter of a second, at every start of nextlong

    # Similar documents agree on several bands, so the pairs are many times their ids. Files are joined block by block, and what
    # the blocks before have connected is one pair for each id: memory grows with the ids, not with the pairs.
    members, clusters = np.empty(0, np.int64), np.empty(0, np.int64)
    for first, last in corpus_files.runs_within(
        [path.stat().st_size for path in pairs], _HELD_PAIR_BYTES
    ):
        _, representatives = np.unique(clusters, return_index=True)
        known = np.stack([members, members[representatives[clusters]]], axis=1)
        members, ends = np.unique(
            np.concatenate([known, *map(np.load, pairs[first:last])]),
            return_inverse=True,
        )
        ends = ends.reshape(-1, 2)
        graph = coo_matrix(
            (np.ones(len(ends), np.int8), (ends[:, 0], ends[:, 1])),
            shape=(len(members),) * 2,
        )
        clusters = connected_components(graph, directed=False)[1].astype(np.int64)
    return members, clusters


def band_width(threshold: float) -> int:
    """Return the largest band width with which pairs at the threshold share a band with probability `_LEAST_RECALL`."""
    recalls = (
        (width, 1 - (1 - threshold**width) ** (PERMUTATIONS // width))
        for width in range(PERMUTATIONS, 1, -1)
    )
    return next((width for width, recall in recalls if recall >= _LEAST_RECALL), 1)
