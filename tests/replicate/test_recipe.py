"""A replication's recipe: what is compared, and mistakes that are told."""

from typing import get_args

import pytest
import yaml

from nextlong.cli.main import main
from nextlong.errors import RecipeError
from nextlong.replicate import recipe as presets
from nextlong.replicate import scores
from nextlong.replicate.recipe import PresetName, Replication


def test_init_writes_the_ablations_that_are_asked_for(tmp_path):
    path = tmp_path / "r.yaml"
    assert main(["replicate", "init", str(path), "--preset", "smoke", "--ablate", "position"]) == 0
    assert Replication.load(path).experiments == ("methods", "position")


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"extend": {"tokens": 512, "tokens_per_step": 1024}},
            "extend.tokens=512 is no longer than pretrain.tokens=512; raise it",
        ),
        ({"pretrain": {"tokens": 300}}, "tokens_per_step=16384 is not a multiple of tokens=300; make it one"),
        ({"pretrain": {"warmup_steps": 100}}, "warmup_steps=100 is not less than steps=100; lower it"),
        ({"seeds": [1, 1]}, "seeds=[1, 1] is empty or names one twice; name each once"),
        ({"seeds": []}, "seeds=[] is empty"),
        ({"measure": {"lengths": [4096]}}, "measure.lengths holds 4096, longer than extend.tokens=2048; leave it out"),
        ({"preset": "none"}, "preset"),
        (
            {"corpus": {"sources": [{"path": "x", "weight": 2}]}},
            "x has weight, but all its documents are taken; leave it out",
        ),
        ({"experiments": ["size"]}, "experiments"),
        ({"modell": {}}, "modell"),
    ],
)
def test_a_mistake_is_told_with_its_cure(keys, told):
    with pytest.raises(RecipeError) as error:
        Replication.from_dict({"out": "out", **keys})
    assert told in str(error.value)


@pytest.mark.heavy
def test_a_corpus_that_is_not_there_and_a_task_that_is_none_end_with_2(capsys, tmp_path):
    out = ["--out", str(tmp_path / "out")]
    assert main(["replicate", "--preset", "smoke", "--corpus", "no.jsonl", *out]) == 2
    assert "corpus.sources[0].path='no.jsonl'" in capsys.readouterr().err
    assert main(["replicate", "--preset", "smoke", "--set", "measure.tasks=[needles]", *out]) == 2
    assert "measure.tasks: needles: there is no such task; choose from" in capsys.readouterr().err.replace("\n", " ")
    for more in ([], ["--dry-run"]):
        assert main(["replicate", "--preset", "smoke", "--set", "measure.tasks=[dependency]", *out, *more]) == 2
        assert "dependency is not measured at lengths; leave it out" in capsys.readouterr().err.replace("\n", " ")


def test_a_recipe_may_name_every_preset_and_no_other():
    assert get_args(PresetName) == tuple(presets.PRESETS)


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_is_a_whole_recipe_that_is_written_and_read_back(name, tmp_path, capsys):
    path = tmp_path / "r.yaml"
    assert main(["replicate", "init", str(path), "--preset", name, "--corpus", "docs/*.jsonl"]) == 0
    recipe = Replication.load(path)
    assert recipe == presets.recipe_from(name, out=f"nextlong-replicate-{name}", sources=["docs/*.jsonl"])
    assert Replication.from_dict(yaml.safe_load(recipe.dump())) == recipe
    assert len(recipe.seeds) >= 3
    assert set(recipe.methods) == set(scores.PAPER_TABLES["methods"])


def test_the_night_has_some_hundred_million_tokens():
    recipe = presets.recipe_from("cpu-night", out="out")
    extended = len(recipe.methods) * recipe.extend.trained_tokens
    assert 5e7 < len(recipe.seeds) * (recipe.pretrain.trained_tokens + extended) < 2e8


def test_only_the_papers_own_size_is_planned_and_not_carried_out():
    planned = [name for name in presets.PRESETS if presets.is_only_planned(presets.recipe_from(name, out="out"))]
    assert planned == ["paper"]
    assert not presets.is_only_planned(Replication.from_dict({"out": "out"}))


def test_a_recipe_remembers_its_preset_and_one_without_has_none():
    recipe = presets.recipe_from("smoke", out="out", overrides=["seeds=[7]", "data.sequences=9"])
    assert presets.preset_of(recipe) is presets.PRESETS["smoke"]
    assert (recipe.seeds, recipe.data.sequences) == ((7,), 9)
    assert presets.preset_of(Replication.from_dict({"out": "out"})) is None


def test_the_users_files_stand_beside_what_the_preset_says_of_a_corpus():
    recipe = presets.recipe_from("smoke", out="out", sources=["a.jsonl", "b.jsonl"])
    assert [source.path for source in recipe.corpus.sources] == ["a.jsonl", "b.jsonl"]
    assert recipe.corpus.held_out_chars == presets.PRESETS["smoke"].keys["corpus"]["held_out_chars"]


def test_a_name_that_is_none_is_told_with_those_there_are():
    with pytest.raises(RecipeError, match="--preset 'tiny' is not known; choose from smoke, cpu-night, one-gpu, paper"):
        presets.recipe_from("tiny", out="out")
