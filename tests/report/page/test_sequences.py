"""The section with one sequence of each run, before and after; and how much of its texts a page holds."""

import re

import nextlong
from nextlong.picture import pieces
from nextlong.report.page import sequences


def test_texts_too_short_to_read_are_not_held(shared_run):
    run = nextlong.open(shared_run)
    sequence = run.sequence(0)
    assert sequences._texts(run, sequence, sequences._MIN_CHARS - 1) is None
    held = sequences._texts(run, sequence, 160)
    assert held["texts"] == [
        text if len(text) <= 160 else f"{text[:160]}…" for text in sequence.texts
    ]
    assert max(map(len, held["texts"])) == 161
    assert sequences._texts(run, sequence, 10**6)["texts"] == sequence.texts


def test_marked_words_stand_in_a_text_and_in_its_partner(shared_run, monkeypatch):
    monkeypatch.setattr(pieces, "_RARE_SHARES", (1 / 3,))  # the corpus has few topics
    run = nextlong.open(shared_run)
    sequence = run.sequence(0)
    held = sequences._texts(run, sequence, 10**6)
    partners = pieces.partners(sequence.spans)
    assert any(held["words"])
    for text, words, partner in zip(
        held["texts"], held["words"], partners, strict=True
    ):
        assert partner >= 0 or words == []
        for word in words:
            assert word.lower() in text.lower()
            assert word.lower() in held["texts"][partner].lower()


def test_one_run_shows_its_document_before_and_the_sequence_after(shared_run):
    run = nextlong.open(shared_run)
    shown = sequences.shown([run], ["this run"])
    spans = run.sequence(0).spans
    own = [span for span in spans if span.doc_id == pieces.lead_document(spans)]
    assert (
        shown["before_caption"]
        == f"{own[0].source_id}: {len(own)} chunks, {sum(one.length for one in own):,} tokens"
    )
    ends = [end for _, end in re.findall(r"M(\d+) \d+h(\d+)", shown["before"])]
    assert ends == [str(span.length) for span in own]
    assert shown["after"][0]["heading"] == "After: one sequence of exactly 2,048 tokens"


def test_runs_that_share_a_document_show_what_each_made_of_it(shared_run, shorter_run):
    shown = sequences.shown(
        [nextlong.open(shared_run), nextlong.open(shorter_run)], ["a", "b"]
    )
    assert shown["is_common"]
    assert shown["before"]
    assert [one["heading"] for one in shown["after"]] == ["a", "b"]
    assert len({one["document"] for one in shown["after"]}) == 1
    ids = [re.search(r'id="([^"]+)-told"', one["strip"])[1] for one in shown["after"]]
    assert len(set(ids)) == 2


def test_a_sequence_of_too_many_pieces_is_not_drawn(shared_run, monkeypatch):
    monkeypatch.setattr(sequences, "_MAX_PIECES", 3)
    assert sequences.shown([nextlong.open(shared_run)], ["a"]) is None
