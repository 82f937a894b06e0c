"""Pages, read as a browser would: rows, links and forms say what the run says."""

import re
import shutil
from html.parser import HTMLParser
from urllib.parse import parse_qs, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hand_made_spans import EXTENDED, span

import nextlong
from nextlong.picture import pieces
from nextlong.view import documents, filtered, index, pages
from nextlong.view.documents import Mark, Place, Query
from nextlong.view.pages import View
from nextlong.view.variants import Variants


class Page(HTMLParser):
    """Cells by row, links, what the inputs hold, the title and every text."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.links, self.fields, self.checked, self.texts, self.stack = (
            [],
            [],
            {},
            [],
            [],
            [],
        )
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.stack.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append([tag, ""])
        if tag == "a":
            self.links.append(attributes["href"])
        if tag == "input" and "name" in attributes:
            self.fields[attributes["name"]] = attributes.get("value", "")
            if "checked" in attributes:
                self.checked.append(attributes["value"])

    def handle_endtag(self, tag):
        while self.stack and self.stack.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append(data)
        if any(tag in ("td", "th") for tag in self.stack):
            self.rows[-1][-1][1] += data

    @property
    def body(self):
        """The rows below the headings of their columns."""
        return [
            [text.strip() for _, text in row]
            for row in self.rows
            if any(tag == "td" for tag, _ in row)
        ]

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """However slow the machine: a page searches until it has its rows."""
    monkeypatch.setattr(pages, "_SECONDS", 60.0)


@pytest.fixture(scope="module")
def run(shared_run):
    return nextlong.open(shared_run)


def listed(variants, query=None, *, sort="", first=0, columns=(), **options):
    view = View(variants, "base")
    shown = pages.sequence_list(
        view, query or Query(), sort=sort, first=first, columns=columns, **options
    )
    return Page(shown)


@given(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")))
def test_no_name_leads_out_of_its_place_in_a_link(variant, query):
    link = View(None, variant).url(variant, "sequences", 3, text=query, none=None)
    path, _, asked = link.partition("?")
    assert path.count("/") == 3
    assert path.endswith("/sequences/3")
    assert bool(asked) == bool(query)
    assert "none=" not in asked  # a query that is called so has its = written otherwise
    assert link.isascii()


def test_a_static_copy_links_only_to_pages_it_has():
    view = View(None, "v", frozenset({"sequence-3.html"}))
    assert (view.url("v", "sequence", 3, first=9), view.url("v", "sequence", 4)) == (
        "sequence-3.html",
        "",
    )


def test_the_list_has_a_row_a_sequence_with_what_it_is_made_of(variants, run):
    page = listed(variants)
    assert len(page.body) == len(run) == 12
    for number, row in enumerate(page.body):
        spans = run.sequence(number).spans
        lead = pieces.lead_document(spans)
        own = [one for one in spans if one.doc_id == lead]
        assert row[:3] == [str(number), own[0].source_id, "small"]
        first_words = " ".join(
            run.sequence(number).texts_of([spans.index(own[0])])[0].split()
        )
        assert first_words.startswith(row[3].rstrip("…")[:60])
        assert int(row[4]) == sum(one.role in pieces.CHUNK_ROLES for one in spans)
        assert row[7] == f"{sum(one.length for one in own) / 2048:.1%}"
        assert f"/base/sequence/{number}" in page.links
    assert "12 sequences." in page.text


def test_columns_are_chosen_and_stay_chosen(variants):
    page = listed(variants, columns=["cosine", "source"])
    assert len(page.body[0]) == 3
    assert page.checked == ["source", "cosine"]
    (link,) = [link for link in page.links if "sort=cosine" in link]
    assert parse_qs(urlsplit(link).query)["columns"] == ["source", "cosine"]
    assert len(listed(variants).checked) == len(pages._COLUMNS)


def test_a_heading_sorts_and_sorts_back(variants):
    page = listed(variants, sort="cosine")
    cosines = [float(row[6]) for row in page.body]
    assert cosines == sorted(cosines)
    assert any("sort=-cosine" in link for link in page.links)


def test_a_filter_stands_in_the_form_and_in_the_links(variants):
    page = listed(variants, Query(least=-0.5, name="a", text="the"), limit=2)
    assert (page.fields["least"], page.fields["most"], page.fields["name"]) == (
        "-0.5",
        "",
        "a",
    )
    (following,) = [link for link in page.links if "after=2" in link]
    assert parse_qs(urlsplit(following).query) == {
        "text": ["the"],
        "name": ["a"],
        "least": ["-0.5"],
        "after": ["2"],
    }
    rest = listed(variants, first=11)
    assert [row[0] for row in rest.body] == ["11"]
    assert any("after=0" in link for link in listed(variants, first=11, limit=11).links)


def test_how_many_match_is_said(variants):
    page = listed(variants, Query(document=3))
    assert page.fields["document"] == "3"
    name = documents.read(variants.get("base").run.corpus, 3)["source_id"]
    assert f"Only sequences with text from {name} ." in page.text
    unknown = listed(variants, Query(document=1 << 40))
    assert f"Only sequences with text from {1 << 40} ." in unknown.text
    assert unknown.body == []
    nothing = listed(variants, Query(name="no such name"))
    assert nothing.body == []
    assert "0 sequences of 12 match." in nothing.text


def test_a_first_use_says_how_far_it_is_and_continues(own_run, monkeypatch):
    shutil.rmtree(own_run / "search-index", ignore_errors=True)
    monkeypatch.setattr(pages, "_SECONDS", 0.0)
    monkeypatch.setattr(index, "_BLOCK_TOKENS", 2 * 2048)
    variants = Variants(nextlong.open(own_run))
    plain = listed(variants)
    assert len(plain.body) == 12  # which need no index
    assert "12 sequences." in plain.text
    assert "2 of 12 sequences read." in plain.text
    told = []
    while "Continue" in (page := listed(variants, Query(text="reef"))).texts:
        assert page.body == []
        told.append(page.text)
    assert any("of 12 sequences read." in text for text in told)
    assert any("chunks indexed." in text for text in told)
    assert page.body
    assert re.search(r" of 12 match\.", page.text)
    assert "search index lasts only" not in page.text


def one(variants, number, *, first=0, chosen=pages.EVERY):
    return Page(
        pages.sequence(View(variants, "base"), number, first=first, chosen=chosen)
    )


def test_a_sequence_lists_its_chunks_in_their_order(variants, run, monkeypatch):
    monkeypatch.setattr(pages, "_CHUNK_ROWS", 100)
    spans = run.sequence(0).spans
    chunks = [
        (place, own)
        for place, own in enumerate(spans)
        if own.role in pieces.CHUNK_ROLES
    ]
    page = one(variants, 0)
    assert [(row[0], row[1], row[2]) for row in page.body] == [
        (str(place), own.role, own.source_id) for place, own in chunks
    ]
    assert all((row[5] == "–") is (row[1] == "meta") for row in page.body)
    assert f"{len(chunks)} chunks." in page.text
    assert f"Sequence 0: {chunks[0][1].source_id} · base · nextlong view" in page.texts
    monkeypatch.setattr(pages, "_CHUNK_ROWS", 3)
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
        (Query(), [10, 70, 11, 80]),
        (Query(role="negative"), [70, 80]),
        (Query(least=0.5), [10, 70, 11]),
        (Query(most=0.5), [70, 80]),
        (Query(role="negative", least=0.3, most=0.5), [70]),
        (Query(name="S"), [10, 70, 11, 80]),
        (Query(name="x"), []),
    ],
)
def test_chunks_are_chosen_by_role_name_and_cosine(chosen, chunks):
    spans = [own for own in EXTENDED if own.role in pieces.CHUNK_ROLES]
    assert [own.chunk_id for own in spans if pages._fits(own, chosen)] == chunks
    assert not pages._fits(
        span("document", 1, 0, 0, 9), Query(least=-1.0)
    )  # it has no cosine


def test_documents_that_contain_a_text_are_listed_with_it(variants, monkeypatch):
    page = Page(
        pages.document_list(
            View(variants, "base"), Query(text='"sail reef"'), first=Place()
        )
    )
    assert page.body
    assert all("sail reef" in row[2].lower() for row in page.body)
    assert page.fields["text"] == '"sail reef"'
    monkeypatch.setattr(pages, "_ROWS", 7)
    page = Page(pages.document_list(View(variants, "base"), Query(), first=Place()))
    (link,) = [link for link in page.links if "after=" in link]
    place = Place(*map(int, link.rpartition("after=")[2].split(".")))
    rest = Page(pages.document_list(View(variants, "base"), Query(), first=place))
    assert len(page.body) == 7
    assert {row[0] for row in page.body}.isdisjoint(row[0] for row in rest.body)


def test_a_document_is_shown_whole_chunk_by_chunk(variants, run, monkeypatch):
    lead = pieces.lead_document(run.sequence(0).spans)
    page = Page(pages.document(View(variants, "base"), lead))
    text = "".join(documents.read(run.corpus, lead)["texts"])
    assert all(line in "\n".join(page.texts) for line in text.splitlines())
    assert f"/base/sequences?document={lead}" in page.links
    monkeypatch.setattr(pages, "_SHOWN_CHUNKS", 1)
    cut = Page(pages.document(View(variants, "base"), lead))
    assert len(cut.text) < len(page.text)
    with pytest.raises(IndexError, match="document 9999 "):
        pages.document(View(variants, "base"), 9999)


def test_what_was_marked_is_said_where_it_is(own_run):
    run = nextlong.open(own_run)
    variants = pages.Variants(run)
    lead = pieces.lead_document(run.sequence(0).spans)
    found = documents.read(run.corpus, lead)
    documents.change_mark(
        run.path, Mark(found["source"], found["source_id"], "spam <b>"), is_set=True
    )
    page = Page(pages.document(View(variants, "base"), lead))
    assert "This document is marked as bad. spam <b>" in page.text
    assert "This source is marked as bad." not in page.text
    assert "This sequence is marked as bad." not in one(variants, 0).text
    table = Page(pages.marked(View(variants, "base")))
    assert [row[:4] for row in table.body] == [
        ["document", found["source"], found["source_id"], "spam <b>"]
    ]
    (run.path / documents.MARKS_FILE).unlink()
    assert "Nothing is marked yet." in Page(pages.marked(View(variants, "base"))).text


def test_two_variants_stand_side_by_side(own_run, recipe_for, variants):
    nextlong.run(
        recipe_for(own_run)
    )  # measures the statistics, which the shared run lacks
    nextlong.run(recipe_for(own_run, "compose.position=tail", "name=tail"))

    held = Variants(nextlong.open(f"{own_run}@base"))
    lead = pieces.lead_document(held.get("base").run.sequence(3).spans)
    page = Page(pages.compare(View(held, "base"), "tail", doc_id=lead))
    assert "/base/sequence/3" in page.links
    assert any(re.fullmatch(r"/tail/sequence/\d+", link) for link in page.links)
    rows = {row[0]: row[1:] for row in page.body}
    assert rows["sequences"] == ["12 of 2,048 tokens"] * 2
    leads = {
        pieces.lead_document(sequence.spans)
        for sequence in held.get("base").run.sequences()
    }
    other = next(doc_id for doc_id in range(260) if doc_id not in leads)
    alone = Page(pages.compare(View(variants, "base"), "", doc_id=None))
    assert "This run has one variant." in alone.text
    assert (
        "No sequence of this variant is about this document."
        in Page(pages.compare(View(held, "base"), "", doc_id=other)).text
    )


def left(variants, key="", *, first=0):
    return Page(pages.filtered_out(View(variants, "base"), key, first=first))


def test_every_reason_is_listed_with_its_count(variants):
    kinds = filtered.kinds(variants.get("base").run)
    assert [row[:3] for row in left(variants).body] == [
        [f"{one.count:,}", one.what, one.reason] for one in kinds
    ]


def test_examples_of_a_reason_lead_to_the_documents(variants, monkeypatch):
    entries = [
        filtered.Entry("one", 7, "beside it", 8),
        filtered.Entry("two", detail="why"),
    ]
    kind = filtered.Kind(
        "k", "chunks", "a reason", 1234, lambda: iter(entries), is_sampled=True
    )
    monkeypatch.setattr(filtered, "kinds", lambda run: [kind])
    page = left(variants, "k")
    assert "1,234 chunks: a reason" in page.texts
    assert [row for row in page.body if len(row) == 2] == [
        ["one", "beside it"],
        ["two", "why"],
    ]
    assert {"/base/document/7", "/base/document/8"} <= set(page.links)
    assert "These are all recorded examples (a few per task)." in page.text
    monkeypatch.setattr(pages, "_ROWS", 1)
    (following,) = [link for link in left(variants, "k").links if "after=" in link]
    rest = left(variants, "k", first=int(following.rpartition("after=")[2]))
    assert [row for row in rest.body if len(row) == 2] == [["two", "why"]]
    monkeypatch.setattr(filtered, "kinds", lambda run: [])
    assert "Nothing was filtered out." in left(variants).texts


def test_an_error_has_a_way_back(variants):
    page = Page(
        pages.problem(
            View(variants, "nosuch"), "no variant <x>", title="Page not found"
        )
    )
    assert "no variant <x>" in page.texts
    assert {"/base/sequences", "/base/documents"} <= set(page.links)
