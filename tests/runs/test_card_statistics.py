"""What a card tells of a real run."""

import dataclasses

import nextlong
from nextlong.runs import stats
from nextlong.runs.card_statistics import statistics


def test_the_card_tells_what_the_run_counts(shared_run):
    measured = stats.measure(nextlong.open(shared_run))
    told = statistics(measured)
    assert told["sequences"] == "12 of 2,048 tokens"
    assert told["negatives from the own document"] == "0"
    assert told["share of the meta-documents"].startswith(f"{measured.meta_share:.1%}")
    assert f"{measured.similarity.mean:.3f} on average" in told["cosine of a negative to its meta-chunk"]


def test_what_there_is_none_of_is_left_out(shared_run):
    measured = stats.measure(nextlong.open(shared_run))
    told = statistics(dataclasses.replace(measured, similarity=None, meta_share=0.0, encoder=None))
    assert told.keys().isdisjoint({"cosine of a negative to its meta-chunk", "share of the meta-documents", "encoder"})
