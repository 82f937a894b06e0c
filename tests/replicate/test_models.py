"""Models of a replication: which are trained, from what, and what makes another of them."""

from pathlib import Path

import pytest

from nextlong.replicate.data import Arm, Runs
from nextlong.replicate.recipe import Replication

pytestmark = pytest.mark.heavy  # it imports what trains


def runs(*arms, composed="short"):
    return Runs("runs/pretraining", composed, Path("tokenizer.json"), arms, ())


def arm(value, composed=None):
    return Arm("methods", value, f"runs/extension@{value}", composed or f"of {value}", None)


@pytest.fixture
def recipe(small_replication, tmp_path):
    return Replication.from_dict(small_replication(tmp_path))


@pytest.fixture
def models():
    from nextlong.replicate import models

    return models


def test_each_seed_has_a_pretrained_model_and_one_extended_on_each_run(models, recipe, tmp_path):
    planned = models.planned(recipe, runs(arm("standard"), arm("nextlong")), tmp_path)
    assert [model.name for model in planned] == [
        f"{name}, seed {seed}" for seed in (0, 1) for name in ("pretrained", "methods=standard", "methods=nextlong")
    ]
    for base, *extended in (planned[:3], planned[3:]):
        assert {model.recipe.model.path for model in extended} == {str(base.final)}
        assert {model.recipe.seed for model in extended} == {base.seed}
        assert base.recipe.model.scratch is not None


def test_runs_of_the_same_sequences_are_trained_on_once_and_before_what_extends_them(models, recipe, tmp_path):
    twice = runs(arm("nextlong", "same"), arm("head", "same"))
    planned = models.planned(recipe, twice, tmp_path)
    assert len(planned) == 2 * 2
    folders = [model.stage.folder for model in planned]
    assert len(set(folders)) == len(folders)
    for model in planned:
        if model.arm is not None:
            assert folders.index(Path(model.recipe.model.path).parent) < folders.index(model.stage.folder)
    assert [model.name for model in planned if model.arm] == [f"methods=nextlong, seed {seed}" for seed in (0, 1)]
    both = [models.of_arm(recipe, one, twice, tmp_path, 1).stage.folder for one in twice.arms]
    assert both[0] == both[1]


def test_other_data_settings_or_seeds_make_another_model_and_nothing_else_does(models, recipe, tmp_path):
    def folder(changed=recipe, made=runs(arm("standard")), seed=0):  # noqa: B008
        return models.of_arm(changed, made.arms[0], made, tmp_path, seed).stage.folder

    plain = recipe.model_dump(mode="json")
    longer = {**plain, "pretrain": {**plain["pretrain"], "steps": 5}}
    extended = {**plain, "extend": {**plain["extend"], "lr": 1e-4}}
    measured = {**plain, "measure": {**plain["measure"], "samples": 9}}
    others = [folder(Replication.from_dict(keys)) for keys in (longer, extended)]
    others += [
        folder(made=runs(arm("standard"), composed="other")),
        folder(made=runs(arm("standard", "x"))),
        folder(seed=1),
    ]
    assert len({folder(), *others}) == 6
    assert folder(Replication.from_dict(measured)) == folder()


def test_a_finished_model_is_not_trained_again(models, recipe, tmp_path, monkeypatch):
    (model, *_) = models.planned(recipe, runs(), tmp_path)
    model.stage.finish({"loss": 1.0, "tokens": 5, "seconds": 2.0})
    said = []
    models.train(model, report=said.append)
    assert said == []
    assert model.stage.record["tokens"] == 5
