"""The RoPE base of the recipe is computed with, saved and loaded again; adapters, bf16 and compiled layers train."""

import json
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.rope_models import SCALED, logits, scaled_model

from nextlong.errors import RecipeError

pytestmark = pytest.mark.heavy


def train(recipe, console):
    from nextlong.train.loop import train as start

    return start(recipe, console)


def losses(final):
    return [
        json.loads(line)["loss"]
        for line in (final.parent / "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)  # peft asks for it
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
    base, merged = (
        AutoModelForCausalLM.from_pretrained(path) for path in (llama, whole)
    )
    assert not torch.equal(
        base.model.layers[0].mlp.up_proj.weight,
        merged.model.layers[0].mlp.up_proj.weight,
    )
    assert torch.equal(base.model.embed_tokens.weight, merged.model.embed_tokens.weight)
    assert merged.config.rope_parameters["rope_theta"] == 1e6
    assert merged.config.max_position_embeddings == 2048


@pytest.mark.parametrize("checkpointing", ["none", "layers", "offload"])
def test_bf16(train_recipe, quiet, checkpointing):
    import torch
    from transformers import AutoModelForCausalLM

    final = train(
        train_recipe(
            {"training.precision": "bf16", "memory.checkpointing": checkpointing}
        ),
        quiet,
    )
    assert losses(final)[-1] < losses(final)[0]
    assert AutoModelForCausalLM.from_pretrained(final).dtype == torch.bfloat16
    (last,) = (final.parent / "checkpoints").glob("step-000006")
    assert AutoModelForCausalLM.from_pretrained(last).dtype == torch.float32


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # dynamo asks
@pytest.mark.parametrize("checkpointing", ["none", "layers"])
def test_compiled_layers_give_the_loss_of_others(
    train_recipe, quiet, monkeypatch, checkpointing
):
    """By the backend that needs no C++ compiler: the graph is captured and differentiated, and run as it is."""
    import torch

    from nextlong.train import model

    monkeypatch.setattr(model, "COMPILER", "aot_eager")
    changes = {
        "data.pack": 4096,
        "training.steps": 2,
        "training.warmup_steps": 0,
        "memory.checkpointing": checkpointing,
    }
    plain = losses(train(train_recipe(changes, out="plain"), quiet))
    torch._dynamo.utils.counters.clear()
    compiled = losses(
        train(train_recipe({**changes, "compile": "on"}, out="compiled"), quiet)
    )
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    assert compiled == pytest.approx(plain, abs=1e-5)


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # dynamo asks
def test_rows_of_one_document_have_one_graph_and_a_packed_one_among_them_another(
    train_recipe, monkeypatch
):
    """Training looks for several documents in the first rows only."""
    import torch

    from nextlong.train import model
    from nextlong.train.prepare import config_of
    from nextlong.train.rows import packed_batch

    monkeypatch.setattr(model, "COMPILER", "aot_eager")
    keys = {"model.scratch.vocabulary": 97}
    plain, compiled = (
        model.make_model(one, config_of(one, vocabulary=None), is_packed=False)
        for one in (train_recipe(keys), train_recipe({**keys, "compile": "on"}))
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    ids = torch.randint(97, (1, 64), generator=torch.Generator().manual_seed(0))
    graphs = []
    for bounds in ([0, 64], [0, 64], [0, 40, 64]):
        batch = packed_batch(ids, bounds)
        pair = [one(**batch).loss for one in (plain, compiled)]
        pair[1].backward()
        assert pair[1].item() == pytest.approx(pair[0].item(), abs=1e-6)
        graphs.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert graphs == [1, 1, 2]


def rows_of_several_documents():
    """Yield the boundaries of 24 rows of 512 tokens, of 1 to 8 documents."""
    import random

    draw = random.Random(0)
    for number in range(24):
        inner = sorted(draw.sample(range(1, 512), number % 8))
        yield [0, *inner, 512]


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # dynamo asks
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_rows_of_1_to_8_documents_have_one_graph_and_the_gradients_of_eager(
    train_recipe, monkeypatch, precision
):
    import torch

    from nextlong.train import model
    from nextlong.train.prepare import config_of
    from nextlong.train.rows import packed_batch

    monkeypatch.setattr(model, "COMPILER", "aot_eager")
    keys = {"training.precision": precision, "model.scratch.vocabulary": 97}
    recipe = train_recipe(keys)
    compiling = train_recipe({**keys, "compile": "on"})
    plain, compiled = (
        model.make_model(one, config_of(one, vocabulary=None))
        for one in (recipe, compiling)
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    one_graph = torch._dynamo.config.patch(
        recompile_limit=1, fail_on_recompile_limit_hit=True
    )
    generator = torch.Generator().manual_seed(0)
    for bounds in rows_of_several_documents():
        batch = packed_batch(torch.randint(97, (1, 512), generator=generator), bounds)
        with one_graph, model.autocast(recipe, torch.device("cpu")):
            pair = [one(**batch).loss for one in (plain, compiled)]
        for loss in pair:
            loss.backward()
        assert pair[1].item() == pytest.approx(pair[0].item(), abs=1e-6)
    stats = torch._dynamo.utils.counters["stats"]
    assert stats["unique_graphs"] == 1
    for one, other in zip(plain.parameters(), compiled.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, atol=1e-4, rtol=1e-3)


def config(**given):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
        **given,
    )


def rope(base, scaling):
    """A recipe of which only the RoPE keys are read."""
    return SimpleNamespace(model=SimpleNamespace(rope_base=base, rope_scaling=scaling))


def set_rope_base(*arguments, **given):
    from nextlong.train import rope as ropes

    return ropes.set_rope_base(*arguments, **given)


def test_transformers_ignores_the_old_attribute():
    """If this fails, transformers has changed, and `set_rope_base` can be simpler."""
    import torch
    from transformers import AutoModelForCausalLM

    old = config()
    old.rope_theta = 5e6
    assert torch.equal(
        AutoModelForCausalLM.from_config(old).model.rotary_emb.inv_freq,
        AutoModelForCausalLM.from_config(config()).model.rotary_emb.inv_freq,
    )


def test_the_base_is_in_the_frequencies_and_survives_a_reload(tmp_path):
    import torch
    from transformers import AutoModelForCausalLM

    stretched = config()
    said = set_rope_base(stretched, rope(2e8, "keep"), max_tokens=131_072)
    assert said == [
        "RoPE base: 200,000,000 (the model's was 10,000)",
        "longest row: 131,072 tokens (the model's was 2,048)",
    ]
    model = AutoModelForCausalLM.from_config(stretched)
    assert model.model.rotary_emb.inv_freq[1].item() == pytest.approx(2e8 ** (-2 / 24))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    assert again.config.max_position_embeddings == 131_072


@pytest.mark.parametrize(
    ("scaling", "kind"), [("keep", "linear"), ("replace", "default")]
)
def test_scaling_is_kept_or_replaced_and_said(scaling, kind):

    scaled = config(
        rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4}
    )
    said = set_rope_base(scaled, rope(1e6, scaling), max_tokens=2048)
    assert scaled.rope_parameters["rope_type"] == kind
    assert ("factor" in scaled.rope_parameters) == (scaling == "keep")
    assert {"keep": "kept", "replace": "replaced"}[scaling] in said[0]


@pytest.fixture(params=SCALED)
def scaled(request, tmp_path):
    return scaled_model(request.param, tmp_path / "scaled")


@pytest.mark.filterwarnings("ignore")  # of transformers, about the factors
@pytest.mark.parametrize("tokens", [24, 100, 256])
def test_a_kept_scaling_gives_the_logits_of_the_source(
    scaled, train_recipe, tmp_path, tokens
):
    import torch

    from nextlong.train import model
    from nextlong.train.prepare import config_of

    recipe = train_recipe({"model.scratch": None, "model.path": str(scaled)})
    own = config_of(recipe, vocabulary=None)
    base = 1e4 if own.rope_parameters["rope_type"] == "default" else None
    set_rope_base(own, rope(base, "keep"), max_tokens=256)
    model.load_weights(recipe, own).save_pretrained(tmp_path / "kept")
    ids = torch.randint(97, (1, tokens), generator=torch.Generator().manual_seed(0))
    assert torch.equal(logits(tmp_path / "kept", ids), logits(scaled, ids))


@pytest.mark.filterwarnings("ignore")  # of transformers, about the factors
def test_a_document_of_a_packed_row_has_the_logits_that_it_has_alone(
    scaled, train_recipe
):
    """A longer document beside it changes no frequency of a shorter one."""
    import torch

    from nextlong.train import model
    from nextlong.train.prepare import config_of
    from nextlong.train.rows import packed_batch

    recipe = train_recipe({"model.scratch": None, "model.path": str(scaled)})
    ours = model.load_weights(recipe, config_of(recipe, vocabulary=None))
    bounds = [0, 256, 280, 380, 580]
    ids = torch.randint(97, (1, 580), generator=torch.Generator().manual_seed(0))
    batch = packed_batch(ids, bounds)
    del batch["labels"]
    with torch.no_grad():
        together = ours(**batch, use_cache=False).logits
    for first, last in pairwise(bounds):
        alone = logits(scaled, ids[:, first:last])
        torch.testing.assert_close(together[:, first:last], alone, atol=1e-4, rtol=0)


@pytest.mark.filterwarnings("ignore")  # of transformers, about the factors
def test_the_written_config_has_the_keys_of_transformers_4_and_5(scaled, tmp_path):
    import shutil

    import torch

    from nextlong.train.rope import write_rope_keys

    both = shutil.copytree(scaled, tmp_path / "both")
    before = json.loads((both / "config.json").read_text())
    write_rope_keys(both)
    after = json.loads((both / "config.json").read_text())
    assert before.items() <= after.items()
    assert after["rope_theta"] == 1e4
    kind = before["rope_parameters"]["rope_type"]
    if kind == "default":
        assert after["rope_scaling"] is None
    else:
        named = after["rope_scaling"].keys() & {"type", "rope_type"}
        assert [after["rope_scaling"][name] for name in named] == [kind]
        assert "rope_theta" not in after["rope_scaling"]
    ids = torch.arange(97)[None]
    assert torch.equal(logits(both, ids), logits(scaled, ids))


def test_what_is_trained_names_its_base_for_transformers_4(train_recipe, quiet):
    final = train(
        train_recipe(
            {"model.rope_base": 5e5, "training.steps": 1, "training.warmup_steps": 0}
        ),
        quiet,
    )
    (checkpoint,) = (final.parent / "checkpoints").iterdir()
    for folder in (final, checkpoint):
        written = json.loads((folder / "config.json").read_text())
        assert (written["rope_theta"], written["rope_scaling"]) == (5e5, None)
        assert written["rope_parameters"]["rope_theta"] == 5e5


def test_rows_that_a_model_cannot_be_stretched_to():
    from transformers import GPT2Config

    with pytest.raises(RecipeError) as error:
        set_rope_base(config(), rope(None, "keep"), max_tokens=4096)
    assert error.value.where == "model.rope_base"
    with pytest.raises(RecipeError) as error:
        set_rope_base(GPT2Config(), rope(None, "keep"), max_tokens=4096)
    assert error.value.where == "model.path"
    with pytest.raises(RecipeError) as error:
        set_rope_base(GPT2Config(), rope(1e6, "keep"), max_tokens=1024)
    assert (error.value.where, error.value.value) == ("model.rope_base", "1e+06")
