"""Recipes as commented YAML: nothing is lost, and no key is left without a word."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nextlong.errors import RecipeError
from nextlong.recipe import Recipe
from nextlong.template import commented, preset, starter


def reload(tmp_path, text):
    (tmp_path / "again.yaml").write_text(text, encoding="utf-8")
    return Recipe.load(tmp_path / "again.yaml")


def keys_of(model):
    for name in type(model).model_fields:
        value = getattr(model, name)
        yield name
        if isinstance(value, BaseModel):
            yield from keys_of(value)
        elif isinstance(value, tuple) and value and isinstance(value[0], BaseModel):
            yield from (key for item in value for key in keys_of(item))


def test_the_starter_loads_back_equal(tmp_path):
    recipe = starter(tmp_path / "my.yaml")
    assert reload(tmp_path, commented(recipe, heading="A recipe.")) == recipe


def test_every_key_is_there_with_a_comment(tmp_path):
    recipe = starter(tmp_path / "my.yaml")
    lines = [line for line in commented(recipe, heading="A\n\nheading").splitlines() if line]
    assert lines[:3] == ["# A", "#", "# heading"]
    assert [line.lstrip(" -").partition(":")[0] for line in lines[3:]] == list(keys_of(recipe))
    assert [line for line in lines[3:] if "  # " not in line] == []


def test_the_starter_finds_what_lies_beside_it(tmp_path):
    (tmp_path / "data").mkdir()
    for name in ("a.jsonl", "data/b.parquet", "data/c.jsonl.zst", "notes.txt", "tokenizer.json"):
        (tmp_path / name).touch()
    recipe = starter(tmp_path / "my.yaml")
    found = [source.path for source in recipe.ingest.sources]
    assert found == [str(tmp_path / name) for name in ("*.jsonl", "data/*.jsonl.zst", "data/*.parquet")]
    assert recipe.tokenizer.source == str(tmp_path / "tokenizer.json")
    assert recipe.run_dir == str(tmp_path / "runs/my")


def test_paths_of_the_starter_are_as_short_as_the_users(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = starter(type(tmp_path)("my.yaml"))
    assert (recipe.run_dir, recipe.ingest.sources[0].path) == ("runs/my", "data/*.jsonl")
    assert (recipe.tokenizer.source, recipe.tokenizer.train) == (None, 32_000)
    below = starter(type(tmp_path)("sub/my.yaml"))
    assert (below.run_dir, below.ingest.sources[0].path) == ("sub/runs/my", "sub/data/*.jsonl")


@pytest.mark.parametrize(
    "joint", ["", "\n", 'a"\n', "# x", "'", "---", "\u2028é\n", "\x00\x7f", "null", "1", " ", ": "]
)
def test_odd_joints_come_back(tmp_path, joint):
    recipe = starter(tmp_path / "my.yaml")
    recipe = recipe.model_copy(update={"compose": recipe.compose.model_copy(update={"joint": joint})})
    assert reload(tmp_path, commented(recipe, heading="")) == recipe


@settings(max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
def test_any_name_comes_back(tmp_path_factory, text):
    plain = {
        "run_dir": text,
        "ingest": {"sources": [{"path": text, "name": text}]},
        "tokenizer": {"source": text, "eos": text},
    }
    recipe = Recipe.from_dict(plain)
    folder = tmp_path_factory.mktemp("names")
    assert reload(folder, commented(recipe, heading="x")) == recipe
    assert reload(folder, recipe.dump()) == recipe


@pytest.mark.parametrize("name", ["quickstart", "paper-64k", "paper-128k", "paper-512k"])
def test_every_preset_is_a_recipe(tmp_path, name):
    text = preset(name)
    assert text.startswith("# ")
    assert reload(tmp_path, text).run_dir == f"runs/{name}"


def test_a_preset_that_is_none():
    with pytest.raises(RecipeError, match="choose one of: paper-128k, paper-512k, paper-64k, quickstart"):
        preset("../pyproject")
