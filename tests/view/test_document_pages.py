"""Pages of documents: found, read whole, beside what each variant made of one; and what was left out."""

import json

import pytest

from nextlong.picture import pieces
from nextlong.view import document_pages, left_out
from nextlong.view.documents import Place, Wanted
from pages_read import Page


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However slow the machine: a page looks until it has its rows."""
    monkeypatch.setattr(document_pages, "_SECONDS", 60.0)


@pytest.fixture(scope="module")
def rows(small_corpus):
    return [json.loads(line) for path in sorted(small_corpus.iterdir()) for line in path.read_text().splitlines()]


def listed(variants, wanted, *, first=Place(), is_part=False):  # noqa: B008
    return Page(document_pages.listed(variants, "base", wanted, first=first, is_part=is_part))


def test_documents_that_hold_a_text_are_listed_with_it(variants, rows):
    page = listed(variants, Wanted(text="sail reef"))
    expected = [row["id"] for row in rows if "sail reef" in row["text"].lower()]
    assert [row[0] for row in page.body] == expected[:25]
    assert all("sail reef" in row[2].lower() for row in page.body)
    assert page.fields["text"] == "sail reef"
    assert listed(variants, Wanted(text="sail reef"), is_part=True).fields == {}


def test_a_long_list_goes_on_where_it_stopped(variants, rows, monkeypatch):
    monkeypatch.setattr(document_pages, "_ROWS", 7)
    (link,) = [link for link in listed(variants, Wanted()).links if "after=" in link]
    place = Place(*map(int, link.rpartition("after=")[2].split(".")))
    assert [row[0] for row in listed(variants, Wanted(), first=place).body] == [row["id"] for row in rows[7:14]]
    page = listed(variants, Wanted(name="no such name"))
    assert page.body == []
    assert "The whole corpus was looked at." in page.texts


def a_meta_document(variants):
    sequence = variants.get("base").run.sequence(0)
    lead = pieces.lead_document(sequence.spans)
    return lead, next(span.source_id for span in sequence.spans if span.doc_id == lead)


def test_a_document_is_shown_whole_chunk_by_chunk(variants, rows, monkeypatch):
    lead, name = a_meta_document(variants)
    (text,) = [row["text"] for row in rows if row["id"] == name]
    whole = document_pages.one(variants, "base", lead)
    page = Page(whole)
    shown = [own.strip() for own in page.texts]
    assert name in shown
    assert all(line in "\n".join(page.texts) for line in text.splitlines())
    assert f"/base/sequences?document={lead}" in page.links
    assert not [link for link in page.links if link.endswith("/beside")]  # there is one variant
    monkeypatch.setattr(document_pages, "_SHOWN_CHUNKS", 1)
    short = Page(document_pages.one(variants, "base", lead))
    assert "The first 1 chunks are shown." in short.texts
    assert not [own for own in short.texts if own.startswith("Chunk 2 of")]


def test_a_document_that_is_none_is_an_index_error(variants):
    for page in (document_pages.one, document_pages.beside):
        with pytest.raises(IndexError, match="there is no document 9999"):
            page(variants, "base", 9999)


def test_what_a_variant_made_of_a_document_is_drawn(variants):
    lead, _ = a_meta_document(variants)
    page = Page(document_pages.beside_one(variants, "base", lead, "base", after=0))
    assert "/base/sequence/0" in page.links
    waiting = Page(document_pages.beside(variants, "base", lead))
    assert f"/base/document/{lead}/beside/base?after=0" in waiting.links


def test_a_document_that_no_sequence_is_about_is_said_to_be_none(variants):
    run = variants.get("base").run
    leads = {pieces.lead_document(sequence.spans) for sequence in run.sequences()}
    other = next(doc_id for doc_id in range(260) if doc_id not in leads)
    page = Page(document_pages.beside_one(variants, "base", other, "base", after=0))
    assert "No sequence of this variant is about it." in page.texts


def left(variants, key="", *, first=0, is_part=False):
    return Page(document_pages.left(variants, "base", key, first=first, is_part=is_part))


def test_every_reason_is_listed_with_its_count(variants):
    kinds = left_out.kinds(variants.get("base").run)
    assert [row[:3] for row in left(variants).body] == [[f"{one.count:,}", one.what, one.reason] for one in kinds]


def test_examples_of_a_reason_lead_to_the_documents(variants, monkeypatch):
    entries = [left_out.Entry("one", 7, "beside it", 8), left_out.Entry("two", detail="why")]
    kind = left_out.Kind("k", "chunks", "a reason", 1234, lambda: iter(entries), is_sampled=True)
    monkeypatch.setattr(left_out, "kinds", lambda run: [kind])
    page = left(variants, "k")
    assert "1,234 chunks: a reason" in page.texts
    assert [row for row in page.body if len(row) == 2] == [["one", "beside it"], ["two", "why"]]
    assert {"/base/document/7", "/base/document/8"} <= set(page.links)
    assert "That is all that the run remembers of them: some examples of each task." in page.texts
    monkeypatch.setattr(document_pages, "_ROWS", 1)
    (go_on,) = [link for link in left(variants, "k").links if "after=" in link]
    rest = left(variants, "k", first=int(go_on.rpartition("after=")[2]), is_part=True)
    assert rest.body == [["two", "why"]]


def test_where_nothing_was_left_out_that_is_said(variants, monkeypatch):
    monkeypatch.setattr(left_out, "kinds", lambda run: [])
    assert "Nothing was left out." in left(variants).texts
