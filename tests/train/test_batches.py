import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.heavy


@given(
    rows=st.integers(4, 60),
    per_step=st.sampled_from([2, 4]),
    at_once=st.sampled_from([1, 2]),
    seed=st.integers(0, 5),
    steps=st.integers(1, 30),
)
def test_micro_batches_share_the_rows_of_a_step_and_an_epoch_reads_none_twice(rows, per_step, at_once, seed, steps):
    from nextlong.train.batches import Plan

    def read(step, micro_batch_rows=1):
        plan = Plan(rows=rows, rows_per_step=per_step, micro_batch_rows=micro_batch_rows, seed=seed)
        return plan.micro_batches(step).flatten().tolist()

    assert all(read(step, at_once) == read(step) for step in range(steps))
    epoch = [row for step in range(rows // per_step) for row in read(step)]
    assert len(set(epoch)) == len(epoch)
