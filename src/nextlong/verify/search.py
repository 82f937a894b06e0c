"""Search: encode a sample of vectors again, recompute the scores, and search again by brute force.

In:  VECTORS, CANDIDATES, SEQUENCES. Out: one outcome per check. The reference is NumPy's float32 product of each sampled query
with every stored vector; equal cosines may be in any order. An approximate index must reach the recall in its manifest: the
mean over the sample may be lower by at most three of its standard errors.

A method of whole documents declares which other document the score of a document refers to. Nothing is checked if only the
drafts record it. SPLiCe's scores refer to an earlier document, which is the previous one if each document retrieves one (k =
1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.errors import NextlongError
from nextlong.plugins import METHODS
from nextlong.recipe.keys import NEGATIVES
from nextlong.retrieval.encoders.base import kind_of
from nextlong.schemas import DOCUMENT, META, NEGATIVE, Layout, pack_ids
from nextlong.verify.near_duplicates import without_cause
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.run_files import UNKNOWN, Ids, ResolvedSequence, StoredRun

_LEAST_COSINE = 0.999  # half precision moves a cosine by less than 0.001
_LENGTH_TOLERANCE = 0.01
_TOLERANCE = 1e-3
_BLOCK_ROWS = 32_768
_TEXTS_AT_ONCE = 4096
_QUERIES_AT_ONCE = 1024
_LEAST_LENGTH = (
    1e-3  # of a mean of chunk vectors; below it, the first chunk's vector is used
)
_FIRST, _BEFORE = (
    "the first document of the sequence",
    "the previous document",
)  # as methods declare it
_FOUND_FOR, _EARLIER = "their parent in the tree", "an earlier document of the sequence"


def check_vectors(run: StoredRun) -> list[CheckOutcome]:
    """Check shape and length of all vectors (zero if not on a shortlist), and encode a random sample again."""
    if "embed" not in run.steps:
        return [CheckOutcome("vectors", "vectors", not_needed="this run has none")]
    lengths, again = (
        CheckOutcome(f"vectors {what}", "vectors")
        for what in ("have unit length", "encoded again")
    )
    embedded: list[Ids] = []
    for shard, path in enumerate(run.files("embed", ".vectors.npy")):
        is_embedded, stored = run.is_embedded(shard), np.load(path, mmap_mode="r")
        embedded.append(pack_ids(shard, np.flatnonzero(is_embedded)))
        lengths.checked += len(stored)
        if len(stored) != len(is_embedded):
            lengths.breach(
                f"shard {shard} has {len(stored)} vectors for {len(is_embedded)} chunks"
            )
        rows = min(len(stored), len(is_embedded))
        for first in range(0, rows, _BLOCK_ROWS):
            block = slice(first, min(rows, first + _BLOCK_ROWS))
            expected = is_embedded[block]  # 1, or 0 for chunks that were not embedded
            norms = np.linalg.norm(stored[block].astype(np.float32), axis=1)
            for row in np.flatnonzero(
                ~(np.abs(norms - expected) < _LENGTH_TOLERANCE * expected + 1e-9)
            ).tolist():
                lengths.breach(
                    f"the vector of {chunk_name(first + row, shard)} has the length {norms[row]:.4f}"
                )
    ids = np.concatenate([np.empty(0, np.int64), *embedded])
    sampled = ids[
        np.sort(np.random.default_rng(run.seed).permutation(len(ids))[: run.sample])
    ]
    if len(sampled):
        _encode_again(run, sampled, again)
    return [lengths, again]


def _encode_again(run: StoredRun, ids: Ids, outcome: CheckOutcome) -> None:
    encoder = recipe.Encoder.from_dict(run.recipe["encoder"])
    if (kind := kind_of(encoder)).not_repeatable:
        outcome.skipped = f"{encoder.model} {kind.not_repeatable}"
        return
    cosines = np.empty(
        len(ids), np.float32
    )  # between each stored vector and the one encoded now
    try:
        model = kind.load(
            encoder,
            run.steps["encoder"].folder / "part-00000" if kind.needs_fit else None,
        )
        for first in range(0, len(ids), _TEXTS_AT_ONCE):
            some = ids[first : first + _TEXTS_AT_ONCE]
            texts = run.texts_of(some)
            true, stored = (
                model.encode([texts[name] for name in some.tolist()]),
                run.vectors_of(some),
            )
            lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(true, axis=1)
            cosines[first : first + _TEXTS_AT_ONCE] = np.einsum(
                "nd,nd->n", stored, true
            ) / np.maximum(lengths, 1e-12)
    except NextlongError as error:
        outcome.skipped = str(error)
        return
    outcome.checked, outcome.note = len(ids), f"minimum cosine {cosines.min():.6f}"
    for place in np.flatnonzero(~(cosines >= _LEAST_COSINE)).tolist():
        name = chunk_name(ids[place])
        outcome.breach(
            f"the vector of {name} has the cosine {cosines[place]:.4f} to the one encoded now"
        )


class _MetaChunk(NamedTuple):
    """A sampled query: a span of a sequence, and its chunk."""

    sequence: ResolvedSequence
    span: int
    chunk: int

    def owns(self, ids: Ids) -> NDArray[np.bool_]:
        """Return which chunks belong to the meta-document, shape (n,)."""
        return np.asarray(
            (ids >= self.sequence.doc_first[self.span])
            & (ids < self.sequence.doc_stop[self.span])
        )


class _Neighbours(NamedTuple):
    """The chunks most similar to a meta-chunk, and their scores, descending, shape (k,) each."""

    ids: Ids
    scores: NDArray[np.float32]


def check_search(run: StoredRun) -> list[CheckOutcome]:
    """Check the scores of all negatives or documents, and search again for a random sample of meta-chunks."""
    candidates = CheckOutcome("candidates searched again", "meta-chunks")
    if run.layout != Layout.EXTENDED:
        candidates.not_needed = f"{run.layout} sequences have none"
        return [_check_document_scores(run), *_check_partitions(run), candidates]
    nearest = CheckOutcome("negatives are the nearest unused", "meta-chunks")
    scores, meta_chunks = _check_scores_and_draw(run)
    if "mine" not in run.steps:
        candidates.not_needed = nearest.not_needed = "this run mined no candidates"
        return [scores, candidates, nearest]
    parts = run.steps["tune"].manifest["parts"] if "tune" in run.steps else []
    promised = (
        float(parts[0]["counts"]["recall"]) if parts else None
    )  # None for an exact search
    if run.negatives != NEGATIVES["top"]:
        nearest.not_needed = "compose.negatives selects others than the nearest"
    elif (
        run.setting("mine", "max_similarity") is not None
        or run.setting("compose", "max_uses") is not None
    ):
        nearest.not_needed = (
            "mine.max_similarity or compose.max_uses excludes some of the nearest"
        )
    elif promised is not None:
        nearest.not_needed = (
            f"the index is approximate: its recall of {promised:g} is checked instead"
        )
    recalls: list[float] = []
    passed_over: list[tuple[_MetaChunk, float, _Neighbours]] = []
    for first in range(0, len(meta_chunks), _QUERIES_AT_ONCE):
        some = meta_chunks[first : first + _QUERIES_AT_ONCE]
        candidates_of = _stored_candidates(run, [meta.chunk for meta in some])
        # Brute force returns as many as are stored, so that the two lists can be compared rank by rank.
        k = max((len(stored.ids) for stored in candidates_of.values()), default=0)
        for meta, true in zip(some, _brute_force(run, some, k), strict=True):
            candidates.checked += 1
            stored = candidates_of.get(meta.chunk)
            candidates.breach_each(
                _candidate_problems(run, meta, stored, true, is_exact=promised is None)
            )
            if stored is not None and len(true.ids):
                # true.scores[-1] is the k-th best; a stored neighbour with that score counts, whichever of equal ones it is.
                found = np.isin(stored.ids, true.ids) | (
                    stored.scores >= true.scores[-1]
                )
                recalls.append(min(1.0, float(found.sum()) / len(true.ids)))
            if not nearest.not_needed:
                nearest.checked += 1
                # The cosine of the farthest uncut negative of the group, and the nearer chunks outside the sequence.
                sequence = meta.sequence
                in_group = (sequence.role == NEGATIVE) & (
                    sequence.group == sequence.group[meta.span]
                )
                known = np.isin(
                    true.ids, sequence.chunk[in_group & ~sequence.is_truncated]
                )
                farthest = float(true.scores[known].min()) if known.any() else np.inf
                skipped = (true.scores > farthest + _TOLERANCE) & ~np.isin(
                    true.ids, sequence.chunk
                )
                passed_over.append(
                    (
                        meta,
                        farthest,
                        _Neighbours(true.ids[skipped], true.scores[skipped]),
                    )
                )
    nearest.breach_each(_nearer(run, passed_over))
    if promised is None or not recalls:
        return [scores, candidates, nearest]
    recall = CheckOutcome(
        "recall of the approximate index", "meta-chunks", checked=len(recalls)
    )
    mean, error = float(np.mean(recalls)), float(np.std(recalls)) / len(recalls) ** 0.5
    reached = f"{mean:.3f} on average, 5th percentile {np.percentile(recalls, 5):.3f}, worst {min(recalls):.3f}"
    recall.note = f"{reached}; promised {promised:g} on average"
    if mean + 3 * error < promised:
        recall.breach(
            f"{mean:.4f} ± {error:.4f} of the nearest were found, the index promises {promised:g}"
        )
    return [scores, candidates, recall, nearest]


def _check_scores_and_draw(run: StoredRun) -> tuple[CheckOutcome, list[_MetaChunk]]:
    """Compare the score of each negative with its cosine to the meta-chunk; also return a random sample of meta-chunks."""
    outcome = CheckOutcome("scores are cosines", "negatives")
    total = sum(int((sequence.role == META).sum()) for sequence in run.bare_sequences())
    sampled = set(
        np.random.default_rng(run.seed).permutation(total)[: run.sample].tolist()
    )
    meta_chunks, number = [], 0
    for sequence in run.sequences():
        metas, negatives = (
            np.flatnonzero(sequence.role == META),
            sequence.known(NEGATIVE),
        )
        # (n,) the negatives whose group has a meta-chunk, their recorded scores, and their cosines to that meta-chunk.
        meta_of = dict(
            zip(
                sequence.group[metas].tolist(),
                sequence.chunk[metas].tolist(),
                strict=True,
            )
        )
        spans = negatives[np.isin(sequence.group[negatives], [*meta_of])]
        groups, scores = sequence.group[spans], sequence.score[spans]
        queries = np.array([meta_of[group] for group in groups.tolist()], np.int64)
        true = np.einsum(
            "nd,nd->n", run.vectors_of(sequence.chunk[spans]), run.vectors_of(queries)
        )
        outcome.checked += len(spans)
        for place in np.flatnonzero(~(np.abs(true - scores) <= _TOLERANCE)).tolist():
            where, true_score = (
                sequence.where(spans[place]),
                f"the cosine is {true[place]:.4f}",
            )
            outcome.breach(f"{where} has the score {scores[place]:.4f}, {true_score}")
        is_nearer = (
            (np.diff(scores) > 1e-6)
            & (np.diff(groups) == 0)
            & (run.negatives == NEGATIVES["top"])
        )
        for span in spans[:-1][is_nearer].tolist():
            outcome.breach(
                f"{sequence.where(span)} precedes a negative that is nearer to its meta-chunk"
            )
        for span in metas.tolist():
            if number in sampled and sequence.doc[span] != UNKNOWN:
                meta_chunks.append(
                    _MetaChunk(sequence, span, int(sequence.chunk[span]))
                )
            number += 1
    return outcome, meta_chunks


def _stored_candidates(run: StoredRun, chunks: list[int]) -> dict[int, _Neighbours]:
    candidates: dict[int, _Neighbours] = {}
    for path in run.files("mine", ".candidates.arrow"):
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for batch in map(reader.get_batch, range(reader.num_record_batches)):
                names, ids, scores = (
                    batch.column(name)
                    for name in ("chunk_id", "neighbour_ids", "scores")
                )
                for row in np.flatnonzero(np.isin(names.to_numpy(), chunks)).tolist():
                    lists = (
                        column[row].values.to_numpy().copy() for column in (ids, scores)
                    )
                    candidates[names[row].as_py()] = _Neighbours(*lists)
    return candidates


def _brute_force(
    run: StoredRun, meta_chunks: list[_MetaChunk], k: int
) -> Iterator[_Neighbours]:
    """Yield the `k` nearest chunks of other documents for each query; with a shortlist, only those of positive cosine."""
    farthest = (
        _TOLERANCE if "shortlist" in run.steps else -np.inf
    )  # candidates with a cosine near 0 may be missing
    queries = run.vectors_of(
        np.array([meta.chunk for meta in meta_chunks], np.int64)
    )  # (q, d)
    # The best k so far of each query, unordered; the corpus is read once, block by block.
    best = [
        _Neighbours(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in meta_chunks
    ]
    for shard, path in enumerate(run.files("embed", ".vectors.npy")):
        stored, embedded = (
            np.load(path, mmap_mode="r"),
            np.flatnonzero(run.is_embedded(shard)),
        )
        for first in range(0, len(embedded), _BLOCK_ROWS):
            rows = embedded[first : first + _BLOCK_ROWS]
            ids = pack_ids(shard, rows)
            scores = (
                queries @ stored[rows].astype(np.float32).T
            )  # (q, rows of the block)
            for query, meta in enumerate(meta_chunks):
                others = ~meta.owns(ids) & (scores[query] > farthest)
                all_ids = np.concatenate([best[query].ids, ids[others]])
                all_scores = np.concatenate([best[query].scores, scores[query][others]])
                kept = (
                    np.argpartition(-all_scores, max(k - 1, 0))[:k]
                    if len(all_ids) > k
                    else slice(None)
                )
                best[query] = _Neighbours(all_ids[kept], all_scores[kept])
    for found in best:
        order = np.argsort(-found.scores, kind="stable")
        yield _Neighbours(found.ids[order], found.scores[order])


def _candidate_problems(
    run: StoredRun,
    meta: _MetaChunk,
    stored: _Neighbours | None,
    true: _Neighbours,
    *,
    is_exact: bool,
) -> Iterator[str]:
    where = f"meta-chunk {chunk_name(meta.chunk)} of sequence {meta.sequence.number}"
    if stored is None:
        yield f"{where} has no candidates"
        return
    ids, scores = stored
    if len(np.unique(ids)) != len(ids):
        yield f"{where} has a candidate twice"
    for own in ids[meta.owns(ids)][:1].tolist():
        yield f"{where} has the candidate {chunk_name(own)}, of its own document"
    vectors = run.vectors_of(np.append(ids, meta.chunk))
    cosines = vectors[:-1] @ vectors[-1]
    for rank in np.flatnonzero(~(np.abs(cosines - scores) <= _TOLERANCE))[:1].tolist():
        scored = f"has the score {scores[rank]:.4f}, the cosine is {cosines[rank]:.4f}"
        yield f"{where}: candidate {chunk_name(ids[rank])} at rank {rank} {scored}"
    if np.any(np.diff(scores) > 1e-6):
        yield f"{where}: scores are not descending"
    if not is_exact:
        return
    if len(ids) < len(true.ids):
        yield f"{where} has {len(ids)} candidates, brute force finds {len(true.ids)}"
    differs = np.abs(scores[: len(true.ids)] - true.scores[: len(scores)]) > _TOLERANCE
    for rank in np.flatnonzero(differs)[:1].tolist():
        nearest = f"the nearest by brute force is {chunk_name(true.ids[rank])} with {true.scores[rank]:.4f}"
        yield f"{where}: rank {rank} is {chunk_name(ids[rank])} with {scores[rank]:.4f}, {nearest}"


def _nearer(
    run: StoredRun, passed_over: list[tuple[_MetaChunk, float, _Neighbours]]
) -> Iterator[str]:
    """Yield for each meta-chunk the nearest unused chunk that is not a near-duplicate."""
    by_sequence: dict[int, Ids] = {}
    for number, ids in (
        (meta.sequence.number, skipped.ids)
        for meta, _, skipped in passed_over
        if len(skipped.ids)
    ):
        by_sequence[number] = np.union1d(by_sequence.get(number, ids), ids)
    if run.setting("mine", "near_duplicates") is not None:
        by_sequence = without_cause(run, by_sequence)
    for meta, farthest, skipped in passed_over:
        number = meta.sequence.number
        for place in np.flatnonzero(np.isin(skipped.ids, by_sequence.get(number, [])))[
            :1
        ].tolist():
            unused = f"{chunk_name(skipped.ids[place])} ({skipped.scores[place]:.4f}) is unused"
            than = f"than one of its negatives ({farthest:.4f})"
            yield f"sequence {number}: {unused} and nearer to meta-chunk {chunk_name(meta.chunk)} {than}"


def _check_document_scores(run: StoredRun) -> CheckOutcome:
    outcome = CheckOutcome("scores are cosines", "documents")
    if run.method not in METHODS:
        outcome.skipped = f"the method {run.method} is not installed here"
        return outcome
    scored_to = str(getattr(METHODS.load(run.method, object), "scores", ""))
    if (
        scored_to == _FOUND_FOR
        and run.setting(run.method, "order", "identity") == "identity"
    ):
        scored_to = (
            _BEFORE if run.setting(run.method, "neighbours", 1) == 1 else _EARLIER
        )
    if scored_to not in ("", _FIRST, _BEFORE, _EARLIER):
        outcome.skipped = f"not checked: only the drafts record {scored_to}"
        return outcome
    for sequence in run.sequences():
        outcome.breach_each(
            _score_problems(run, sequence, scored_to),
            checked=len(_documents(sequence)[1]),
        )
    return outcome


def _score_problems(
    run: StoredRun, sequence: ResolvedSequence, scored_to: str
) -> Iterator[str]:
    spans, begins, document_of = _documents(sequence)
    scores = sequence.score[begins]  # (n,) of each document
    differs = ~np.isclose(
        sequence.score[spans], scores[document_of], rtol=0, atol=0, equal_nan=True
    )
    for span in spans[differs][:1].tolist():
        yield f"{sequence.where(span)} has the score {sequence.score[span]:.4f}, its document has another"
    if not scored_to:
        for place in np.flatnonzero(~np.isnan(scores))[:1].tolist():
            yield f"{sequence.where(begins[place])} has the score {scores[place]:.4f}, {run.method} gives none"
        return
    vectors = _document_vectors(run, sequence, begins)
    # (n,) the cosine of each document to the one that its score refers to; of several possible ones, the closest to the score.
    if scored_to == _EARLIER:
        cosines = np.where(
            np.tri(len(vectors), k=-1, dtype=bool), vectors @ vectors.T, np.inf
        )
        true = cosines[
            np.arange(len(scores)), np.abs(cosines - scores[:, None]).argmin(axis=1)
        ]
    else:
        others = (
            vectors[:1]
            if scored_to == _FIRST
            else np.concatenate([vectors[:1], vectors[:-1]])
        )
        true = np.einsum("nd,nd->n", vectors, np.broadcast_to(others, vectors.shape))
    wrong = ~(np.abs(true - scores) <= _TOLERANCE)
    if scored_to != _FIRST:
        wrong &= ~np.isnan(scores)  # a path may continue without a score
    wrong[:1] = ~np.isnan(scores[:1])  # the first document has no score
    for place in np.flatnonzero(wrong).tolist():
        true_score = f"the cosine to {scored_to} is {true[place]:.4f}"
        yield f"{sequence.where(begins[place])} has the score {scores[place]:.4f}, {true_score}"


def _check_partitions(run: StoredRun) -> list[CheckOutcome]:
    """Check that all documents of a sequence belong to one partition, by their nearest cluster centres."""
    if "partition" not in run.steps or not run.steps["partition"].manifest["parts"]:
        return []
    outcome = CheckOutcome("partitions", "sequences")
    centres_CD = np.load(run.files("clusters", ".centres.npy")[0]).astype(np.float64)
    # Order the clusters so that each is followed by its nearest remaining one, then cut this row into equal shares: partitions.
    parts = run.steps["clusters"].manifest["parts"][0]["counts"]["parts"]
    sizes = np.zeros(len(centres_CD))  # documents of each cluster
    for path in run.files("partition", ".clusters.npy"):
        np.add.at(sizes, np.load(path), 1)
    row, left = [0], [*range(1, len(centres_CD))]
    while left:
        row.append(
            left.pop(int(np.argmax((centres_CD @ centres_CD[row[-1]])[left])))
        )  # the first of equal ones
    part_of, before = np.zeros(len(row), np.int64), 0.0
    for cluster in row:
        part_of[cluster] = min(
            parts - 1, parts * (before + sizes[cluster] / 2) // max(1, sizes.sum())
        )
        before += sizes[cluster]
    outcome.note = f"{part_of.max() + 1} partitions"
    for sequence in run.sequences():
        cosines_NC = (
            _document_vectors(run, sequence, _documents(sequence)[1]) @ centres_CD.T
        )
        # Either of two centres at nearly the same distance may have been assigned.
        nearest_NC = cosines_NC >= cosines_NC.max(axis=1, keepdims=True) - _TOLERANCE
        may_be = [set(part_of[clusters].tolist()) for clusters in nearest_NC]
        outcome.checked += 1
        if may_be and not set.intersection(*may_be):
            outcome.breach(
                f"sequence {sequence.number} has documents of the partitions {sorted(set.union(*may_be))}"
            )
    return [outcome]


def _documents(sequence: ResolvedSequence) -> tuple[Ids, Ids, Ids]:
    """Return the spans of known documents (s,), the first span of each document (n,), and the document of each span (s,)."""
    spans = sequence.known(DOCUMENT)
    _, begins, by_id = np.unique(
        sequence.doc[spans], return_index=True, return_inverse=True
    )
    order = np.argsort(begins)  # from document id to order in the sequence
    return spans, spans[begins[order]], np.argsort(order)[by_id]


def _document_vectors(
    run: StoredRun, sequence: ResolvedSequence, spans: Ids
) -> NDArray[np.float32]:
    """Return the unit vectors, rounded as stored, of the documents that begin at the given spans."""
    firsts, counts = (
        sequence.doc_first[spans],
        sequence.doc_stop[spans] - sequence.doc_first[spans],
    )
    if run.setting("documents", "vector", "mean") == "first":
        return run.vectors_of(firsts)
    starts = np.cumsum(counts) - counts
    rows = run.vectors_of(np.repeat(firsts - starts, counts) + np.arange(counts.sum()))
    sums = np.add.reduceat(rows, starts, axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    means = np.where(
        lengths > _LEAST_LENGTH * counts[:, None],
        sums / np.maximum(lengths, _LEAST_LENGTH),
        rows[starts],
    )
    rounded: NDArray[np.float32] = means.astype(np.float16).astype(np.float32)
    return rounded
