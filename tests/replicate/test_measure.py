"""Measurements of a replication: what is asked of each model, and what is refused before anything is trained."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from nextlong.errors import RecipeError
from nextlong.replicate.data import Arm
from nextlong.replicate.recipe import Replication
from nextlong.replicate.stage import Stage

pytestmark = pytest.mark.heavy  # it imports what measures


@pytest.fixture
def keys(small_replication, tmp_path):
    return small_replication(tmp_path / "out")


@pytest.fixture
def measure():
    from nextlong.replicate import measure

    return measure


def arm(value, cosine=None):
    similarity = None if cosine is None else SimpleNamespace(p50=cosine)
    return Arm("negatives", value, f"runs/held-out@{value}", f"of {value}", SimpleNamespace(similarity=similarity))


def planned(measure, recipe, tmp_path, *, of=None, fingerprint="m"):
    model = SimpleNamespace(stage=SimpleNamespace(fingerprint=fingerprint), arm=of)
    documents = Stage(tmp_path, "documents", {})
    return list(measure.planned(recipe, model, (arm("top"), arm("random-corpus")), documents, tmp_path))


def test_a_model_answers_the_tasks_and_then_the_probe_over_each_held_out_run(measure, keys, tmp_path):
    recipe = Replication.from_dict(keys)
    tasks, *sides = planned(measure, recipe, tmp_path, of=arm("top", 0.625))
    assert [one.name for one in tasks.asked.tasks] == [
        one.name for one in measure.chosen([], ["needle", "niah_single_1", "key_values", "copying", "attention"])
    ]
    assert (tuple(tasks.asked.lengths), tasks.asked.samples) == ((768, 1024), 2)
    assert (tasks.asked.label, tasks.asked.negatives_cosine) == ("negatives=top", 0.625)
    assert [(side.asked.run, side.asked.samples) for side in sides] == [
        (Path("runs/held-out@top"), 2),
        (Path("runs/held-out@random-corpus"), 2),
    ]
    assert {task.name for side in sides for task in side.asked.tasks} == {"dependency"}
    assert len({one.stage.folder for one in (tasks, *sides)}) == 3
    assert planned(measure, recipe, tmp_path)[0].asked.label == "pretrained"


def test_another_model_or_another_number_of_samples_is_measured_anew(measure, keys, tmp_path):
    recipe = Replication.from_dict(keys)
    more = Replication.from_dict({**keys, "measure": {**keys["measure"], "samples": 3}})
    first = [one.stage.folder for one in planned(measure, recipe, tmp_path)]
    assert [one.stage.folder for one in planned(measure, recipe, tmp_path)] == first
    assert not {one.stage.folder for one in planned(measure, recipe, tmp_path, fingerprint="other")} & set(first)
    changed = [one.stage.folder for one in planned(measure, more, tmp_path)]
    assert [one == other for one, other in zip(first, changed, strict=True)] == [False, True, True]


@pytest.mark.parametrize(
    ("tasks", "told"),
    [
        (["needles"], "measure.tasks: needles: there is no such task; choose from"),
        (["needle", "dependency"], "measure.tasks: dependency is not measured at lengths; leave it out"),
    ],
)
def test_a_task_that_cannot_be_is_told(measure, keys, tasks, told):
    recipe = Replication.from_dict({**keys, "measure": {**keys["measure"], "tasks": tasks}})
    with pytest.raises(RecipeError) as error:
        measure.check(recipe)
    assert told in str(error.value)
    measure.check(Replication.from_dict(keys))


def test_no_model_is_loaded_for_what_is_finished(measure, keys, tmp_path, monkeypatch):
    monkeypatch.setattr(measure, "HuggingFaceModel", None)
    recipe = Replication.from_dict(keys)
    todo = planned(measure, recipe, tmp_path)
    for one in todo:
        one.stage.finish({"results": 1})
    measure.measure(SimpleNamespace(final=tmp_path), todo, recipe)
    asked = []
    monkeypatch.setattr(
        measure, "evaluate", lambda load, of, progress: asked.append(of) or SimpleNamespace(finished=[1])
    )
    (todo[1].stage.folder / "stage.json").unlink()
    measure.measure(SimpleNamespace(final=tmp_path), todo, recipe)
    assert asked == [todo[1].asked]
    assert todo[1].stage.is_finished
