"""The variants of a run directory as the viewer holds them: opened once, with the last few sequences."""

import pytest

import nextlong
from nextlong.errors import RunError
from nextlong.picture import pieces
from nextlong.view.variants import KEPT_SEQUENCES, OpenVariant, Variants


@pytest.fixture
def variant(shared_run):
    return OpenVariant(nextlong.open(shared_run))


def test_the_sequences_that_were_looked_at_last_stay_in_memory(variant, monkeypatch):
    read = []
    real = variant.run.sequence
    monkeypatch.setattr(
        type(variant.run),
        "sequence",
        lambda _, number: read.append(number) or real(number),
    )
    variant = OpenVariant(variant.run)
    first = variant.sequence(0)
    for number in range(1, KEPT_SEQUENCES):
        variant.sequence(number)
    assert variant.sequence(0) is first  # and is now the youngest
    variant.sequence(KEPT_SEQUENCES)
    assert variant.sequence(0) is first
    assert read == list(range(KEPT_SEQUENCES + 1))
    variant.sequence(1)  # which had to make room
    assert read[-1] == 1


def test_a_sequence_that_is_none_is_not_held(variant):
    with pytest.raises(IndexError):
        variant.sequence(12)
    with pytest.raises(IndexError):
        variant.sequence(12)


def test_a_piece_stands_beside_its_partner_with_the_words_that_both_hold(variant):
    spans = variant.sequence(0).spans
    partners = pieces.partners(spans)
    for place, partner in enumerate(partners):
        pair = variant.pair(0, place)
        assert pair["text"] == variant.sequence(0).texts[place]
        if partner < 0:
            assert (pair["partner"], pair["words"]) == (None, [])
            continue
        assert pair["partner"] == variant.sequence(0).texts[partner]
        for word in pair["words"]:
            assert word in pair["text"].lower()
            assert word in pair["partner"].lower()
    assert any(partner >= 0 for partner in partners)
    for place in (-1, len(spans)):
        with pytest.raises(IndexError, match=f"piece {place} of {len(spans)}"):
            variant.pair(0, place)


def test_sources_are_those_of_the_corpus(variant):
    assert variant.sources == ["small"]


def test_a_variant_is_opened_when_it_is_asked_for_and_once(own_run, recipe_for):
    nextlong.run(recipe_for(own_run, "compose.position=tail", "name=tail"))
    held = Variants(nextlong.open(f"{own_run}@base"))
    assert (held.first, held.run_dir, held.names) == ("base", own_run, ["base", "tail"])
    assert held.get("base").run.recipe.compose.position == "head"
    assert held.get("tail").run.recipe.compose.position == "tail"
    assert held.get("tail") is held.get("tail")
    with pytest.raises(RunError, match="nosuch"):
        held.get("nosuch")
