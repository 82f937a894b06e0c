"""Which variant a name means, and what a directory stands for."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong.artifacts import variant_names, variant_records
from nextlong.engine.step import Artifact
from nextlong.errors import RecipeError, RunError
from nextlong.recipe import Recipe


def test_a_name_is_split_off_only_where_it_is_one(tmp_path):
    assert variant_records.split_name(tmp_path / "run") == (tmp_path / "run", None)
    assert variant_records.split_name(f"{tmp_path}/run@a=1,b.c=2") == (
        tmp_path / "run",
        "a=1,b.c=2",
    )
    assert variant_records.split_name("mail@home/run") == (Path("mail@home/run"), None)
    (tmp_path / "run@home").mkdir()
    assert variant_records.split_name(tmp_path / "run@home") == (
        tmp_path / "run@home",
        None,
    )
    (tmp_path / "run" / "variants").mkdir(parents=True)
    (tmp_path / "run" / "variants" / "home.json").write_text("{}")
    assert variant_records.split_name(tmp_path / "run@home") == (
        tmp_path / "run",
        "home",
    )


def test_a_variant_opens_by_its_name_and_alone_by_the_directory(own_run):
    run = nextlong.open(own_run)
    assert (run.variant.name, str(run)) == ("base", str(own_run))
    assert str(nextlong.open(f"{own_run}@base")) == f"{own_run}@base"
    with pytest.raises(RunError) as error:
        nextlong.open(f"{own_run}@best")
    assert error.value.where == str(own_run)


@pytest.mark.parametrize(
    "text",
    ["[]", "{}", '{"recipe": {}, "steps": [], "sequences_per_part": [], "made": ""}'],
)
def test_a_record_that_is_none(own_run, text):
    (own_run / "variants" / "base.json").write_text(text)
    with pytest.raises(RunError) as error:
        nextlong.open(own_run)
    assert error.value.where == str(own_run / "variants" / "base.json")


COMPOSED = {
    "counts": {
        "sequences": 4,
        "sequences_per_file": [4],
        "dropped": {},
        "longest_dropped_tokens": 0,
    },
    "index": 0,
    "files": {},
}


def finish(recipe, run_dir):
    """Record a variant as if the recipe had run, and return its name."""
    name = variant_names.name_for(recipe, run_dir)
    folder = (
        run_dir
        / f"01-compose-{abs(hash(str(variant_names._settings_of(recipe.model_dump(mode='json'))))):x}"
    )
    variant_records.write(
        recipe,
        {"compose": Artifact("compose", folder, {"parts": [COMPOSED]})},
        run_dir,
        name=name,
    )
    return name


@pytest.fixture
def named(recipe_for, tmp_path):
    """A function of overrides that records a variant and returns its name."""
    return lambda *overrides: finish(recipe_for(tmp_path, *overrides), tmp_path)


def test_the_first_is_base_and_others_say_what_differs(named):
    assert named() == "base"
    assert named("chunk.max_chars=512") == "max_chars-512"
    assert (
        named("export.formats=[torchtitan]", "compose.position=tail")
        == "position-tail-formats-torchtitan"
    )
    assert named("export.formats=[mds,arrow]") == "formats-mds+arrow"
    assert named("mine.near_duplicates=null") == "near_duplicates-null"


def test_the_same_settings_are_the_same_variant_whatever_ran_between(named, tmp_path):
    asked = [(), ("chunk.max_chars=512",), ("compose.seed=3",)]
    first = [named(*overrides) for overrides in asked]
    assert [named(*overrides, "workers=7") for overrides in reversed(asked)] == first[
        ::-1
    ]
    assert variant_records.names(tmp_path) == first


def test_how_to_work_is_no_setting(named):
    assert named() == "base"
    for override in (
        "workers=9",
        "export.push=/elsewhere",
        "encoder.openai.batch_size=3",
        "tokenizer.engine=reference",
        "search.device=cpu",
    ):
        assert named(override) == "base"


def test_keys_with_one_ending_are_whole_and_names_stay_unique(named):
    named()
    assert named("compose.seed=1", "seed=1") == "seed-1-compose.seed-1"
    assert named("compose.separator='/ '") == "separator"
    assert named("compose.separator='* '") == "separator-2"
    assert named("compose.separator='% '") == "separator-3"
    assert named("compose.separator='* '") == "separator-2"


def test_a_name_that_was_given_is_the_name(named, tmp_path):
    assert named("name=first") == "first"
    assert named() == "first"
    assert named("seed=1", "name=second") == "second"
    assert named("seed=1", "name=also") == "also"
    assert variant_records.names(tmp_path) == ["first", "second", "also"]
    with pytest.raises(RecipeError) as error:
        named("seed=2", "name=second")
    assert (error.value.where, error.value.value) == ("name", "second")


@pytest.mark.parametrize(
    "name", ["a/b", "a@b", "", ".hidden", "-x", "two words", "x" * 121]
)
def test_a_name_that_none_can_have(recipe_for, tmp_path, name):
    with pytest.raises(RecipeError, match="name"):
        recipe_for(tmp_path, f"name='{name}'")


def test_a_variant_is_named_by_the_keys_that_were_set(recipe_for, tmp_path):
    run_dir, path = tmp_path / "run", tmp_path / "r.yaml"
    run_dir.mkdir()
    path.write_text(recipe_for(run_dir).dump())

    def name(*overrides):
        return finish(Recipe.load(path, overrides=overrides), run_dir)

    assert name("chunk.max_chars=512") == "max_chars-512"
    assert variant_records.current(run_dir) is None
    assert name("compose.method=knn") == "knn"
    assert name("workers=3", "chunk={max_chars: 700}") == "max_chars-700"
    assert name("workers=3") == name() == "base"
    assert variant_records.current(run_dir) == "base"
    path.write_text(path.read_text().replace("max_chars: 256", "max_chars: 512"))
    assert (name(), variant_records.current(run_dir)) == (
        "max_chars-512",
        "max_chars-512",
    )
    assert name("seed=1") == "seed-1"
    path.write_text(path.read_text().replace("max_chars: 512", "max_chars: 900"))
    assert name("seed=1") == "seed-1-2"


@given(
    st.dictionaries(
        st.text(min_size=1),
        st.one_of(st.text(), st.integers(), st.none(), st.lists(st.text())),
        min_size=1,
    )
)
def test_any_settings_make_a_name_that_a_recipe_could_give(settings):
    name = variant_names.name_of(settings)
    assert re.fullmatch(r"[\w+=,][\w.+=,-]*", name)
    assert len(name) <= 60


def test_a_path_is_named_by_its_last_part():
    settings = {
        "ingest.sources.0.path": "/data/books/more.jsonl",
        "encoder.model": "static:minishlab/potion",
    }
    assert variant_names.name_of(settings) == "static-minishlab-potion-path-more.jsonl"


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ({"compose.target_tokens": 65536, "compose.method": "knn"}, "knn-64k"),
        ({"compose.target_tokens": 500}, "500-tokens"),
        ({"compose.negatives": "tail"}, "tail"),
        # Another key has this value, too.
        ({"compose.position": "tail"}, "position-tail"),
        ({"seed": 1, "compose.seed": 2}, "seed-1-compose.seed-2"),
        ({"compose.max_uses": None}, "max_uses-null"),
        ({"export.formats": ["mds", "olmo"]}, "formats-mds+olmo"),
        ({}, "base"),
    ],
)
def test_a_name_says_what_differs_in_the_words_of_the_values(settings, name):
    assert variant_names.name_of(settings) == name


@pytest.mark.parametrize("name", ["thesis/one.tex", "notes.txt", "data/a.jsonl"])
def test_a_folder_with_files_of_others_is_no_run_directory(tmp_path, name):
    variant_records.check_folder(tmp_path / "none")
    for folder in (".git", "lost+found", "empty"):
        (tmp_path / folder).mkdir()
    (tmp_path / "lost+found" / "x").touch()
    variant_records.check_folder(tmp_path)
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(RunError) as caught:
        variant_records.check_folder(tmp_path)
    assert (caught.value.where, caught.value.value) == ("run_dir", str(tmp_path))
    assert repr(name.partition("/")[0]) in str(caught.value)
    (tmp_path / "01-ingest-0123456789ab").mkdir()
    variant_records.check_folder(tmp_path)


def test_a_run_directory_at_home_is_the_same_from_everywhere(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("run", "a/b"):
        (tmp_path / name).mkdir(parents=True)
    sources = [{"path": str(tmp_path / "docs.jsonl"), "name": "docs"}]
    plain = {
        "run_dir": "~/run",
        "ingest": {"sources": sources},
        "tokenizer": {"train": 400},
    }
    for folder in ("a", "a/b"):
        monkeypatch.chdir(tmp_path / folder)
        assert finish(Recipe.from_dict(plain), tmp_path / "run") == "base"
    assert variant_records.names(tmp_path / "run") == ["base"]


def test_a_recipe_with_every_kind_of_path_is_one_variant_from_everywhere(
    tmp_path, monkeypatch
):
    project = tmp_path / "project"
    (project / "run").mkdir(parents=True)
    for name in ("docs.jsonl", "exclude.jsonl", "eval.txt", "tok.json"):
        (project / name).touch()
    (project / "my.yaml").write_text(
        "run_dir: run\n"
        "ingest: {sources: [{path: docs.jsonl}], exclude: exclude.jsonl}\n"
        "decontaminate: [eval.txt]\n"
        "tokenizer: {source: tok.json, eos: a}\n"
    )
    monkeypatch.chdir(project)
    assert finish(Recipe.load("my.yaml"), Path("run")) == "base"
    monkeypatch.chdir(tmp_path)
    assert finish(Recipe.load("project/my.yaml"), Path("project/run")) == "base"
    project.rename(tmp_path / "moved")
    assert finish(Recipe.load("moved/my.yaml"), Path("moved/run")) == "base"
    assert variant_records.names(Path("moved/run")) == ["base"]
    (tmp_path / "moved" / "other.txt").touch()
    other = Recipe.load("moved/my.yaml", overrides=["decontaminate=[moved/other.txt]"])
    assert variant_names.name_for(other, Path("moved/run")) != "base"
