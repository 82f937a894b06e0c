from collections import Counter
from statistics import fmean

import pytest

import nextlong
from nextlong import pipeline
from nextlong.runs import stats


def test_reuse(measured, sequences):
    uses = Counter(span.chunk_id for spans in sequences for span in spans if span.role == "negative")
    names = {span.chunk_id: span.source_id for spans in sequences for span in spans}
    reuse = measured.reuse
    assert (reuse.distinct_chunks, reuse.max) == (len(uses), max(uses.values()))
    assert reuse.mean == pytest.approx(fmean(uses.values()))
    assert [(own.least, own.most) for own in reuse.histogram][:4] == [(1, 1), (2, 2), (3, 4), (5, 8)]
    for own in reuse.histogram:
        assert own.chunks == sum(own.least <= count <= own.most for count in uses.values())
    best = sorted(uses, key=lambda chunk: (-uses[chunk], chunk))[:10]
    assert [(hub.chunk_id, hub.source_id, hub.uses) for hub in reuse.hubs] == [
        (chunk, names[chunk], uses[chunk]) for chunk in best
    ]


def test_the_cap_on_uses_shows_in_the_reuse(recipe_for, own_run, measured):
    pipeline.run(recipe_for(own_run, "compose.max_uses=2"))
    capped = stats.measure(nextlong.open(own_run))
    assert measured.reuse.max > 2
    assert (capped.reuse.max, capped.max_uses) == (2, 2)
    assert [(own.least, own.most) for own in capped.reuse.histogram] == [(1, 1), (2, 2)]
