"""What makes a training smaller, and what else it can be fed with: each is run, and its model loads."""

import json
import sys

import pytest

from nextlong.errors import RecipeError

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.start import train as start

    return start(recipe, console)


def losses(final):
    return [json.loads(line)["loss"] for line in (final.parent / "metrics.jsonl").read_text().splitlines()]


def test_conversations(train_recipe, quiet, llama, tmp_path):
    turns = ["harbour tide anchor", "sail current reef", "flour yeast oven", "dough crust knead"]
    said = {
        "messages": [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(turns)]
    }
    (tmp_path / "chat.jsonl").write_text((json.dumps(said) + "\n") * 60)
    recipe = train_recipe(
        {
            "data.runs": [],
            "data.chat": str(tmp_path / "chat.jsonl"),
            "data.pack": 512,
            "data.validation": 0.0,
            "training.tokens_per_step": 1024,
            "model.scratch": None,
            "model.path": llama,
        }
    )
    final = train(recipe, quiet)
    assert losses(final)[-1] < losses(final)[0]


def test_a_bare_on_or_off_of_yaml_is_a_word(train_recipe):
    from nextlong.train.recipe import TrainRecipe

    made = TrainRecipe.from_dict(
        train_recipe().model_dump(mode="json"), overrides=["watch.tensorboard=on", "watch.wandb=off"]
    )
    assert (made.watch.tensorboard, made.watch.wandb) == ("on", "off")
    with pytest.raises(RecipeError, match="watch.wandb must be 'off' or 'offline'"):
        TrainRecipe.from_dict(train_recipe().model_dump(mode="json"), overrides=["watch.wandb=on"])


def test_what_is_not_installed_is_named(train_recipe, quiet, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(RecipeError, match="pip install bitsandbytes, or set it to adamw"):
        train(train_recipe({"memory.optimizer": "adamw-8bit"}), quiet)
