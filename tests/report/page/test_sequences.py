"""The section with one sequence of each run, before and after; and how much of its texts a page holds."""

import re

import pytest

import nextlong
from nextlong.artifacts.results import DraftResult
from nextlong.picture import pieces
from nextlong.picture.charts import Point
from nextlong.picture.pieces import CHUNK_ROLES, lead_document
from nextlong.report.page import sequences


def test_texts_too_short_to_read_are_not_held(shared_run):
    run = nextlong.open(shared_run)
    sequence = run.sequence(0)
    assert sequences._texts(run, sequence, sequences._FEWEST_CHARS - 1) is None
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
    monkeypatch.setattr(sequences, "_MOST_PIECES", 3)
    assert sequences.shown([nextlong.open(shared_run)], ["a"]) is None


def marked(*texts):
    return [
        [text for text, is_shared in pieces if is_shared]
        for pieces in sequences.marked(texts)
    ]


def test_what_both_hold_is_marked_and_nothing_else():
    one = "Before it all. The harbour holds a rope, and more. Gull"
    other = "Other words. the HARBOUR holds a rope: gull"
    assert marked(one, other) == [
        ["The harbour holds a rope"],
        ["the HARBOUR holds a rope"],
    ]


def test_a_long_text_begins_a_little_before_the_first_mark():
    one = "filler words " * 200 + "the harbour holds a rope " + "tail " * 400
    pieces, _ = sequences.marked([one, "the harbour holds a rope"])
    text = "".join(text for text, _ in pieces)
    assert text.startswith("…")
    assert text.endswith("…")
    assert text.index("the harbour") < 200
    assert len(text) < 1000


def test_two_texts_with_nothing_in_common_have_no_mark():
    assert marked("one two three four", "five six seven eight") == [[], []]


@pytest.fixture(scope="module")
def run(shared_run):
    return nextlong.open(shared_run)


def test_examples_of_a_run_share_runs_of_words(run):
    remembered = [
        own
        for part in run.steps["draft"].results(DraftResult)
        for own in part.near_duplicate_examples
    ]
    pairs = list(sequences.near_duplicate_pairs(run, most=3))
    assert len(pairs) == min(3, len(remembered))
    for pair in pairs:
        words = [
            re.findall(r"\w+", "".join(text for text, _ in pieces).lower())
            for _, _, pieces in pair
        ]
        assert set(words[0]) & set(words[1])


def test_every_chunk_of_the_sequence_is_marked(shared_run):
    run = nextlong.open(shared_run)
    spans = run.sequence(0).spans
    lead = lead_document(spans)
    made = sequences._draw_map(run, spans, lead=lead)
    chunks = {span.chunk_id: span.doc_id for span in spans if span.role in CHUNK_ROLES}
    assert made["chart"].count('class="marked own" data-series') == sum(
        doc == lead for doc in chunks.values()
    )
    assert made["chart"].count('class="marked negative" data-series') == sum(
        doc != lead for doc in chunks.values()
    )
    assert 0 < made["variance"] <= 1
    assert made["sampled"] == len(re.findall('<circle class="map', made["chart"]))


def test_the_largest_of_several_sources_have_colours_and_one_source_is_grey():
    points = [Point(0, 0, "")] * 10
    shown = sequences._background(list("aaabbbccde"), points)
    assert [(one.name, one.colour, len(one.points)) for one in shown] == [
        ("a", "map run2", 3),
        ("b", "map run3", 3),
        ("c", "map run4", 2),
        ("2 more sources", "map plain0", 2),
    ]
    assert [one.colour for one in sequences._background(["a"] * 10, points)] == [
        "map plain0"
    ]
