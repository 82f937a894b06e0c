"""The dependency probe: its losses are those of plain forward passes, and it finds a dependence that was put there."""

from types import SimpleNamespace

import numpy as np
import pytest

from nextlong.evaluate.models.huggingface import HuggingFaceModel, LoadOptions
from nextlong.evaluate.probes import dependency

pytestmark = pytest.mark.heavy


@pytest.fixture(scope="module")
def model(tiny_model):
    return HuggingFaceModel(str(tiny_model), LoadOptions(chunk_tokens=50))


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
        ("meta", 40), ("negative", 60), ("joint", 1), ("meta", 30), ("negative", 80), ("meta", 20), ("negative", 9)
    )
    ids = one.input_ids.tolist()
    second, third = dependency.chunk_losses(model, one)
    assert (second.distance, second.earlier, third.distance, third.earlier) == (61, 1, 80, 2)
    assert second.with_earlier == pytest.approx(mean_loss(model, ids[:101], ids[101:131]), abs=1e-4)
    assert third.with_earlier == pytest.approx(mean_loss(model, ids[:211], ids[211:231]), abs=1e-4)
    # The first chunk's first token stays: something has to stand before every chunk.
    negatives = [ids[0], *ids[40:101]]
    assert second.without_earlier == pytest.approx(mean_loss(model, negatives, ids[101:131]), abs=1e-4)
    assert third.without_earlier == pytest.approx(mean_loss(model, [*negatives, *ids[131:211]], ids[211:231]), abs=1e-4)


def test_chunks_that_touch_are_one(model):
    one = sequence(("bos", 1), ("meta", 40), ("meta", 10), ("negative", 30), ("meta", 20))
    (loss,) = dependency.chunk_losses(model, one)
    assert (loss.earlier, loss.distance, loss.tokens) == (1, 30, 20)


def test_a_sequence_without_two_meta_chunks_has_no_losses(model):
    assert list(dependency.chunk_losses(model, sequence(("document", 50)))) == []
    assert list(dependency.chunk_losses(model, sequence(("meta", 50), ("negative", 50)))) == []


def test_gains_are_binned_by_distance():
    losses = [
        dependency.ChunkLoss("s", 10, distance, 1, 2.0, 2.0 + gain)
        for distance, gain in ((70, 0.5), (100, 0.1), (5000, 0.0))
    ]
    near, far = dependency._binned(losses)
    assert (near["from_tokens"], near["to_tokens"], near["chunks"]) == (64, 128, 2)
    assert near["gain_nats"] == pytest.approx(0.3)
    assert (far["from_tokens"], far["chunks"], far["gain_nats"]) == (4096, 1, 0.0)
