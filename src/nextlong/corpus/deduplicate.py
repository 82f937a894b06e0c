"""Deduplicate: keep one of each group of near-duplicate documents.

In:  the documents of every shard, and which of them are kept so far.
Out: one bool per row and shard, as `select` writes them. The longest document of each
     cluster is kept (of equally long ones, that with the smallest content hash), so
     that neither sharding nor file order affects the result.

MinHash signatures (Broder 1997) of five-word shingles come from rensa, a small Rust
library. Clustering is done here, because it must scale: the task of a shard sorts the
hashes of each band, one task per band and range of hashes compares the documents of all
shards that share a hash, and the last task computes connected components of the pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import Bools, Hashes, Ints, UInt32s
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
# Of rensa's signatures; another version would decide differently near the threshold.
_ALGORITHM_VERSION: Final = 2
# Of the pairs exactly at the threshold; recall above it is higher.
_MIN_RECALL: Final = 0.99
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
    # Ids of a removed document and of the one kept instead.
    examples: tuple[tuple[int, int], ...] = ()


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
    """Return the steps that keep the longest of near-duplicate documents.

    They are signatures, similar pairs, and clusters.
    """
    width = band_width(threshold)
    bands = PERMUTATIONS // width
    minhash = Step(
        name="minhash",
        phase="read",
        version=2,
        config={"width": width},
        inputs=(ingest, select),
        tasks=each_shard(
            partial(_minhash_shard, width=width),
            documents=(ingest, IngestFiles.documents),
            keep=(select, SelectFiles.keep),
        ),
        result=_MinhashResult,
    )

    def find_pairs(done: Artifacts) -> list[Task]:
        results = done["minhash"].results(_MinhashResult)
        passes = passes_for(sum(part.documents for part in results))
        files = MinhashFiles.of(done)
        find = partial(
            _similar_pairs,
            hashes=IngestFiles.of(done).hashes,
            signatures=files.signatures,
            band_hashes=files.band_hashes,
            band_rows=files.band_rows,
            passes=passes,
            threshold=threshold,
        )
        finding: list[Task] = []
        for band in range(bands):
            for step in range(passes):
                finding.append(partial(find, band=band, step=step))
        return finding

    pairs = Step(
        name="similar_pairs",
        phase="read",
        version=2,
        config={"threshold": threshold},
        inputs=(ingest, minhash),
        tasks=find_pairs,
    )

    def cluster(done: Artifacts) -> list[Task]:
        ingested = IngestFiles.of(done)
        task = partial(
            _keep_longest,
            pairs=SimilarPairsFiles.of(done).pairs,
            keep=SelectFiles.of(done).keep,
            hashes=ingested.hashes,
            chars=ingested.chars,
        )
        return [task]

    clusters = Step(
        name="near_duplicates",
        phase="read",
        version=3,
        config={},
        inputs=(ingest, select, pairs),
        tasks=cluster,
        result=NearDuplicatesResult,
    )
    return [minhash, pairs, clusters]


def _minhash_shard(
    out: Path, *, documents: Path, keep: Path, width: int
) -> _MinhashResult:
    """Write `{out}.signatures.npy`, uint32 (rows, PERMUTATIONS), of one shard.

    And its bands of `width` values. Rows that are not kept stay 0.
    """
    minhash = minhash_class()
    kept = np.load(keep)
    signatures = np.lib.format.open_memmap(
        f"{out}.signatures.npy",
        mode="w+",
        dtype=np.uint32,
        shape=(len(kept), PERMUTATIONS),
    )
    for first, batch in corpus_files.record_batches(documents):
        rows = np.flatnonzero(kept[first : first + batch.num_rows])
        if not len(rows):
            continue
        column = batch.column("text").take(pa.array(rows))
        texts = column.to_pylist()
        content_hashes = batch.column("content_hash").to_numpy()[rows]
        hashes, offsets = _shingles(texts, content_hashes)
        digests = minhash.digest_matrix_from_flat_token_hashes(
            hashes, offsets, PERMUTATIONS, _SIGNATURE_SEED
        )
        signatures[first + rows] = np.array(digests.to_rows(), np.uint32)
    _write_bands(out, signatures, kept, width=width)
    return _MinhashResult(documents=int(kept.sum()))


def _write_bands(out: Path, signatures: UInt32s, kept: Bools, *, width: int) -> None:
    """Write `{out}.band_hashes.npy`, uint64 (bands, kept rows), each band ascending.

    And `{out}.band_rows.npy`, uint32, the row of each hash.
    """
    rows = np.flatnonzero(kept).astype(np.uint32)
    bands = PERMUTATIONS // width
    hashes = np.lib.format.open_memmap(
        f"{out}.band_hashes.npy",
        mode="w+",
        dtype=np.uint64,
        shape=(bands, len(rows)),
    )
    ordered_rows = np.lib.format.open_memmap(
        f"{out}.band_rows.npy",
        mode="w+",
        dtype=np.uint32,
        shape=(bands, len(rows)),
    )
    for band in range(bands):
        values = signatures[rows, band * width : (band + 1) * width].astype(np.uint64)
        # The n-gram of `width` values from each value on; those of whole rows are kept.
        band_hashes = ngrams(values.ravel(), width)[::width]
        order = np.argsort(band_hashes, kind="stable")
        hashes[band] = band_hashes[order]
        ordered_rows[band] = rows[order]


def minhash_class() -> Any:
    """Return rensa's MinHash.

    Raises RecipeError if rensa is missing or computes other signatures.
    """
    try:
        from rensa import RMinHash
    except ImportError:
        raise RecipeError(
            where="ingest.dedup",
            value="minhash",
            problem="needs the package rensa, which is not installed",
            fix="pip install 'nextlong[dedup]', or set ingest.dedup: exact",
        ) from None
    algorithm = getattr(RMinHash, "ALGORITHM_VERSION", 1)
    if algorithm != _ALGORITHM_VERSION:
        raise RecipeError(
            where="ingest.dedup",
            value="minhash",
            problem=(
                f"needs rensa's algorithm {_ALGORITHM_VERSION}, but the installed "
                f"rensa has algorithm {algorithm}"
            ),
            fix="pip install 'nextlong[dedup]'",
        )
    return RMinHash


def _shingles(texts: Sequence[str], content: Hashes) -> tuple[Hashes, Hashes]:
    """Return the shingle hashes of all texts, and the offsets of each text's."""
    words = hash_words("\n".join(texts))
    bounds = bounds_of(words, texts)
    # (m,) for m texts: the number of shingles of each, whose hashes are stored text by
    # text.
    lengths = np.diff(bounds)
    is_long = lengths >= _SHINGLE_WORDS
    sizes = np.where(is_long, lengths - _SHINGLE_WORDS + 1, 1)
    is_of_long = np.repeat(is_long, sizes)
    hashes = np.empty(len(is_of_long), np.uint64)
    run_hashes = ngrams(words.hashes, _SHINGLE_WORDS)
    is_within = runs_on(bounds, _SHINGLE_WORDS)[: len(run_hashes)]
    hashes[is_of_long] = run_hashes[is_within]
    # A text with fewer words is one shingle; one without words gets its content hash,
    # so that it is similar to no other.
    short_hashes: list[np.uint64] = []
    for index in np.flatnonzero(~is_long):
        text_words = words.hashes[bounds[index] : bounds[index + 1]]
        if len(text_words):
            short_hashes.append(ngrams(text_words, len(text_words))[0])
        else:
            short_hashes.append(content[index])
    hashes[~is_of_long] = short_hashes
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    return hashes, offsets.astype(np.uint64)


