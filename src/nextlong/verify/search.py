"""Search: encode a sample of vectors again, and search neighbours by brute force.

In:  VECTORS, CANDIDATES, SEQUENCES.
Out: one outcome per check.

The reference is NumPy's float32 product of each sampled query with every stored vector;
equal cosines may be in any order. An approximate index must reach the recall in its
manifest: the mean over the sample may be lower by at most three of its standard errors.

A method of whole documents declares which other document the score of a document refers
to. Nothing is checked if only the drafts record it. SPLiCe's scores refer to an earlier
document, which is the previous one if each document retrieves one (k = 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.arrays import Bools, Doubles, Floats
from nextlong.errors import NextlongError
from nextlong.plugins import METHODS
from nextlong.recipe.keys import NEGATIVES
from nextlong.retrieval.encoders.base import kind_of
from nextlong.schemas import DOCUMENT, META, NEGATIVE, Layout, pack_ids
from nextlong.verify.near_duplicates import without_cause
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.run_files import UNKNOWN, Ids, ResolvedSequence, StoredRun

_MIN_COSINE = 0.999  # half precision moves a cosine by less than 0.001
_LENGTH_TOLERANCE = 0.01
_TOLERANCE = 1e-3
_SCORES = "scores are cosines"
_BLOCK_ROWS = 32_768
_TEXTS_AT_ONCE = 4096
_QUERIES_AT_ONCE = 1024
# Of a mean of chunk vectors; below it, the first chunk's vector is used.
_MIN_LENGTH = 1e-3
# Of mixed negatives: the share of `compose.hard_share` that is hard at least, where
# most candidates repeat a text; and how many more may be hard.
_LEAST_HARD = 0.1
_MORE_HARD = 0.1
# Of a random chunk to be a candidate; above it, hard and random look the same.
_MAX_CHANCE = 0.5
# What a score refers to, as methods declare it.
_FIRST = "the first document of the sequence"
_BEFORE = "the previous document"
_FOUND_FOR = "their parent in the tree"
_EARLIER = "an earlier document of the sequence"

_Vectors = Floats


def check_vectors(run: StoredRun) -> list[CheckOutcome]:
    """Check shape and length of all vectors, and encode a random sample again.

    With a shortlist, the vectors of chunks that are not on it are zero.
    """
    if "embed" not in run.steps:
        return [CheckOutcome("vectors", "vectors", not_needed="this run has none")]
    lengths = CheckOutcome("vectors have unit length", "vectors")
    again = CheckOutcome("vectors encoded again", "vectors")
    embedded = [np.empty(0, np.int64)]
    for shard, path in enumerate(run.files("embed", ".vectors.npy")):
        is_embedded = run.is_embedded(shard)
        stored = np.load(path, mmap_mode="r")
        embedded.append(pack_ids(shard, np.flatnonzero(is_embedded)))
        problems = _length_problems(shard, stored, is_embedded)
        lengths.breach_each(problems, checked=len(stored))
    ids = np.concatenate(embedded)
    shuffled = np.random.default_rng(run.seed).permutation(len(ids))
    sampled = ids[np.sort(shuffled[: run.sample])]
    if len(sampled):
        _encode_again(run, sampled, again)
    return [lengths, again]


def _length_problems(
    shard: int,
    stored: NDArray[np.float16],
    is_embedded: Bools,
) -> Iterator[str]:
    """Yield missing or extra vectors of a shard, and those of another length."""
    if len(stored) != len(is_embedded):
        yield f"shard {shard} has {len(stored)} vectors for {len(is_embedded)} chunks"
    rows = min(len(stored), len(is_embedded))
    for first in range(0, rows, _BLOCK_ROWS):
        block = slice(first, min(rows, first + _BLOCK_ROWS))
        expected = is_embedded[block]  # 1, or 0 for chunks that were not embedded
        norms = np.linalg.norm(stored[block].astype(np.float32), axis=1)
        # A comparison with NaN is false, so a vector with NaN has no unit length.
        tolerance = _LENGTH_TOLERANCE * expected + 1e-9
        has_length = np.abs(norms - expected) < tolerance
        for row in np.flatnonzero(~has_length).tolist():
            name = chunk_name(first + row, shard)
            yield f"the vector of {name} has the length {norms[row]:.4f}"


def _encode_again(run: StoredRun, ids: Ids, outcome: CheckOutcome) -> None:
    """Compare the stored vectors of some chunks with those encoded now."""
    encoder = recipe.Encoder.from_dict(run.recipe["encoder"])
    kind = kind_of(encoder)
    if kind.not_repeatable:
        outcome.skipped = f"{encoder.model} {kind.not_repeatable}"
        return
    fitted = run.steps["encoder"].folder / "part-00000" if kind.needs_fit else None
    # (n,) between each stored vector and the one encoded now
    cosines = np.empty(len(ids), np.float32)
    try:
        model = kind.load(encoder, fitted)
        for first in range(0, len(ids), _TEXTS_AT_ONCE):
            block = slice(first, first + _TEXTS_AT_ONCE)
            texts = run.texts_of(ids[block])
            true = model.encode([texts[chunk] for chunk in ids[block].tolist()])
            stored = run.vectors_of(ids[block])
            dots = np.einsum("nd,nd->n", stored, true)
            lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(true, axis=1)
            cosines[block] = dots / np.maximum(lengths, 1e-12)
    except NextlongError as error:
        outcome.skipped = str(error)
        return
    outcome.checked = len(ids)
    outcome.note = f"minimum cosine {cosines.min():.6f}"
    is_near = cosines >= _MIN_COSINE
    for index in np.flatnonzero(~is_near).tolist():
        cosine = f"has the cosine {cosines[index]:.4f} to the one encoded now"
        outcome.breach(f"the vector of {chunk_name(ids[index])} {cosine}")


class _MetaChunk(NamedTuple):
    """A sampled query: a span of a sequence, and its chunk."""

    sequence: ResolvedSequence
    span: int
    chunk: int

    def owns(self, ids: Ids) -> Bools:
        """Return which chunks belong to the meta-document, shape (n,)."""
        is_after_first = ids >= self.sequence.doc_first[self.span]
        is_before_stop = ids < self.sequence.doc_stop[self.span]
        return np.asarray(is_after_first & is_before_stop)


class _Neighbours(NamedTuple):
    """The chunks most similar to a meta-chunk, and their scores, descending; (k,)."""

    ids: Ids
    scores: _Vectors


class _Unused(NamedTuple):
    """Chunks outside a sequence that are nearer to a meta-chunk than its negatives.

    `farthest` is the cosine of its farthest negative.
    """

    meta: _MetaChunk
    farthest: float
    chunks: _Neighbours


def check_search(run: StoredRun) -> list[CheckOutcome]:
    """Check the scores of all negatives or documents, and search again.

    A random sample of meta-chunks is searched.
    """
    candidates = CheckOutcome("candidates searched again", "meta-chunks")
    if run.layout != Layout.EXTENDED:
        candidates.not_needed = f"{run.layout} sequences have none"
        return [_check_document_scores(run), *_check_partitions(run), candidates]
    nearest = CheckOutcome("negatives are the nearest unused", "meta-chunks")
    # A method of another package may need no vectors.
    if "embed" not in run.steps:
        scores = CheckOutcome(_SCORES, "negatives")
        for outcome in (scores, candidates, nearest):
            outcome.not_needed = "this run has no vectors"
        return [scores, candidates, nearest]
    scores, meta_chunks = _check_scores_and_draw(run)
    # Negatives of other kinds are not mined.
    if "mine" not in run.steps:
        candidates.not_needed = "this run mined no candidates"
        nearest.not_needed = candidates.not_needed
        return [scores, candidates, nearest]

    promised = _promised_recall(run)
    nearest.not_needed = _why_not_nearest(run, promised)
    mixture = _Mixture()
    recalls: list[float] = []
    unused: list[_Unused] = []
    for first in range(0, len(meta_chunks), _QUERIES_AT_ONCE):
        queries = meta_chunks[first : first + _QUERIES_AT_ONCE]
        stored_of = _stored_candidates(run, [meta.chunk for meta in queries])
        # Brute force returns as many as are stored, so that the two lists can be
        # compared rank by rank.
        k = max((len(stored.ids) for stored in stored_of.values()), default=0)
        for meta, true in zip(queries, _brute_force(run, queries, k), strict=True):
            stored = stored_of.get(meta.chunk)
            problems = _candidate_problems(
                run,
                meta,
                stored=stored,
                true=true,
                is_exact=promised is None,
            )
            candidates.breach_each(problems, checked=1)
            mixture.add(meta, stored)
            if stored is not None and len(true.ids):
                recalls.append(_recall(stored, true))
            if not nearest.not_needed:
                unused.append(_unused_and_nearer(meta, true))
    nearest.breach_each(_nearer(run, unused), checked=len(unused))
    outcomes = [scores, candidates, nearest]
    if promised is not None and recalls:
        outcomes.insert(2, _check_recall(recalls, promised))
    return outcomes + _check_hard_share(run, mixture)


class _Mixture:
    """Counts of the negatives of sampled meta-chunks: all, and those that are hard.

    A negative counts as hard if it is among the candidates of its meta-chunk.
    """

    def __init__(self) -> None:
        self.negatives = 0
        self.hard = 0
        self.compared = 0  # candidates, counted once for each negative

    def add(self, meta: _MetaChunk, stored: _Neighbours | None) -> None:
        """Count the negatives of a meta-chunk with stored candidates."""
        if stored is None:
            return
        sequence = meta.sequence
        is_negative = sequence.role == NEGATIVE
        in_group = is_negative & (sequence.group == sequence.group[meta.span])
        negatives = sequence.chunk[in_group & ~sequence.is_truncated]
        self.negatives += len(negatives)
        self.hard += int(np.isin(negatives, stored.ids).sum())
        self.compared += len(negatives) * len(stored.ids)


def _check_hard_share(run: StoredRun, mixture: _Mixture) -> list[CheckOutcome]:
    """Compare the share of hard negatives with `compose.hard_share`, if mixed.

    Some random chunks are candidates by chance. Candidates that repeat a text are
    skipped, so that fewer negatives may be hard, but not as few as by chance.
    """
    if run.negatives.origin != "both":
        return []
    outcome = CheckOutcome("share of hard negatives", "negatives")
    corpus_chunks = 0
    for shard in range(len(run.shards)):
        corpus_chunks += len(run.chunks(shard)["start"])
    chance = mixture.compared / max(1, mixture.negatives) / max(1, corpus_chunks)
    if not mixture.negatives or chance > _MAX_CHANCE:
        outcome.not_needed = "most chunks of the corpus are candidates"
        return [outcome]
    outcome.checked = mixture.negatives
    hard_share = float(run.setting("compose", "hard_share", 0.5))
    expected = hard_share + (1 - hard_share) * chance
    share = mixture.hard / mixture.negatives
    outcome.note = f"{share:.3f} of the sampled negatives, expected {expected:.3f}"
    margin = 4 * (expected * (1 - expected) / mixture.negatives) ** 0.5
    lowest = chance + _LEAST_HARD * hard_share - margin
    highest = expected + _MORE_HARD + margin
    if not lowest <= share <= highest:
        outcome.breach(
            f"{share:.3f} of the negatives are candidates of their meta-chunks, "
            f"compose.hard_share={hard_share:g} gives {expected:.3f}"
        )
    return [outcome]


def _promised_recall(run: StoredRun) -> float | None:
    """Return the mean recall that the index promises; None for an exact search."""
    parts = run.steps["tune"].manifest["parts"] if "tune" in run.steps else []
    return float(parts[0]["counts"]["recall"]) if parts else None


def _why_not_nearest(run: StoredRun, promised: float | None) -> str:
    """Return why negatives need not be the nearest unused chunks; "": they must be."""
    if run.negatives != NEGATIVES["top"]:
        return "compose.negatives selects others than the nearest"
    max_similarity = run.setting("mine", "max_similarity")
    max_uses = run.setting("compose", "max_uses")
    if max_similarity is not None or max_uses is not None:
        return "mine.max_similarity or compose.max_uses excludes some of the nearest"
    if promised is not None:
        recall = f"its recall of {promised:g} is checked instead"
        return f"the index is approximate: {recall}"
    return ""


def _recall(stored: _Neighbours, true: _Neighbours) -> float:
    """Return the share of the nearest chunks that is among the stored candidates."""
    # true.scores[-1] is the k-th best; a stored neighbour with that score counts,
    # whichever of equal ones it is.
    is_nearest = np.isin(stored.ids, true.ids)
    is_as_near = stored.scores >= true.scores[-1]
    found = np.count_nonzero(is_nearest | is_as_near)
    return min(1.0, found / len(true.ids))


def _check_recall(recalls: list[float], promised: float) -> CheckOutcome:
    """Compare the recalls of the sampled queries with the promised mean."""
    outcome = CheckOutcome(
        "recall of the approximate index", "meta-chunks", checked=len(recalls)
    )
    mean = float(np.mean(recalls))
    standard_error = float(np.std(recalls)) / len(recalls) ** 0.5
    percentile = np.percentile(recalls, 5)
    outcome.note = (
        f"{mean:.3f} on average, 5th percentile {percentile:.3f}, "
        f"worst {min(recalls):.3f}; promised {promised:g} on average"
    )
    if mean + 3 * standard_error < promised:
        share = f"{mean:.4f} ± {standard_error:.4f} of the nearest were found"
        outcome.breach(f"{share}, the index promises {promised:g}")
    return outcome


def _unused_and_nearer(meta: _MetaChunk, true: _Neighbours) -> _Unused:
    """Return the nearest chunks that the sequence lacks, but has farther negatives."""
    sequence = meta.sequence
    is_negative = sequence.role == NEGATIVE
    in_group = is_negative & (sequence.group == sequence.group[meta.span])
    # The cut negative need not be near: it is the first that fills the sequence.
    negatives = sequence.chunk[in_group & ~sequence.is_truncated]
    is_placed = np.isin(true.ids, negatives)
    farthest = float(true.scores[is_placed].min()) if is_placed.any() else np.inf
    is_nearer = true.scores > farthest + _TOLERANCE
    is_unused = is_nearer & ~np.isin(true.ids, sequence.chunk)
    chunks = _Neighbours(true.ids[is_unused], true.scores[is_unused])
    return _Unused(meta, farthest, chunks)


def _check_scores_and_draw(run: StoredRun) -> tuple[CheckOutcome, list[_MetaChunk]]:
    """Compare the scores of all negatives; also return a random sample of meta-chunks.

    Both in one pass over the sequences.
    """
    outcome = CheckOutcome(_SCORES, "negatives")
    # Count first, so that the sample is drawn before any sequence is resolved.
    total = 0
    for bare in run.bare_sequences():
        total += int(np.count_nonzero(bare.role == META))
    shuffled = np.random.default_rng(run.seed).permutation(total)
    sampled = set(shuffled[: run.sample].tolist())
    meta_chunks: list[_MetaChunk] = []
    index = 0  # of the next meta-chunk, of all sequences
    for sequence in run.sequences():
        _compare_scores(run, sequence, outcome)
        for span in np.flatnonzero(sequence.role == META).tolist():
            if index in sampled and sequence.doc[span] != UNKNOWN:
                chunk = int(sequence.chunk[span])
                meta_chunks.append(_MetaChunk(sequence, span, chunk))
            index += 1
    return outcome, meta_chunks


def _compare_scores(
    run: StoredRun,
    sequence: ResolvedSequence,
    outcome: CheckOutcome,
) -> None:
    """Compare the score of each negative with its cosine to its group's meta-chunk."""
    metas = np.flatnonzero(sequence.role == META)
    meta_groups = sequence.group[metas].tolist()
    meta_of = dict(zip(meta_groups, sequence.chunk[metas].tolist(), strict=True))
    # (n,) the negatives whose group has a meta-chunk, their recorded scores, and their
    # cosines to that meta-chunk.
    negatives = sequence.known(NEGATIVE)
    spans = negatives[np.isin(sequence.group[negatives], list(meta_of))]
    groups = sequence.group[spans]
    scores = sequence.score[spans]
    queries = np.array([meta_of[group] for group in groups.tolist()], np.int64)
    vectors = run.vectors_of(sequence.chunk[spans])
    true = np.einsum("nd,nd->n", vectors, run.vectors_of(queries))

    outcome.checked += len(spans)
    is_cosine = np.abs(true - scores) <= _TOLERANCE
    for index in np.flatnonzero(~is_cosine).tolist():
        where = sequence.where(spans[index])
        outcome.breach(
            f"{where} has the score {scores[index]:.4f}, "
            f"the cosine is {true[index]:.4f}"
        )
    if run.negatives == NEGATIVES["top"]:
        precedes_nearer = (np.diff(scores) > 1e-6) & (np.diff(groups) == 0)
        for span in spans[:-1][precedes_nearer].tolist():
            where = sequence.where(span)
            outcome.breach(
                f"{where} precedes a negative that is nearer to its meta-chunk"
            )


