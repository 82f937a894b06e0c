"""What would be wrong in silence is refused before the first step: leaks, other losses, missing weights and NaN."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from tests.support.packed_llama import BOUNDS, llama, packed

from nextlong import errors

pytestmark = pytest.mark.heavy


SIZES = {
    "vocab_size": 128,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}


SIZES |= {"num_key_value_heads": 2, "max_position_embeddings": 256}


MAMBA = {
    "mamba_d_ssm": 64,
    "mamba_n_heads": 4,
    "mamba_d_head": 16,
    "mamba_d_state": 16,
    "mamba_n_groups": 1,
}


def train(recipe, console):
    from nextlong.train.loop import train as start

    return start(recipe, console)


def checked(name, *, is_packed, **more):
    """Return what the check says of a small model of an architecture."""
    import torch
    import transformers

    from nextlong.train.attention import register_attention
    from nextlong.train.check import check_model
    from nextlong.train.loss import install_loss
    from nextlong.train.recipe import TrainRecipe

    config = getattr(transformers, f"{name}Config")(**SIZES, **more)
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=register_attention()
    )
    install_loss(made)
    keys = {
        "out": "out",
        "data": {"runs": ["run"]},
        "model": {"path": "model"},
        "training": {"precision": "fp32"},
    }
    return check_model(
        made,
        TrainRecipe.from_dict(keys),
        device=torch.device("cpu"),
        is_packed=is_packed,
    )


def test_a_llama_passes():
    assert checked("Llama", is_packed=True).startswith(
        "check: no leak between documents, relative difference to the loss "
    )


def test_convolutions_that_read_across_borders_are_refused_where_rows_are_packed():
    layers = {"layer_types": ["conv", "full_attention"]}
    with pytest.raises(errors.RecipeError) as error:
        checked("Lfm2", is_packed=True, **layers)
    assert error.value.where == "Lfm2ForCausalLM"
    assert "data.pack" in error.value.fix
    assert checked("Lfm2", is_packed=False, **layers).startswith(
        "check: relative difference to the loss "
    )


def test_a_multiplier_of_the_output_head_is_kept(monkeypatch):
    from nextlong.train import loss

    assert checked("FalconH1", is_packed=False, lm_head_multiplier=0.5, **MAMBA)
    monkeypatch.setattr(loss, "_logit_scale", lambda _: 1.0)
    with pytest.raises(errors.RecipeError) as error:
        checked("FalconH1", is_packed=False, lm_head_multiplier=0.5, **MAMBA)
    assert error.value.where == "FalconH1ForCausalLM"


def test_an_auxiliary_loss_is_not_dropped_in_silence():
    experts = {"num_local_experts": 4, "router_aux_loss_coef": 0.1}
    assert checked("Mixtral", is_packed=True, **experts)
    with pytest.raises(errors.RecipeError) as error:
        checked("Mixtral", is_packed=True, output_router_logits=True, **experts)
    assert error.value.where == "MixtralForCausalLM"
    assert "output_router_logits" in error.value.fix


def test_logits_that_are_bent_are_refused():
    with pytest.raises(errors.RecipeError) as error:
        checked("Gemma2", is_packed=False, head_dim=8, sliding_window=128)
    assert error.value.where == "Gemma2ForCausalLM"


@pytest.mark.parametrize(
    ("name", "more", "where"),
    [
        (
            "Llama4Text",
            {
                **SIZES,
                "vocab_size": 512,
                "intermediate_size_mlp": 64,
                "num_local_experts": 2,
                "head_dim": 8,
            },
            "Llama4ForCausalLM",
        ),
        ("Gemma3", {"text_config": SIZES}, "model.path"),
    ],
)
def test_models_of_another_build_get_an_error(
    train_recipe, quiet, tmp_path, name, more, where
):
    import transformers

    config = getattr(transformers, f"{name}Config")(**more)
    config.save_pretrained(tmp_path / "model")
    if name == "Llama4Text":
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(
            tmp_path / "model"
        )
    changes = {
        "model.scratch": None,
        "model.path": str(tmp_path / "model"),
        "model.rope_base": 1e6,
    }
    with pytest.raises(errors.NextlongError) as error:
        train(train_recipe(changes), quiet)
    assert error.value.where == where


def rewritten(folder, change):
    """Change the weights of a folder."""
    from safetensors.torch import load_file, save_file

    weights = load_file(Path(folder) / "model.safetensors")
    change(weights)
    save_file(weights, Path(folder) / "model.safetensors", metadata={"format": "pt"})


def test_varlen_attention_is_refused_where_it_cannot_run(train_recipe, quiet):
    with pytest.raises(errors.RecipeError) as error:
        train(train_recipe({"attention_kernel": "varlen"}), quiet)
    assert error.value.where == "attention_kernel"
    assert error.value.value == "varlen"


def test_the_check_gives_varlen_attention_16_bits(train_recipe, monkeypatch):
    """The kernel runs on a GPU alone: here each document is attended to by hand."""
    import torch
    from torch.nn.attention import varlen

    from nextlong.train import model
    from nextlong.train.check import check_model
    from nextlong.train.prepare import config_of

    seen = set()

    def by_hand(query, key, value, bounds, *_, scale, **__):
        seen.update(part.dtype for part in (query, key, value))
        parts = []
        for first, last in pairwise(bounds.tolist()):
            documents = [
                part[first:last].transpose(0, 1)[None] for part in (query, key, value)
            ]
            out = torch.nn.functional.scaled_dot_product_attention(
                *documents, is_causal=True, scale=scale, enable_gqa=True
            )
            parts.append(out[0].transpose(0, 1))
        return torch.cat(parts)

    monkeypatch.setattr(varlen, "varlen_attn", by_hand)
    monkeypatch.setattr(model, "_check_kernel", lambda _: None)
    keys = {"training.precision": "bf16", "model.scratch.vocabulary": 97}
    recipe = train_recipe({**keys, "attention_kernel": "varlen"})
    made = model.make_model(recipe, config_of(recipe, vocabulary=None))
    device = torch.device("cpu")
    said = check_model(made, recipe, device=device, is_packed=True)
    assert said.startswith("check: no leak between documents")
    assert seen == {torch.bfloat16}


def test_missing_weights_are_refused(train_recipe, quiet, llama):
    rewritten(llama, lambda weights: weights.pop("model.layers.1.mlp.up_proj.weight"))
    with pytest.raises(errors.RecipeError) as error:
        train(
            train_recipe(
                {"model.scratch": None, "model.path": llama, "model.rope_base": 1e6}
            ),
            quiet,
        )
    assert error.value.where == "model.path"
    assert "model.layers.1.mlp.up_proj" in error.value.problem


def test_a_nan_in_the_weights_is_named(train_recipe, quiet, llama):
    rewritten(llama, lambda weights: weights["model.norm.weight"].fill_(float("nan")))
    with pytest.raises(errors.RecipeError) as error:
        train(
            train_recipe(
                {"model.scratch": None, "model.path": llama, "model.rope_base": 1e6}
            ),
            quiet,
        )
    assert error.value.where == "model.path"
    assert "model.norm.weight" in error.value.problem


def test_a_weight_that_becomes_nan_while_training_is_named(
    train_recipe, quiet, monkeypatch
):
    from nextlong.train import loop

    step = loop._Training._step

    def broken(training, *given):
        training.model.model.norm.weight.data[0] = float("nan")
        return step(training, *given)

    monkeypatch.setattr(loop._Training, "_step", broken)
    with pytest.raises(errors.RunError) as error:
        train(train_recipe(), quiet)
    assert error.value.where == "step 1"
    assert "model.norm.weight" in error.value.problem


def test_the_cache_of_the_saved_model_is_on(train_recipe, quiet):
    final = train(
        train_recipe({"training.steps": 2, "training.warmup_steps": 0}), quiet
    )
    assert json.loads((final / "config.json").read_text())["use_cache"] is True


def test_the_probe_sees_a_leak():
    """Stock sdpa with positions that run on, as a trainer gives them that does not know of documents."""
    from nextlong.train.check import measure_leak

    assert (
        measure_leak(
            llama("stock"), packed([0, 300])["input_ids"], [0, 300], document=0
        ).moved_inside
        == 300
    )
    whole = llama("auto")
    forward = whole.model.forward

    def run_on(**given):
        given["cu_seq_lens_q"] = given["cu_seq_lens_q"][[0, -1]]
        given["document_bounds"] = (0, BOUNDS[-1])
        return forward(**given)

    whole.model.forward = run_on
    assert (
        measure_leak(
            whole, packed(BOUNDS)["input_ids"], BOUNDS, document=0
        ).moved_outside
        > 0
    )
