"""Dependency, copying and key_values: losses are those of plain forward passes, and who looks up chooses every value."""

from types import SimpleNamespace

import numpy as np
import pytest

from answering_models import asked, evaluated
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.task import Request
from nextlong.evaluate.tasks import probes
from nextlong.evaluate.texts import haystack_ids

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def model(tiny_model):
    return HuggingFaceModel(ModelOptions(str(tiny_model), chunk_tokens=50))


def sequence(*parts, seed=1):
    """Return a sequence of spans (role, tokens), random ids."""
    spans, end = [], 0
    for role, tokens in parts:
        spans.append(SimpleNamespace(role=role, token_start=end, token_end=end + tokens))
        end += tokens
    ids = np.random.default_rng(seed).integers(2, 300, end)
    return SimpleNamespace(id="s", input_ids=ids, spans=spans)


def mean_loss(model, before, chunk):
    """Return the mean loss of a chunk behind other ids, by one plain forward pass."""
    import torch

    ids = torch.tensor([[*before, *chunk]])
    with torch.inference_mode():
        logits = model.model(ids).logits[0, len(before) - 1 : -1]
    return float(torch.nn.functional.cross_entropy(logits, torch.tensor(chunk)))


def test_losses_are_those_of_plain_forward_passes(model):
    one = sequence(
        ("meta", 40), ("negative", 60), ("separator", 1), ("meta", 30), ("negative", 80), ("meta", 20), ("negative", 9)
    )
    ids = one.input_ids.tolist()
    other = np.arange(2, 25)  # shorter than what it stands for, so it is repeated
    second, third = probes._chunk_losses(model, one, other)
    assert (second.distance, second.earlier, third.distance, third.earlier) == (61, 1, 80, 2)
    assert second.with_earlier == pytest.approx(mean_loss(model, ids[:101], ids[101:131]), abs=1e-4)
    assert third.with_earlier == pytest.approx(mean_loss(model, ids[:211], ids[211:231]), abs=1e-4)
    # Of the control of equal length, each place holds the same token of the other text, repeated.
    stand_in = np.resize(other, len(ids)).tolist()
    replaced = [ids[0], *stand_in[1:40], *ids[40:101]]
    assert second.replaced_earlier == pytest.approx(mean_loss(model, replaced, ids[101:131]), abs=1e-4)
    replaced += [*stand_in[101:131], *ids[131:211]]
    assert len(replaced) == 211
    assert third.replaced_earlier == pytest.approx(mean_loss(model, replaced, ids[211:231]), abs=1e-4)
    # The first chunk's first token stays: something has to stand before every chunk.
    negatives = [ids[0], *ids[40:101]]
    assert second.without_earlier == pytest.approx(mean_loss(model, negatives, ids[101:131]), abs=1e-4)
    assert third.without_earlier == pytest.approx(mean_loss(model, [*negatives, *ids[131:211]], ids[211:231]), abs=1e-4)


def test_chunks_that_touch_are_one(model):
    one = sequence(("bos", 1), ("meta", 40), ("meta", 10), ("negative", 30), ("meta", 20))
    (loss,) = probes._chunk_losses(model, one, np.arange(9))
    assert (loss.earlier, loss.distance, loss.tokens) == (1, 30, 20)


def test_a_sequence_without_two_meta_chunks_has_no_losses(model):
    assert list(probes._chunk_losses(model, sequence(("document", 50)), np.arange(9))) == []
    assert list(probes._chunk_losses(model, sequence(("meta", 50), ("negative", 50)), np.arange(9))) == []


def test_gains_are_binned_by_distance():
    losses = [
        probes._ChunkLoss("s", 10, distance, 1, 2.0, 2.0 + gain, 2.0 + 2 * gain)
        for distance, gain in ((70, 0.5), (100, 0.1), (5000, 0.0))
    ]
    near, far = probes._by_distance(losses)
    assert (near["from_tokens"], near["to_tokens"], near["chunks"]) == (64, 128, 2)
    assert near["gain_nats"] == pytest.approx(0.3)
    assert near["gain_over_shorter_nats"] == pytest.approx(0.6)
    assert near["interval"] == pytest.approx((0.3, 0.3))  # both are of one sequence
    assert (far["from_tokens"], far["chunks"], far["gain_nats"]) == (4096, 1, 0.0)


