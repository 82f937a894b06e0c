from typing import get_args

import pytest

from nextlong.recipe.negatives import NEGATIVES, NegativesName


def test_every_name_of_the_recipe_has_a_choice():
    assert set(NEGATIVES) == set(get_args(NegativesName))


@pytest.mark.parametrize(
    ("asked", "names"),
    [
        ("are_nearest", {"top"}),
        ("are_reordered", {"random-retrieved", "tail"}),
        ("are_random", {"random-retrieved", "random-corpus"}),
        ("repeat_meta_chunk", {"self-repeat"}),
    ],
)
def test_what_each_choice_means(asked, names):
    assert {name for name, choice in NEGATIVES.items() if getattr(choice, asked)} == names
