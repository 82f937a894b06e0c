"""The attention probe: its weights are those of eager attention, and its shares those of hand-made weights."""

import shutil

import numpy as np
import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.tasks import attention

pytestmark = pytest.mark.heavy


def test_weights_are_those_of_eager_attention_at_2k(tiny_model):
    import torch
    from transformers import AutoModelForCausalLM

    model = HuggingFaceModel(ModelOptions(str(tiny_model), chunk_tokens=300))
    ids = torch.randint(2, 300, (2048,), generator=torch.Generator().manual_seed(1)).tolist()
    ours = attention._attention_of(model, ids)
    eager = AutoModelForCausalLM.from_pretrained(tiny_model, attn_implementation="eager")
    with torch.inference_mode():
        expected = (
            torch.stack(eager(torch.tensor([ids]), output_attentions=True).attentions)[:, 0, :, -1].mean(1).numpy()
        )
    assert ours.shape == (3, 2048)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    np.testing.assert_allclose(ours.sum(1), 1.0, atol=1e-5)
    assert model.model.config._attn_implementation == "sdpa"  # as before


def test_shares_by_hand():
    weights = np.zeros((1, 20), np.float32)
    weights[0, [0, 5, 10, 17, 19]] = [0.5, 0.1, 0.1, 0.2, 0.1]
    found = attention._shares(weights, 3, 18)  # a context of 15 tokens: thirds are 3-7, 8-12, 13-17
    assert found["first_third_whole"][0] == pytest.approx(0.6)  # tokens 0 to 5
    assert found["last_third_whole"][0] == pytest.approx(0.3)  # tokens 14 to 19
    assert found["first_third_context"][0] == pytest.approx(0.1 / 0.4)
    assert found["last_third_context"][0] == pytest.approx(0.2 / 0.4)
    # Of tokens 4 to 19, thirds of 5: 4-8 and 15-19.
    assert found["first_third_whole_without_sink"][0] == pytest.approx(0.1 / 0.5)
    assert found["last_third_whole_without_sink"][0] == pytest.approx(0.3 / 0.5)


def test_a_chat_prompt_is_refused(tiny_model, tmp_path):
    folder = tmp_path / "chat"
    shutil.copytree(tiny_model, folder)
    (folder / "chat_template.jinja").write_text("{{ messages[0]['content'] }}")
    model = HuggingFaceModel(ModelOptions(str(folder), prompt_format="chat"))
    with pytest.raises(EvaluateError, match="leave --prompt-format chat out"):
        attention._check_model(model, None)
