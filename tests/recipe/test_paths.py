"""Relative paths in a recipe start from its folder, wherever it is loaded from."""

import contextlib
from pathlib import Path

import pytest
import yaml

from nextlong.recipe import Recipe
from nextlong.recipe.paths import from_folder, to_folder
from nextlong.recipe.text import preset_path

PLAIN = {
    "run_dir": "runs/a",
    "ingest": {
        "sources": [
            {"path": "data/*.jsonl"},
            {"path": "../other", "name": "other"},
            {"path": "/far/a.jsonl"},
            {"path": "hf://datasets/a/b"},
            {"path": "~/x"},
        ],
        "exclude": "exclude.jsonl",
    },
    "decontaminate": {"files": ["eval.json", "https://a.org/b.json"]},
    "tokenizer": {"source": "tok/tokenizer.json", "eos": "</s>"},
    "encoder": {"model": "static:models/potion"},
    "quest": {"queries": "extractive"},
    "export": {"push": "out"},
}


@pytest.fixture
def project(tmp_path):
    """A folder with a recipe, a tokenizer and a model."""
    for name in ("tok/tokenizer.json", "models/potion/model"):
        (tmp_path / "project" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "project" / name).touch()
    (tmp_path / "project/my.yaml").write_text(yaml.safe_dump(PLAIN))
    return tmp_path / "project"


def test_paths_start_from_the_folder_of_the_recipe(project):
    with contextlib.chdir(project.parent):
        recipe = Recipe.load("project/my.yaml")
    sources = recipe.ingest.sources
    assert recipe.run_dir == "project/runs/a"
    assert [source.path for source in sources] == [
        "project/data/*.jsonl",
        "other",
        "/far/a.jsonl",
        "hf://datasets/a/b",
        "~/x",
    ]
    # The source of a document is the same from everywhere.
    assert [source.label for source in sources[:3]] == [
        "data/*.jsonl",
        "other",
        "/far/a.jsonl",
    ]
    assert recipe.ingest.exclude == "project/exclude.jsonl"
    assert recipe.decontaminate.files == ("project/eval.json", "https://a.org/b.json")
    assert recipe.tokenizer.source == "project/tok/tokenizer.json"
    assert recipe.encoder.model == "static:project/models/potion"
    assert recipe.export.push == "project/out"


def test_in_its_own_folder_a_recipe_is_read_as_it_is_written(project):
    with contextlib.chdir(project):
        recipe = Recipe.load("my.yaml")
        assert from_folder(PLAIN, project) is PLAIN
    assert recipe == Recipe.from_dict(PLAIN)


@pytest.mark.parametrize("short", [{"tokenizer": "tok"}, {"tokenizer": "owner/name"}])
def test_a_name_is_a_path_only_if_it_exists(project, short):
    keys = from_folder(short | {"decontaminate": ["eval.json"]}, project)
    is_path = short["tokenizer"] == "tok"
    expected = str(project / "tok") if is_path else "owner/name"
    assert keys["tokenizer"] == expected
    assert keys["decontaminate"] == [str(project / "eval.json")]


@pytest.mark.parametrize(
    "broken",
    [
        {},
        {"run_dir": 3, "ingest": None, "encoder": [], "tokenizer": None},
        {"ingest": {"sources": [None, 3, {"name": "a"}, {"path": None}]}},
        {"ingest": {"sources": {"path": "a"}}, "decontaminate": {"files": "a"}},
    ],
)
def test_keys_that_are_wrong_stay_for_the_check(tmp_path, broken):
    assert from_folder(broken, tmp_path) == broken


def test_set_starts_from_the_working_directory(project):
    with contextlib.chdir(project.parent):
        recipe = Recipe.load("project/my.yaml", overrides=["run_dir=mine"])
    assert recipe.run_dir == "mine"


def test_a_base_has_its_own_folder_and_a_preset_that_of_the_recipe(project):
    (project / "sub").mkdir()
    (project / "sub/mine.yaml").write_text("base: ../my.yaml\nrun_dir: r\n")
    (project / "sub/preset.yaml").write_text("base: quickstart\n")
    with contextlib.chdir(project.parent):
        mine = Recipe.load("project/sub/mine.yaml")
        copied = Recipe.load("project/sub/preset.yaml")
        preset = Recipe.load(preset_path("quickstart"))
    assert (mine.run_dir, mine.ingest.exclude) == (
        "project/sub/r",
        "project/exclude.jsonl",
    )
    assert copied.run_dir == "project/sub/runs/quickstart"
    assert preset.run_dir == "runs/quickstart"


def test_keys_written_for_another_folder_are_read_back_from_it(project):
    folder = project / "runs/a/variants"
    folder.mkdir(parents=True)
    with contextlib.chdir(project):
        written = to_folder(PLAIN, folder)
        assert written["ingest"]["sources"][0]["path"] == "../../../data/*.jsonl"
        read = Recipe.from_dict(from_folder(written, Path("runs/a/variants")))
    assert read.ingest.sources[0].path == "data/*.jsonl"
    assert read.ingest.sources[0].label == "data/*.jsonl"
    assert read.tokenizer.source == "tok/tokenizer.json"
