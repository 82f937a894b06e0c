"""Spreads and differences: hand-computed, and decided by a t-test, so that noise decides as seldom as it should."""

from typing import get_args

import numpy as np
import pytest

from nextlong.replicate import scores
from nextlong.replicate.recipe import Experiment, Replication


@pytest.mark.heavy
def test_a_spread_is_mean_and_standard_deviation():
    from nextlong.replicate.scores import spread

    assert spread([1.0, 2.0, 6.0]) == (3.0, pytest.approx(7**0.5))
    assert spread([4.0]) == (4.0, None)
    assert spread([]) is None


@pytest.mark.heavy
def test_a_difference_is_paired_by_seed():
    from nextlong.replicate.scores import difference

    gap = difference([5.0, 7.0, 9.0], [4.0, 5.0, 6.0])
    assert gap == (2.0, pytest.approx(1 / 3**0.5))
    assert difference([1.0], [0.5]) == (0.5, None)
    assert difference([], []) is None
    assert difference([1.0, 2.0], [1.0]) is None


@pytest.mark.heavy
def test_three_seeds_need_more_than_two_errors():
    from nextlong.replicate.scores import difference, is_decided

    assert not is_decided(difference([5.0, 7.0, 9.0], [4.0, 5.0, 6.0]), seeds=3)  # 3.5 errors; 4.3 are needed
    assert is_decided(difference([5.0, 7.0, 9.1], [4.0, 6.0, 8.0]), seeds=3)
    assert not is_decided(difference([5.0], [4.0]), seeds=1)
    assert not is_decided(difference([5.0, 5.0], [5.0, 5.0]), seeds=2)


@pytest.mark.heavy
def test_noise_decides_one_time_in_twenty():
    from nextlong.replicate.scores import difference, is_decided

    draw = np.random.default_rng(0)
    decided = [is_decided(difference(*draw.normal(size=(2, 3)).tolist()), seeds=3) for _ in range(2000)]
    assert 0.03 < np.mean(decided) < 0.07


@pytest.mark.parametrize("rows", scores.PAPER_TABLES.values())
def test_the_papers_averages_follow_from_its_columns(rows):
    for average, *columns in [*rows.values(), scores.PAPER_PRETRAINED]:
        assert sum(columns) / len(columns) == pytest.approx(average, abs=0.011)


def test_every_experiment_says_where_the_paper_has_it():
    assert set(scores.PAPER_SOURCES) == set(get_args(Experiment))
    figures = {name for name, source in scores.PAPER_SOURCES.items() if "a figure only" in source}
    assert figures == set(scores.PAPER_SOURCES) - set(scores.PAPER_TABLES)


def test_rows_bear_the_recipes_own_words_and_nextlong_as_it_comes_is_the_same_everywhere():
    recipe = Replication.from_dict({"out": "out"})
    for experiment, rows in scores.PAPER_TABLES.items():
        assert set(map(str, recipe.values(experiment))) <= set(rows)
        assert {len(row) for row in rows.values()} == {len(scores.PAPER_COLUMNS)}
    best = {rows[str(recipe.usual_value(experiment))] for experiment, rows in scores.PAPER_TABLES.items()}
    assert len(best) == 1
