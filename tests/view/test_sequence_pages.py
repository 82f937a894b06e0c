"""Pages of sequences, read as a browser would: rows, links and forms say what the run says."""

import re

import pytest

import nextlong
from hand_made_spans import EXTENDED, span
from nextlong.picture import pieces
from nextlong.view import sequence_pages
from nextlong.view.listing import Wanted
from nextlong.view.sequence_pages import ChunkFilter
from pages_read import Page

ANYTHING = ChunkFilter("", "", None, None)


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However slow the machine: a page looks until it has its rows."""
    monkeypatch.setattr(sequence_pages, "_SECONDS", 60.0)


@pytest.fixture(scope="module")
def run(shared_run):
    return nextlong.open(shared_run)


def listed(variants, wanted=None, *, first=0, is_part=False):
    return Page(sequence_pages.listed(variants, "base", wanted or Wanted(), first=first, is_part=is_part))


def test_the_list_has_a_row_a_sequence_with_what_it_is_made_of(variants, run):
    page = listed(variants)
    assert len(page.body) == len(run) == 12
    for number, row in enumerate(page.body):
        spans = run.sequence(number).spans
        lead = pieces.lead_document(spans)
        own = [one for one in spans if one.doc_id == lead]
        assert row[:3] == [str(number), own[0].source_id, "small"]
        assert int(row[3]) == sum(one.role in pieces.CHUNK_ROLES for one in spans)
        assert row[6] == f"{sum(map(pieces.length, own)) / 2048:.1%}"
        assert f"/base/sequence/{number}" in page.links
    assert "That is all of 12 sequences." in page.texts


def test_a_filter_stands_in_the_form_and_in_the_link_that_goes_on(variants, monkeypatch):
    monkeypatch.setattr(sequence_pages, "_ROWS", 2)
    page = listed(variants, Wanted(least=-0.5, name="a"))
    assert (page.fields["least"], page.fields["most"], page.fields["name"]) == ("-0.5", "", "a")
    (go_on,) = [link for link in page.links if "after=" in link]
    assert re.fullmatch(r"/base/sequences\?(least=-0.5&name=a|name=a&least=-0.5)&after=\d+", go_on)
    rest = listed(variants, Wanted(), first=11, is_part=True)
    assert [row[0] for row in rest.body] == ["11"]
    assert not rest.fields  # a part has no form


def test_sequences_of_one_document_are_said_to_be_so(variants):
    page = listed(variants, Wanted(document=3))
    assert page.fields["document"] == "3"
    assert "Only sequences that take text from document 3." in page.texts
    nothing = listed(variants, Wanted(name="no such name"))
    assert nothing.body == []
    assert "No more sequences fit." in nothing.texts


def one(variants, number, *, first=0, chosen=ANYTHING):
    return Page(sequence_pages.one(variants, "base", number, first=first, chosen=chosen))


def test_a_sequence_lists_its_chunks_in_their_order(variants, run, monkeypatch):
    spans = run.sequence(0).spans
    chunks = [(place, own) for place, own in enumerate(spans) if own.role in pieces.CHUNK_ROLES]
    page = one(variants, 0)
    assert [(row[0], row[1], row[2]) for row in page.body] == [
        (str(place), own.role, own.source_id) for place, own in chunks
    ]
    assert all((row[5] == "–") is (row[1] == "meta") for row in page.body)
    assert f"{len(chunks)} chunks." in page.texts
    monkeypatch.setattr(sequence_pages, "_SPANS", 3)
    page = one(variants, 0, first=chunks[2][0])
    assert [row[0] for row in page.body] == [str(place) for place, _ in chunks[2:5]]
    assert f"/base/sequence/0?after={chunks[5][0]}" in page.links


def test_the_sequences_beside_it_are_linked_to(variants):
    assert {"/base/sequence/4", "/base/sequence/6"} <= set(one(variants, 5).links)
    assert "/base/sequence/-1" not in one(variants, 0).links
    assert "/base/sequence/12" not in one(variants, 11).links
    with pytest.raises(IndexError):
        one(variants, 12)


@pytest.mark.parametrize(
    ("chosen", "chunks"),
    [
        (ANYTHING, [10, 70, 11, 80]),
        (ChunkFilter("negative", "", None, None), [70, 80]),
        (ChunkFilter("", "", 0.5, None), [10, 70, 11]),
        (ChunkFilter("", "", None, 0.5), [70, 80]),
        (ChunkFilter("negative", "", 0.3, 0.5), [70]),
        (ChunkFilter("", "S", None, None), [10, 70, 11, 80]),
        (ChunkFilter("", "x", None, None), []),
    ],
)
def test_chunks_are_chosen_by_role_name_and_cosine(chosen, chunks):
    spans = [own for own in EXTENDED if own.role in pieces.CHUNK_ROLES]
    assert [own.chunk_id for own in spans if sequence_pages._fits(own, chosen)] == chunks


def test_what_has_no_cosine_fits_no_least_one():
    assert not sequence_pages._fits(span("document", 1, 0, 0, 9), ChunkFilter("", "", -1.0, None))
    assert sequence_pages._fits(span("document", 1, 0, 0, 9), ANYTHING)
