"""The sequences that match: each filter against a look at every sequence, sorting, and searches that stop and continue."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong.view import sequences as index
from nextlong.view.documents import Query
from nextlong.view.sequences import SORTS, SequenceIndex


@pytest.fixture(scope="module")
def run(shared_run):
    return nextlong.open(shared_run)


@pytest.fixture(scope="module")
def sequences(run):
    return list(run.sequences())


def cosine(sequence):
    return np.mean([span.score for span in sequence.spans if span.role == "negative"])


def lead(sequence):
    return next(span for span in sequence.spans if span.role == "meta")


def found(run, query, **options):
    return SequenceIndex(run).find(query, **{"limit": 100, **options})


def test_without_a_filter_rows_are_numbers_alone(run, monkeypatch):
    monkeypatch.setattr(SequenceIndex, "_know", None)
    assert found(run, Query(), first=3, limit=4) == ([3, 4, 5, 6], 12, 12, True)
    assert found(run, Query(), first=10, limit=4).numbers == [10, 11]


def test_cosines_are_bounded(run, sequences):
    middle = float(np.median([cosine(own) for own in sequences]))
    above = [n for n, own in enumerate(sequences) if cosine(own) >= middle]
    assert found(run, Query(least=middle))[:2] == (above, len(above))
    assert found(run, Query(most=middle, least=middle + 1)).numbers == []
    assert sorted({*found(run, Query(most=middle)).numbers, *above}) == list(
        range(len(sequences))
    )


def test_names_and_sources_are_those_of_the_meta_document(run, sequences):
    expected = [n for n, own in enumerate(sequences) if "sea" in lead(own).source_id]
    assert found(run, Query(name="SEA")).numbers == expected
    assert 0 < len(expected) < len(sequences)
    assert found(run, Query(source="small")).matches == len(sequences)
    assert found(run, Query(source="sma")).numbers == []


def test_a_document_is_found_wherever_it_serves(run, sequences):
    document = next(
        span.doc_id for span in sequences[4].spans if span.role == "negative"
    )
    holding = [
        n
        for n, own in enumerate(sequences)
        if any(span.doc_id == document for span in own.spans)
    ]
    assert found(run, Query(document=document)).numbers == holding
    metas = [n for n, own in enumerate(sequences) if lead(own).doc_id == document]
    assert found(run, Query(about=document)).numbers == metas


@pytest.mark.parametrize(
    ("text", "terms"), [("sail REEF", ["sail", "reef"]), ('"sail reef"', ["sail reef"])]
)
def test_one_chunk_has_to_contain_all_words_or_the_phrase(run, sequences, text, terms):
    def contains(sequence):
        chunks = [
            own.lower()
            for own, span in zip(sequence.texts, sequence.spans, strict=True)
            if span.doc_id >= 0
        ]
        return any(all(term in chunk for term in terms) for chunk in chunks)

    own = SequenceIndex(run)
    matches = own.find(Query(text=text), limit=100).numbers
    assert set(matches) >= {
        n for n, sequence in enumerate(sequences) if contains(sequence)
    }  # the last negative is cut
    for number in matches:
        chunk = own.chunk_with_text(Query(text=text), number)
        assert chunk in {span.chunk_id for span in sequences[number].spans}
        text_of_chunk = run.corpus.texts(np.array([chunk]))[0].lower()
        assert all(term in text_of_chunk for term in terms)
    assert matches


def test_a_column_sorts_both_ways(run, sequences):
    by_cosine = sorted(range(len(sequences)), key=lambda n: cosine(sequences[n]))
    assert found(run, Query(), sort="cosine").numbers == by_cosine
    assert (
        found(run, Query(), sort="-cosine", first=2, limit=3).numbers
        == by_cosine[::-1][2:5]
    )
    chunks = [sum(span.doc_id >= 0 for span in own.spans) for own in sequences]
    assert [chunks[n] for n in found(run, Query(), sort="-chunks").numbers] == sorted(
        chunks, reverse=True
    )


def test_a_random_sample_is_fixed_by_its_seed(run):
    one, other = (
        found(run, Query(), sort=f"random-{seed}", limit=8).numbers for seed in (1, 2)
    )
    assert one == found(run, Query(), sort="random-1", limit=8).numbers
    assert one != other
    assert len(set(one)) == 8
    assert set(found(run, Query(least=-1.0), sort="random-3").numbers) == set(range(12))


def test_a_search_stops_when_its_time_is_up_and_continues_where_it_was(
    run, monkeypatch
):
    monkeypatch.setattr(index, "_BLOCK_TOKENS", 2 * 2048)
    own, read = SequenceIndex(run), [0]
    while read[-1] < len(run):
        answer = own.find(Query(least=-1.0), limit=100, seconds=0.0)
        assert answer.numbers == list(range(answer.read))
        assert 1 <= answer.read - read[-1] <= 2
        assert answer.is_complete == (answer.read == len(run))
        read.append(answer.read)


def test_queries_that_are_no_longer_held_are_answered_again(run):
    own = SequenceIndex(run)
    for number in range(20):
        assert own.find(Query(least=-1.0 - number / 100), limit=2).matches == 12
    assert own.find(Query(least=-1.0), limit=2).matches == 12


def test_histograms_count_every_match(run, sequences):
    own = SequenceIndex(run)
    own.find(Query(name="sea"), sort="cosine")
    histograms, counted = own.histograms(Query(name="sea"))
    values = [cosine(one) for one in sequences if "sea" in lead(one).source_id]
    assert set(histograms) == set(SORTS)
    assert counted == len(values) == sum(histograms["cosine"].counts)
    assert (histograms["cosine"].least, histograms["cosine"].most) == pytest.approx(
        (min(values), max(values))
    )


def test_what_is_known_of_a_sequence_is_what_it_holds(run, sequences):
    own = SequenceIndex(run)
    for number, sequence in enumerate(sequences):
        own.know(number)
        chunks = [span for span in sequence.spans if span.doc_id >= 0]
        of_lead = [
            span.token_end - span.token_start
            for span in chunks
            if span.doc_id == lead(sequence).doc_id
        ]
        assert dict(zip(SORTS, own.values[:, number], strict=True)) == {
            "cosine": pytest.approx(cosine(sequence)),
            "chunks": len(chunks),
            "documents": len({span.doc_id for span in chunks}),
            "share": sum(of_lead) / 2048,
        }
        assert (own.leads[number], own.first_chunks[number]) == (
            lead(sequence).doc_id,
            lead(sequence).chunk_id,
        )


@given(
    st.lists(st.sampled_from([0.5, -1.0, 2.0, np.nan]), max_size=90), st.integers(0, 12)
)
def test_the_smallest_are_those_of_a_whole_sort(keys, count):
    keys = np.array(keys, np.float64)
    assert (
        index._smallest(keys, count).tolist()
        == np.argsort(keys, kind="stable")[:count].tolist()
    )