def _stored_candidates(run: StoredRun, chunks: list[int]) -> dict[int, _Neighbours]:
    """Return the candidates that the run stored for some chunks."""
    candidates: dict[int, _Neighbours] = {}
    for path in run.files("mine", ".candidates.arrow"):
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            for index in range(reader.num_record_batches):
                batch = reader.get_batch(index)
                names = batch.column("chunk_id")
                is_wanted = np.isin(names.to_numpy(), chunks)
                for row in np.flatnonzero(is_wanted).tolist():
                    # Copies, because views would keep the file open.
                    ids = batch.column("neighbour_ids")[row].values.to_numpy()
                    scores = batch.column("scores")[row].values.to_numpy()
                    neighbours = _Neighbours(ids.copy(), scores.copy())
                    candidates[names[row].as_py()] = neighbours
    return candidates


def _brute_force(
    run: StoredRun,
    meta_chunks: list[_MetaChunk],
    k: int,
) -> Iterator[_Neighbours]:
    """Yield the `k` nearest chunks of other documents for each query.

    With a shortlist, only those of positive cosine.
    """
    # With a shortlist, candidates with a cosine near 0 may be missing.
    farthest = _TOLERANCE if "shortlist" in run.steps else -np.inf
    chunks = np.array([meta.chunk for meta in meta_chunks], np.int64)
    queries_QD = run.vectors_of(chunks)
    # The best k so far of each query, unordered; the corpus is read once, by blocks.
    nothing = _Neighbours(np.empty(0, np.int64), np.empty(0, np.float32))
    best = [nothing] * len(meta_chunks)
    for shard, path in enumerate(run.files("embed", ".vectors.npy")):
        stored = np.load(path, mmap_mode="r")
        embedded = np.flatnonzero(run.is_embedded(shard))
        for first in range(0, len(embedded), _BLOCK_ROWS):
            rows = embedded[first : first + _BLOCK_ROWS]
            ids = pack_ids(shard, rows)
            # Cosines, because vectors have unit length.
            scores_QB = queries_QD @ stored[rows].astype(np.float32).T
            for query, meta in enumerate(meta_chunks):
                scores = scores_QB[query]
                may_be_near = ~meta.owns(ids) & (scores > farthest)
                found = _Neighbours(ids[may_be_near], scores[may_be_near])
                best[query] = _best(best[query], found, k)
    for neighbours in best:
        order = np.argsort(-neighbours.scores, kind="stable")
        yield _Neighbours(neighbours.ids[order], neighbours.scores[order])


