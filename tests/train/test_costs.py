import pytest

from llama_config import llama_3_8b

pytestmark = pytest.mark.heavy


K = 1024


def test_attention_counts_within_documents():
    from nextlong.train import costs

    sizes = costs.sizes_of(llama_3_8b())
    whole, parts = costs.flops(sizes, [512 * K]), costs.flops(sizes, [64 * K] * 8)
    linear = 6.0 * sizes.multiplied * 512 * K
    assert (whole - linear) / (parts - linear) == pytest.approx(8)
