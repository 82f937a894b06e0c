"""Conversations are fine-tuned by TRL's own trainer on the rows of nextlong's loop, and the loss is the same."""

import importlib.util
import json
from pathlib import Path

import pytest

from nextlong.engine import store
from nextlong.errors import RecipeError, RunError

pytestmark = pytest.mark.heavy

needs_trl = pytest.mark.skipif(
    importlib.util.find_spec("trl") is None, reason="trl is not installed"
)


@pytest.fixture
def conversations(train_recipe, llama, tmp_path):
    """A function of changes that returns a recipe over 60 conversations, three of which fill a row."""
    turns = [
        "harbour tide anchor",
        "sail current reef",
        "flour yeast oven",
        "dough crust knead",
    ]
    lines = []
    for number in range(60):
        words = [f"{text} {'wave ' * (number % 5)}".strip() for text in turns]
        roles = ("user", "assistant") * 2
        lines.append(
            {
                "messages": [
                    {"role": role, "content": text}
                    for role, text in zip(roles, words, strict=True)
                ]
            }
        )
    (tmp_path / "chat.jsonl").write_text(
        "".join(json.dumps(line) + "\n" for line in lines)
    )

    def recipe(changes=None, *, out="trained"):
        keys = {
            "data.runs": [],
            "data.chat": str(tmp_path / "chat.jsonl"),
            "data.pack": 512,
            "data.validation": 0.0,
        }
        keys |= {
            "training.tokens_per_step": 1024,
            "training.steps": 4,
            "training.lr": 0.003,
            "training.warmup_steps": 0,
        }
        keys |= {
            "model.scratch": None,
            "model.path": llama,
            "training.schedule": "constant",
            "watch.spike": 2.0,
        }
        keys |= {"held_out.every_steps": 50, "held_out.rows": 16}
        return train_recipe({**keys, **(changes or {})}, out=out)

    return recipe


@needs_trl
def test_trl_gives_the_losses_of_our_loop(conversations, quiet):
    from transformers import AutoModelForCausalLM

    from nextlong.train import loop, sft

    ours = loop.train(conversations(out="ours"), quiet)
    theirs = sft.fine_tune(conversations(out="theirs"), quiet)
    expected = [
        json.loads(line)["loss"]
        for line in (ours.parent / "metrics.jsonl").read_text().splitlines()
    ]
    state = json.loads(
        next((theirs.parent).glob("checkpoint-4/trainer_state.json")).read_text()
    )
    found = [row["loss"] for row in state["log_history"] if "loss" in row]
    assert found == pytest.approx(expected, abs=2e-4)  # TRL rounds to four digits
    assert found[-1] < found[0]
    assert AutoModelForCausalLM.from_pretrained(theirs).num_parameters() > 0
    assert (theirs / "tokenizer.json").exists()


@needs_trl
def test_checkpoints_of_another_recipe_or_other_data_are_refused(conversations, quiet):
    from nextlong.train import sft

    changes = {"training.steps": 2, "checkpoints.every_steps": 2}
    final = sft.fine_tune(conversations(changes), quiet)
    out = final.parent
    (out / "checkpoint-3").mkdir()  # of a kill while it was saved
    before, weights = (
        (out / "recipe.yaml").read_bytes(),
        (final / "model.safetensors").read_bytes(),
    )
    with store.locked(out), pytest.raises(RunError, match="is in use by process"):
        sft.fine_tune(conversations(changes), quiet)
    with pytest.raises(RunError) as error:
        sft.fine_tune(conversations({**changes, "training.lr": 0.5}), quiet)
    assert error.value.where == str(out)
    assert "training.lr was 0.003 and is 0.5" in error.value.problem
    assert (out / "recipe.yaml").read_bytes() == before
    assert sft.fine_tune(conversations(changes), quiet) == final
    assert (final / "model.safetensors").read_bytes() == weights
    chat = Path(conversations().data.chat)
    chat.write_text(chat.read_text().replace("harbour", "garden"))
    with pytest.raises(RunError) as error:
        sft.fine_tune(conversations(changes), quiet)
    assert error.value.where == str(out)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            {"data.chat": None, "data.runs": ["run"], "data.pack": None},
            r"set data\.chat and model\.path",
        ),
        (
            {"model.lora_rank": 4},
            r"--engine trl: it does not support model\.lora_rank=4",
        ),
        (
            {"memory.checkpointing": "offload"},
            r"memory\.checkpointing=offload \(only layers or none\)",
        ),
    ],
)
def test_what_trl_is_not_asked_for_is_refused(
    conversations, quiet, changes, told, monkeypatch
):
    from nextlong.train import sft

    monkeypatch.setattr(sft.importlib.util, "find_spec", lambda _: True)
    with pytest.raises(RecipeError, match=told):
        sft.fine_tune(conversations(changes), quiet)


def test_without_trl_the_extra_is_named(conversations, quiet, monkeypatch):
    from nextlong.train import sft

    monkeypatch.setattr(sft.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(RecipeError) as error:
        sft.fine_tune(conversations(), quiet)
    assert error.value.fix == "pip install 'nextlong[trl]'"
    assert not Path(conversations().out).exists()
