import json

import pytest

import nextlong
from nextlong.report.peek import sequence_of, sequences_of


@pytest.fixture
def run(shared_run):
    return nextlong.open(shared_run)


@pytest.mark.parametrize("first", [1, 3])
def test_the_first_sequences_are_outlined_in_their_order(run, first):
    outlines = sequences_of(run, first=first)
    assert [outline["number"] for outline in outlines] == list(range(first))
    assert [outline["id"] for outline in outlines] == [
        run.sequence(number).id for number in range(first)
    ]


def test_a_sequence_is_its_outline_and_its_spans_which_tile_it(run):
    sequence = run.sequence(0)
    plain = sequence_of(0, sequence)
    assert json.loads(json.dumps(plain, allow_nan=False)) == json.loads(
        json.dumps(plain)
    )
    assert {**plain, "spans": None} == {**sequences_of(run, first=1)[0], "spans": None}
    spans = plain["spans"]
    assert spans[0]["token_start"] == 0
    assert [span["token_end"] for span in spans[:-1]] == [
        span["token_start"] for span in spans[1:]
    ]
    assert spans[-1]["token_end"] == plain["tokens"] == 2048
    roles = [span["role"] for span in spans]
    assert (plain["meta_chunks"], plain["negatives"]) == (
        roles.count("meta"),
        roles.count("negative"),
    )
    assert [span["text"] for span in spans] == list(sequence.texts)
