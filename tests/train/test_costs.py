import pytest

from llama_config import llama_3_8b

pytestmark = pytest.mark.heavy


K = 1024


def recipe(preset, *overrides):
    from nextlong.train.presets import recipe_from

    runs = ["a", "b"] if "512k" in preset else ["a"]
    return recipe_from(preset, out="out", data={"runs": runs}, model="llama", overrides=overrides)


def test_attention_counts_within_documents():
    from nextlong.train import costs

    sizes = costs.sizes_of(llama_3_8b())
    whole, parts = costs.flops(sizes, [512 * K]), costs.flops(sizes, [64 * K] * 8)
    linear = 6.0 * sizes.multiplied * 512 * K
    assert (whole - linear) / (parts - linear) == pytest.approx(8)


def test_memory_knobs_make_it_smaller():
    from nextlong.train import costs

    sizes = costs.sizes_of(llama_3_8b())

    def total(*overrides):
        return costs.memory(sizes, recipe("paper-128k", *overrides), row_tokens=128 * K, ranks=64).total

    assert total("memory.checkpointing=none") > total() > total("memory.checkpointing=offload")
    assert total("memory.optimizer=adamw-8bit") < total()
    assert total("hardware.ranks_per_row=8") < total()
