"""The initial model of the mechanism experiment: one head looks one token back, whatever stands there."""

import pytest

torch = pytest.importorskip("torch")
from nextlong.replicate import initial  # noqa: E402

pytestmark = pytest.mark.heavy


def test_the_first_head_of_the_first_layer_looks_one_token_back(tmp_path):
    from transformers import AutoModelForCausalLM

    initial.save(
        tmp_path, vocabulary=100, row_tokens=512, seed=3, hidden_size=64, intermediate_size=64, layers=2, heads=2
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation="eager")
    ids = torch.randint(100, (1, 300), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        first, second = model(input_ids=ids, output_attentions=True).attentions
    assert float(first[0, 0].diagonal(-1).min()) > 0.9
    for other in (first[0, 1], second[0, 0]):
        assert float(other.diagonal(-1).mean()) < 0.5, "the other heads are random"


def test_another_seed_gives_other_weights(tmp_path):
    sizes = {"vocabulary": 50, "row_tokens": 512, "hidden_size": 32, "intermediate_size": 32, "layers": 2, "heads": 2}
    for name, seed in (("a", 0), ("b", 0), ("c", 1)):
        initial.save(tmp_path / name, seed=seed, **sizes)
    one, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert one == same != other
