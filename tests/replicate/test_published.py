"""The paper's numbers, as they stand beside ours."""

from typing import get_args

import pytest

from nextlong.replicate import published
from nextlong.replicate.recipe import Experiment, Replication


@pytest.mark.parametrize("rows", published.TABLES.values())
def test_the_papers_averages_follow_from_its_columns(rows):
    for average, *columns in [*rows.values(), published.PRETRAINED]:
        assert sum(columns) / len(columns) == pytest.approx(average, abs=0.011)


def test_every_experiment_says_where_the_paper_has_it():
    assert set(published.SOURCES) == set(get_args(Experiment))
    figures = {name for name, source in published.SOURCES.items() if "a figure only" in source}
    assert figures == set(published.SOURCES) - set(published.TABLES)


def test_rows_bear_the_recipes_own_words_and_nextlong_as_it_comes_is_the_same_everywhere():
    recipe = Replication.from_dict({"out": "out"})
    for experiment, rows in published.TABLES.items():
        assert set(map(str, recipe.values(experiment))) <= set(rows)
        assert {len(row) for row in rows.values()} == {len(published.COLUMNS)}
    best = {rows[str(recipe.usual_value(experiment))] for experiment, rows in published.TABLES.items()}
    assert len(best) == 1
