"""Rows read from references against the sequences that the run itself gives."""

import pickle
from itertools import chain

import numpy as np
import pytest

import nextlong
from nextlong import pipeline
from nextlong.artefacts import finished
from nextlong.artefacts.rows import Rows


@pytest.fixture(scope="module")
def run(recipe_for, tmp_path_factory):
    """With chunks of several shards, joints, a BOS and an EOS."""
    run_dir = tmp_path_factory.mktemp("rows") / "run"
    marked = ("tokenizer.bos=<|endoftext|>", "tokenizer.eos=<|endoftext|>", r'compose.joint="\n\n"')
    pipeline.run(recipe_for(run_dir, *marked, "export.formats=[jsonl]"))
    return nextlong.open(run_dir)


@pytest.fixture(scope="module")
def rows(run):
    index = finished.references(run.steps, run.sequences_per_part).read_index()
    return Rows([finished.row_source(run.steps)], index=index[::-1], offsets=np.array([0, 1, 4, 12]))


def ids_of(rows, row):
    target = np.full(int(rows.lengths(row).sum()), -1, np.int64)
    rows.copy_into(target, row)
    return target.tolist()


def test_a_row_is_its_sequences_one_after_the_other(run, rows):
    sequences = [sequence.input_ids.tolist() for sequence in run.sequences()][::-1]
    assert {span.role for sequence in run.sequences() for span in sequence.spans} == {
        "meta",
        "negative",
        "joint",
        "bos",
        "eos",
    }
    assert len(rows) == 3
    for row, (first, last) in enumerate([(0, 1), (1, 4), (4, 12)]):
        assert ids_of(rows, row) == list(chain.from_iterable(sequences[first:last]))
        assert rows.lengths(row).tolist() == [2048] * (last - first)


def test_rows_travel_without_their_open_files(rows):
    expected = ids_of(rows, 1)
    sent = pickle.dumps(rows)
    assert len(sent) < 20_000
    assert ids_of(pickle.loads(sent), 1) == expected


def test_the_fingerprint_is_of_what_stands_where(run, rows):
    index = finished.references(run.steps, run.sequences_per_part).read_index()
    others = [
        Rows([], index=own, offsets=np.array(offsets))
        for own, offsets in [(index[::-1], [0, 1, 4, 12]), (index, [0, 1, 4, 12]), (index[::-1], [0, 1, 5, 12])]
    ]
    assert [other.fingerprint == rows.fingerprint for other in others] == [True, False, False]
