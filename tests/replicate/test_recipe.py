"""A replication's recipe: presets that load, mistakes that are told, what is compared."""

from typing import get_args

import pytest
import yaml

from nextlong.cli.main import main
from nextlong.errors import RecipeError
from nextlong.replicate import presets, published
from nextlong.replicate.recipe import PresetName, Replication


def test_a_recipe_may_name_every_preset_and_no_other():
    assert get_args(PresetName) == tuple(presets.PRESETS)


def test_init_writes_the_ablations_that_are_asked_for(tmp_path):
    path = tmp_path / "r.yaml"
    assert main(["replicate", "init", str(path), "--preset", "smoke", "--ablate", "position"]) == 0
    assert Replication.load(path).experiments == ("methods", "position")


@pytest.mark.heavy  # a plan imports what trains
def test_the_papers_plan_sweeps_every_ablation_that_is_asked_for():
    from nextlong.replicate import plan

    plain = presets.recipe_from("paper", out="out").model_dump(mode="json")
    recipe = Replication.from_dict({**plain, "experiments": ["methods", "granularity", "position", "negatives"]})
    sweeps = [line.strip() for line in plan._commands(recipe) if " sweep " in line]
    assert sweeps == [
        "nextlong sweep data.yaml --over compose.method=standard,knn,iclm,quest,nextlong",
        "nextlong sweep data.yaml --over chunk.max_chars=512,1024,2048,8192,32768",
        "nextlong sweep data.yaml --over compose.position=head,tail,random",
        "nextlong sweep data.yaml --over compose.negatives=top,random-retrieved,tail,random-corpus,self-repeat",
    ]


@pytest.mark.parametrize("name", presets.PRESETS)
def test_a_preset_is_a_whole_recipe_that_is_written_and_read_back(name, tmp_path, capsys):
    path = tmp_path / "r.yaml"
    assert main(["replicate", "init", str(path), "--preset", name, "--corpus", "docs/*.jsonl"]) == 0
    recipe = Replication.load(path)
    assert recipe == presets.recipe_from(name, out=f"nextlong-replicate-{name}", sources=["docs/*.jsonl"])
    assert Replication.from_dict(yaml.safe_load(recipe.dump())) == recipe
    assert len(recipe.seeds) >= 3
    assert set(recipe.methods) == set(published.TABLES["methods"])


def test_the_night_has_some_hundred_million_tokens():
    recipe = presets.recipe_from("cpu-night", out="out")
    extended = len(recipe.methods) * recipe.extend.trained_tokens
    assert 5e7 < len(recipe.seeds) * (recipe.pretrain.trained_tokens + extended) < 2e8


@pytest.mark.parametrize("rows", published.TABLES.values())
def test_the_papers_averages_follow_from_its_columns(rows):
    for average, *columns in [*rows.values(), published.PRETRAINED]:
        assert sum(columns) / len(columns) == pytest.approx(average, abs=0.011)


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


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ([], "replicate needs a recipe or a preset, one of the two"),
        (["r.yaml", "--preset", "smoke"], "replicate needs a recipe or a preset, one of the two"),
        (["--preset", "smok"], "--preset 'smok' is not known; choose from smoke, cpu-night, one-gpu, paper"),
        (
            ["r.yaml"],
            "r.yaml does not exist; `nextlong replicate init r.yaml --preset smoke` writes a commented recipe there",
        ),
        (["r.yaml", "--corpus", "x.jsonl"], "--corpus belongs to --preset and init"),
        (["--preset", "smoke", "--set", "seeds=[]"], "--preset smoke: seeds=[] is empty"),
        (
            ["init", "r.yaml", "--dry-run"],
            "init only writes the recipe; leave out --dry-run, then say nextlong replicate r.yaml",
        ),
        (["--preset", "smoke", "--force"], "--force belongs to `nextlong replicate init`"),
    ],
)
def test_a_wrong_command_ends_with_2(arguments, told, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["replicate", *arguments]) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")
    assert not list(tmp_path.iterdir())


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


@pytest.mark.heavy
def test_the_papers_preset_prints_its_plan_and_runs_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["replicate", "--preset", "paper"]) == 0
    told = capsys.readouterr().out
    assert "8,030,261,248 parameters" in told
    assert "1,000 steps of 4,194,304 tokens" in told
    assert "64 H100 (the paper: 15 h)" in told
    assert "attention,dependency" in told
    assert "--run RUN@STATE --out results/STATE-SEED" in told  # dependency reads a run
    assert "GiB of sequences a run" in told
    assert not list(tmp_path.iterdir())
