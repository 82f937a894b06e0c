"""The section with one sequence of each run, before and after; and how much of its texts a page holds."""

import nextlong
from hand_made_spans import EXTENDED
from nextlong.picture import pieces
from nextlong.picture.elements import document
from nextlong.report.page import sequences


def test_a_span_is_moved_with_all_that_is_known_of_it():
    moved = sequences._moved(EXTENDED[4], 7)
    assert (moved.token_start, moved.token_end) == (7, 107)
    assert (moved.chunk_id, moved.group, moved.role) == (11, 1, "meta")


def test_texts_too_short_to_read_are_not_held(shared_run):
    sequence = nextlong.open(shared_run).sequence(0)
    assert sequences._held(sequence, sequences._FEWEST_CHARS - 1) is None
    held = sequences._held(sequence, 160)
    assert max(map(len, held.texts)) == 160 == held.shortened_to
    assert [text[:160] for text in sequence.texts] == held.texts
    assert sequences._held(sequence, 10**6).shortened_to == 0


def test_marked_words_stand_in_a_text_and_in_its_partner(shared_run):
    sequence = nextlong.open(shared_run).sequence(0)
    held = sequences._held(sequence, 10**6)
    partners = pieces.partners(sequence.spans)
    assert any(held.words)
    for text, words, partner in zip(held.texts, held.words, partners, strict=True):
        assert partner >= 0 or words == []
        for word in words:
            assert word.lower() in text.lower()
            assert word.lower() in held.texts[partner].lower()


def text_of(runs):
    (section,) = sequences.shown(runs)
    return document(section)


def test_one_run_shows_its_document_before_and_the_sequence_after(shared_run):
    run = nextlong.open(shared_run)
    page = text_of([run])
    spans = run.sequence(0).spans
    lead = pieces.lead_document(spans)
    own = [span for span in spans if span.doc_id == lead]
    tokens = sum(map(pieces.length, own))
    assert f"{own[0].source_id}: {len(own)} chunks, {tokens:,} tokens." in page
    assert "Before: one short document" in page
    assert "After: one sequence of exactly 2,048 tokens" in page


def test_runs_that_share_a_document_show_what_each_made_of_it(shared_run, shorter_run):
    page = text_of([nextlong.open(shared_run), nextlong.open(shorter_run)])
    assert "One document, as each made it into a sequence" in page
    assert page.count("Before: one short document") == 1
    assert [heading for heading in ("A: nextlong", "B: nextlong") if heading not in page] == []
    assert page.count("chunks of the document, and text of") == 2


def test_a_sequence_of_too_many_pieces_is_not_drawn(shared_run, monkeypatch):
    monkeypatch.setattr(sequences, "_MOST_PIECES", 3)
    assert list(sequences.shown([nextlong.open(shared_run)])) == []
