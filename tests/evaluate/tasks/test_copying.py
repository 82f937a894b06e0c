import numpy as np
import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.huggingface import HuggingFaceModel
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.task import Request
from nextlong.evaluate.tasks import copying
from nextlong.evaluate.texts import haystack_ids


@pytest.fixture(scope="module")
def model(tiny_model):
    return HuggingFaceModel(ModelOptions(str(tiny_model), chunk_tokens=100))


def request(model, data_folder, length=512, samples=4):
    return Request(length, model.tokenizer, DataFiles(data_folder), samples)


@pytest.mark.heavy
def test_the_copys_worth_is_that_of_plain_forward_passes(model, data_folder):
    import torch

    asked = request(model, data_folder, length=300, samples=1)
    found = copying._measure_copying(model, asked)
    size = copying._PASSAGE_TOKENS
    text = haystack_ids(asked, 300 + size, part=0).tolist()
    passage, other = text[:size], text[size : 2 * size]
    between = text[2 * size : 300 - len(model.tokenizer.prefix)]
    losses = []
    for head in (other, passage):
        ids = torch.tensor([model.tokenizer.with_prefix([*head, *between, *passage])])
        assert ids.shape[1] == 300
        with torch.inference_mode():
            logits = model.model(ids).logits[0, -copying._PASSAGE_TOKENS - 1 : -1]
        losses.append(float(torch.nn.functional.cross_entropy(logits, ids[0, -copying._PASSAGE_TOKENS :])))
    assert found["scores"]["gain_nats"] == pytest.approx(losses[0] - losses[1], abs=1e-3)
    assert found["distance"] == 300 - 2 * copying._PASSAGE_TOKENS


@pytest.mark.heavy
def test_every_sample_reads_elsewhere(model, data_folder):
    asked = request(model, data_folder)
    parts = [haystack_ids(asked, 100, part=number) for number in range(3)]
    assert len({tuple(part) for part in parts}) == 3
    assert all(part.shape == (100,) and part.dtype == np.int64 for part in parts)


@pytest.mark.heavy
@pytest.mark.parametrize("probe", copying.TASKS)
def test_what_cannot_be_measured_is_refused(probe, model, data_folder, tmp_path):
    with pytest.raises(EvaluateError, match="needs at least"):
        probe.measure(model, request(model, data_folder, length=64))
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle" / "haystack.txt").write_text("too short")
    with pytest.raises(EvaluateError, match="put a longer text there"):
        probe.measure(model, request(model, tmp_path))


class LooksUp(HuggingFaceModel):
    """Knows what followed, in all that it has read, on the tokens read last; no weights decide."""

    def __init__(self, model, *, does):
        self._model, self._does, self.read = model, does, []
        self.device = model.device

    @property
    def tokenizer(self):
        return self._model.tokenizer

    def prefilled(self, ids):
        self.read = list(ids)

    def forget(self, kept):
        self.read = self.read[:kept]

    def forward(self, ids, cache):
        import torch

        asked, logits = ids[0].tolist(), torch.zeros(1, 10_000)
        self.read += asked
        places = [n for n in range(len(self.read) - len(asked)) if self.read[n : n + len(asked)] == asked]
        if self._does == "look up":
            logits[0, self.read[places[0] + len(asked)]] = 1.0
        return logits


@pytest.mark.heavy
def test_who_looks_up_chooses_every_value_and_who_does_not_one_in_eight(model, data_folder):
    asked = request(model, data_folder)
    right = copying._measure_key_values(LooksUp(model, does="look up"), asked)
    assert right["scores"] == {"accuracy": 100.0, "chance": 12.5}
    assert right["by_depth"] == [100.0] * 8
    assert copying._measure_key_values(LooksUp(model, does="nothing"), asked)["scores"]["accuracy"] == 12.5
    assert right["n"] == 4 * 8


@pytest.mark.heavy
def test_a_prompt_has_the_length_that_was_asked_for(model, data_folder):
    looks = LooksUp(model, does="look up")
    copying._measure_key_values(looks, request(model, data_folder, length=300, samples=1))
    question = len(model.tokenizer.encode("\n")) + 1 + len(model.tokenizer.encode(":"))
    assert len(looks.read) + question == 300