def passes_for(documents: int, *, held_documents: int = _HELD_DOCUMENTS) -> int:
    """Return the number of hash ranges per band.

    So that one task holds about `held_documents` documents.
    """
    return max(1, -(-documents // held_documents))


def _similar_pairs(
    out: Path,
    *,
    band: int,
    step: int,
    passes: int,
    threshold: float,
    hashes: Sequence[Path],
    signatures: Sequence[Path],
    band_hashes: Sequence[Path],
    band_rows: Sequence[Path],
) -> TaskResult:
    """Write `{out}.pairs.npy`, int64 (pairs, 2): ids of similar documents.

    They share a hash of a band, in one range of hashes: number `step` of `passes`. The
    files of each shard are `signatures`, `band_hashes` and `band_rows` from
    `_minhash_shard`, and `hashes` of contents, uint64 (rows,).

    Each document is compared with the first one that shares its hash and with the one
    before it; comparing all of them would take quadratic time. Transitivity and the
    other bands find the missed pairs. Documents with the same hash are sorted by
    content hash, so that sharding does not matter.
    """
    keys, ids = _documents_in_range(
        band_hashes,
        band_rows,
        band=band,
        first=np.uint64(2**64 * step // passes),
        last=np.uint64(2**64 * (step + 1) // passes - 1),
    )
    # Keep documents that share a key; those with the same key form a run, sorted by
    # content hash.
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    ids = ids[order]
    equals_next = np.flatnonzero(keys[1:] == keys[:-1])
    is_shared = np.zeros(len(keys), np.bool_)
    is_shared[equals_next] = True
    is_shared[equals_next + 1] = True
    keys = keys[is_shared]
    ids = ids[is_shared]
    order = np.lexsort((corpus_files.array_rows(ids, hashes), keys))
    keys = keys[order]
    ids = ids[order]

    pairs = ids[_compared_positions(keys)]
    is_similar = np.empty(len(pairs), np.bool_)
    for start in range(0, len(pairs), _COMPARED_PAIRS):
        part = pairs[start : start + _COMPARED_PAIRS]
        left = corpus_files.array_rows(part[:, 0], signatures)
        right = corpus_files.array_rows(part[:, 1], signatures)
        # The share of equal values estimates the Jaccard similarity.
        equal_values = (left == right).sum(axis=1)
        stop = start + len(part)
        is_similar[start:stop] = equal_values >= threshold * PERMUTATIONS
    np.save(f"{out}.pairs.npy", pairs[is_similar])
    return TaskResult()


def _documents_in_range(
    band_hashes: Sequence[Path],
    band_rows: Sequence[Path],
    *,
    band: int,
    first: np.uint64,
    last: np.uint64,
) -> tuple[Hashes, Ints]:
    """Return hash and id, (n,), of documents whose hash of a band is in a range."""
    hashes_of_shards = [np.empty(0, np.uint64)]
    ids_of_shards = [np.empty(0, np.int64)]
    for shard, (hash_path, rows_path) in enumerate(
        zip(band_hashes, band_rows, strict=True)
    ):
        shard_hashes = np.load(hash_path, mmap_mode="r")[band]
        shard_rows = np.load(rows_path, mmap_mode="r")[band]
        # Each band is ascending, so the range is one slice [low, high) of it.
        low = np.searchsorted(shard_hashes, first)
        high = np.searchsorted(shard_hashes, last, side="right")
        # A copy, because a view would keep the file of its shard open.
        hashes_of_shards.append(np.array(shard_hashes[low:high]))
        ids_of_shards.append(schemas.pack_ids(shard, shard_rows[low:high]))
    return np.concatenate(hashes_of_shards), np.concatenate(ids_of_shards)


def _compared_positions(keys: Hashes) -> Ints:
    """Return the pairs of positions that are compared, (pairs, 2).

    `keys` are ascending, so that equal ones form a run. Each position is paired with
    the first one of its run, and with the one before it.
    """
    # `heads` are the first positions of the runs, `followers` all others, `leaders` the
    # head of each of these.
    is_head = np.ones(len(keys), np.bool_)
    is_head[1:] = keys[1:] != keys[:-1]
    heads = np.flatnonzero(is_head)
    followers = np.flatnonzero(~is_head)
    leaders = heads[np.searchsorted(heads, followers, side="right") - 1]
    # The second of a run has its head before it.
    later = followers[followers - 1 != leaders]
    earlier_ends = np.concatenate([leaders, later - 1])
    later_ends = np.concatenate([followers, later])
    return np.stack([earlier_ends, later_ends], axis=1)


def _keep_longest(
    out: Path,
    *,
    pairs: Sequence[Path],
    keep: Sequence[Path],
    hashes: Sequence[Path],
    chars: Sequence[Path],
) -> NearDuplicatesResult:
    """Write `{out}.{shard:05d}.keep.npy`.

    False also for documents of which a near-duplicate is kept. `pairs` come from
    `_similar_pairs`; `keep`, `hashes` (uint64) and `chars` (int64) are .npy files with
    one value per row, from select and ingest. The clusters are the connected components
    of the pairs, so duplicates of duplicates count.
    """
    members, clusters = _connected(pairs)
    # Members of a cluster, longest first (of equally long ones, smallest hash first):
    # only the first is kept.
    member_hashes = corpus_files.array_rows(members, hashes)
    member_chars = corpus_files.array_rows(members, chars)
    order = np.lexsort((member_hashes, -member_chars, clusters))
    ordered_clusters = clusters[order]
    is_repeat = ordered_clusters[1:] == ordered_clusters[:-1]
    removed = np.sort(members[order][1:][is_repeat])
    removed_rows = dict(corpus_files.by_shard(removed)[0])
    for shard, path in enumerate(keep):
        kept = np.load(path)
        kept[removed_rows.get(shard, [])] = False
        np.save(f"{out}.{shard:05d}.keep.npy", kept)

    # The kept document of each cluster.
    is_kept = ~np.isin(members, removed)
    cluster_count = int(clusters.max(initial=-1)) + 1
    kept_of = np.empty(cluster_count, np.int64)
    kept_of[clusters[is_kept]] = members[is_kept]
    # Spread over the corpus.
    every = max(1, len(removed) // _EXAMPLES)
    some = removed[::every][:_EXAMPLES]
    kept_instead = kept_of[clusters[np.searchsorted(members, some)]]
    examples = zip(some.tolist(), kept_instead.tolist(), strict=True)
    return NearDuplicatesResult(
        near_duplicates=len(removed), clusters=cluster_count, examples=tuple(examples)
    )


def _connected(pairs: Sequence[Path]) -> tuple[Ints, Ints]:
    """Return the ids that pairs connect, ascending, and the component of each; (m,)."""
    # A quarter of a second, at every start of nextlong.
    from scipy.sparse import coo_matrix
    from scipy.sparse.csgraph import connected_components

    # Similar documents agree on several bands, so the pairs are many times their ids.
    # Files are joined block by block, and what the blocks before have connected is one
    # pair for each id: memory grows with the ids, not with the pairs.
    members = np.empty(0, np.int64)
    clusters = np.empty(0, np.int64)
    sizes = [path.stat().st_size for path in pairs]
    for first, last in corpus_files.runs_within(sizes, _HELD_PAIR_BYTES):
        _, representatives = np.unique(clusters, return_index=True)
        known = np.stack([members, members[representatives[clusters]]], axis=1)
        block = np.concatenate([known, *map(np.load, pairs[first:last])])
        members, indices = np.unique(block, return_inverse=True)
        # (pairs, 2): the index of each end among the members.
        ends = indices.reshape(-1, 2)
        ones = np.ones(len(ends), np.int8)
        count = len(members)
        graph = coo_matrix((ones, (ends[:, 0], ends[:, 1])), shape=(count, count))
        components = connected_components(graph, directed=False)[1]
        clusters = components.astype(np.int64)
    return members, clusters


def band_width(threshold: float) -> int:
    """Return the largest band width that finds pairs at the threshold.

    Such pairs share a band with probability `_MIN_RECALL`.
    """
    for width in range(PERMUTATIONS, 1, -1):
        recall = 1 - (1 - threshold**width) ** (PERMUTATIONS // width)
        if recall >= _MIN_RECALL:
            return width
    return 1
