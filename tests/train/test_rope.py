"""The RoPE base that is asked for is computed with, saved and loaded again."""

import pytest

from nextlong.errors import RecipeError
from packed_llama import llama

pytestmark = pytest.mark.heavy


def config(**given):
    from transformers import LlamaConfig

    return LlamaConfig(
        vocab_size=97, hidden_size=48, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=2048, **given
    )


def test_transformers_ignores_the_old_attribute():
    """If this fails, transformers has changed, and rope.py can be simpler."""
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

    from nextlong.train import rope

    stretched = config()
    said = rope.set_base(stretched, base=2e8, max_tokens=131_072, scaling="keep")
    assert said == [
        "RoPE base: 200,000,000 (the model's was 10,000)",
        "longest row: 131,072 tokens (the model's was 2,048)",
    ]
    model = AutoModelForCausalLM.from_config(stretched)
    rope.check_base(model)
    assert model.model.rotary_emb.inv_freq[1].item() == pytest.approx(2e8 ** (-2 / 24))
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path)
    rope.check_base(again)
    assert torch.equal(again.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    assert again.config.max_position_embeddings == 131_072


def test_a_base_that_did_not_arrive_is_noticed():
    from nextlong.train import rope

    model = llama("stock")
    model.config.rope_parameters["rope_theta"] = 1e6
    with pytest.raises(AssertionError, match="inv_freq is not that of base 1000000"):
        rope.check_base(model)


@pytest.mark.parametrize(("scaling", "kind"), [("keep", "linear"), ("replace", "default")])
def test_scaling_is_kept_or_replaced_and_said(scaling, kind):
    from nextlong.train import rope

    scaled = config(rope_parameters={"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4})
    said = rope.set_base(scaled, base=1e6, max_tokens=2048, scaling=scaling)
    assert scaled.rope_parameters["rope_type"] == kind
    assert ("factor" in scaled.rope_parameters) == (scaling == "keep")
    assert {"keep": "kept", "replace": "replaced"}[scaling] in said[0]


def test_rows_that_a_model_cannot_be_stretched_to():
    from transformers import GPT2Config

    from nextlong.train import rope

    with pytest.raises(RecipeError, match=r"rows have 4,096 tokens .* set model\.rope_base"):
        rope.set_base(config(), base=None, max_tokens=4096, scaling="keep")
    with pytest.raises(RecipeError, match="gpt2 cannot be stretched beyond 1,024"):
        rope.set_base(GPT2Config(), base=None, max_tokens=4096, scaling="keep")
    with pytest.raises(RecipeError, match="gpt2 has no single RoPE base"):
        rope.set_base(GPT2Config(), base=1e6, max_tokens=1024, scaling="keep")
