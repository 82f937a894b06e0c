"""The estimate of each step, and what counts for the step of a plug-in."""

from dataclasses import replace

import pytest
from tests.support.planned import recipe_in

from nextlong.engine.step import Step
from nextlong.report.plan.amounts import TRIED, Amounts, Estimate
from nextlong.report.plan.estimates import estimates_of
from nextlong.report.plan.search_estimates import ESTIMATES

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


def test_an_estimate_of_work_alone_is_one_task_that_writes_nothing_and_is_tried():
    estimate = Estimate(work="documents", seconds=0.5)
    assert (AMOUNTS.of(estimate.work), AMOUNTS.of(estimate.tasks)) == (900.0, 1.0)
    assert (AMOUNTS.of(estimate.disk), AMOUNTS.of(estimate.memory), estimate.bytes) == (
        0.0,
        0.0,
        0.0,
    )
    assert estimate.rate == TRIED


def test_the_step_of_a_plug_in_grows_with_the_chunks(tmp_path):
    foreign = Step("one", 1, {}, (), lambda _: [])
    undeclared = estimates_of(recipe_in(tmp_path), [foreign])["one"]
    assert (AMOUNTS.of(undeclared.work), AMOUNTS.of(undeclared.disk)) == (
        5000.0,
        5000.0,
    )
    assert (undeclared.rate, undeclared.seconds) == (TRIED, 0.0)


def test_numbers_are_given_by_name():
    with pytest.raises(TypeError):
        Estimate(1, 0.5)


def test_no_query_has_more_neighbours_than_there_are_vectors():
    assert Amounts(queries=3, neighbours=10, vectors=4).all_neighbours == 12
    assert Amounts(queries=3, neighbours=2, vectors=4).all_neighbours == 6


TRAIN = ESTIMATES["index"]
FILL = ESTIMATES["index_shards"]
TUNE = ESTIMATES["tune"]
EXACT = Amounts(vectors=1e6, queries=1e4, dimensions=256, neighbours=1000, shards=40)


@pytest.mark.parametrize("estimate", [TRAIN, FILL, TUNE])
def test_exact_search_builds_nothing(estimate):
    assert [
        EXACT.of(amount) for amount in (estimate.work, estimate.disk, estimate.memory)
    ] == [0, 0, 0]


@pytest.mark.parametrize(
    ("codes", "code_bytes"), [("Flat", 512), ("SQ8", 256), ("PQ64", 64)]
)
def test_lists_hold_a_code_and_an_id_a_vector(codes, code_bytes):
    built = Amounts(**{**vars(EXACT), "index": f"IVF,{codes}"})
    assert FILL.disk(built) * FILL.bytes == 1e6 * (code_bytes + 8)
    assert TRAIN.work(built) > 0
    assert FILL.work(built) > 0


@pytest.mark.parametrize(
    ("vectors", "factor"),
    [
        (10**8, 3.9),  # the 31st of 8 expected ones
        (10**9, 13.3),  # the 14th of 1.05 expected ones: the sample is clipped
        (3 * 10**6, 1.43),  # no more than k in each of few blocks
    ],
)
def test_the_estimate_of_a_scan_counts_what_reaches_the_bound_of_its_sample(
    vectors, factor
):
    amounts = Amounts(
        shards=10_000, dimensions=512, vectors=vectors, queries=100, neighbours=1000
    )
    assert ESTIMATES["scan"].disk(amounts) == pytest.approx(
        factor * 100 * 1000, rel=0.02
    )


def test_verifying_dependence_scores_a_row_for_each_later_meta_chunk(tmp_path):
    def estimates(*overrides):
        recipe = recipe_in(tmp_path, "scorer.model=m", *overrides)
        steps = [
            Step(name, 1, {}, (), lambda _: []) for name in ("composed", "compose")
        ]
        return estimates_of(recipe, steps)

    amounts = replace(AMOUNTS, eligible=10.0, meta_chunks=40.0, tokens=1000.0)
    verified = estimates("compose.verify_dependence=0.5")
    # Of four meta-chunks: one row up to the last (3/4), and up to the second, the third
    # and the last (1/4 + 2/4 + 3/4).
    assert amounts.of(verified["compose"].work) == 1000 * (3 / 4 + 6 / 4)
    assert (verified["compose"].rate, verified["composed"].rate) == ("scorer", TRIED)
    assert amounts.of(estimates()["compose"].work) == amounts.of(
        verified["composed"].work
    )


def test_contexts_take_a_row_of_chunk_and_document_for_each_candidate(tmp_path):
    recipe = recipe_in(
        tmp_path, "scorer.model=m", "compose.method=entropy", "entropy.candidates=5"
    )
    steps = [Step("contexts", 1, {}, (), lambda _: [])]
    priced = estimates_of(recipe, steps)["contexts"]
    # 4.5 characters per token: documents of 100 tokens in 4 chunks.
    amounts = Amounts(
        kept_documents=10.0, kept_chars=4_500.0, chunks=40.0, queries=40.0
    )
    assert amounts.of(priced.work) == 40 * 5 * (25 + 100)
    assert priced.rate == "scorer"
