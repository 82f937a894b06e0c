"""Rows know their documents, whatever they come from, and each step reads its own."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong

pytestmark = pytest.mark.heavy


def rows_of(run, attention, **data):
    from nextlong.train.recipe import Data
    from nextlong.train.rows import TrainingRows, source_of

    keys = {"validation": 0.0, "runs": (str(run),), **data}
    return TrainingRows(source_of(Data(**keys), split="train", tokenizer=None), attention=attention)


def document_starts(sequence):
    """Return where the documents of a concatenation begin, by the spans of the opened run."""
    spans = [span for span in sequence.spans if span.role == "document"]
    new = [span.token_start for before, span in pairwise(spans) if before.group != span.group]
    return [0, *new]


def test_documents_of_a_concatenation(standard_run):
    rows = rows_of(standard_run, "document")
    for number, sequence in enumerate(nextlong.open(standard_run).sequences()):
        row = rows[number]
        starts = document_starts(sequence)
        assert row.bounds.tolist() == [*starts, 2048]
        assert (row.labels == -100).nonzero().flatten().tolist() == starts
        assert row.position_ids[row.bounds[:-1].long()].tolist() == [0] * len(starts)
        assert (row.input_ids.numpy() == sequence.input_ids).all()


@pytest.mark.parametrize("attention", ["sequence", "document"])
def test_an_extended_sequence_is_one_document(shared_run, attention):
    assert rows_of(shared_run, attention)[0].bounds.tolist() == [0, 2048]


def test_packed_rows_by_sequence_and_whole(shared_run):
    assert rows_of(shared_run, "sequence", pack=3 * 2048)[0].bounds.tolist() == [0, 2048, 4096, 6144]
    whole = rows_of(shared_run, "row", pack=3 * 2048)[0]
    assert whole.bounds.tolist() == [0, 6144]
    assert whole.position_ids.tolist() == list(range(6144))


@given(
    rows=st.integers(4, 60),
    per_step=st.sampled_from([2, 4]),
    at_once=st.sampled_from([1, 2]),
    seed=st.integers(0, 5),
    steps=st.integers(1, 30),
)
def test_micro_batches_share_the_rows_of_a_step_and_an_epoch_reads_none_twice(rows, per_step, at_once, seed, steps):
    from nextlong.train.rows import BatchPlan

    def read(step, micro_batch_rows=1):
        plan = BatchPlan(rows=rows, rows_per_step=per_step, micro_batch_rows=micro_batch_rows, seed=seed)
        return plan.micro_batches(step).flatten().tolist()

    assert all(read(step, at_once) == read(step) for step in range(steps))
    epoch = [row for step in range(rows // per_step) for row in read(step)]
    assert len(set(epoch)) == len(epoch)