def _best(known: _Neighbours, found: _Neighbours, k: int) -> _Neighbours:
    """Return the `k` of both with the highest scores, unordered."""
    ids = np.concatenate([known.ids, found.ids])
    scores = np.concatenate([known.scores, found.scores])
    if len(ids) <= k:
        return _Neighbours(ids, scores)
    kept = np.argpartition(-scores, max(k - 1, 0))[:k]
    return _Neighbours(ids[kept], scores[kept])


def _candidate_problems(
    run: StoredRun,
    meta: _MetaChunk,
    *,
    stored: _Neighbours | None,
    true: _Neighbours,
    is_exact: bool,
) -> Iterator[str]:
    """Yield what is wrong about the stored candidates; `true` has the nearest chunks.

    Those of an approximate search need not be the nearest.
    """
    where = f"meta-chunk {chunk_name(meta.chunk)} of sequence {meta.sequence.number}"
    if stored is None:
        yield f"{where} has no candidates"
        return
    ids, scores = stored
    if len(np.unique(ids)) != len(ids):
        yield f"{where} has a candidate twice"
    own = ids[meta.owns(ids)]
    if len(own):
        yield f"{where} has the candidate {chunk_name(own[0])}, of its own document"

    vectors = run.vectors_of(np.append(ids, meta.chunk))
    cosines = vectors[:-1] @ vectors[-1]
    is_cosine = np.abs(cosines - scores) <= _TOLERANCE
    wrong = np.flatnonzero(~is_cosine)
    if len(wrong):
        rank = wrong[0]
        candidate = f"candidate {chunk_name(ids[rank])} at rank {rank}"
        yield (
            f"{where}: {candidate} has the score {scores[rank]:.4f}, "
            f"the cosine is {cosines[rank]:.4f}"
        )
    if np.any(np.diff(scores) > 1e-6):
        yield f"{where}: scores are not descending"
    if not is_exact:
        return
    if len(ids) < len(true.ids):
        yield f"{where} has {len(ids)} candidates, brute force finds {len(true.ids)}"
    differences = np.abs(scores[: len(true.ids)] - true.scores[: len(scores)])
    other = np.flatnonzero(differences > _TOLERANCE)
    if len(other):
        rank = other[0]
        candidate = f"{chunk_name(ids[rank])} with {scores[rank]:.4f}"
        nearest = f"{chunk_name(true.ids[rank])} with {true.scores[rank]:.4f}"
        yield (
            f"{where}: rank {rank} is {candidate}, "
            f"the nearest by brute force is {nearest}"
        )


