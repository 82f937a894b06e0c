"""Vectors: check that each chunk has a unit vector, encode a sample again, and recompute the scores of whole documents.

A method declares to which other document the score of a document is the cosine; where only the drafts record it, nothing is
checked. SPLiCe's scores are those to an earlier document of the sequence: the previous one where each document retrieves one
(k = 1), unless trees are put into another order than that of retrieval.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nextlong import recipe
from nextlong.errors import NextlongError
from nextlong.plugins import METHODS
from nextlong.retrieval.encoders.base import kind_of, load_encoder
from nextlong.schemas import DOCUMENT, SHARD_BITS
from nextlong.verify.outcome import CheckOutcome, chunk_name
from nextlong.verify.run_files import UNKNOWN, Ids, ResolvedSequence, StoredRun

_LEAST_COSINE = 0.999  # half precision moves a cosine by less than 0.001
_LENGTH_TOLERANCE = 0.01
_BLOCK_ROWS = 32_768
_AT_ONCE = 4096


def check_vectors(run: StoredRun) -> list[CheckOutcome]:
    """Check the shape and length of all vectors, and encode a sample of random chunks again.

    With a shortlist, the vectors of chunks that are not on it must be zero.
    """
    if "embed" not in run.steps:
        return [CheckOutcome("vectors", "vectors", not_needed="this run has none")]
    lengths, again = (CheckOutcome(f"vectors {what}", "vectors") for what in ("have unit length", "encoded again"))
    embedded: list[Ids] = []
    for shard, path in enumerate(run.files("embed", ".vectors.npy")):
        is_embedded, stored = run.is_embedded(shard), np.load(path, mmap_mode="r")
        embedded.append(np.flatnonzero(is_embedded) | shard << SHARD_BITS)
        lengths.checked += len(stored)
        if len(stored) != len(is_embedded):
            lengths.breach(f"shard {shard} has {len(stored)} vectors for {len(is_embedded)} chunks")
        for first in range(0, min(len(stored), len(is_embedded)), _BLOCK_ROWS):
            wanted = is_embedded[first : first + _BLOCK_ROWS]  # 1, and 0 of what is not embedded
            norms = np.linalg.norm(stored[first : first + _BLOCK_ROWS].astype(np.float32), axis=1)[: len(wanted)]
            wrong = ~(np.abs(norms - wanted[: len(norms)]) < _LENGTH_TOLERANCE * wanted[: len(norms)] + 1e-9)
            for row in np.flatnonzero(wrong).tolist():
                name = chunk_name(shard << SHARD_BITS | first + row)
                lengths.breach(f"the vector of {name} has the length {norms[row]:.4f}")
    ids = np.concatenate([np.empty(0, np.int64), *embedded])
    drawn = ids[np.sort(np.random.default_rng(run.seed).permutation(len(ids))[: run.sample])]
    if len(drawn):
        _encode_again(run, drawn, again)
    return [lengths, again]


def _encode_again(run: StoredRun, ids: Ids, outcome: CheckOutcome) -> None:
    encoder = recipe.Encoder.from_dict(run.recipe["encoder"])
    kind = kind_of(encoder)
    if kind.not_repeatable:
        outcome.skipped = f"{encoder.model} {kind.not_repeatable}"
        return
    cosines = np.empty(len(ids), np.float32)  # of each stored vector to the one that the encoder makes of the text now
    try:
        fitted = run.steps["encoder"].folder / "part-00000" if kind.needs_fit else None
        model = load_encoder(encoder, fitted=fitted)
        for first in range(0, len(ids), _AT_ONCE):
            some = ids[first : first + _AT_ONCE]
            texts = run.texts_of(some)
            true, stored = model.encode([texts[name] for name in some.tolist()]), run.vectors_of(some)
            lengths = np.linalg.norm(stored, axis=1) * np.linalg.norm(true, axis=1)
            cosines[first : first + _AT_ONCE] = np.einsum("nd,nd->n", stored, true) / np.maximum(lengths, 1e-12)
    except NextlongError as error:
        outcome.skipped = str(error)
        return
    outcome.checked, outcome.note = len(ids), f"least cosine {cosines.min():.6f}"
    for place in np.flatnonzero(~(cosines >= _LEAST_COSINE)).tolist():
        said = f"has the cosine {cosines[place]:.4f} to the one encoded now"
        outcome.breach(f"the vector of {chunk_name(ids[place])} {said}")


_TOLERANCE = 1e-3
_LEAST_LENGTH = 1e-3  # of a mean of chunk vectors; below it the first chunk's stands for it
_FIRST, _BEFORE = "the first of the sequence", "the one before"  # in the words of the methods
_FOUND_FOR, _EARLIER = "the document that they were found for", "an earlier one of the sequence"


def check_document_scores(run: StoredRun) -> CheckOutcome:
    """Check the score of every document of every sequence."""
    outcome = CheckOutcome("scores are cosines", "documents")
    if run.method not in METHODS:
        outcome.skipped = f"the method {run.method} is not installed here"
        return outcome
    scored_to = str(getattr(METHODS.load(run.method, object), "scores", ""))
    if scored_to == _FOUND_FOR and run.setting(run.method, "order", "identity") == "identity":
        scored_to = _BEFORE if run.setting(run.method, "neighbours", 1) == 1 else _EARLIER
    if scored_to not in ("", _FIRST, _BEFORE, _EARLIER):
        outcome.skipped = f"not checked: only the drafts record {scored_to}"
        return outcome
    for sequence in (sequence for block in run.blocks() for sequence in block):
        spans = np.flatnonzero((sequence.role == DOCUMENT) & (sequence.doc != UNKNOWN))
        docs, begins = np.unique(sequence.doc[spans], return_index=True)
        outcome.checked += len(docs)
        outcome.breach_each(_problems(run, sequence, spans, np.sort(begins), scored_to))
    return outcome


def _problems(run: StoredRun, sequence: ResolvedSequence, spans: Ids, begins: Ids, scored_to: str) -> Iterator[str]:
    """Yield the documents, which begin at the places `begins` of `spans`, whose score is not what it should be."""
    said = sequence.score[spans[begins]]  # (n,) of each document, in their order
    by_id = np.argsort(sequence.doc[spans[begins]])
    document_of = by_id[np.searchsorted(sequence.doc[spans[begins]], sequence.doc[spans], sorter=by_id)]
    differs = ~np.isclose(sequence.score[spans], said[document_of], rtol=0, atol=0, equal_nan=True)
    for span in spans[differs][:1].tolist():
        yield f"{sequence.where(span)} has the score {sequence.score[span]:.4f}, its document has another"
    if not scored_to:
        for place in np.flatnonzero(~np.isnan(said))[:1].tolist():
            yield f"{sequence.where(int(spans[begins[place]]))} has the score {said[place]:.4f}, {run.method} gives none"
        return
    vectors = _vectors(run, sequence, spans[begins])
    # (n,) the cosine of each document to the other that its score is of; of several that it may be, the one nearest to the score.
    if scored_to == _EARLIER:
        cosines = np.where(np.tri(len(vectors), k=-1, dtype=bool), vectors @ vectors.T, np.inf)
        true = cosines[np.arange(len(said)), np.abs(cosines - said[:, None]).argmin(axis=1)]
    else:
        others = vectors[:1] if scored_to == _FIRST else np.concatenate([vectors[:1], vectors[:-1]])
        true = np.einsum("nd,nd->n", vectors, np.broadcast_to(others, vectors.shape))
    wrong = ~(np.abs(true - said) <= _TOLERANCE)
    if scored_to != _FIRST:
        wrong &= ~np.isnan(said)  # a walk may jump
    wrong[:1] = ~np.isnan(said[:1])  # the first document has no score
    for place in np.flatnonzero(wrong).tolist():
        yield (
            f"{sequence.where(int(spans[begins[place]]))} has the score {said[place]:.4f}, the cosine to {scored_to} is "
            f"{true[place]:.4f}"
        )


def check_partitions(run: StoredRun) -> list[CheckOutcome]:
    """Check that the documents of each sequence belong to one partition, by the centres nearest to their vectors.

    There is nothing to tell of a run that drafted from all documents together.
    """
    if "partition" not in run.steps or not run.steps["partition"].manifest["parts"]:
        return []
    outcome = CheckOutcome("partitions", "sequences")
    centres_CD = np.load(run.files("clusters", ".centres.npy")[0]).astype(np.float64)
    # The partition of each cluster: the nearest that is left stands next, and the row is cut into equal shares.
    parts = run.steps["clusters"].manifest["parts"][0]["counts"]["parts"]
    sizes = np.zeros(len(centres_CD))  # documents of each cluster
    for path in run.files("partition", ".clusters.npy"):
        np.add.at(sizes, np.load(path), 1)
    row, left = [0], [*range(1, len(centres_CD))]
    while left:
        row.append(max(left, key=(centres_CD @ centres_CD[row[-1]]).__getitem__))  # of equal ones the first
        left.remove(row[-1])
    part_of, before = np.zeros(len(row), np.int64), 0.0
    for cluster in row:
        part_of[cluster] = min(parts - 1, parts * (before + sizes[cluster] / 2) // max(1, sizes.sum()))
        before += sizes[cluster]
    outcome.note = f"{part_of.max() + 1} partitions"
    for sequence in (sequence for block in run.blocks() for sequence in block):
        spans = np.flatnonzero((sequence.role == DOCUMENT) & (sequence.doc != UNKNOWN))
        begins = spans[np.unique(sequence.doc[spans], return_index=True)[1]]
        cosines_NC = _vectors(run, sequence, begins) @ centres_CD.T
        # Of two centres that are about as near either may be the one that was found.
        nearest_NC = cosines_NC >= cosines_NC.max(axis=1, keepdims=True) - _TOLERANCE
        may_be = [set(part_of[clusters].tolist()) for clusters in nearest_NC]
        outcome.checked += 1
        if not set.intersection(*may_be):
            outcome.breach(f"sequence {sequence.number} has documents of the partitions {sorted(set.union(*may_be))}")
    return [outcome]


def _vectors(run: StoredRun, sequence: ResolvedSequence, spans: Ids) -> NDArray[np.float32]:
    """Return the unit vectors, rounded as they are stored, of the documents that begin at the given spans."""
    firsts, counts = sequence.doc_first[spans], sequence.doc_stop[spans] - sequence.doc_first[spans]
    if run.setting("documents", "vector", "mean") == "first":
        return run.vectors_of(firsts)
    starts = np.cumsum(counts) - counts
    rows = run.vectors_of(np.repeat(firsts - starts, counts) + np.arange(counts.sum()))
    sums = np.add.reduceat(rows, starts, axis=0)
    lengths = np.linalg.norm(sums, axis=1, keepdims=True)
    means = np.where(lengths > _LEAST_LENGTH * counts[:, None], sums / np.maximum(lengths, _LEAST_LENGTH), rows[starts])
    rounded: NDArray[np.float32] = means.astype(np.float16).astype(np.float32)
    return rounded
