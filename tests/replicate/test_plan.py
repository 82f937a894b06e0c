"""What a replication takes, from its recipe alone."""

import json
from types import SimpleNamespace

import pytest

from nextlong.cli.main import main
from nextlong.replicate.recipe import PRESETS, Replication, recipe_from

pytestmark = pytest.mark.heavy  # a plan imports what trains


def test_the_papers_plan_sweeps_every_ablation_that_is_asked_for():
    from nextlong.replicate import plan

    plain = recipe_from("paper", out="out").model_dump(mode="json")
    recipe = Replication.from_dict({**plain, "experiments": ["methods", "granularity", "position", "negatives"]})
    sweeps = [line.strip() for line in plan._commands(recipe) if " sweep " in line]
    assert sweeps == [
        "nextlong sweep data.yaml --over compose.method=standard,knn,iclm,quest,nextlong",
        "nextlong sweep data.yaml --over chunk.max_chars=512,1024,2048,8192,32768",
        "nextlong sweep data.yaml --over compose.position=head,tail,random",
        "nextlong sweep data.yaml --over compose.negatives=top,random-retrieved,tail,random-corpus,self-repeat",
    ]


def test_the_papers_preset_prints_its_plan_and_runs_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["replicate", "--preset", "paper"]) == 0
    told = capsys.readouterr().out
    assert "8,030,261,248 parameters" in told
    assert "1,000 steps of 4,194,304 tokens" in told
    assert "64 H100 (the paper: 15 h)" in told
    assert "attention,dependency" in told
    assert "--run RUN@VARIANT --out results/VARIANT-SEED" in told  # dependency reads a run
    assert "GiB of sequences per run" in told
    assert not list(tmp_path.iterdir())


def small(**more):
    keys = {**PRESETS["smoke"].keys, "out": "out", "preset": "smoke", "seeds": [0, 1], **more}
    return Replication.from_dict(keys)


def test_what_stands_in_every_ablation_is_trained_once():
    from nextlong.replicate import plan

    recipe = small(methods=["standard", "nextlong"], experiments=["methods", "position"], position=["head", "tail"])
    assert plan._arm_names(recipe) == ["standard", "nextlong", "tail"]


def test_models_tokens_and_disk_follow_from_the_recipe(monkeypatch):
    from nextlong.replicate import plan

    monkeypatch.setattr(plan.forecast, "measure_row", lambda training, config, lengths: 2.0 * lengths[0])
    recipe = small(methods=["standard", "nextlong"], experiments=["methods"])
    told = plan.as_json(recipe)
    assert told["models"] == 2 * (1 + 2)
    assert told["pretrained_tokens"] == 2 * 24 * 4096
    assert told["extended_tokens"] == 2 * 2 * 6 * 4096
    reading = 6 * (6 * (1024 + 2048) * 3 + 2 * 2 * 4 * 2048)
    assert told["measured_tokens"] == reading
    trained = told["pretrained_tokens"] + told["extended_tokens"]
    assert told["seconds"] == pytest.approx(2.0 * (trained + reading / 3))
    assert told["facts"]["models"].endswith("; 2 pretrained, 4 extended, each measured")
    assert json.loads(json.dumps(told)) == told


@pytest.mark.parametrize(("seconds", "said"), [(59.4, "59 s"), (60, "1 min"), (3599, "60 min"), (5400, "1.5 h")])
def test_times_are_given_in_the_unit_that_fits(seconds, said):
    from nextlong.replicate import plan

    made = plan._Plan(SimpleNamespace(parameters=1), 1, 1, 1, 1, seconds, 1.0, "measured")
    assert dict(plan._facts(small(), made))["time"].startswith(f"at least {said} (measured)")
