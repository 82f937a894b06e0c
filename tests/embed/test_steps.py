"""The encoder step's fingerprint: what makes another encoder, and what does not."""

import os
import shutil

from nextlong.embed.steps import encoder_step
from nextlong.engine.step import Step
from nextlong.recipe import Recipe


def fingerprint(model, **options):
    given = {"model": f"sentence-transformers:{model}", "sentence_transformers": options}
    recipe = Recipe.from_dict(
        {
            "run_dir": "run",
            "ingest": {"sources": [{"path": "x.jsonl"}]},
            "encoder": given,
            "tokenizer": {"train": 300},
        }
    )
    corpus = Step("ingest", 1, {}, (), lambda done: [])
    return encoder_step(recipe, corpus, corpus).fingerprint


def test_a_local_model_is_known_by_its_contents(tmp_path):
    model = tmp_path / "model"
    (model / "1_Pooling").mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "1_Pooling" / "config.json").write_text('{"mean": true}')
    at_first = fingerprint(model)
    os.utime(model / "config.json", (1, 1))
    assert fingerprint(model) == at_first  # copied, restored, checked out again
    (model / ".cache").mkdir()
    (model / ".cache" / "downloaded.metadata").write_text("x")
    assert fingerprint(model) == at_first
    (model / "1_Pooling" / "config.json").write_text('{"mean": null}')  # as many bytes
    os.utime(model / "1_Pooling" / "config.json", (2, 2))
    assert fingerprint(model) != at_first
    shutil.move(model / "config.json", model / "other.json")
    assert fingerprint(model) != at_first


def test_how_to_compute_is_no_other_encoder():
    assert fingerprint("hub/name", batch_size=8, device="cpu") == fingerprint("hub/name")
    assert fingerprint("hub/name", prompt="query: ") != fingerprint("hub/name")
