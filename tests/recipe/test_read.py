"""Recipes that build on others."""

import json
from pathlib import Path

import pytest

from nextlong.errors import RecipeError
from nextlong.recipe import Recipe
from nextlong.recipe.text import preset_path

PLAIN = "run_dir: r\ningest: {sources: [{path: a, name: first}]}\ntokenizer: gpt2\n"


def test_keys_of_a_section_are_laid_over_those_of_the_base_and_lists_replaced(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "below").mkdir()
    (tmp_path / "below/base.yaml").write_text(
        PLAIN
        + "compose: {sequences: 7, target_tokens: 8k}\ndecontaminate: [x.json]\nexport: {formats: [jsonl]}\n"
    )
    (tmp_path / "middle.yaml").write_text(
        "base: below/base.yaml\ncompose: {sequences: 9}\ndecontaminate: {ngram: 8}\n"
    )
    (tmp_path / "my.yaml").write_text(
        "base: middle.yaml\ntokenizer: {eos: '</s>'}\nexport: {formats: [parquet]}\n"
    )
    recipe = Recipe.load("my.yaml", overrides=["compose.fit=paper"])
    assert (
        recipe.compose.sequences,
        recipe.compose.target_tokens,
        recipe.compose.fit,
    ) == (9, 8192, "paper")
    assert (recipe.decontaminate.files, recipe.decontaminate.ngram) == (
        ("below/x.json",),
        8,
    )
    assert (recipe.tokenizer.source, recipe.tokenizer.eos) == ("gpt2", "</s>")
    assert recipe.export.formats == ("parquet",)
    assert "base" not in recipe.as_data()


@pytest.mark.parametrize("name", ["paper-128k", "paper-128k.yaml"])
def test_a_preset_is_a_base_by_its_name(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "my.yaml"
    path.write_text(f"base: {name}\nrun_dir: mine\ncompose: {{target_tokens: 64k}}\n")
    recipe, preset = Recipe.load(path), Recipe.load(preset_path("paper-128k"))
    assert (recipe.run_dir, recipe.compose.target_tokens) == ("mine", 65_536)
    assert (recipe.ingest, recipe.encoder, recipe.mine) == (
        preset.ingest,
        preset.encoder,
        preset.mine,
    )


def test_a_file_beside_the_recipe_comes_before_a_preset(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "paper-128k.yaml").write_text(PLAIN)
    (tmp_path / "my.yaml").write_text("base: paper-128k.yaml\n")
    assert Recipe.load(tmp_path / "my.yaml").run_dir == "r"


def test_a_dictionary_builds_on_a_preset_too():
    recipe = Recipe.from_dict({"base": "quickstart", "run_dir": "mine"})
    assert (recipe.run_dir, recipe.compose.target_tokens) == ("mine", 32_768)


def _refusal(path):
    with pytest.raises(RecipeError) as caught:
        Recipe.load(path)
    return str(caught.value)


def test_a_circle_is_refused_and_shown(tmp_path):
    a, b = tmp_path / "a.yaml", tmp_path / "b.yaml"
    a.write_text("base: b.yaml\n")
    b.write_text("base: ./a.yaml\n")
    with pytest.raises(RecipeError) as caught:
        Recipe.load(a)
    assert caught.value.where == f"{b}: base"
    assert caught.value.value == "./a.yaml"
    assert f"{a} → {b} → {a}" in caught.value.problem
    a.write_text("base: a.yaml\n")
    assert "is circular" in _refusal(a)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (
            "3",
            "base=3 is not a file name; set it to one recipe file, or to a preset such as "
            "paper-128k",
        ),
        ("[a, b]", "base=['a', 'b'] is not a file name; set it to one recipe file"),
        ("''", "base='' is not a file name; set it to one"),
        ("paper-12k", "base=paper-12k names neither a file ("),
        (
            "nowhere/x.yaml",
            "x.yaml, which does not exist; its path is relative to the folder of the "
            "recipe",
        ),
    ],
)
def test_a_base_that_is_none_is_named_with_the_file_that_names_it(
    tmp_path, base, message
):
    path = tmp_path / "my.yaml"
    path.write_text(f"base: {base}\n{PLAIN}")
    told = _refusal(path)
    assert told.startswith(f"{path}: base")
    assert message in told


def test_an_unknown_preset_names_those_there_are(tmp_path):
    path = tmp_path / "my.yaml"
    path.write_text("base: paper-12k\n")
    assert "mixed-64k, paper-128k, paper-512k, paper-64k, quickstart" in _refusal(path)


def test_a_broken_base_is_named_with_its_line(tmp_path):
    (tmp_path / "base.yaml").write_text("a: 1\na: 2\n")
    (tmp_path / "my.yaml").write_text("base: base.yaml\n")
    with pytest.raises(RecipeError, match="key 'a'") as caught:
        Recipe.load(tmp_path / "my.yaml")
    assert caught.value.where == f"{tmp_path / 'base.yaml'}:2"


def test_a_recipe_may_be_json_as_programs_write_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source = {"path": "a.jsonl", "name": "Bücher 📚", "filter": 'kind = "𝒜"'}
    plain = {
        "run_dir": "r",
        "ingest": {"sources": [source]},
        "tokenizer": "gpt2",
        "compose": {"separator": "\t🙂\n"},
    }
    (tmp_path / "my.json").write_text(json.dumps(plain))
    assert "\\ud83d" in (tmp_path / "my.json").read_text()
    recipe = Recipe.load(
        tmp_path / "my.json", overrides=[f"compose.separator={json.dumps('📎')}"]
    )
    (read,) = recipe.ingest.sources
    assert (read.name, read.filter, recipe.compose.separator) == (
        source["name"],
        source["filter"],
        "📎",
    )
    assert Recipe.load(tmp_path / "my.json").compose.separator == "\t🙂\n"
    (tmp_path / "half.json").write_text(json.dumps(plain | {"run_dir": "r \ud83d"}))
    with pytest.raises(RecipeError, match="surrogate pair") as caught:
        Recipe.load(tmp_path / "half.json")
    assert caught.value.where.endswith("half.json: run_dir")
    assert caught.value.value == r"'r \ud83d'"


RECIPES = sorted(
    path.stem for path in (Path(__file__).parents[2] / "recipes").glob("*.yaml")
)


@pytest.mark.parametrize("name", ["", "no-such", "../recipes/paper-128k"])
def test_another_name_is_told_with_those_there_are(name):
    with pytest.raises(RecipeError, match=", ".join(RECIPES)) as caught:
        preset_path(name)
    assert (caught.value.where, caught.value.value) == ("preset", name)
