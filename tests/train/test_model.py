import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.start import train as start

    return start(recipe, console)


def losses(final):
    return [json.loads(line)["loss"] for line in (final.parent / "metrics.jsonl").read_text().splitlines()]


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


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # dynamo asks
def test_compiled_layers_give_the_loss_of_others(train_recipe, quiet, monkeypatch):
    """By the backend that needs no C++ compiler: the graph is captured and differentiated, and run as it is."""
    import torch

    from nextlong.train import model

    monkeypatch.setattr(model, "COMPILER", "aot_eager")
    changes = {"data.pack": 4096, "training.steps": 2, "training.warmup_steps": 0}
    plain = losses(train(train_recipe(changes, out="plain"), quiet))
    torch._dynamo.utils.counters.clear()
    compiled = losses(train(train_recipe({**changes, "compile": "on"}, out="compiled"), quiet))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert compiled == pytest.approx(plain, abs=1e-5)
