"""The wording of errors about trainings: what is wrong, and what to do."""

import json

import pytest
from tests.support.llama_config import LLAMA

from nextlong.errors import CorpusError, NextlongError, RecipeError
from nextlong.train.emit import check_llama
from nextlong.train.recipe import TrainRecipe, check_supported, micro_batches, preset


def recipe(*overrides):
    keys = {"out": "out", "data": {"runs": ["a"]}, "model": {"path": "llama"}}
    return TrainRecipe.from_dict(keys, overrides=overrides)


def said(function, *arguments, **options):
    """Return what the error of a call says."""
    with pytest.raises(NextlongError) as error:
        function(*arguments, **options)
    return str(error.value)


def test_an_unknown_preset_is_told_with_those_that_there_are():
    assert said(preset, "paper-1m").startswith(
        "--preset='paper-1m' is not known; choose from paper-128k"
    )


def test_keys_that_a_trainer_does_not_support_are_named_with_their_values():
    asked = recipe("model.lora_rank=8", "training.eps=1e-6")
    keys = {"data": None, "training.eps": (1e-8,), "training": None}
    assert said(
        check_supported, asked, keys, trainer="--emit prolong", advice="leave these"
    ) == (
        "--emit prolong: it does not support model.lora_rank=8 (only null); "
        "training.eps=1e-06 (only 1e-08); leave these"
    )


def test_devices_that_cannot_share_a_step_are_told_what_to_change():
    assert said(
        micro_batches, recipe(), rows_per_step=32, devices=60, ranks_per_row=1
    ) == (
        "hardware.count=60 cannot share the 32 rows of a step evenly, with 1 device per "
        "row (1 row at once); change hardware.count, hardware.ranks_per_row, "
        "training.micro_batch_rows or training.tokens_per_step"
    )


def test_a_model_that_a_trainer_computes_differently_is_told():
    config = {**LLAMA, "attention_bias": True}
    assert said(check_llama, config, path="llama", trainer="--emit olmo") == (
        "model.path='llama' has attention_bias=True, which --emit olmo does not support; "
        "use --emit axolotl"
    )


@pytest.mark.heavy
def test_a_step_that_is_not_of_whole_rows_is_told_with_one_that_is():
    from nextlong.train.rows import step_rows

    asked = recipe("training.tokens_per_step=5000")
    with pytest.raises(RecipeError) as error:
        step_rows(asked, rows=10, row_tokens=2048)
    assert str(error.value) == (
        "training.tokens_per_step=5,000 is not a multiple of a row's 2,048 tokens; use "
        "4096"
    )


@pytest.mark.heavy
def test_a_line_that_is_no_conversation_is_told_with_the_shape_of_one(tmp_path):
    from nextlong.train.conversations import read_conversations

    path = tmp_path / "chat.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user"}]}))
    with pytest.raises(CorpusError) as error:
        list(read_conversations(path))
    assert str(error.value) == (
        f"{path}:1: message 0 has neither content nor tool_calls; write "
        '{"messages": [{"role": …, "content": …}, …]}'
    )
