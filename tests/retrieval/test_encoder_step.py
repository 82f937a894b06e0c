"""The encoder step's fingerprint: what makes another encoder, and what does not."""

import os
import shutil

from nextlong.engine.step import Step
from nextlong.recipe import Recipe
from nextlong.retrieval.embed import encoder_step


def fingerprint(model, **options):
    return fingerprint_of(
        {"model": f"sentence-transformers:{model}", "sentence_transformers": options}
    )


def fingerprint_of(given):
    recipe = Recipe.from_dict(
        {
            "run_dir": "run",
            "ingest": {"sources": [{"path": "x.jsonl"}]},
            "encoder": given,
            "tokenizer": {"train": 300},
        }
    )
    corpus = Step("ingest", 1, {}, (), lambda done: [])
    return encoder_step(recipe.encoder, corpus, corpus, seed=recipe.seed).fingerprint


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


def test_a_local_model_is_the_same_from_every_working_directory(tmp_path, monkeypatch):
    (tmp_path / "models" / "a").mkdir(parents=True)
    (tmp_path / "models" / "a" / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    from_above = fingerprint("models/a")
    monkeypatch.chdir(tmp_path / "models")
    assert fingerprint("a") == from_above
    assert fingerprint("missing") != fingerprint("other")


def test_a_folder_by_the_name_of_a_servers_model_is_not_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = {"model": "openai:bge"}
    before = fingerprint_of(config)
    (tmp_path / "bge").mkdir()
    (tmp_path / "bge" / "notes.txt").write_text("x")
    assert fingerprint_of(config) == before


def test_how_to_compute_is_no_other_encoder():
    assert fingerprint("hub/name", batch_size=8) == fingerprint("hub/name")
    assert fingerprint("hub/name", prompt="query: ") != fingerprint("hub/name")


def test_a_device_is_another_encoder_only_where_it_chooses_the_precision():
    default = fingerprint("hub/name")
    assert (
        len(
            {
                default,
                fingerprint("hub/name", device="cpu"),
                fingerprint("hub/name", device="cuda"),
            }
        )
        == 3
    )
    assert fingerprint("hub/name", device="cuda:1") == fingerprint(
        "hub/name", device="cuda"
    )
    in_float32 = fingerprint("hub/name", dtype="float32")
    assert (
        in_float32 == fingerprint("hub/name", dtype="float32", device="cpu") != default
    )
