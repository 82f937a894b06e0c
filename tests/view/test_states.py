"""The states of a run directory as the viewer holds them: opened once, with the last few sequences."""

import pytest

import nextlong
from nextlong.errors import RunError
from nextlong.picture import pieces
from nextlong.view import states
from nextlong.view.states import State, States


@pytest.fixture
def state(shared_run):
    return State(nextlong.open(shared_run))


def test_the_sequences_that_were_looked_at_last_stay_in_memory(state, monkeypatch):
    read = []
    real = state.run.sequence
    monkeypatch.setattr(type(state.run), "sequence", lambda _, number: read.append(number) or real(number))
    first = state.sequence(0)
    for number in range(1, states._HELD_SEQUENCES):
        state.sequence(number)
    assert state.sequence(0) is first  # and is now the youngest
    state.sequence(states._HELD_SEQUENCES)
    assert state.sequence(0) is first
    assert read == list(range(states._HELD_SEQUENCES + 1))
    state.sequence(1)  # which had to make room
    assert read[-1] == 1


def test_a_sequence_that_is_none_is_not_held(state):
    with pytest.raises(IndexError):
        state.sequence(12)
    with pytest.raises(IndexError):
        state.sequence(12)


def test_a_piece_stands_beside_its_partner_with_the_words_that_both_hold(state):
    spans = state.sequence(0).spans
    partners = pieces.partners(spans)
    for place, partner in enumerate(partners):
        pair = state.pair(0, place)
        assert pair["text"] == state.sequence(0).texts[place]
        if partner < 0:
            assert (pair["partner"], pair["words"]) == (None, [])
            continue
        assert pair["partner"] == state.sequence(0).texts[partner]
        for word in pair["words"]:
            assert word in pair["text"].lower()
            assert word in pair["partner"].lower()
    assert any(partner >= 0 for partner in partners)
    for place in (-1, len(spans)):
        with pytest.raises(IndexError, match=f"piece {place} of {len(spans)}"):
            state.pair(0, place)


def test_sources_are_those_of_the_corpus(state):
    assert state.sources == ["small"]


def test_a_state_is_opened_when_it_is_asked_for_and_once(own_run, recipe_for):
    nextlong.run(recipe_for(own_run, "compose.position=tail", "name=tail"))
    held = States(nextlong.open(f"{own_run}@base"))
    assert (held.first, held.run_dir, held.names) == ("base", own_run, ["base", "tail"])
    assert held.get("base").run.recipe.compose.position == "head"
    assert held.get("tail").run.recipe.compose.position == "tail"
    assert held.get("tail") is held.get("tail")
    with pytest.raises(RunError, match="nosuch"):
        held.get("nosuch")
