"""No key of a recipe is dropped in silence: it is in the emitted files, or it is refused."""

import pytest

from nextlong.errors import RecipeError
from nextlong.train.emit import TRAINERS, expressed
from nextlong.train.emit.facts import Facts
from nextlong.train.recipe import TrainRecipe

OTHER = {  # another value of each key that may differ
    "seed": 5, "attention": "document", "attention_kernel": "sdpa", "compile": "on", "loss_kernel": "blocks",
    "model.rope_base": 5e6, "model.rope_scaling": "replace", "model.lora_rank": 8, "model.lora_alpha": 16, "training.steps": 777,
    "training.tokens_per_step": 131_072, "training.micro_batch_rows": 2, "training.lr": 3e-4, "training.min_lr_ratio": 0.3,
    "training.schedule": "constant", "training.warmup_steps": 7, "training.beta1": 0.8, "training.beta2": 0.99,
    "training.eps": 1e-6, "training.weight_decay": 0.3, "training.clip": 0.7, "training.precision": "fp32",
    "memory.checkpointing": "none", "memory.optimizer": "adamw-8bit", "memory.loss_block_tokens": 1024,
    "checkpoints.every_steps": 13, "checkpoints.keep_last": 7, "held_out.every_steps": 3, "held_out.rows": 3,
    "watch.tensorboard": "on", "watch.wandb": "offline", "watch.spike": 9.0, "hardware.count": 32, "hardware.ranks_per_row": 8,
    "torchtitan.float8": "on", "torchtitan.options": ["--compile.enable"],
}  # fmt: skip


def text_of(recipe, name, folder):
    expressed.check(recipe, {**expressed.DATA, **TRAINERS[name].keys}, trainer=name, cure="")
    facts = Facts(recipe=recipe, folder=folder, sequence_tokens=2048, row_tokens=2048)
    return TRAINERS[name].files(facts)


def with_key(recipe, key, value):
    plain = recipe.model_dump(mode="json")
    section, _, name = key.rpartition(".")
    (plain[section] if section else plain)[name] = value
    return TrainRecipe.from_dict(plain)


def test_another_value_stands_here_for_each_key(recipe):
    elsewhere = (
        "out",
        "hardware.device",
        "data.",
        "model.path",
        "model.scratch",
    )  # where it goes, planned for, exported
    known = {key for key, _, _ in expressed._leaves(recipe(), above="") if not key.startswith(elsewhere)}
    assert known <= set(OTHER)


@pytest.mark.parametrize("name", TRAINERS)
@pytest.mark.parametrize("key", sorted(set(OTHER) - {"model.rope_scaling"}))  # for a model that has one: test_facts.py
def test_a_key_is_emitted_or_refused(recipe, tmp_path, name, key):
    before, after = text_of(recipe(), name, tmp_path), with_key(recipe(), key, OTHER[key])
    try:
        text = text_of(after, name, tmp_path)
    except RecipeError as error:
        text, said = None, str(error)
    assert key in said if text is None else text != before
