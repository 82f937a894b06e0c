"""The list of sequences: each filter against a look at every sequence, and searches that stop and go on."""

from math import isfinite

import numpy as np
import pytest

import nextlong
from nextlong.view import listing
from nextlong.view.listing import Listing, Wanted


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


def found(run, wanted, *, first=0, most=100, seconds=60.0):
    return Listing(run).find(wanted, first=first, most=most, seconds=seconds)


def test_without_a_filter_rows_are_numbers_alone(run, monkeypatch):
    monkeypatch.setattr(Listing, "_summary", None)
    assert found(run, Wanted(), first=3, most=4) == ([3, 4, 5, 6], 7)
    assert found(run, Wanted(), first=10, most=4) == ([10, 11], None)


def test_cosines_are_bounded(run, sequences):
    middle = float(np.median([cosine(own) for own in sequences]))
    above = [n for n, own in enumerate(sequences) if cosine(own) >= middle]
    assert found(run, Wanted(least=middle)).numbers == above
    assert found(run, Wanted(most=middle, least=middle + 1)).numbers == []
    assert sorted({*found(run, Wanted(most=middle)).numbers, *above}) == list(range(len(sequences)))


def test_names_and_sources_are_those_of_the_meta_document(run, sequences):
    expected = [n for n, own in enumerate(sequences) if "sea" in lead(own).source_id]
    assert found(run, Wanted(name="SEA")).numbers == expected
    assert 0 < len(expected) < len(sequences)
    assert len(found(run, Wanted(source="small")).numbers) == len(sequences)
    assert found(run, Wanted(source="sma")).numbers == []


def test_a_document_is_found_wherever_it_serves(run, sequences):
    document = next(span.doc_id for span in sequences[4].spans if span.role == "negative")
    holding = [n for n, own in enumerate(sequences) if any(span.doc_id == document for span in own.spans)]
    assert found(run, Wanted(document=document)).numbers == holding
    metas = [n for n, own in enumerate(sequences) if lead(own).doc_id == document]
    assert found(run, Wanted(about=document)).numbers == metas


def test_a_search_stops_when_its_time_is_up_and_goes_on_where_it_was(run, monkeypatch):
    monkeypatch.setattr(listing, "_BLOCK", 2)
    wanted, numbers, go_on, asked = Wanted(least=-1.0), [], 0, 0
    while go_on is not None:
        some, go_on = found(run, wanted, first=go_on, most=100, seconds=0.0)
        numbers += some
        asked += 1
    assert numbers == list(range(len(run)))
    assert asked > 3


def test_a_full_page_goes_on_behind_its_last_row(run):
    some, go_on = found(run, Wanted(least=-1.0), most=5)
    assert (some, go_on) == ([0, 1, 2, 3, 4], 5)
    assert found(run, Wanted(least=-1.0), first=go_on, most=5).numbers == [5, 6, 7, 8, 9]


def test_summaries_count_what_stands_in_the_sequences(run, sequences):
    own = Listing(run)
    for number, sequence in enumerate(sequences):
        summary, place = own.summary(number)
        chunks = [span for span in sequence.spans if span.doc_id >= 0]
        assert summary.cosines[place] == pytest.approx(cosine(sequence))
        assert isfinite(summary.cosines[place])
        assert summary.chunks[place] == len(chunks)
        assert summary.documents[place] == len({span.doc_id for span in chunks})
        assert summary.leads[place] == lead(sequence).doc_id
        tokens = sum(span.token_end - span.token_start for span in chunks if span.doc_id == lead(sequence).doc_id)
        assert summary.own_tokens[place] == tokens
