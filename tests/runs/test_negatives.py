from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest


def test_similarity(measured, sequences):
    negatives = [span.score for spans in sequences for span in spans if span.role == "negative"]
    assert measured.similarity.count == len(negatives)
    assert measured.similarity.mean == pytest.approx(fmean(negatives), rel=1e-9)
    assert measured.similarity.max == pytest.approx(max(negatives), abs=6e-5)
    expected = np.quantile(negatives, [0.1, 0.5, 0.9], method="inverted_cdf")
    own = [measured.similarity.p10, measured.similarity.p50, measured.similarity.p90]
    assert own == pytest.approx(expected.tolist(), abs=6e-5)


def test_similarity_by_rank(measured, sequences):
    by_rank = {}
    for spans in sequences:
        for group in range(spans[-1].group + 1):
            own = [span.score for span in spans if span.group == group and span.role == "negative"]
            for rank, score in enumerate(own, start=1):
                by_rank.setdefault(rank, []).append(score)
    assert [one.rank for one in measured.similarity_by_rank] == [rank for rank in (1, 2, 5, 10, 20) if rank in by_rank]
    for one in measured.similarity_by_rank:
        assert one.count == len(by_rank[one.rank])
        assert one.mean == pytest.approx(fmean(by_rank[one.rank]), rel=1e-9)


def test_distance(measured, sequences):
    gaps = []
    for spans in sequences:
        metas = [span for span in spans if span.role == "meta"]
        gaps += [after.token_start - before.token_end for before, after in pairwise(metas)]
    own = measured.distance_tokens
    assert (own.count, own.max) == (len(gaps), max(gaps))
    assert own.mean == pytest.approx(fmean(gaps))
    assert own.p50 == sorted(gaps)[(len(gaps) - 1) // 2]
