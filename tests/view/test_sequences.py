"""The sequences that match: each filter against a look at every sequence, sorting, and phrases that are checked in parts."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong.view import sequences as searched
from nextlong.view.documents import Query
from nextlong.view.index import SORTS, RunIndex
from nextlong.view.sequences import SequenceSearch


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


@pytest.fixture(scope="module")
def search(run):
    return SequenceSearch(run, RunIndex(run))


def found(run, query, **options):
    search = SequenceSearch(run, RunIndex(run))
    return search.find(query, **{"limit": 100, **options})


def test_without_a_filter_rows_are_numbers_alone(run, monkeypatch):
    monkeypatch.setattr(RunIndex, "read_sequences", None)
    assert found(run, Query(), first=3, limit=4) == ([3, 4, 5, 6], 12, None)
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
    assert found(run, Query(source="small", most=1.0)).matches == len(sequences)
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
def test_one_chunk_has_to_contain_all_words_or_the_phrase(
    run, sequences, search, text, terms
):
    def contains(sequence):
        chunks = [
            own.lower()
            for own, span in zip(sequence.texts, sequence.spans, strict=True)
            if span.doc_id >= 0
        ]
        return any(all(term in chunk for term in terms) for chunk in chunks)

    matches = search.find(Query(text=text), limit=100).numbers
    assert set(matches) >= {
        n for n, sequence in enumerate(sequences) if contains(sequence)
    }  # the last negative is cut
    for number in matches:
        chunk = search.chunk_with_text(Query(text=text), number)
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


def test_parts_of_words_are_found_and_case_is_ignored(run, sequences):
    numbers = found(run, Query(text="AIL")).numbers
    holding = [
        number
        for number, own in enumerate(sequences)
        if any("ail" in text.lower() for text in own.texts)
    ]
    assert set(holding) <= set(numbers)
    assert found(run, Query(text="s.il")).numbers == []


def test_a_phrase_is_checked_in_parts_and_in_the_end_found_where_it_is(
    run, search, monkeypatch
):
    monkeypatch.setattr(searched, "_CHECKED_CHUNKS", 3)
    whole = search.find(Query(text='"sail reef"'), limit=100)
    own = SequenceSearch(run, RunIndex(run))
    done = []
    while (answer := own.find(Query(text='"sail reef"'), seconds=0.0)).progress:
        assert (answer.numbers, answer.matches) == ([], 0)
        done.append(answer.progress)
    checked = [one for one in done if one.what == "chunks checked"]
    assert [one.done for one in checked] == list(range(3, checked[0].total, 3))
    assert (answer.numbers, answer.matches) == (whole.numbers[:25], whole.matches)
    assert own.histograms(Query(text='"sail reef"'))["chunks"].counts


def test_a_chunk_without_the_searched_text_is_the_first_of_the_document(run, search):
    search.find(Query(least=-1.0))
    lead = run.sequence(2).spans[0].chunk_id
    assert search.chunk_with_text(Query(least=-1.0), 2) == lead


def test_queries_that_are_no_longer_held_are_answered_again(run):
    own = SequenceSearch(run, RunIndex(run))
    for number in range(20):
        assert own.find(Query(least=-1.0 - number / 100), limit=2).matches == 12
    assert own.find(Query(least=-1.0), limit=2).matches == 12


def test_histograms_count_every_match(run, sequences):
    own = SequenceSearch(run, RunIndex(run))
    assert own.histograms(Query(name="sea")) == {}
    own.find(Query(name="sea"), sort="cosine")
    histograms = own.histograms(Query(name="sea"))
    values = [cosine(one) for one in sequences if "sea" in lead(one).source_id]
    assert set(histograms) == set(SORTS)
    assert len(values) == sum(histograms["cosine"].counts)
    assert (histograms["cosine"].least, histograms["cosine"].most) == pytest.approx(
        (min(values), max(values))
    )


@given(
    st.lists(st.sampled_from([0.5, -1.0, 2.0, np.nan]), max_size=90), st.integers(0, 12)
)
def test_the_smallest_are_those_of_a_whole_sort(keys, count):
    keys = np.array(keys, np.float64)
    assert (
        searched._smallest(keys, count).tolist()
        == np.argsort(keys, kind="stable")[:count].tolist()
    )


def test_the_text_of_a_task_is_found(recipe_for, started, tmp_path):
    run_dir = started(tmp_path / "run")
    run = nextlong.run(
        recipe_for(
            run_dir,
            "compose.target_tokens=4096",
            "compose.sequences=10",
            "compose.tasks.share=0.6",
        )
    )
    tasks = {}
    for number, own in enumerate(run.sequences()):
        for span, text in zip(own.spans, own.texts, strict=True):
            if span.role == "task":
                tasks[number] = max(text.split(), key=len)
    assert tasks
    for number, word in tasks.items():
        assert number in found(run, Query(text=word)).numbers
