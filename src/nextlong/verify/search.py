"""Search: recompute the scores from the stored vectors, and search again by brute force for a sample of meta-chunks.

In:  VECTORS, CANDIDATES, SEQUENCES. NumPy's float32 product of each sampled query with every stored vector, a block at a
time, is the reference; equal cosines may come in any order. An approximate index is held to the recall that its manifest
promises: the mean over the sample may lie below it by no more than three of its standard errors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong.schemas import META, NEGATIVE, SHARD_BITS, Layout
from nextlong.verify.near_duplicates import without_cause
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.run_files import UNKNOWN, Ids, ResolvedSequence, RunFiles
from nextlong.verify.vectors import check_document_scores, check_partitions

_TOLERANCE = 1e-3
_LISTS = ("neighbour_ids", "scores")
_LISTS_AT_ONCE = 16
_QUERIES_AT_ONCE = 1024
_BLOCK_ROWS = 32_768

Scores = NDArray[np.float32]


class _MetaChunk(NamedTuple):
    """A sampled query: a meta-chunk, its document, and the chunks of its sequence."""

    sequence: int
    chunk: int
    own_first: int  # the meta-document's chunks are [own_first, own_stop)
    own_stop: int
    whole_negatives: Ids  # of its group, without the one that is cut
    in_sequence: Ids


class _StoredCandidates(NamedTuple):
    """The stored neighbours of a meta-chunk, their stored scores, and the cosines of their stored vectors to its own."""

    ids: Ids
    scores: Scores
    cosines: Scores


class _PassedOver(NamedTuple):
    """Chunks that are not in the sequence, though nearer to the meta-chunk than its farthest negative (cosine `farthest`)."""

    meta: _MetaChunk
    farthest: float
    chunks: Ids
    scores: Scores


def check_search(run: RunFiles) -> list[CheckOutcome]:
    """Check the scores of all negatives, or documents, and search again for a sample of random meta-chunks."""
    if run.layout != Layout.EXTENDED:
        none = CheckOutcome("candidates searched again", "meta-chunks", not_needed=f"{run.layout} sequences have none")
        return [check_document_scores(run), *check_partitions(run), none]
    scores = CheckOutcome("scores are cosines", "negatives")
    meta_chunks = _check_scores_and_draw(run, scores)
    candidates, nearest = (
        CheckOutcome("candidates searched again", "meta-chunks"),
        CheckOutcome("negatives are the nearest free", "meta-chunks"),
    )
    if "mine" not in run.steps:
        candidates.not_needed = nearest.not_needed = "this run mined no candidates"
        return [scores, candidates, nearest]
    if not run.negatives.are_nearest or run.is_filtered:
        asked = "compose.negatives asks for others than the nearest"
        nearest.not_needed = "some of the nearest were passed over" if run.negatives.are_nearest else asked
    # The recall that the run's index was tuned to; None of an exact search.
    parts = run.steps["tune"].manifest["parts"] if "tune" in run.steps else []
    promised = float(parts[0]["counts"]["recall"]) if parts else None
    if promised is not None:
        nearest.not_needed = nearest.not_needed or f"the index is approximate: held to its recall of {promised:g}"
    if not meta_chunks:
        return [scores, candidates, nearest]
    passed_over: list[_PassedOver] = []
    recalls: list[float] = []
    for meta, stored, ids, true in _searched_again(run, meta_chunks):
        candidates.checked += 1
        candidates.breach_each(_candidate_problems(meta, stored, ids, true, is_exact=promised is None))
        if stored is not None:
            recalls.append(_recall(stored, ids, true))
        if not nearest.not_needed:
            nearest.checked += 1
            passed_over.append(_passed_over(meta, ids, true))
    nearest.breach_each(_nearer(run, passed_over))
    if promised is None:
        return [scores, candidates, nearest]
    return [scores, candidates, _judged(recalls, promised), nearest]


def _recall(stored: _StoredCandidates, true_ids: Ids, true: Scores) -> float:
    """Return recall@k: the share of the k nearest by brute force that the index found too."""
    if not len(true):
        return 1.0
    # true[-1] is the k-th best cosine: a stored neighbour that is as near counts, whichever of several equal ones it is.
    return min(1.0, float((np.isin(stored.ids, true_ids) | (stored.scores >= true[-1])).sum()) / len(true))


def _judged(recalls: list[float], promised: float) -> CheckOutcome:
    """Return a breach if the mean recall is more than three standard errors below the promised recall."""
    outcome = CheckOutcome("recall of the approximate index", "meta-chunks", checked=len(recalls))
    mean, error = float(np.mean(recalls)), float(np.std(recalls)) / max(1, len(recalls)) ** 0.5
    outcome.note = f"{mean:.3f}, promised {promised:g}"
    if mean + 3 * error < promised:
        outcome.breach(f"{mean:.4f} ± {error:.4f} of the nearest were found, the index promises {promised:g}")
    return outcome


def _check_scores_and_draw(run: RunFiles, outcome: CheckOutcome) -> list[_MetaChunk]:
    """Check the scores of all negatives; return a sample of random meta-chunks of the data set."""
    total = sum(int((sequence.role == META).sum()) for sequence in run.bare_sequences())
    drawn = set(np.random.default_rng(run.seed).permutation(total)[: run.sample].tolist())
    meta_chunks, number = [], 0
    for block in run.blocks():
        _check_scores(run, block, outcome)
        for sequence in block:
            for span in np.flatnonzero(sequence.role == META).tolist():
                if number in drawn and sequence.doc[span] != UNKNOWN:
                    meta_chunks.append(_meta_chunk(sequence, span))
                number += 1
    return meta_chunks


def _check_scores(run: RunFiles, block: list[ResolvedSequence], outcome: CheckOutcome) -> None:
    """Compare each negative's score with the cosine to its group's meta-chunk, and see that the nearest come first."""
    spans, queries = zip(*map(_negatives_and_queries, block), strict=True)
    chunks = np.concatenate([sequence.chunk[places] for sequence, places in zip(block, spans, strict=True)])
    # Each query vector is read once: `distinct` (q,) are the meta-chunks of the block, of_chunk[n] is the place in it of the
    # meta-chunk that negative n was found for.
    distinct, of_chunk = np.unique(np.concatenate(queries), return_inverse=True)
    vectors = run.vectors_of(np.concatenate([distinct, chunks]))
    cosines = np.einsum("nd,nd->n", vectors[len(distinct) :], vectors[of_chunk])
    for sequence, places, true in zip(block, spans, np.split(cosines, np.cumsum([*map(len, spans)])[:-1]), strict=True):
        outcome.checked += len(places)
        groups, said = sequence.group[places], sequence.score[places]
        for place in np.flatnonzero(~(np.abs(true - said) <= _TOLERANCE)).tolist():
            outcome.breach(
                f"{sequence.where(int(places[place]))} has the score {said[place]:.4f}, the cosine is {true[place]:.4f}"
            )
        if run.negatives.are_nearest:
            for place in np.flatnonzero((np.diff(said) > 1e-6) & (np.diff(groups) == 0)).tolist():
                outcome.breach(
                    f"{sequence.where(int(places[place]))} precedes a negative that is nearer to its meta-chunk"
                )


def _negatives_and_queries(sequence: ResolvedSequence) -> tuple[Ids, Ids]:
    """Return the spans of the negatives whose group has a meta-chunk, shape (n,), and the id of that meta-chunk, (n,)."""
    meta_spans = np.flatnonzero(sequence.role == META)
    meta_chunks = dict(zip(sequence.group[meta_spans].tolist(), sequence.chunk[meta_spans].tolist(), strict=True))
    spans = np.flatnonzero(
        (sequence.role == NEGATIVE) & (sequence.doc != UNKNOWN) & np.isin(sequence.group, [*meta_chunks])
    )
    return spans, np.array([meta_chunks[group] for group in sequence.group[spans].tolist()], np.int64)


def _meta_chunk(sequence: ResolvedSequence, span: int) -> _MetaChunk:
    negatives = (sequence.role == NEGATIVE) & (sequence.group == sequence.group[span]) & ~sequence.is_truncated
    return _MetaChunk(
        sequence.number,
        int(sequence.chunk[span]),
        int(sequence.doc_first[span]),
        int(sequence.doc_stop[span]),
        sequence.chunk[negatives],
        sequence.chunk[sequence.is_chunk],
    )


def _searched_again(
    run: RunFiles, meta_chunks: list[_MetaChunk]
) -> Iterator[tuple[_MetaChunk, _StoredCandidates | None, Ids, Scores]]:
    """Yield each meta-chunk with its stored candidates, and the ids and cosines of as many found by brute force."""
    for first in range(0, len(meta_chunks), _QUERIES_AT_ONCE):
        some = meta_chunks[first : first + _QUERIES_AT_ONCE]
        stored = _candidates_of(run, [meta.chunk for meta in some])
        # Brute force returns as many as were stored, so that the two lists can be compared rank by rank.
        k = max((len(neighbours.ids) for neighbours in stored.values()), default=0)
        for meta, ids, true in zip(some, *_brute_force(run, some, k), strict=True):
            yield meta, stored.get(meta.chunk), ids, true


def _candidates_of(run: RunFiles, chunks: list[int]) -> dict[int, _StoredCandidates]:
    """Return the stored neighbours of the given meta-chunks."""
    candidates: dict[int, _StoredCandidates] = {}
    for path in run.files("mine", ".candidates.arrow"):
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for number in range(reader.num_record_batches):
                batch = reader.get_batch(number)
                names = batch.column("chunk_id").to_numpy()
                rows = np.flatnonzero(np.isin(names, chunks))
                for first in range(0, len(rows), _LISTS_AT_ONCE):
                    some = rows[first : first + _LISTS_AT_ONCE]
                    ids, scores = (
                        [batch.column(name)[row].values.to_numpy().copy() for row in some.tolist()] for name in _LISTS
                    )
                    vectors = np.split(run.vectors_of(np.concatenate(ids)), np.cumsum([*map(len, ids)])[:-1])
                    cosines = map(np.matmul, vectors, run.vectors_of(names[some]))
                    candidates.update(
                        zip(names[some].tolist(), map(_StoredCandidates, ids, scores, cosines), strict=True)
                    )
    return candidates


def _brute_force(run: RunFiles, meta_chunks: list[_MetaChunk], k: int) -> tuple[list[Ids], list[Scores]]:
    """Return for each query the ids and cosines of the `k` nearest chunks of other documents, descending.

    With a shortlist, only embedded chunks are searched, and those with a positive cosine count.
    """
    farthest = _TOLERANCE if "shortlist" in run.steps else -np.inf  # a cosine near 0 may be stored or not
    queries = run.vectors_of(np.array([meta.chunk for meta in meta_chunks], np.int64))
    # The best so far of each query, unordered, at most k: the corpus is read once, block by block.
    best_ids = [np.empty(0, np.int64) for _ in meta_chunks]
    best = [np.empty(0, np.float32) for _ in meta_chunks]
    for shard, path in enumerate(run.files("embed", ".vectors.npy")):
        stored, embedded = np.load(path, mmap_mode="r"), np.flatnonzero(run.is_embedded(shard))
        for first in range(0, len(embedded), _BLOCK_ROWS):
            rows = embedded[first : first + _BLOCK_ROWS]
            ids = (shard << SHARD_BITS) | rows
            scores = queries @ stored[rows].astype(np.float32).T  # (q, rows of the block)
            for query, meta in enumerate(meta_chunks):
                others = ((ids < meta.own_first) | (ids >= meta.own_stop)) & (scores[query] > farthest)
                all_ids = np.concatenate([best_ids[query], ids[others]])
                all_scores = np.concatenate([best[query], scores[query][others]])
                if len(all_ids) > k:
                    kept = np.argpartition(-all_scores, max(k - 1, 0))[:k]
                    all_ids, all_scores = all_ids[kept], all_scores[kept]
                best_ids[query], best[query] = all_ids, all_scores
    orders = [np.argsort(-scores, kind="stable") for scores in best]
    return (
        [ids[order] for ids, order in zip(best_ids, orders, strict=True)],
        [scores[order] for scores, order in zip(best, orders, strict=True)],
    )


def _candidate_problems(
    meta: _MetaChunk, stored: _StoredCandidates | None, true_ids: Ids, true: Scores, *, is_exact: bool
) -> Iterator[str]:
    """Yield what is wrong with the stored candidates of one meta-chunk."""
    where = f"meta-chunk {chunk_name(meta.chunk)} of sequence {meta.sequence}"
    if stored is None:
        yield f"{where} has no candidates"
        return
    ids, said, cosines = stored
    if len(np.unique(ids)) != len(ids):
        yield f"{where} has a candidate twice"
    of_own_document = (ids >= meta.own_first) & (ids < meta.own_stop)
    if of_own_document.any():
        yield f"{where} has the candidate {chunk_name(ids[of_own_document][0])}, of its own document"
    for rank in np.flatnonzero(~(np.abs(cosines - said) <= _TOLERANCE))[:1].tolist():
        yield (
            f"{where}: candidate {chunk_name(ids[rank])} at rank {rank} has the score {said[rank]:.4f}, "
            f"the cosine is {cosines[rank]:.4f}"
        )
    if np.any(np.diff(said) > 1e-6):
        yield f"{where}: scores are not descending"
    if not is_exact:
        return
    if len(ids) < len(true):
        yield f"{where} has {len(ids)} candidates, there are {len(true)}"
    for rank in np.flatnonzero(np.abs(said[: len(true)] - true[: len(said)]) > _TOLERANCE)[:1].tolist():
        yield (
            f"{where}: at rank {rank} stands {chunk_name(ids[rank])} with {said[rank]:.4f}, "
            f"the nearest by brute force is {chunk_name(true_ids[rank])} with {true[rank]:.4f}"
        )


def _passed_over(meta: _MetaChunk, true_ids: Ids, true: Scores) -> _PassedOver:
    """Return the chunks that are nearer than the farthest whole negative of the group, but are not in the sequence."""
    known = np.isin(true_ids, meta.whole_negatives)
    farthest = float(true[known].min()) if known.any() else np.inf
    skipped = (true > farthest + _TOLERANCE) & ~np.isin(true_ids, meta.in_sequence)
    return _PassedOver(meta, farthest, true_ids[skipped], true[skipped])


def _nearer(run: RunFiles, passed_over: list[_PassedOver]) -> Iterator[str]:
    """Yield for each meta-chunk the nearest chunk that was passed over without being a near-duplicate."""
    passed_over = [chosen for chosen in passed_over if len(chosen.chunks)]
    by_sequence: dict[int, Ids] = {}
    for chosen in passed_over:
        number = chosen.meta.sequence
        by_sequence[number] = np.union1d(by_sequence.get(number, chosen.chunks), chosen.chunks)
    if run.setting("mine", "near_duplicates") is not None:
        by_sequence = without_cause(run, by_sequence)
    for meta, farthest, chunks, scores in passed_over:
        for place in np.flatnonzero(np.isin(chunks, by_sequence[meta.sequence]))[:1].tolist():
            yield (
                f"sequence {meta.sequence}: {chunk_name(chunks[place])} ({scores[place]:.4f}) is free and nearer to meta-chunk "
                f"{chunk_name(meta.chunk)} than one of its negatives ({farthest:.4f})"
            )
