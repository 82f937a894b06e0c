from pathlib import Path

import pytest

from nextlong.errors import RecipeError
from nextlong.recipe.presets import preset, preset_path

RECIPES = sorted(path.stem for path in (Path(__file__).parents[2] / "recipes").glob("*.yaml"))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_of_the_package_is_one(name):
    assert preset(name) == preset_path(name).read_text(encoding="utf-8") != ""


@pytest.mark.parametrize("name", ["", "no-such", "../recipes/paper-128k"])
def test_another_name_is_told_with_those_there_are(name):
    with pytest.raises(RecipeError, match=f"choose one of: {', '.join(RECIPES)}"):
        preset(name)
