"""Spreads and differences: hand-computed, and decided by a t-test, so that noise decides as seldom as it should."""

import numpy as np
import pytest

pytestmark = pytest.mark.heavy  # it imports what trains


def test_a_spread_is_mean_and_standard_deviation():
    from nextlong.replicate.collect import spread

    assert spread([1.0, 2.0, 6.0]) == (3.0, pytest.approx(7**0.5))
    assert spread([4.0]) == (4.0, None)
    assert spread([]) is None


def test_a_difference_is_paired_by_seed():
    from nextlong.replicate.collect import difference

    gap = difference([5.0, 7.0, 9.0], [4.0, 5.0, 6.0])
    assert gap == (2.0, pytest.approx(1 / 3**0.5))
    assert difference([1.0], [0.5]) == (0.5, None)
    assert difference([], []) is None
    assert difference([1.0, 2.0], [1.0]) is None


def test_three_seeds_need_more_than_two_errors():
    from nextlong.replicate.collect import difference, is_decided

    assert not is_decided(difference([5.0, 7.0, 9.0], [4.0, 5.0, 6.0]), seeds=3)  # 3.5 errors; 4.3 are needed
    assert is_decided(difference([5.0, 7.0, 9.1], [4.0, 6.0, 8.0]), seeds=3)
    assert not is_decided(difference([5.0], [4.0]), seeds=1)
    assert not is_decided(difference([5.0, 5.0], [5.0, 5.0]), seeds=2)


def test_noise_decides_one_time_in_twenty():
    from nextlong.replicate.collect import difference, is_decided

    draw = np.random.default_rng(0)
    decided = [is_decided(difference(*draw.normal(size=(2, 3)).tolist()), seeds=3) for _ in range(2000)]
    assert 0.03 < np.mean(decided) < 0.07
