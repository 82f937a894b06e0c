"""Tune: how many clusters a query must look into for the recall that the recipe asks for.

In:  a filled IVF index, a random sample of the recipe's own queries, k.
Out: probes and spare, and the recall measured with them against brute force.

The recall of a query is the share of its k nearest, by exact search, that the index finds; equal cosines count whichever
of them is found. What is promised is `target`; what is measured lies above it by two standard errors of the sample.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.artifacts import lookup
from nextlong.artifacts.results import TuneResult
from nextlong.retrieval.indexes.base import IndexFiles, Neighbours, VectorShards
from nextlong.retrieval.indexes.exact import Exact
from nextlong.retrieval.indexes.ivf import Ivf
from nextlong.rng import rng_for

NEAREST = 100  # of the k neighbours: those that negatives are taken from first
_HALVINGS = 3  # of the last doubling: probes are at most an eighth more than needed
SAMPLE = 256  # queries; at k = 1,000 the standard error of their mean recall is about half a percent
_SPARES = (0.1, 0.5, 2.0, 6.0)  # of lossy codes: rough scores find so much more than k, and exact ones choose


class Tuned(NamedTuple):
    """What a search with so many probes and so much spare finds."""

    probes: int
    spare: float
    recall: float
    error: float  # standard error of the recall


def tune(
    files: IndexFiles, *, ids: NDArray[np.int64], exclude: NDArray[np.int64], k: int, target: float, seed: int
) -> TuneResult:
    """Return the cheapest of the settings tried that reach `target`, or the best there is.

    `ids` (n,) are the queries' own vectors, `exclude` (n, 2) what each leaves out.
    """
    sample = np.sort(rng_for(seed, "index.tune").choice(len(ids), min(SAMPLE, len(ids)), replace=False))
    queries_QD = lookup.vectors(ids[sample], files.vectors)
    exclude = exclude[sample]
    truth = Exact(VectorShards(files.vectors)).search(queries_QD, k, exclude=exclude)
    tuned = _search(files, queries_QD, exclude, truth, k=k, target=target)
    retrieved = Ivf(replace(files, probes=tuned.probes, spare=tuned.spare)).search(queries_QD, k, exclude=exclude)
    recalls = recalls_of(retrieved, truth)
    nearest_truth = [ids[:NEAREST] for ids in truth[0]], [scores[:NEAREST] for scores in truth[1]]
    return TuneResult(
        probes=tuned.probes,
        spare=tuned.spare,
        recall=min(target, tuned.recall),
        recall_measured=round(tuned.recall, 4),
        recall_error=round(tuned.error, 4),
        recall_p5=round(float(np.percentile(recalls, 5)), 4),
        recall_worst=round(float(recalls.min()), 4),
        recall_nearest=round(float(recalls_of(retrieved, nearest_truth).mean()), 4),
        nearest=min(NEAREST, k),
        sample=len(sample),
        k=k,
    )


def _search(
    files: IndexFiles,
    queries_QD: NDArray[np.float32],
    exclude: NDArray[np.int64],
    truth: Neighbours,
    *,
    k: int,
    target: float,
) -> Tuned:
    """Double the probes until the recall is reached, then halve the step; more spare where codes are too rough."""
    index = Ivf(replace(files, probes=1))
    best = Tuned(1, 0.0, -1.0, 0.0)
    for spare in (0.0,) if index.is_lossless else _SPARES:

        def measured(probes: int, spare: float = spare) -> Tuned:
            ids, scores = Ivf(replace(files, probes=probes, spare=spare)).search(queries_QD, k, exclude=exclude)
            recalls = recalls_of((ids, scores), truth)
            error = float(recalls.std() / max(1, len(recalls)) ** 0.5)
            return Tuned(probes, spare, float(recalls.mean()), error)

        probes = 1
        while (tried := measured(probes)).recall - 2 * tried.error < target and probes < index.clusters:
            probes = min(2 * probes, index.clusters)
        best = max(best, tried, key=lambda setting: setting.recall)
        if tried.recall - 2 * tried.error >= target:
            return _fewest(measured, tried, target=target)
    return best


def _fewest(measured: Callable[[int], Tuned], enough: Tuned, *, target: float) -> Tuned:
    """Return the setting of fewest probes that is found between half of those of `enough`, which are too few, and these."""
    too_few = enough.probes // 2
    for _ in range(_HALVINGS):
        probes = (too_few + enough.probes) // 2
        if probes == too_few:
            break
        tried = measured(probes)
        if tried.recall - 2 * tried.error >= target:
            enough = tried
        else:
            too_few = probes
    return enough


def recalls_of(retrieved: Neighbours, truth: Neighbours) -> NDArray[np.float64]:
    """Return the recall of each query, shape (n,): found ids among the true ones, or as near as the farthest of them."""
    recalls = []
    for ids, scores, true_ids, true_scores in zip(*retrieved, *truth, strict=True):
        if len(true_ids):
            hits = np.isin(ids, true_ids) | (scores >= true_scores[-1])
            recalls.append(min(1.0, float(hits.sum()) / len(true_ids)))
    return np.array(recalls or [1.0])