def test_other_text_is_of_another_document_and_without_one_nothing_is_measured(model):
    def of(doc_id, first):
        spans = [SimpleNamespace(role="meta", doc_id=doc_id, token_start=0, token_end=3)]
        return SimpleNamespace(input_ids=np.arange(first, first + 5), spans=spans)

    assert probes._other_text(of(1, 0), [of(1, 10), of(2, 20)]).tolist() == [20, 21, 22]
    nothing = probes._other_text(of(1, 0), [of(1, 10)])
    with pytest.raises(EvaluateError, match="no second document whose meta-chunks"):
        list(probes._chunk_losses(model, sequence(("meta", 50), ("negative", 50), ("meta", 5)), nothing))


def test_a_run_is_measured_with_a_model_of_its_tokenizer(shared_run, tmp_path):
    import nextlong

    run = nextlong.open(shared_run)
    folder = save_model(tmp_path / "model", run.tokenizer)
    what = asked(tmp_path / "results", "dependency", samples=3, run=shared_run)
    found = evaluated(HuggingFaceModel(ModelOptions(str(folder))), what)
    (result,) = found.finished
    assert (result.task, result.length, result.values["n"]) == ("dependency", None, 3)
    low, high = result.values["interval"]
    assert low - 1e-4 <= result.score <= high + 1e-4  # bounds are written with four digits
    assert result.values["scores"]["with_earlier_nats"] > 3  # random weights: about the log of the vocabulary
    assert sum(part["chunks"] for part in result.values["by_distance"]) == len(result.values["chunks"])
    metas = [sum(span.role == "meta" for span in run.sequence(number).spans) for number in range(3)]
    assert len(result.values["chunks"]) == sum(metas) - 3


def test_another_tokenizer_is_refused(shared_run, model):
    with pytest.raises(EvaluateError, match="the model's tokenizer is not that of"):
        probes._check_run(model, shared_run)


def save_model(folder, tokenizer):
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    config = LlamaConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    return folder


def request(model, data_folder, length=512, samples=4):
    return Request(length, model.tokenizer, DataFiles(data_folder), samples)


def test_the_copys_worth_is_that_of_plain_forward_passes(model, data_folder):
    import torch

    asked = request(model, data_folder, length=300, samples=1)
    found = probes._measure_copying(model, asked)
    size = probes._PASSAGE_TOKENS
    text = haystack_ids(asked, 300 + size, part=0).tolist()
    passage, other = text[:size], text[size : 2 * size]
    between = text[2 * size : 300 - len(model.tokenizer.prefix)]
    losses = []
    for head in (other, passage):
        ids = torch.tensor([model.tokenizer.with_prefix([*head, *between, *passage])])
        assert ids.shape[1] == 300
        with torch.inference_mode():
            logits = model.model(ids).logits[0, -probes._PASSAGE_TOKENS - 1 : -1]
        losses.append(float(torch.nn.functional.cross_entropy(logits, ids[0, -probes._PASSAGE_TOKENS :])))
    assert found["scores"]["gain_nats"] == pytest.approx(losses[0] - losses[1], abs=1e-3)
    assert found["distance"] == 300 - 2 * probes._PASSAGE_TOKENS


def test_every_sample_reads_elsewhere(model, data_folder):
    asked = request(model, data_folder)
    parts = [haystack_ids(asked, 100, part=number) for number in range(3)]
    assert len({tuple(part) for part in parts}) == 3
    assert all(part.shape == (100,) and part.dtype == np.int64 for part in parts)


@pytest.mark.parametrize("probe", probes.TASKS[1:])
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


def test_who_looks_up_chooses_every_value_and_who_does_not_one_in_eight(model, data_folder):
    asked = request(model, data_folder)
    right = probes._measure_key_values(LooksUp(model, does="look up"), asked)
    assert right["scores"] == {"accuracy": 100.0, "chance": 12.5}
    assert right["by_depth"] == [100.0] * 8
    assert probes._measure_key_values(LooksUp(model, does="nothing"), asked)["scores"]["accuracy"] == 12.5
    assert right["n"] == 4 * 8


def test_a_prompt_has_the_length_that_was_asked_for(model, data_folder):
    looks = LooksUp(model, does="look up")
    probes._measure_key_values(looks, request(model, data_folder, length=300, samples=1))
    question = len(model.tokenizer.encode("\n")) + 1 + len(model.tokenizer.encode(":"))
    assert len(looks.read) + question == 300
