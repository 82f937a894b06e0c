"""Probes: losses are those of plain forward passes, attention that of eager attention, and shares those of hand-made weights."""

import shutil
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.answering_models import asked, evaluated
from tests.support.evaluation_data import bpe_tokenizer

from nextlong.errors import EvaluateError
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.tasks import probes

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def model(tiny_model):
    return HuggingFaceModel(ModelOptions(str(tiny_model), chunk_tokens=50))


def sequence(*parts, seed=1):
    """Return a sequence of spans (role, tokens), random ids."""
    spans, end = [], 0
    for role, tokens in parts:
        spans.append(
            SimpleNamespace(role=role, token_start=end, token_end=end + tokens)
        )
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
        ("meta", 40),
        ("negative", 60),
        ("separator", 1),
        ("meta", 30),
        ("negative", 80),
        ("meta", 20),
        ("negative", 9),
    )
    ids = one.input_ids.tolist()
    other = np.arange(2, 25)  # shorter than what it stands for, so it is repeated
    second, third = probes._chunk_losses(model, one, other)
    assert (second.distance, second.earlier, third.distance, third.earlier) == (
        61,
        1,
        80,
        2,
    )
    assert second.with_earlier == pytest.approx(
        mean_loss(model, ids[:101], ids[101:131]), abs=1e-4
    )
    assert third.with_earlier == pytest.approx(
        mean_loss(model, ids[:211], ids[211:231]), abs=1e-4
    )
    # Of the control of equal length, each place holds the same token of the other text,
    # repeated.
    stand_in = np.resize(other, len(ids)).tolist()
    replaced = [ids[0], *stand_in[1:40], *ids[40:101]]
    assert second.replaced_earlier == pytest.approx(
        mean_loss(model, replaced, ids[101:131]), abs=1e-4
    )
    replaced += [*stand_in[101:131], *ids[131:211]]
    assert len(replaced) == 211
    assert third.replaced_earlier == pytest.approx(
        mean_loss(model, replaced, ids[211:231]), abs=1e-4
    )
    # The first chunk's first token stays: something has to stand before every chunk.
    negatives = [ids[0], *ids[40:101]]
    assert second.without_earlier == pytest.approx(
        mean_loss(model, negatives, ids[101:131]), abs=1e-4
    )
    assert third.without_earlier == pytest.approx(
        mean_loss(model, [*negatives, *ids[131:211]], ids[211:231]), abs=1e-4
    )


def test_chunks_that_touch_are_one(model):
    one = sequence(
        ("bos", 1), ("meta", 40), ("meta", 10), ("negative", 30), ("meta", 20)
    )
    (loss,) = probes._chunk_losses(model, one, np.arange(9))
    assert (loss.earlier, loss.distance, loss.tokens) == (1, 30, 20)


def test_a_sequence_without_two_meta_chunks_has_no_losses(model):
    assert (
        list(probes._chunk_losses(model, sequence(("document", 50)), np.arange(9)))
        == []
    )
    assert (
        list(
            probes._chunk_losses(
                model, sequence(("meta", 50), ("negative", 50)), np.arange(9)
            )
        )
        == []
    )


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
        spans = [
            SimpleNamespace(role="meta", doc_id=doc_id, token_start=0, token_end=3)
        ]
        return SimpleNamespace(input_ids=np.arange(first, first + 5), spans=spans)

    assert probes._other_text(of(1, 0), [of(1, 10), of(2, 20)]).tolist() == [20, 21, 22]
    nothing = probes._other_text(of(1, 0), [of(1, 10)])
    with pytest.raises(EvaluateError) as error:
        list(
            probes._chunk_losses(
                model, sequence(("meta", 50), ("negative", 50), ("meta", 5)), nothing
            )
        )
    assert "second document" in error.value.problem


def test_a_run_is_measured_with_a_model_of_its_tokenizer(shared_run, tmp_path):
    import nextlong

    run = nextlong.open(shared_run)
    folder = save_model(tmp_path / "model", run.tokenizer)
    what = asked(tmp_path / "results", "dependency", samples=3, run=shared_run)
    found = evaluated(HuggingFaceModel(ModelOptions(str(folder))), what)
    (result,) = found.finished
    assert (result.task, result.length, result.values["n"]) == ("dependency", None, 3)
    low, high = result.values["interval"]
    assert (
        low - 1e-4 <= result.score <= high + 1e-4
    )  # bounds are written with four digits
    assert (
        result.values["scores"]["with_earlier_nats"] > 3
    )  # random weights: about the log of the vocabulary
    assert sum(part["chunks"] for part in result.values["by_distance"]) == len(
        result.values["chunks"]
    )
    metas = [
        sum(span.role == "meta" for span in run.sequence(number).spans)
        for number in range(3)
    ]
    assert len(result.values["chunks"]) == sum(metas) - 3


def test_another_tokenizer_is_refused(shared_run, model):
    with pytest.raises(EvaluateError) as error:
        probes._check_run(model, shared_run)
    assert error.value.where == "dependency"
    assert str(shared_run) in error.value.problem


def save_model(folder, tokenizer, *, kind="Llama", **more):
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=2048,
        **more,
    )
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(
        folder
    )
    return folder


def test_weights_are_those_of_eager_attention_at_2k(tiny_model):
    import torch
    from transformers import AutoModelForCausalLM

    model = HuggingFaceModel(ModelOptions(str(tiny_model), chunk_tokens=300))
    ids = torch.randint(
        2, 300, (2048,), generator=torch.Generator().manual_seed(1)
    ).tolist()
    ours = probes._attention_of(model, ids)
    eager = AutoModelForCausalLM.from_pretrained(
        tiny_model, attn_implementation="eager"
    )
    with torch.inference_mode():
        expected = (
            torch.stack(eager(torch.tensor([ids]), output_attentions=True).attentions)[
                :, 0, :, -1
            ]
            .mean(1)
            .numpy()
        )
    assert ours.shape == (3, 2048)
    np.testing.assert_allclose(ours, expected, atol=1e-6)
    np.testing.assert_allclose(ours.sum(1), 1.0, atol=1e-5)
    assert model.model.config._attn_implementation == "sdpa"  # as before


def test_a_sliding_window_shorter_than_the_prompt_is_refused(tmp_path):
    folder = save_model(
        tmp_path,
        bpe_tokenizer(),
        kind="Mistral",
        sliding_window=32,
        num_key_value_heads=2,
    )
    model = HuggingFaceModel(ModelOptions(str(folder), chunk_tokens=8))
    for _ in range(
        2
    ):  # what the layers still hold is not taken for the next prompt's beginning
        with pytest.raises(
            EvaluateError,
            match="sliding window is shorter than 40 tokens; leave the length or this",
        ):
            probes._attention_of(model, list(range(2, 42)))
        assert probes._attention_of(model, list(range(2, 22))).shape == (1, 20)


def test_shares_by_hand():
    weights = np.zeros((1, 20), np.float32)
    weights[0, [0, 5, 10, 17, 19]] = [0.5, 0.1, 0.1, 0.2, 0.1]
    found = probes._shares(
        weights, 3, 18
    )  # a context of 15 tokens: thirds are 3-7, 8-12, 13-17
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
    with pytest.raises(EvaluateError) as error:
        probes._check_plain(model, None)
    assert error.value.where == "attention"
    assert "--prompt-format" in error.value.fix
