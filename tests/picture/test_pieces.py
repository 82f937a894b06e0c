"""Pieces: which text stands beside which, what was pulled apart, and the rare words that two texts have in common."""

from hypothesis import given
from hypothesis import strategies as st

from hand_made_spans import DOCUMENTS, EXTENDED, span
from nextlong.picture import pieces


def test_partners_are_the_meta_chunk_the_next_meta_chunk_and_what_stands_before():
    assert pieces.partners(EXTENDED) == [-1, 4, 1, -1, 1, 4]
    assert pieces.partners(DOCUMENTS) == [-1, 0, 1]
    assert pieces.partners(EXTENDED[:3]) == [-1, -1, 1]


def test_the_lead_is_the_meta_document_else_the_first_document():
    assert pieces.lead_document(EXTENDED) == 1
    assert pieces.lead_document(DOCUMENTS) == 0
    assert pieces.lead_document(EXTENDED[2:4]) == 7
    assert pieces.lead_document(EXTENDED[:1]) == -1


def test_cosines_are_those_of_others_that_have_one():
    assert pieces.scored(EXTENDED) == [0.5, 0.25]
    assert pieces.scored(DOCUMENTS) == [0.75]
    assert pieces.scale([0.5, 0.25]) == (0.25, 0.5)
    assert pieces.scale([]) == (0.0, 1.0)


def test_only_what_no_longer_stands_side_by_side_is_joined():
    (pair,) = pieces.neighbours_before(EXTENDED, 1)
    assert [one.chunk_id for one in pair] == [10, 11]
    assert pieces.neighbours_before(DOCUMENTS, 0) == []


def test_parts_in_another_order_are_joined_too():
    turned = [span("document", 5, 1, 0, 100), span("document", 4, 1, 100, 200)]
    assert [(a.chunk_id, b.chunk_id) for a, b in pieces.neighbours_before(turned, 1)] == [(4, 5)]


def test_words_that_many_texts_hold_are_not_marked():
    texts = [f"the rope my over {word}" for word in ("anchor", "sail", "reef", "tide") * 10]
    known = pieces.frequencies([*texts, "anchor plankton"])
    assert pieces.shared_words("The Plankton over my anchor", "plankton: the anchor, my, over", known) == ["plankton"]


def test_the_rarest_words_are_marked_when_there_are_many():
    words = [f"w{number:02}" for number in range(60)]
    known = pieces.frequencies([*words[:40], *(" ".join(words[:40]) for _ in range(1)), *["x"] * 100])
    assert len(pieces.shared_words(" ".join(words), " ".join(words), known)) == 20
    assert set(words[40:]) == set(pieces.shared_words(" ".join(words), " ".join(words), known))


def test_a_sample_too_small_to_tell_hides_nothing():
    assert pieces.shared_words("The anchor", "the END", pieces.frequencies(["the"] * 5)) == ["the"]


def test_letters_of_scripts_without_blanks_are_words():
    assert pieces.words_of("日本語 text") == {"日", "本", "語", "text"}


@given(st.text(), st.text())
def test_what_is_shared_stands_in_both(one, other):
    shared = pieces.shared_words(one, other, pieces.frequencies([]))
    common = pieces.words_of(one) & pieces.words_of(other)
    assert set(shared) <= common
    assert shared == sorted(shared)
    assert len(shared) == min(20, len(common))


def test_a_sequence_is_told_by_its_document_the_others_and_how_far_its_chunks_lie_apart():
    assert pieces.caption(EXTENDED, lead=1) == (
        "402 tokens: 2 chunks of the document and text of 2 other documents. "
        "Chunks that were neighbors are now up to 101 tokens apart."
    )
    assert pieces.caption(DOCUMENTS, lead=0).endswith(
        "2 chunks of the document and text of 1 other document. The chunks of the document are still next to each other."
    )
    apart = [span("meta", n, 0, start, start + 10, group=n) for n, start in enumerate((0, 50, 1500))]
    assert pieces.caption(apart, lead=0).endswith(" are now up to 1,440 tokens apart.")
    alone = [span("meta", 3, 0, 0, 1200)]
    assert pieces.caption(alone, lead=0).startswith(
        "1,200 tokens: 1 chunk of the document and text of 0 other documents."
    )
