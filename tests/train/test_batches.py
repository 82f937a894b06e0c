import pytest
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.heavy


@given(
    rows=st.integers(4, 60),
    per_step=st.sampled_from([2, 4]),
    world=st.sampled_from([1, 2]),
    seed=st.integers(0, 5),
    steps=st.integers(1, 30),
)
def test_ranks_read_the_rows_of_one_and_an_epoch_reads_none_twice(rows, per_step, world, seed, steps):
    from nextlong.train.batches import Plan

    def read(world_size, step):
        plan = Plan(rows=rows, rows_per_step=per_step, micro_batch_rows=1, world_size=world_size, seed=seed)
        return sorted(
            row for rank in range(world_size) for row in plan.micro_batches(step, rank=rank).flatten().tolist()
        )

    assert all(read(world, step) == read(1, step) for step in range(steps))
    epoch = [row for step in range(rows // per_step) for row in read(1, step)]
    assert len(set(epoch)) == len(epoch)