def _nearer(run: StoredRun, unused: list[_Unused]) -> Iterator[str]:
    """Yield for each meta-chunk the nearest unused chunk that is no near-duplicate."""
    by_sequence: dict[int, Ids] = {}
    for meta, _, chunks in unused:
        if len(chunks.ids):
            number = meta.sequence.number
            known = by_sequence.get(number, chunks.ids)
            by_sequence[number] = np.union1d(known, chunks.ids)
    if run.setting("mine", "near_duplicates") is not None:
        by_sequence = without_cause(run, by_sequence)
    for meta, farthest, chunks in unused:
        number = meta.sequence.number
        is_unexplained = np.isin(chunks.ids, by_sequence.get(number, []))
        ranks = np.flatnonzero(is_unexplained)
        if len(ranks):
            nearest = chunk_name(chunks.ids[ranks[0]])
            score = f"{chunks.scores[ranks[0]]:.4f}"
            yield (
                f"sequence {number}: {nearest} ({score}) is unused "
                f"and nearer to meta-chunk {chunk_name(meta.chunk)} "
                f"than one of its negatives ({farthest:.4f})"
            )


def _check_document_scores(run: StoredRun) -> CheckOutcome:
    """Check the scores of whole documents, as far as sequences show what they mean."""
    outcome = CheckOutcome("scores are cosines", "documents")
    if run.method not in METHODS:
        outcome.skipped = f"the method {run.method} is not installed here"
        return outcome
    scored_to = _what_scores_mean(run)
    if scored_to not in ("", _FIRST, _BEFORE, _EARLIER):
        outcome.skipped = f"not checked: only the drafts record {scored_to}"
        return outcome
    for sequence in run.sequences():
        _, begins, _ = _documents(sequence)
        problems = _score_problems(run, sequence, scored_to)
        outcome.breach_each(problems, checked=len(begins))
    return outcome


