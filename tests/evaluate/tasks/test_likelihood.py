"""Forced choice and last tokens: losses are those of plain forward passes; a model that knows the values chooses all, a blind one
an eighth."""

import random

import numpy as np
import pytest
from tests.support.answering_models import Oracle, asked, evaluated
from tests.support.evaluation_data import bpe_tokenizer, word_tokenizer

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.task import TaskRequest, TextTokenizer
from nextlong.evaluate.tasks import likelihood

pytestmark = pytest.mark.heavy
CHOICES = [probe for probe in likelihood.TASKS if probe.suite == "choice"]


@pytest.fixture(scope="module")
def model(tiny_model):
    return HuggingFaceModel(ModelOptions(str(tiny_model), chunk_tokens=50))


def test_losses_are_those_of_a_plain_forward_pass(model):
    import torch

    rng = np.random.default_rng(1)
    context = rng.integers(2, 300, 130).tolist()
    for count in (1, 7, 60):
        ids = rng.integers(2, 300, count).tolist()
        with torch.inference_mode():
            logits = model.model(torch.tensor([[*context, *ids]])).logits[0]
        expected = torch.nn.functional.cross_entropy(
            logits[len(context) - 1 : -1], torch.tensor(ids), reduction="none"
        )
        found = likelihood.token_losses(model, context, ids)
        assert found == pytest.approx(expected.numpy(), abs=1e-3)


def measured(probe, folder, losses_of, monkeypatch):
    monkeypatch.setattr(likelihood, "choice_losses", losses_of)
    request = TaskRequest(
        8192, TextTokenizer(word_tokenizer()), DataFiles(folder), samples=24
    )
    return probe.measure(None, request)


@pytest.mark.parametrize("probe", CHOICES, ids=lambda probe: probe.name)
def test_who_reads_the_value_chooses_it_and_a_blind_model_chooses_an_eighth(
    probe, data_folder, monkeypatch
):
    oracle = Oracle(word_tokenizer())
    knows = lambda _, sample, values: [  # noqa: E731
        float(value not in oracle.read(sample.text)) for value in values
    ]
    found = measured(probe, data_folder, knows, monkeypatch)
    assert (found["scores"]["chosen"], found["n"]) == (100.0, 24)
    draw = random.Random(4)
    seen = []

    def guesses(_, sample, values):
        assert len(set(values)) == 8
        assert all(value in sample.prompt for value in values)
        seen.append(values)
        return [draw.random() for _ in values]

    found = measured(probe, data_folder, guesses, monkeypatch)
    assert 0.0 <= found["scores"]["chosen"] <= 35.0
    same = lambda _, sample, values: [1.0 for _ in values]  # noqa: E731
    assert measured(probe, data_folder, same, monkeypatch)["scores"]["chosen"] == 0.0


def test_the_same_last_tokens_are_predicted_at_every_length():
    texts = [list(range(4000)), list(range(10_000, 13_000))]
    by_length = [
        [window[-512:] for window in likelihood.last_windows(texts, tokens=n, count=6)]
        for n in (600, 1000, 1500)
    ]
    assert by_length[0] == by_length[1] == by_length[2]
    assert len(by_length[0]) == 6
    assert len({window[0] for window in by_length[0]}) == 6
    # A text that is shorter than the length is left out.
    long = list(likelihood.last_windows(texts, tokens=3500, count=6))
    assert 0 < len(long) < 6
    assert all(len(window) == 3500 for window in long)


def test_a_tiny_model_is_measured_at_every_length(model, data_folder, tmp_path):
    settings = asked(
        tmp_path / "results",
        "choice_noise",
        "last_tokens_haystack",
        lengths=(1024, 2048),
        samples=2,
        data=data_folder,
    )
    found = evaluated(model, settings)
    assert [(one.task, one.length, one.values["n"]) for one in found.finished] == [
        ("choice_noise", 1024, 2),
        ("choice_noise", 2048, 2),
        ("last_tokens_haystack", 1024, 2),
        ("last_tokens_haystack", 2048, 2),
    ]
    losses = [one.score for one in found.finished[2:]]
    # Random weights: about the log of the vocabulary.
    assert all(3 < loss < 15 for loss in losses)
    interval = found.finished[2].values["interval"]
    assert interval[0] <= losses[0] + 1e-4
    assert losses[0] <= interval[1] + 1e-4


def test_a_length_that_no_text_has_is_refused(model, data_folder):
    (probe,) = [one for one in likelihood.TASKS if one.name == "last_tokens_haystack"]
    for length, where in ((400, "--lengths"), (10_000_000, "last_tokens")):
        request = TaskRequest(
            length, TextTokenizer(bpe_tokenizer()), DataFiles(data_folder), samples=2
        )
        with pytest.raises(EvaluateError) as error:
            probe.measure(model, request)
        assert error.value.where == where
