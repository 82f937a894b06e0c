"""Pieces: which text stands beside which, what was pulled apart, the rare words that two texts have in common, and colours.

Colours can be told apart by readers with each kind of colour blindness, in light and
dark.
"""

from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.hand_made_spans import DOCUMENTS, EXTENDED, span

from nextlong.picture import pieces
from nextlong.picture.pieces import DARK, LIGHT
from nextlong.report.page.corpus_map import MAP_COLOURS

# Complete dichromacy in linear RGB: Machado, Oliveira and Fernandes, IEEE TVCG 15(6),
# 2009, table 1, severity 1.0.
SIMULATED = {
    "normal": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
XYZ_OF_RGB = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)


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
    assert [
        (a.chunk_id, b.chunk_id) for a, b in pieces.neighbours_before(turned, 1)
    ] == [(4, 5)]


def test_words_that_many_texts_hold_are_not_marked():
    texts = [
        f"the rope my over {word}" for word in ("anchor", "sail", "reef", "tide") * 10
    ]
    known = pieces.frequencies([*texts, "anchor plankton"])
    text, other = "The Plankton over my anchor", "plankton: the anchor, my, over"
    assert pieces.shared_words(text, other, known) == ["plankton"]


def test_the_rarest_words_are_marked_when_there_are_many():
    words = [f"w{number:02}" for number in range(60)]
    known = pieces.frequencies(
        [*words[:40], *(" ".join(words[:40]) for _ in range(1)), *["x"] * 100]
    )
    assert len(pieces.shared_words(" ".join(words), " ".join(words), known)) == 20
    assert set(words[40:]) == set(
        pieces.shared_words(" ".join(words), " ".join(words), known)
    )


def test_a_sample_too_small_to_tell_hides_nothing():
    assert pieces.shared_words(
        "The anchor", "the END", pieces.frequencies(["the"] * 5)
    ) == ["the"]


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
    apart = [
        span("meta", n, 0, start, start + 10, group=n)
        for n, start in enumerate((0, 50, 1500))
    ]
    assert pieces.caption(apart, lead=0).endswith(" are now up to 1,440 tokens apart.")
    alone = [span("meta", 3, 0, 0, 1200)]
    assert pieces.caption(alone, lead=0).startswith(
        "1,200 tokens: 1 chunk of the document and text of 0 other documents."
    )


def linear(colour):
    rgb = np.array([int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)])
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def lab(colour, kind):
    """Return CIE L*a*b* of a colour as it is seen."""
    seen = np.clip(np.array(SIMULATED[kind]) @ linear(colour), 0, 1)
    ratio = (XYZ_OF_RGB @ seen) / XYZ_OF_RGB.sum(axis=1)
    x, y, z = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(one, other, kind):
    return float(np.linalg.norm(lab(one, kind) - lab(other, kind)))


@pytest.mark.parametrize("kind", SIMULATED)
@pytest.mark.parametrize("colours", [LIGHT, DARK], ids=["light", "dark"])
def test_colours_that_stand_side_by_side_differ(colours, kind):
    others = [
        "negative",
        "between",
        "plain0",
        *(f"shade{n}" for n in range(pieces.SHADES)),
    ]
    for one, other in [*(("own", other) for other in others), ("plain0", "plain1")]:
        assert distance(colours[one], colours[other], kind) > 12, (one, other)
    for one, other in combinations(("own", "negative", "plain0", *MAP_COLOURS), 2):
        assert distance(colours[one], colours[other], kind) > 9, (one, other)
    for one, other in combinations(range(pieces.RUNS), 2):
        assert distance(colours[f"run{one}"], colours[f"run{other}"], kind) > 9, (
            one,
            other,
        )


@pytest.mark.parametrize("kind", SIMULATED)
@pytest.mark.parametrize(
    ("colours", "towards"), [(LIGHT, -1), (DARK, 1)], ids=["light", "dark"]
)
def test_a_higher_cosine_stands_out_more(colours, towards, kind):
    lightness = [
        towards * lab(colours[f"shade{n}"], kind)[0] for n in range(pieces.SHADES)
    ]
    assert all(after - before > 3 for before, after in pairwise(lightness))


@pytest.mark.parametrize(
    ("score", "shade"), [(0.2, 0), (0.9, 7), (0.55, 4), (0.1, 0), (1.5, 7)]
)
def test_shades_grow_with_the_cosine(score, shade):
    assert (
        pieces.colour(span("negative", 1, 1, 0, 5, score=score), 0, 9, (0.2, 0.9))
        == f"shade{shade}"
    )


def test_equal_cosines_have_one_shade():
    assert (
        pieces.colour(span("negative", 1, 1, 0, 5, score=0.5), 0, 9, (0.5, 0.5))
        == f"shade{pieces.SHADES - 1}"
    )


def test_the_style_sheet_holds_every_colour_twice():
    css = pieces.css_of_colours()
    assert all(
        f"--{name}:{colour}" in css
        for colours in (LIGHT, DARK)
        for name, colour in colours.items()
    )
