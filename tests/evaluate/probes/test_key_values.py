import pytest

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.huggingface import HuggingFaceModel, LoadOptions
from nextlong.evaluate.probes import key_values
from nextlong.evaluate.task import Request

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def model(tiny_model):
    return HuggingFaceModel(str(tiny_model), LoadOptions(chunk_tokens=100))


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


def request(model, data_folder, length=512, samples=4):
    return Request(length, model.tokenizer, DataFiles(data_folder), samples)


def test_who_looks_up_chooses_every_value_and_who_does_not_one_in_eight(model, data_folder):
    asked = request(model, data_folder)
    right = key_values.measure(LooksUp(model, does="look up"), asked, None)
    assert right["scores"] == {"accuracy": 100.0, "chance": 12.5}
    assert right["by_depth"] == [100.0] * 8
    assert key_values.measure(LooksUp(model, does="nothing"), asked, None)["scores"]["accuracy"] == 12.5
    assert right["n"] == 4 * 8


def test_a_prompt_has_the_length_that_was_asked_for(model, data_folder):
    looks = LooksUp(model, does="look up")
    key_values.measure(looks, request(model, data_folder, length=300, samples=1), None)
    question = len(model.tokenizer.encode("\n")) + 1 + len(model.tokenizer.encode(":"))
    assert len(looks.read) + question == 300
