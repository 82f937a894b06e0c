"""What a step declares of its costs, and what counts where it declares nothing."""

import pytest

from nextlong.engine.step import TRIED, Amounts, Estimate, Step

AMOUNTS = Amounts(
    shards=0.2,
    text_bytes=1e6,
    documents=900.0,
    kept_documents=800.0,
    kept_chars=1e6,
    chunks=5000.0,
    dimensions=16,
    vectors=5000.0,
    neighbours=8.0,
)


def test_an_amount_is_a_number_or_a_field_or_follows_from_all():
    assert (AMOUNTS.of("shards"), AMOUNTS.of(lambda amounts: 2 * amounts.shards)) == (
        0.2,
        0.4,
    )
    assert (AMOUNTS.of(0), AMOUNTS.of(1.5)) == (0.0, 1.5)


def test_a_step_that_declares_its_work_alone_is_one_task_that_writes_nothing_and_is_tried():
    estimate = Estimate(work="documents", seconds=0.5)
    assert (AMOUNTS.of(estimate.work), AMOUNTS.of(estimate.tasks)) == (900.0, 1.0)
    assert (AMOUNTS.of(estimate.disk), AMOUNTS.of(estimate.memory), estimate.bytes) == (
        0.0,
        0.0,
        0.0,
    )
    assert estimate.rate == TRIED


def test_what_declares_nothing_grows_with_the_chunks():
    undeclared = Step("one", 1, {}, (), lambda _: []).estimate
    assert (AMOUNTS.of(undeclared.work), AMOUNTS.of(undeclared.disk)) == (
        5000.0,
        5000.0,
    )
    assert (undeclared.rate, undeclared.seconds) == (TRIED, 0.0)


def test_numbers_are_given_by_name():
    with pytest.raises(TypeError):
        Estimate(1, 0.5)
