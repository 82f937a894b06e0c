import json
from pathlib import Path

import pytest

from llama_config import llama_3_8b

pytestmark = pytest.mark.heavy


K = 1024


SEQUENCES_512K = [[512 * K], [64 * K] * 8, [64 * K] * 8]  # 1 : 2


def recipe(preset, *overrides):
    from nextlong.train.presets import recipe_from

    runs = ["a", "b"] if "512k" in preset else ["a"]
    return recipe_from(preset, out="out", data={"runs": runs}, model="llama", overrides=overrides)


@pytest.mark.parametrize(
    ("preset", "documents", "hours"), [("paper-128k", [[128 * K]], 15), ("paper-512k", SEQUENCES_512K, 20)]
)
def test_the_papers_hours_within_a_quarter(preset, documents, hours):
    from nextlong.train.plan import plan

    found = plan(recipe(preset), llama_3_8b(), documents)
    assert found.sizes.parameters == 8_030_261_248
    assert found.seconds / 3600 == pytest.approx(hours, rel=0.25)


def test_devices_that_cannot_share_a_step():
    from nextlong.errors import RecipeError
    from nextlong.train.plan import plan

    with pytest.raises(RecipeError, match="cannot share 32 rows a step evenly"):
        plan(recipe("paper-128k", "hardware.count=60"), llama_3_8b(), [[128 * K]])


def test_nothing_is_loaded(train_recipe, quiet):
    """The dry run reads config and index: a model folder without weights will do."""
    from nextlong.train import plan

    plan.show(train_recipe(), quiet)
    assert not Path(train_recipe().out).exists()


def test_the_command_prints_the_plan(train_recipe, command, tmp_path):
    path = tmp_path / "recipe.yaml"
    path.write_text(train_recipe().dump())
    said = command("train", path, "--dry-run").stdout
    for word in (
        "parameters:",
        "memory:",
        "one layer:",
        "LlamaMLP",
        "operations:",
        "time:",
        "measured here",
        "64 × H100",
    ):
        assert word in said
    assert json.dumps(said).isascii() or said


def test_steps_that_training_refuses_are_refused(train_recipe):
    from nextlong.errors import RecipeError
    from nextlong.train import plan

    with pytest.raises(RecipeError, match=r"tokens_per_step=5,000 is not a multiple of a row's 2,048 tokens; use 4096"):
        plan.planned(train_recipe({"training.tokens_per_step": 5000}))


def test_many_passes_over_the_data_are_warned_of(train_recipe):
    from nextlong.train import plan

    few = plan.planned(train_recipe())
    assert few.passes == 6 / (few.rows // 2)
    assert f"the data are read {few.passes:g} times" in dict(plan.facts(few))["rows"]
    assert few.warning == ""
    many = plan.planned(train_recipe({"training.steps": 6000}))
    assert many.passes == 1000 * few.passes
    assert dict(plan.facts(many))["warning"] == many.warning == many.as_json()["notes"][-1]
    assert many.warning.startswith(f"the data are read {many.passes:g} times")