def _what_scores_mean(run: StoredRun) -> str:
    """Return which document a score refers to; "" if the method gives no scores."""
    method = METHODS.load(run.method, object)
    scored_to = str(getattr(method, "scores", ""))
    is_in_order = run.setting(run.method, "order", "identity") == "identity"
    if scored_to != _FOUND_FOR or not is_in_order:
        return scored_to
    retrieves_one = run.setting(run.method, "neighbours", 1) == 1
    return _BEFORE if retrieves_one else _EARLIER


def _score_problems(
    run: StoredRun,
    sequence: ResolvedSequence,
    scored_to: str,
) -> Iterator[str]:
    """Yield the documents with another score than their cosine to another document."""
    where = sequence.where
    spans, begins, document_of = _documents(sequence)
    # All spans of a document have its score; (n,) and (s,).
    scores = sequence.score[begins]
    span_scores = sequence.score[spans]
    is_equal = np.isclose(
        span_scores,
        scores[document_of],
        rtol=0,
        atol=0,
        equal_nan=True,
    )
    for span in spans[~is_equal][:1].tolist():
        score = f"{sequence.score[span]:.4f}"
        yield f"{where(span)} has the score {score}, its document has another"
    if not scored_to:
        for index in np.flatnonzero(~np.isnan(scores))[:1].tolist():
            score = f"the score {scores[index]:.4f}"
            yield f"{where(begins[index])} has {score}, {run.method} gives none"
        return

    vectors = _document_vectors(run, sequence, begins)
    true = _cosines_to(scored_to, vectors, scores)
    has_score = ~np.isnan(scores)
    is_wrong = ~(np.abs(true - scores) <= _TOLERANCE)
    if scored_to != _FIRST:
        is_wrong &= has_score  # a path may continue without a score
    is_wrong[:1] = has_score[:1]  # the first document has no score
    for index in np.flatnonzero(is_wrong).tolist():
        true_score = f"the cosine to {scored_to} is {true[index]:.4f}"
        score = f"{scores[index]:.4f}"
        yield f"{where(begins[index])} has the score {score}, {true_score}"


