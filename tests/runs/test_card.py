"""What a card tells of a recipe: everything but the machine that it ran on."""

import json
from importlib.metadata import PackageNotFoundError, version

import pytest
import yaml

from nextlong.engine import runner
from nextlong.recipe import Recipe
from nextlong.runs import export as runs_export
from nextlong.runs.card import public_name, public_recipe

PLAIN = {
    "run_dir": "/home/ann/runs/my",
    "ingest": {
        "sources": [
            {"path": "/data/private/wiki/*.jsonl.zst", "name": "wiki"},
            {"path": "s3://secret-bucket/books/"},
            {"path": "hf://datasets/allenai/c4/en/*.gz"},
        ]
    },
    "decontaminate": {"files": ["/home/ann/eval/mmlu.csv"]},
    "encoder": {
        "model": "sentence-transformers:/home/ann/models/bge",
        "openai": {"base_url": "http://gpu7.corp.example/v1"},
    },
    "tokenizer": {"source": "/home/ann/tok/gpt2/tokenizer.json"},
    "quest": {"queries": "/home/ann/models/doc2query"},
    "export": {"push": "s3://secret-bucket/out/long-128k/"},
}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/data/wiki/a.jsonl", "a.jsonl"),
        ("~/wiki/", "wiki"),
        ("a.jsonl", "a.jsonl"),
        ("/data/wiki?/part-?.jsonl", "part-?.jsonl"),
        ("s3://key:secret@bucket/b/*.parquet", "*.parquet"),
        ("https://host.example/a.jsonl?signature=1/2", "a.jsonl"),
        ("hf://datasets/allenai/c4/en/*.gz", "hf://datasets/allenai/c4/en/*.gz"),
    ],
)
def test_of_a_path_or_url_the_last_name_is_told(path, name):
    assert public_name(path) == name


def test_a_recipe_is_told_without_the_paths_in_it():
    recipe = Recipe.from_dict(PLAIN)
    told = yaml.safe_load(public_recipe(recipe))
    changed = {
        f"{section}.{key}": value
        for section, before in recipe.model_dump(mode="json").items()
        if isinstance(before, dict)
        for key, value in told[section].items()
        if value != before[key]
    }
    assert told["run_dir"] == "my"
    assert [source["path"] for source in told["ingest"]["sources"]] == [
        "*.jsonl.zst",
        "books",
        "hf://datasets/allenai/c4/en/*.gz",
    ]
    assert changed.pop("ingest.sources") == told["ingest"]["sources"]
    assert changed.pop("encoder.openai")["base_url"] == "(not published)"
    assert changed == {
        "decontaminate.files": ["mmlu.csv"],
        "encoder.model": "sentence-transformers:bge",
        "tokenizer.source": "tokenizer.json",
        "quest.queries": "doc2query",
        "export.push": "long-128k",
    }


def test_names_on_the_hub_stay():
    plain = PLAIN | {"tokenizer": {"source": "meta-llama/Meta-Llama-3-8B"}, "encoder": {"model": "openai:bge-m3"}}
    told = yaml.safe_load(public_recipe(Recipe.from_dict(plain)))
    assert told["tokenizer"]["source"] == "meta-llama/Meta-Llama-3-8B"
    assert told["encoder"]["model"] == "openai:bge-m3"
    assert told["encoder"]["openai"]["base_url"] == "https://api.openai.com/v1"


def test_a_model_that_lies_here_is_told_by_its_last_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "private" / "bge").mkdir(parents=True)
    recipe = Recipe.from_dict(PLAIN | {"encoder": {"model": "sentence-transformers:private/bge"}})
    assert yaml.safe_load(public_recipe(recipe))["encoder"]["model"] == "sentence-transformers:bge"


def test_a_run_of_a_copied_source_tree_finishes_and_says_so(recipe_for, tmp_path, monkeypatch):
    def found(package):
        if package == "nextlong":  # run from its folder, never installed
            raise PackageNotFoundError(package)
        return version(package)

    monkeypatch.setattr(runner.metadata, "version", found)
    monkeypatch.setattr(runner, "_versions", runner._versions.__wrapped__)
    options = (
        "executor=serial",
        f"export.push={tmp_path / 'published'}",
        "compose.method=standard",
        "export.formats=jsonl",
    )
    written = runs_export.run(recipe_for(tmp_path / "run", *options))
    assert all("nextlong" not in step.manifest["versions"] for step in written.done.values())
    (record,) = (tmp_path / "published").rglob("manifest.json")
    assert json.loads(record.read_text("utf-8"))["nextlong"] == "not installed as a package"
    assert "not installed as a package" in (record.parent / "README.md").read_text("utf-8")
