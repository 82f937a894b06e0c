"""Document scores: of sequences of whole documents, each score against the cosine of the two documents' vectors.

In:  SEQUENCES, and VECTORS of the documents' chunks, from which the documents' are made again. To which other document a score
is the cosine is what the method says of itself; where only its drafts tell, nothing is judged. SPLiCe's are those of a document
earlier in the sequence, the one before where each finds one (k = 1), unless trees are put in another order than they were found in.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nextlong.recipe.methods import METHODS
from nextlong.schemas import DOCUMENT
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.composed import UNKNOWN, Composed, Ids
from nextlong.verify.outcome import Outcome

_TOLERANCE = 1e-3
_LEAST_LENGTH = 1e-3  # of a mean of chunk vectors; below it the first chunk's stands for it
_FIRST, _BEFORE = "the first of the sequence", "the one before"  # in the words of the methods
_FOUND_FOR, _EARLIER = "the document that they were found for", "an earlier one of the sequence"


def check_document_scores(run: Artefacts) -> Outcome:
    """Check the score of every document of every sequence."""
    outcome = Outcome("scores are cosines", "documents")
    if run.method not in METHODS:
        outcome.skipped = f"the method {run.method} is not installed here"
        return outcome
    scored_to = _scored_to(run)
    if scored_to not in ("", _FIRST, _BEFORE, _EARLIER):
        outcome.skipped = f"only its drafts say which is {scored_to}"
        return outcome
    for block in run.blocks():
        for sequence in block:
            spans = np.flatnonzero((sequence.role == DOCUMENT) & (sequence.doc != UNKNOWN))
            docs, begins = np.unique(sequence.doc[spans], return_index=True)
            outcome.checked += len(docs)
            for problem in _problems(run, sequence, spans, np.sort(begins), scored_to):
                outcome.breach(problem)
    return outcome


def _scored_to(run: Artefacts) -> str:
    said = str(METHODS.load(run.method).scores)
    if said != _FOUND_FOR or run.setting(run.method, "order", "identity") != "identity":
        return said
    return _BEFORE if run.setting(run.method, "neighbours", 1) == 1 else _EARLIER


def _problems(run: Artefacts, sequence: Composed, spans: Ids, begins: Ids, scored_to: str) -> Iterator[str]:
    """Yield the documents, which begin at the places `begins` of `spans`, whose score is not what it should be."""
    said = sequence.score[spans[begins]]
    document_of = np.searchsorted(np.sort(sequence.doc[spans[begins]]), sequence.doc[spans])
    by_id = said[np.argsort(sequence.doc[spans[begins]])]
    for span in spans[~np.isclose(sequence.score[spans], by_id[document_of], rtol=0, atol=0, equal_nan=True)][
        :1
    ].tolist():
        yield f"{sequence.where(span)} has the score {sequence.score[span]:.4f}, its document has another"
    if not scored_to:
        for place in np.flatnonzero(~np.isnan(said))[:1].tolist():
            yield f"{sequence.where(int(spans[begins[place]]))} has the score {said[place]:.4f}, {run.method} gives none"
        return
    vectors = _vectors(run, sequence, spans[begins])
    true = _cosines(vectors, said, scored_to)
    wrong = ~(np.abs(true - said) <= _TOLERANCE)
    wrong &= (
        np.arange(len(said)) > 0 if scored_to == _FIRST else ~np.isnan(said)
    )  # a walk may jump, and a first has none
    wrong[:1] = ~np.isnan(said[:1])
    for place in np.flatnonzero(wrong).tolist():
        yield (
            f"{sequence.where(int(spans[begins[place]]))} has the score {said[place]:.4f}, the cosine to {scored_to} is "
            f"{true[place]:.4f}"
        )


def _cosines(vectors: NDArray[np.float32], said: NDArray[np.float32], scored_to: str) -> NDArray[np.float32]:
    """Return the cosine of each document to the other that its score is of; of several that it may be, the nearest to it, (n,)."""
    if scored_to == _EARLIER:
        cosines = np.where(np.tri(len(vectors), k=-1, dtype=bool), vectors @ vectors.T, np.inf)
        nearest = np.abs(cosines - said[:, None]).argmin(axis=1)
        nearest_cosines: NDArray[np.float32] = cosines[np.arange(len(said)), nearest]
        return nearest_cosines
    others = vectors[:1] if scored_to == _FIRST else np.concatenate([vectors[:1], vectors[:-1]])
    true: NDArray[np.float32] = np.einsum("nd,nd->n", vectors, np.broadcast_to(others, vectors.shape))
    return true


def _vectors(run: Artefacts, sequence: Composed, spans: Ids) -> NDArray[np.float32]:
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
