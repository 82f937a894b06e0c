"""A replication from end to end: killed at any stage it ends as if it had not been; every number is that of a file."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from killed import kill_at
from nextlong.cli.main import main
from nextlong.errors import RecipeError
from nextlong.replicate.data import Arm, Runs, Stage
from nextlong.replicate.recipe import Replication

pytestmark = pytest.mark.heavy


def saved(keys, path):
    path.write_text(yaml.safe_dump(keys), encoding="utf-8")
    return path


def page(out):
    """Return the report's text and every figure's."""
    drawn = {path.name: path.read_bytes() for path in sorted((out / "figures").iterdir())}
    return (out / "report.md").read_text(encoding="utf-8"), (out / "report.tex").read_text(encoding="utf-8"), drawn


def test_killed_at_every_stage_it_ends_as_if_it_had_not_been(small_replication, tmp_path, capsys):
    """Then nothing is left to do, and another recipe in the same folder reuses what it shares."""
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    replicate = [sys.executable, "-m", "nextlong", "replicate"]
    # Both on as many threads, on which the last bits of a product depend.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    uninterrupted = [*replicate, str(saved(small_replication(whole, seeds=[0]), tmp_path / "whole.yaml"))]
    subprocess.run(uninterrupted, env=environment, check=True, capture_output=True)
    path = str(saved(small_replication(killed, seeds=[0]), tmp_path / "k.yaml"))
    for place, count in (
        ("corpus/*/train.jsonl*", 2),
        ("runs/extension-*/variants/*.json", 1),
        ("models/pretrained-seed0-*/checkpoints/*", 9),
        ("results/tasks-*/results/*/*.partial.jsonl", 4),
        ("models/extended-seed0-*/checkpoints/*", 3),
    ):
        kill_at(["replicate", path], f"{killed}/{place}", count, environment=environment)
    done = subprocess.run([*replicate, path], env=environment, check=True, capture_output=True, text=True)
    assert page(killed) == page(whole)
    assert "standard, seed 0: measured" in done.stdout
    assert not list(killed.glob("models/*/checkpoints"))
    assert main(["replicate", path]) == 0
    again = capsys.readouterr().out
    assert again.count(": cached") == 3
    assert "measured" not in again
    assert main(["replicate", path, "--set", "extend.steps=3"]) == 0
    told = capsys.readouterr().out
    assert "pretrained, seed 0: cached" in told
    assert "standard, seed 0: loss" in told
    assert "extended by 3,072" in (killed / "report.md").read_text()


def test_tables_hold_what_the_results_hold_and_the_papers_numbers(small_replication, tmp_path, capsys):
    out = tmp_path / "out"
    keys = small_replication(out, seeds=[3], experiments=["methods", "granularity", "position", "negatives"])
    keys["data"] = {**keys["data"], "sequences": 500}
    keys |= {"position": ["head", "tail"], "negatives": ["top", "self-repeat"]}
    assert main(["replicate", str(saved(keys, tmp_path / "r.yaml"))]) == 0
    assert "of 500 sequences, which are read" in capsys.readouterr().out
    report = (out / "report.md").read_text(encoding="utf-8")
    # nextlong as it comes stands in every experiment, and is trained and measured once.
    trained = list(out.glob("models/extended-*/stage.json"))
    assert len(trained) == 2 + 1 + 1 + 1
    gains = sorted(
        json.loads(path.read_text())["scores"]["gain_nats"]
        for path in out.glob("results/dependency-top-*/results/dependency/any.json")
    )
    table = report.split("## Methods: scores")[1].split("##")[0]
    column = table.split("\n| |")[1].split("|").index(" Gain, hard negatives ") + 1
    shown = {
        row.split("|")[column + 1].strip() for row in table.splitlines() if re.match(r"\| (not|standard|nextlong)", row)
    }
    assert shown <= {f"{round(gain, 3) + 0.0:.3f}" for gain in gains}
    assert "| nextlong | 62.58 | 82.56 | 60.91 | 81.76 | 31.47 | 37.30 | 81.50 |" in report
    assert "| tail | 60.01 | 72.66 |" in report
    for name in ("granularity-curve", "negatives-similarity", "methods-first-third", "position-gain-by-distance"):
        assert (out / "figures" / f"{name}.svg").read_text().startswith("<svg")
        assert (out / "figures" / f"{name}.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("lengths", "tasks", "told"),
    [
        (
            [200, 1024],
            ["copying"],
            "measure: copying needs at least 256 tokens, not 200; leave the length out",
        ),
        ([100], ["key_values"], "measure: key_values needs at least 128 tokens, not 100"),
        ([32], ["attention"], "measure: needle needs more than 32 tokens"),
    ],
)
def test_a_probe_that_a_length_is_too_short_for_is_told_before_anything_is_trained(
    small_replication, tmp_path, capsys, lengths, tasks, told
):
    keys = small_replication(tmp_path / "out", seeds=[0], methods=["standard"])
    keys["measure"] = {**keys["measure"], "lengths": lengths, "tasks": tasks}
    assert main(["replicate", str(saved(keys, tmp_path / "r.yaml"))]) == 2
    assert told in capsys.readouterr().err.replace("\n", " ")
    assert not (tmp_path / "out" / "models").exists()


def runs(*arms, composed="short"):
    return Runs("runs/pretraining", composed, Path("tokenizer.json"), arms, ())


def arm(value, composed=None):
    return Arm("methods", value, f"runs/extension@{value}", composed or f"of {value}", None)


@pytest.fixture
def recipe(small_replication, tmp_path):
    return Replication.from_dict(small_replication(tmp_path))


@pytest.fixture
def run():
    from nextlong.replicate import run

    return run


def test_each_seed_has_a_pretrained_model_and_one_extended_on_each_run(run, recipe, tmp_path):
    planned = run.all_models(recipe, runs(arm("standard"), arm("nextlong")), tmp_path)
    assert [model.name for model in planned] == [
        f"{name}, seed {seed}" for seed in (0, 1) for name in ("pretrained", "methods=standard", "methods=nextlong")
    ]
    for base, *extended in (planned[:3], planned[3:]):
        assert {model.recipe.model.path for model in extended} == {str(base.final)}
        assert {model.recipe.seed for model in extended} == {base.seed}
        assert base.recipe.model.scratch is not None


def test_runs_of_the_same_sequences_are_trained_on_once_and_before_what_extends_them(run, recipe, tmp_path):
    twice = runs(arm("nextlong", "same"), arm("head", "same"))
    planned = run.all_models(recipe, twice, tmp_path)
    assert len(planned) == 2 * 2
    folders = [model.stage.folder for model in planned]
    assert len(set(folders)) == len(folders)
    for model in planned:
        if model.arm is not None:
            assert folders.index(Path(model.recipe.model.path).parent) < folders.index(model.stage.folder)
    assert [model.name for model in planned if model.arm] == [f"methods=nextlong, seed {seed}" for seed in (0, 1)]
    both = [run.model_of(recipe, one, twice, tmp_path, 1).stage.folder for one in twice.arms]
    assert both[0] == both[1]


def test_other_data_settings_or_seeds_make_another_model_and_nothing_else_does(run, recipe, tmp_path):
    def folder(changed=recipe, made=runs(arm("standard")), seed=0):  # noqa: B008
        return run.model_of(changed, made.arms[0], made, tmp_path, seed).stage.folder

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


@pytest.fixture
def keys(small_replication, tmp_path):
    return small_replication(tmp_path / "out")


def arm_measure(value, cosine=None):
    similarity = None if cosine is None else SimpleNamespace(p50=cosine)
    return Arm("negatives", value, f"runs/held-out@{value}", f"of {value}", SimpleNamespace(similarity=similarity))


def replicated(run, recipe, tmp_path):
    runs = Runs(
        "runs/pretraining", "short", Path("tokenizer.json"), (), (arm_measure("top"), arm_measure("random-corpus"))
    )
    return run.Replicated(recipe, tmp_path, Stage(tmp_path, "documents", {}), runs, ())


def planned(run, recipe, tmp_path, *, of=None, fingerprint="m"):
    model = SimpleNamespace(stage=SimpleNamespace(fingerprint=fingerprint), arm=of)
    return replicated(run, recipe, tmp_path).measurements(model)


def test_a_model_answers_the_tasks_and_then_the_probe_over_each_held_out_run(run, keys, tmp_path):
    recipe = Replication.from_dict(keys)
    tasks, *sides = planned(run, recipe, tmp_path, of=arm_measure("top", 0.625))
    assert [one.name for one in tasks.settings.tasks] == [
        one.name for one in run.chosen([], ["needle", "niah_single_1", "key_values", "copying", "attention"])
    ]
    assert (tuple(tasks.settings.lengths), tasks.settings.samples) == ((768, 1024), 2)
    assert (tasks.settings.label, tasks.settings.negatives_cosine) == ("negatives=top", 0.625)
    assert [(side.settings.run, side.settings.samples) for side in sides] == [
        (Path("runs/held-out@top"), 2),
        (Path("runs/held-out@random-corpus"), 2),
    ]
    assert {task.name for side in sides for task in side.settings.tasks} == {"dependency"}
    assert len({one.stage.folder for one in (tasks, *sides)}) == 3
    assert planned(run, recipe, tmp_path)[0].settings.label == "pretrained"


def test_another_model_or_another_number_of_samples_is_measured_anew(run, keys, tmp_path):
    recipe = Replication.from_dict(keys)
    more = Replication.from_dict({**keys, "measure": {**keys["measure"], "samples": 3}})
    first = [one.stage.folder for one in planned(run, recipe, tmp_path)]
    assert [one.stage.folder for one in planned(run, recipe, tmp_path)] == first
    assert not {one.stage.folder for one in planned(run, recipe, tmp_path, fingerprint="other")} & set(first)
    changed = [one.stage.folder for one in planned(run, more, tmp_path)]
    assert [one == other for one, other in zip(first, changed, strict=True)] == [False, True, True]


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        (["needles"], "measure.tasks: needles: there is no such task; choose from"),
        (["needle", "dependency"], "measure.tasks: dependency is not measured at lengths; leave it out"),
    ],
)
def test_a_task_that_cannot_be_is_told(run, keys, tasks, told):
    recipe = Replication.from_dict({**keys, "measure": {**keys["measure"], "tasks": tasks}})
    with pytest.raises(RecipeError) as error:
        run.check_tasks(recipe)
    assert told in str(error.value)
    run.check_tasks(Replication.from_dict(keys))


def test_what_is_finished_is_neither_trained_nor_measured_again(run, keys, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "HuggingFaceModel", None)
    recipe = Replication.from_dict(keys)
    done = replicated(run, recipe, tmp_path)
    (model, *_) = run.all_models(recipe, done.runs, tmp_path)
    model.stage.finish({"loss": 1.0, "tokens": 5, "seconds": 2.0})
    todo = done.measurements(model)
    for one in todo:
        one.stage.finish({"results": 1})
    said, asked = [], []
    run.train_and_measure(done, model, said.append, label="m")
    assert said == ["m: cached"]
    monkeypatch.setattr(run, "evaluate", lambda load, of, progress: asked.append(of) or SimpleNamespace(finished=[1]))
    (todo[1].stage.folder / "stage.json").unlink()
    run.train_and_measure(done, model, said.append, label="m")
    assert asked == [todo[1].settings]
    assert todo[1].stage.is_finished
    assert model.stage.record["tokens"] == 5
