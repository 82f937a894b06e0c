"""What makes a training smaller, and what else it can be fed with: each is run, and its model loads."""

import json
import sys
from pathlib import Path

import pytest
import yaml

from nextlong.errors import RecipeError

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.start import train as start

    return start(recipe, console)


def losses(final):
    return [json.loads(line)["loss"] for line in (final.parent / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def llama(tmp_path, shared_run):
    """A folder with a small Llama and the run's tokenizer, which writes conversations."""
    from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=512, max_position_embeddings=1024, **sizes)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / "llama")
    (path,) = shared_run.glob("*-tokenizer-*/*.tokenizer.json")
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(path))
    tokenizer.chat_template = (
        "{% for message in messages %}<{{ message.role }}>{{ message.content }}</s>{% endfor %}"
        "{% if add_generation_prompt %}<assistant>{% endif %}"
    )
    tokenizer.save_pretrained(tmp_path / "llama")
    return str(tmp_path / "llama")


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")  # peft asks for it
def test_adapters_are_trained_resumed_and_merged(train_recipe, quiet, llama):
    import torch
    from transformers import AutoModelForCausalLM

    changes = {
        "model.scratch": None,
        "model.path": llama,
        "model.lora_rank": 4,
        "model.rope_base": 1e6,
        "memory.checkpointing": "layers",
    }
    whole = train(train_recipe(changes, out="whole"), quiet)
    out = Path(train_recipe(changes, out="again").out)
    train(train_recipe(changes, out="again"), quiet)
    for path in (out / "checkpoints" / "step-000006").iterdir():
        path.unlink()
    (out / "checkpoints" / "step-000006").rmdir()
    again = train(train_recipe(changes, out="again"), quiet)
    assert losses(again) == losses(whole)
    assert losses(whole)[-1] < losses(whole)[0]
    base, merged = (AutoModelForCausalLM.from_pretrained(path) for path in (llama, whole))
    assert not torch.equal(base.model.layers[0].mlp.up_proj.weight, merged.model.layers[0].mlp.up_proj.weight)
    assert torch.equal(base.model.embed_tokens.weight, merged.model.embed_tokens.weight)
    assert merged.config.rope_parameters["rope_theta"] == 1e6
    assert merged.config.max_position_embeddings == 2048


@pytest.mark.parametrize("checkpointing", ["none", "layers"])
def test_bf16(train_recipe, quiet, checkpointing):
    import torch
    from transformers import AutoModelForCausalLM

    final = train(train_recipe({"training.precision": "bf16", "memory.checkpointing": checkpointing}), quiet)
    assert losses(final)[-1] < losses(final)[0]
    assert AutoModelForCausalLM.from_pretrained(final).dtype == torch.bfloat16
    (last,) = (final.parent / "checkpoints").glob("step-000006")
    assert AutoModelForCausalLM.from_pretrained(last).dtype == torch.float32


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


def test_tensorboard(train_recipe, quiet):
    pytest.importorskip("tensorboard")
    final = train(train_recipe({"watch.tensorboard": "on"}), quiet)
    assert list((final.parent / "tensorboard").glob("events.*"))


def test_what_is_not_installed_is_named(train_recipe, quiet, monkeypatch):
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", None)
    with pytest.raises(RecipeError, match="pip install bitsandbytes, or set it to adamw"):
        train(train_recipe({"memory.optimizer": "adamw-8bit"}), quiet)


def test_sharing_needs_someone_to_share_with(train_recipe, quiet):
    with pytest.raises(RecipeError, match=r"memory\.shard=fsdp2 shares weights among ranks, and there is one"):
        train(train_recipe({"memory.shard": "fsdp2"}), quiet)


def test_context_parallelism_from_the_launcher_is_refused(train_recipe, command, tmp_path):
    """accelerate takes it from the environment, as `accelerate launch` sets it."""
    path = tmp_path / "recipe.yaml"
    path.write_text(train_recipe({"memory.shard": "fsdp2"}).dump())
    asked = {"ACCELERATE_USE_PARALLELISM_CONFIG": "true", "PARALLELISM_CONFIG_CP_SIZE": "2"}
    done = command("train", path, ranks=2, check=False, **asked)
    assert done.returncode != 0
    assert "drops the document mask in silence" in done.stderr
    assert yaml.safe_load(path.read_text())["memory"]["context_parallel"] == 1
