"""Pieces: which text stands beside which, and what was pulled apart; on hand-made spans."""

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