def _cosines_to(
    scored_to: str,
    vectors_ND: _Vectors,
    scores: Floats,
) -> Floats:
    """Return the cosine of each document to the one that its score refers to; (n,).

    Of several possible ones, the closest to the score.
    """
    if scored_to == _EARLIER:
        # [i, j]: whether document j comes before document i.
        is_earlier = np.tri(len(vectors_ND), k=-1, dtype=bool)
        cosines_NN = np.where(is_earlier, vectors_ND @ vectors_ND.T, np.inf)
        closest = np.abs(cosines_NN - scores[:, None]).argmin(axis=1)
        true: Floats = cosines_NN[np.arange(len(scores)), closest]
        return true
    others = vectors_ND[:1]
    if scored_to == _BEFORE:
        others = np.concatenate([vectors_ND[:1], vectors_ND[:-1]])
    others_ND = np.broadcast_to(others, vectors_ND.shape)
    cosines: Floats = np.einsum("nd,nd->n", vectors_ND, others_ND)
    return cosines


def _check_partitions(run: StoredRun) -> list[CheckOutcome]:
    """Check that all documents of a sequence belong to one partition."""
    if "partition" not in run.steps or not run.steps["partition"].manifest["parts"]:
        return []
    outcome = CheckOutcome("partitions", "sequences")
    centres_CD = np.load(run.files("clusters", ".centres.npy")[0]).astype(np.float64)
    # A document is in the partition of the cluster with the nearest centre.
    partition_of = _partitions_of_clusters(run, centres_CD)
    outcome.note = f"{partition_of.max() + 1} partitions"
    for sequence in run.sequences():
        _, begins, _ = _documents(sequence)
        cosines_NC = _document_vectors(run, sequence, begins) @ centres_CD.T
        # Either of two centres at nearly the same distance may have been assigned.
        nearest_NC = cosines_NC >= cosines_NC.max(axis=1, keepdims=True) - _TOLERANCE
        may_be = [set(partition_of[clusters].tolist()) for clusters in nearest_NC]
        outcome.checked += 1
        if may_be and not set.intersection(*may_be):
            partitions = sorted(set.union(*may_be))
            documents = f"documents of the partitions {partitions}"
            outcome.breach(f"sequence {sequence.number} has {documents}")
    return [outcome]


