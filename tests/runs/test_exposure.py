import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nextlong import pipeline
from nextlong.runs.exposure import Counting, histogram
from nextlong.runs.stats import measure


@given(st.lists(st.integers(1, 300), min_size=1, max_size=9))
def test_equals_a_count_token_by_token(lengths):
    lefts = np.concatenate([np.arange(1, length) for length in lengths])
    buckets = np.where(lefts < 8, 0, np.floor(np.log2(np.maximum(lefts, 1))).astype(int) - 2)
    assert histogram(np.array(lengths))[:10].tolist() == np.bincount(buckets, minlength=10).tolist()


def test_means_and_bounds_by_hand():
    counting = Counting()
    counting.add([np.array([2, 9]), np.array([11])])
    by_sequence, by_document = counting.result()
    assert [(one.least, one.most, one.count) for one in by_sequence.histogram] == [(1, 7, 14), (8, 15, 6)]
    assert [(one.least, one.most, one.count) for one in by_document.histogram] == [(1, 7, 15), (8, 15, 4)]
    assert (by_sequence.targets, by_sequence.mean) == (20, 5.5)
    assert by_document.mean == (1 + 36 + 55) / 19


def test_a_run_says_it_for_both_masks(recipe_for, tmp_path, shared_run):
    import nextlong

    pipeline.run(recipe_for(tmp_path / "run", "compose.method=standard"))
    stats = measure(nextlong.open(tmp_path / "run"))
    found = {one.mask: one for one in stats.exposure}
    assert found["sequence"].targets == stats.sequences * (stats.target_tokens - 1)
    assert found["document"].mean < found["sequence"].mean == stats.target_tokens / 2
    assert [one.mask for one in measure(nextlong.open(shared_run)).exposure] == ["sequence"]
