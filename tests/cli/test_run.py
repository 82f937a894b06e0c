"""What a run says of its variant when it ends."""

from types import SimpleNamespace

import pytest

from nextlong.cli.run import _variant
from nextlong.recipe import Recipe

LONG = ["compose.target_tokens=262144", "compose.position=tail", "compose.min_meta_chunks=3"]


@pytest.mark.parametrize(
    ("overrides", "is_told"), [(LONG, True), ([*LONG, "name=mine"], False), (["compose.seed=1"], False)]
)
def test_a_long_name_that_was_made_can_be_given_otherwise(recipe_for, tmp_path, overrides, is_told):
    (tmp_path / "r.yaml").write_text(recipe_for(tmp_path / "run").dump())
    recipe = Recipe.load(tmp_path / "r.yaml", overrides=overrides)
    name = recipe.name or ",".join(overrides)
    variant = SimpleNamespace(name=name, named=f"{tmp_path}/run@{name}")
    told = _variant(recipe, SimpleNamespace(variant=variant, path=tmp_path / "run"), None)
    assert told.startswith(f"{name}, opened as {tmp_path}/run@{name}, because of --set; ")
    assert told.endswith("; --name NAME gives it a shorter name") is is_told
