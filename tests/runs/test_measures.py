from collections import Counter
from itertools import pairwise
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong import pipeline
from nextlong.artifacts.lookup import read_chunks
from nextlong.runs import measures, stats
from nextlong.runs.measures import (
    RANKS,
    common_document,
    exposure,
    imbalance,
    measure_cut_off,
    measure_random_similarity,
    sample_chunks,
)
from nextlong.runs.spans import Tally
from nextlong.runs.stats import measure


def test_reuse(measured, sequences):
    uses = Counter(
        span.chunk_id
        for spans in sequences
        for span in spans
        if span.role == "negative"
    )
    names = {span.chunk_id: span.source_id for spans in sequences for span in spans}
    reuse = measured.reuse
    assert (reuse.distinct_chunks, reuse.max) == (len(uses), max(uses.values()))
    assert reuse.mean == pytest.approx(fmean(uses.values()))
    assert [(own.least, own.most) for own in reuse.histogram][:4] == [
        (1, 1),
        (2, 2),
        (3, 4),
        (5, 8),
    ]
    for own in reuse.histogram:
        assert own.chunks == sum(
            own.least <= count <= own.most for count in uses.values()
        )
    best = sorted(uses, key=lambda chunk: (-uses[chunk], chunk))[:10]
    assert [(hub.chunk_id, hub.source_id, hub.uses) for hub in reuse.hubs] == [
        (chunk, names[chunk], uses[chunk]) for chunk in best
    ]


def test_the_cap_on_uses_shows_in_the_reuse(recipe_for, own_run, measured):
    pipeline.run(recipe_for(own_run, "compose.max_uses=2"))
    capped = stats.measure(nextlong.open(own_run))
    assert measured.reuse.max > 2
    assert (capped.reuse.max, capped.max_uses) == (2, 2)
    assert [(own.least, own.most) for own in capped.reuse.histogram] == [(1, 1), (2, 2)]


def test_similarity(measured, sequences):
    negatives = [
        span.score for spans in sequences for span in spans if span.role == "negative"
    ]
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
            own = [
                span.score
                for span in spans
                if span.group == group and span.role == "negative"
            ]
            for rank, score in enumerate(own, start=1):
                by_rank.setdefault(rank, []).append(score)
    assert [one.rank for one in measured.similarity_by_rank] == [
        rank for rank in (1, 2, 5, 10, 20) if rank in by_rank
    ]
    for one in measured.similarity_by_rank:
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
    assert (measured.chunk_tokens.count, measured.chunk_tokens.max) == (
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
        (lengths, measured.chunk_tokens_histogram),
        (gaps, measured.distance_histogram),
    ):
        assert [
            sum(own.least <= value <= own.most for value in values) for own in bins
        ] == [own.count for own in bins]
        assert sum(own.count for own in bins) == len(values)
    cosines = [
        span.score for spans in sequences for span in spans if span.role == "negative"
    ]
    bins = measured.similarity_histogram
    assert [
        sum(own.least - 5e-5 <= score < own.most + 5e-5 for score in cosines)
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


def test_samples_are_distinct_chunks_and_no_more_than_wanted(run):
    ids = sample_chunks(run, 20)
    assert len(set(ids.tolist())) == len(ids)
    assert 0 < len(ids) <= 20 + len(run.corpus.chunks)
    assert all(run.corpus.texts(ids))


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
    assert measured.random_similarity.mean == pytest.approx(told.mean, abs=0.02)


def about(sequence):
    return {span.doc_id for span in sequence.spans if span.role in ("meta", "document")}


def test_the_common_document_is_one_that_both_are_about(run, standard_run):
    runs = [run, standard_run]
    document, numbers = common_document(runs)
    assert set(numbers) == {0, 1}
    for place, number in numbers.items():
        assert document in about(runs[place].sequence(number))
        assert not any(
            document in about(runs[place].sequence(before)) for before in range(number)
        )


def test_a_run_alone_has_none_in_common(run):
    assert common_document([run]) is None


# attention


def work_of(lengths, ranks):
    """The same token by token."""
    lefts = np.concatenate([np.arange(1, length + 1) for length in lengths])
    slices = np.array_split(lefts, 2 * ranks)
    works = [slices[rank].sum() + slices[-1 - rank].sum() for rank in range(ranks)]
    return max(works) / np.mean(works)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.sampled_from(RANKS))
def test_equals_a_count_token_by_token(lengths, ranks):
    lengths = [
        2 * ranks * length for length in lengths
    ]  # so that slices are whole tokens
    assert imbalance(np.array(lengths), ranks=ranks) == pytest.approx(
        work_of(lengths, ranks)
    )


def test_one_document_is_even_and_many_are_not():
    assert imbalance(np.array([1024]), ranks=8) == pytest.approx(1)
    assert imbalance(np.array([512, *[8] * 64]), ranks=8) > 1.5


def test_a_run_says_it_for_both_masks(standard_run):
    found = {
        (work.mask, work.ranks): work for work in measure(standard_run).attention_work
    }
    assert set(found) == {
        (mask, ranks) for mask in ("sequence", "document") for ranks in RANKS
    }
    assert found["sequence", 2].mean == pytest.approx(
        1
    )  # two sequences of one length, of which each device has a half
    assert 1 < found["document", 8].mean <= found["document", 8].worst


def test_extended_sequences_are_one_document(measured):
    assert {work.mask for work in measured.attention_work} == {"sequence"}
    assert [one.mask for one in measured.exposure] == ["sequence"]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9))
def test_exposure_equals_a_count_token_by_token(lengths):
    lefts = np.concatenate([np.arange(1, length) for length in lengths])
    buckets = np.where(
        lefts < 8, 0, np.floor(np.log2(np.maximum(lefts, 1))).astype(int) - 2
    )
    by_mask = {counted.mask: counted for counted in exposure([np.array(lengths)])}
    counted = by_mask.get(
        "document" if len(lengths) > 1 else "sequence"
    )  # none where every document is one token
    found = [] if counted is None else [one.count for one in counted.histogram]
    assert found == np.bincount(buckets).tolist()


def test_means_and_bounds_by_hand():
    by_sequence, by_document = exposure([np.array([2, 9]), np.array([11])])
    assert [(one.least, one.most, one.count) for one in by_sequence.histogram] == [
        (1, 7, 14),
        (8, 15, 6),
    ]
    assert [(one.least, one.most, one.count) for one in by_document.histogram] == [
        (1, 7, 15),
        (8, 15, 4),
    ]
    assert (by_sequence.targets, by_sequence.mean) == (20, 5.5)
    assert by_document.mean == (1 + 36 + 55) / 19


def test_a_run_says_the_exposure_of_both_masks(standard_run):
    stats = measure(standard_run)
    found = {one.mask: one for one in stats.exposure}
    assert found["sequence"].targets == stats.sequences * (stats.target_tokens - 1)
    assert found["document"].mean < found["sequence"].mean == stats.target_tokens / 2
