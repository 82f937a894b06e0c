from collections import Counter
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest

import nextlong
from nextlong import pipeline
from nextlong.artifacts.corpus_files import read_chunks
from nextlong.runs.statistics import measures
from nextlong.runs.statistics.measure import measure
from nextlong.runs.statistics.measures import (
    measure_cut_off,
    measure_random_similarity,
)
from nextlong.runs.statistics.tally import Tally


def test_reuse(measured, sequences):
    uses = Counter(
        span.chunk_id
        for spans in sequences
        for span in spans
        if span.role == "negative"
    )
    names = {span.chunk_id: span.source_id for spans in sequences for span in spans}
    reuse = measured.chunks.reuse
    assert (reuse.distinct_chunks, reuse.max) == (len(uses), max(uses.values()))
    assert reuse.mean == pytest.approx(fmean(uses.values()))
    assert [(own.low, own.high) for own in reuse.histogram][:4] == [
        (1, 1),
        (2, 2),
        (3, 4),
        (5, 8),
    ]
    for own in reuse.histogram:
        assert own.chunks == sum(
            own.low <= count <= own.high for count in uses.values()
        )
    best = sorted(uses, key=lambda chunk: (-uses[chunk], chunk))[:10]
    assert [(hub.chunk_id, hub.source_id, hub.uses) for hub in reuse.hubs] == [
        (chunk, names[chunk], uses[chunk]) for chunk in best
    ]


def test_the_cap_on_uses_shows_in_the_reuse(recipe_for, own_run, measured):
    pipeline.run(recipe_for(own_run, "compose.max_uses=2"))
    capped = measure(nextlong.open(own_run))
    assert measured.chunks.reuse.max > 2
    assert (capped.chunks.reuse.max, capped.setting.max_uses) == (2, 2)
    assert [(own.low, own.high) for own in capped.chunks.reuse.histogram] == [
        (1, 1),
        (2, 2),
    ]


def test_similarity(measured, sequences):
    negatives = [
        span.score for spans in sequences for span in spans if span.role == "negative"
    ]
    assert measured.similarity.cosine.count == len(negatives)
    assert measured.similarity.cosine.mean == pytest.approx(fmean(negatives), rel=1e-9)
    assert measured.similarity.cosine.max == pytest.approx(max(negatives), abs=6e-5)
    expected = np.quantile(negatives, [0.1, 0.5, 0.9], method="inverted_cdf")
    own = [
        measured.similarity.cosine.p10,
        measured.similarity.cosine.p50,
        measured.similarity.cosine.p90,
    ]
    assert own == pytest.approx(expected.tolist(), abs=6e-5)


def test_similarity_by_rank(measured, sequences):
    by_rank = {}
    for spans in sequences:
        for group in range(spans[-1].group + 1):
            own = [
                span.score
                for span in spans
                if span.group == group and span.role == "negative"
            ]
            for rank, score in enumerate(own, start=1):
                by_rank.setdefault(rank, []).append(score)
    assert [one.rank for one in measured.similarity.by_rank] == [
        rank for rank in (1, 2, 5, 10, 20) if rank in by_rank
    ]
    for one in measured.similarity.by_rank:
        assert one.count == len(by_rank[one.rank])
        assert one.mean == pytest.approx(fmean(by_rank[one.rank]), rel=1e-9)


def test_distance(measured, sequences):
    gaps = []
    for spans in sequences:
        metas = [span for span in spans if span.role == "meta"]
        gaps += [
            after.token_start - before.token_end for before, after in pairwise(metas)
        ]
    own = measured.distance_tokens
    assert (own.count, own.max) == (len(gaps), max(gaps))
    assert own.mean == pytest.approx(fmean(gaps))
    assert own.p50 == sorted(gaps)[(len(gaps) - 1) // 2]


def test_a_method_that_counts_no_whole_documents_cuts_none_off(shared_run):
    taken = Tally()
    taken.add([1, 2])
    assert measure_cut_off(nextlong.open(shared_run), taken, tokens=5) is None


def test_histograms_count_every_span_once(measured, sequences):
    lengths = [
        span.token_end - span.token_start for spans in sequences for span in spans
    ]
    assert (measured.chunks.tokens.count, measured.chunks.tokens.max) == (
        len(lengths),
        max(lengths),
    )
    metas = [[span for span in spans if span.role == "meta"] for spans in sequences]
    gaps = [
        after.token_start - before.token_end
        for own in metas
        for before, after in pairwise(own)
    ]
    for values, bins in (
        (lengths, measured.chunks.tokens.histogram),
        (gaps, measured.distance_tokens.histogram),
    ):
        assert [
            sum(own.low <= value <= own.high for value in values) for own in bins
        ] == [own.count for own in bins]
        assert sum(own.count for own in bins) == len(values)
    cosines = [
        span.score for spans in sequences for span in spans if span.role == "negative"
    ]
    bins = measured.similarity.cosine.histogram
    assert [
        sum(own.low - 5e-5 <= score < own.high + 5e-5 for score in cosines)
        for own in bins
    ] == [own.count for own in bins]
    assert sum(own.count for own in bins) == len(cosines)


def test_steps_took_what_their_manifests_say(run, measured):
    assert [own.step for own in measured.steps] == list(run.steps)
    manifest = run.steps["draft"].manifest
    (draft,) = [own for own in measured.steps if own.step == "draft"]
    assert (draft.seconds, draft.bytes) == (manifest["seconds"], manifest["bytes"])
    assert (
        draft.peak_bytes
        == max(part["peak_bytes"] for part in manifest["parts"])
        > 10**7
    )


def test_random_pairs_are_of_different_documents_and_their_cosines_those_of_the_vectors(
    run, measured, monkeypatch
):
    monkeypatch.setattr(
        measures, "_RANDOM_CHUNKS", 1_000_000
    )  # every chunk of the corpus
    vectors = [
        np.load(path).astype(float) for path in run.steps["embed"].files(".vectors.npy")
    ]
    documents = [
        (shard, row)
        for shard, path in enumerate(run.corpus.chunks)
        for row in read_chunks(path)["doc_row"]
    ]
    products = np.concatenate(vectors) @ np.concatenate(vectors).T
    cosines = [
        products[i, j]
        for j in range(len(documents))
        for i in range(j)
        if documents[i] != documents[j]
    ]
    told = measure_random_similarity(run)
    assert (told.count, told.mean) == (
        len(cosines),
        pytest.approx(fmean(cosines), abs=1e-4),
    )
    assert told.max == pytest.approx(max(cosines), abs=1e-4)
    assert measured.similarity.random.mean == pytest.approx(told.mean, abs=0.02)
