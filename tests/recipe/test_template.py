"""Recipes as commented YAML: nothing is lost, and no key is left without a word."""

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from nextlong.cli.init import new_recipe
from nextlong.errors import RecipeError
from nextlong.plugins import ENCODERS, METHODS
from nextlong.recipe import Recipe
from nextlong.recipe.keys import options_class
from nextlong.recipe.template import commented, short
from nextlong.recipe.text import preset_path
from nextlong.retrieval.encoders.lsa import LsaOptions


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
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    assert reload(tmp_path, commented(recipe, heading="A recipe.")) == recipe


def test_every_key_is_there_with_a_comment(tmp_path):
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    lines = [line for line in commented(recipe, heading="A\n\nheading").splitlines() if line]
    assert lines[:3] == ["# A", "#", "# heading"]
    keys = [line.lstrip(" -").partition(":")[0] for line in lines[3:]]
    of_methods = [
        key for name in ("iclm", "knn", "quest") for key in (name, *options_class(METHODS, name).model_fields)
    ]
    export = keys.index("export")
    # The options of every built-in encoder stand there, also of those that the recipe does not name.
    encoder, search = keys.index("encoder"), keys.index("search")
    assert set(keys[encoder + 1 : search]) >= {"model", *ENCODERS.built_in, "fit_chunks", "base_url", "revision"}
    said = [key for key in keys_of(recipe) if key not in {"model", "lsa", *LsaOptions.model_fields}]
    assert [*keys[: encoder + 1], *keys[search : keys.index("iclm")], *keys[export:]] == said
    assert set(of_methods) <= set(keys[keys.index("iclm") : export])
    assert [line for line in lines[3:] if "  # " not in line] == []


@pytest.mark.parametrize(
    "separator", ["", "\n", 'a"\n', "# x", "'", "---", "\u2028é\n", "\x00\x7f", "null", "1", " ", ": "]
)
def test_odd_separators_come_back(tmp_path, separator):
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    recipe = recipe.model_copy(update={"compose": recipe.compose.model_copy(update={"separator": separator})})
    assert reload(tmp_path, commented(recipe, heading="")) == recipe


@settings(max_examples=40)
@given(text=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30))
@example(text="\x85")
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
    text = preset_path(name).read_text(encoding="utf-8")
    assert text.startswith("# ")
    assert reload(tmp_path, text).run_dir == f"runs/{name}"


def test_a_preset_that_is_none():
    with pytest.raises(RecipeError, match="choose one of: paper-128k, paper-512k, paper-64k, quickstart"):
        preset_path("../pyproject")


def test_a_short_recipe_has_some_forty_lines_and_reads_back_equal(tmp_path):
    recipe = new_recipe(tmp_path / "my.yaml").recipe
    text = short(recipe, heading="A recipe.")
    assert 20 < len(text.splitlines()) <= 45
    assert all("  # " in line for line in text.splitlines()[1:] if line and not line.endswith(":"))
    assert reload(tmp_path, text) == recipe


@pytest.mark.parametrize(
    "override",
    [
        "workers=3",
        "chunk.max_chars=999",
        "encoder.lsa.dimensions=8",
        "compose.separator=' # '",
        "iclm.neighbours=3",
        "decontaminate.files=[a, b]",
        "ingest.sources[0].filter='a > 1 # b'",
        "ingest.sources[0].metadata=[a]",
        "export.pack=256k",
    ],
)
def test_a_short_recipe_leaves_out_only_defaults(tmp_path, override):
    plain = new_recipe(tmp_path / "my.yaml").recipe.as_data()
    recipe = Recipe.from_dict(plain, overrides=[override])
    assert reload(tmp_path, short(recipe, heading="")) == recipe


def test_what_keys_mean_stands_beside_the_first_source(tmp_path):
    plain = new_recipe(tmp_path / "my.yaml").recipe.as_data()
    plain["ingest"]["sources"] = [{"path": path, "name": f"n {path}", "text": "  # b"} for path in ("x", "y # z")]
    recipe = Recipe.from_dict(plain)
    text = short(recipe, heading="")
    assert text.count("name of the source in reports") == 1
    assert reload(tmp_path, text) == recipe
