import numpy as np
import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.huggingface import HuggingFaceModel, LoadOptions
from nextlong.evaluate.probes import copying, key_values
from nextlong.evaluate.task import Request

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def model(tiny_model):
    return HuggingFaceModel(str(tiny_model), LoadOptions(chunk_tokens=100))


def request(model, data_folder, length=512, samples=4):
    return Request(length, model.tokenizer, DataFiles(data_folder), samples)


def test_the_copys_worth_is_that_of_plain_forward_passes(model, data_folder):
    import torch

    asked = request(model, data_folder, length=300, samples=1)
    found = copying.measure(model, asked, None)
    passage, other, between = copying._pieces(asked, 0, special=len(model.tokenizer.prefix))
    assert len(passage) == len(other) == copying.PASSAGE_TOKENS
    losses = []
    for head in (other, passage):
        ids = torch.tensor([model.tokenizer.with_prefix([*head, *between, *passage])])
        assert ids.shape[1] == 300
        with torch.inference_mode():
            logits = model.model(ids).logits[0, -copying.PASSAGE_TOKENS - 1 : -1]
        losses.append(float(torch.nn.functional.cross_entropy(logits, ids[0, -copying.PASSAGE_TOKENS :])))
    assert found["scores"]["gain_nats"] == pytest.approx(losses[0] - losses[1], abs=1e-3)
    assert found["distance"] == 300 - 2 * copying.PASSAGE_TOKENS


def test_every_sample_reads_elsewhere(model, data_folder):
    asked = request(model, data_folder)
    parts = [copying.haystack_ids(asked, 100, part=number) for number in range(3)]
    assert len({tuple(part) for part in parts}) == 3
    assert all(part.shape == (100,) and part.dtype == np.int64 for part in parts)


@pytest.mark.parametrize("probe", [copying.PROBE, key_values.PROBE])
def test_what_cannot_be_measured_is_refused(probe, model, data_folder, tmp_path):
    with pytest.raises(EvaluateError, match="needs at least"):
        probe.measure(model, request(model, data_folder, length=64), None)
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle" / "haystack.txt").write_text("too short")
    with pytest.raises(EvaluateError, match="put a longer text there"):
        probe.measure(model, request(model, tmp_path), None)