def _partitions_of_clusters(run: StoredRun, centres_CD: Doubles) -> Ids:
    """Return the partition of each cluster, shape (clusters,).

    The clusters are ordered so that each is followed by its nearest remaining one. This
    row is cut into partitions of equal shares of the documents.
    """
    sizes = np.zeros(len(centres_CD))  # documents of each cluster
    for path in run.files("partition", ".clusters.npy"):
        np.add.at(sizes, np.load(path), 1)
    row = [0]
    left = list(range(1, len(centres_CD)))
    while left:
        cosines = centres_CD @ centres_CD[row[-1]]
        nearest = int(np.argmax(cosines[left]))  # the first of equal ones
        row.append(left.pop(nearest))

    partitions = run.steps["clusters"].manifest["parts"][0]["counts"]["parts"]
    partition_of = np.zeros(len(row), np.int64)
    documents = max(1, sizes.sum())
    before = 0.0  # documents of the clusters before this one
    for cluster in row:
        middle = before + sizes[cluster] / 2
        partition_of[cluster] = min(partitions - 1, partitions * middle // documents)
        before += sizes[cluster]
    return partition_of


def _documents(sequence: ResolvedSequence) -> tuple[Ids, Ids, Ids]:
    """Return the spans of known documents, and which documents these are.

    Three arrays: the spans (s,), the first span of each document (n,), in order, and
    the document of each span (s,), an index into the second.
    """
    spans = sequence.known(DOCUMENT)
    _, begins, by_id = np.unique(
        sequence.doc[spans], return_index=True, return_inverse=True
    )
    order = np.argsort(begins)  # from document id to order in the sequence
    return spans, spans[begins[order]], np.argsort(order)[by_id]


def _document_vectors(
    run: StoredRun,
    sequence: ResolvedSequence,
    spans: Ids,
) -> _Vectors:
    """Return the vectors of the documents that begin at the given spans.

    Unit vectors, rounded as stored: the mean of the document's chunks, or its first.
    """
    firsts = sequence.doc_first[spans]
    counts = sequence.doc_stop[spans] - firsts  # chunks of each document
    if run.setting("documents", "vector", "mean") == "first":
        return run.vectors_of(firsts)
    # The chunks of all documents, document after document; each begins at `starts`.
    starts = np.cumsum(counts) - counts
    chunks = np.repeat(firsts - starts, counts) + np.arange(counts.sum())
    rows = run.vectors_of(chunks)
    sums = np.add.reduceat(rows, starts, axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    has_direction = lengths > _MIN_LENGTH * counts[:, None]
    units = sums / np.maximum(lengths, _MIN_LENGTH)
    means = np.where(has_direction, units, rows[starts])
    rounded: _Vectors = means.astype(np.float16).astype(np.float32)
    return rounded
