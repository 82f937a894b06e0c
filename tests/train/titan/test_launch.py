"""What is refused before torchtitan starts."""

import sys

import pytest

from nextlong.errors import RecipeError

pytestmark = pytest.mark.heavy


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        (
            "model.lora_rank",
            4,
            r"--engine torchtitan: it does not support .*model\.lora_rank=4 \(only null\)",
        ),
        (
            "memory.checkpointing",
            "offload",
            r"memory\.checkpointing=offload \(only layers or none\)",
        ),
        ("attention_kernel", "sdpa", r"attention_kernel=sdpa \(only auto\)"),
    ],
)
def test_a_key_that_it_cannot_express(train_recipe, quiet, key, value, told):
    from nextlong.train.titan.launch import train

    with pytest.raises(RecipeError, match=told):
        train(train_recipe({key: value}), quiet)


def test_a_missing_torchtitan(train_recipe, quiet, monkeypatch, llama):
    from nextlong.train.titan.launch import train

    monkeypatch.setitem(sys.modules, "torchtitan", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(RecipeError) as error:
        train(train_recipe({"model.scratch": None, "model.path": llama}), quiet)
    assert error.value.where == "--engine torchtitan"
    assert "torchtitan==0.3.0" in error.value.fix


@pytest.mark.parametrize(
    ("asked", "count", "environment", "engine"),
    [
        (None, 1, {}, "nextlong"),
        (None, 8, {}, "torchtitan"),
        (None, 1, {"WORLD_SIZE": "2"}, "torchtitan"),
        ("nextlong", 8, {}, "nextlong"),
        ("torchtitan", 1, {}, "torchtitan"),
    ],
)
def test_the_engine_of_several_devices(
    train_recipe, monkeypatch, asked, count, environment, engine
):
    from nextlong.cli import main
    from nextlong.train import loop
    from nextlong.train.recipe import TrainRecipe
    from nextlong.train.titan import launch

    recipe = train_recipe({"hardware.count": count})
    monkeypatch.setattr(TrainRecipe, "load", lambda path, overrides: recipe)
    started = []
    monkeypatch.setattr(
        loop, "train", lambda recipe, console: started.append("nextlong")
    )
    monkeypatch.setattr(
        launch, "train", lambda recipe, console: started.append("torchtitan")
    )
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert (
        main.main(["train", "train.yaml", *(["--engine", asked] if asked else [])]) == 0
    )
    assert started == [engine]


@pytest.mark.parametrize(
    "name", ["paper-128k", "paper-512k", "authors-64k", "authors-512k"]
)
def test_presets_can_be_trained(name):
    from nextlong.train.recipe import check_supported, recipe_from
    from nextlong.train.titan import launch

    runs = ["long", "short"][: 1 if name == "paper-128k" else 2]
    recipe = recipe_from(name, out="out", data={"runs": runs}, model="llama")
    check_supported(recipe, launch._KEYS, trainer="torchtitan", advice="")
    groups, rest = divmod(recipe.hardware.count, recipe.hardware.ranks_per_row)
    rows = recipe.training.tokens_per_step // (recipe.data.pack or 131_072)
    assert (rest, rows % groups) == (
        0,
        0,
    )  # the groups of devices that share a row read equally many
