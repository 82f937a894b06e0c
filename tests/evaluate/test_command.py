"""What `nextlong evaluate` does once its options are read: which tasks, what is refused, what is printed."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from nextlong.errors import EvaluateError
from nextlong.evaluate import command, import_helmet, judge
from nextlong.evaluate.command import chosen
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.plan import Settings
from nextlong.evaluate.report import show
from nextlong.evaluate.run import IncompleteError
from nextlong.evaluate.server import ServerOptions
from nextlong.evaluate.task import all_tasks, registered


def names(suites=(), tasks=()):
    return [one.name for one in chosen(suites, tasks)]


def test_without_a_choice_every_task_and_probe_is_meant_in_the_order_of_the_report():
    assert names() == list(registered())
    ruler = names(["ruler"])
    assert ruler == [name for name, task in all_tasks().items() if task.suite == "ruler"]
    assert set(names(["ruler", "attention"])) == {*ruler, "attention"}
    assert names(tasks=["vt", "needle"]) == [name for name in names() if name in ("vt", "needle")]


@pytest.mark.parametrize(
    ("suites", "tasks", "told"),
    [
        (["rulers"], [], "--suite rulers: there is no such suite; choose from attention, "),
        (["ruler"], ["needle"], "--tasks needle: there is no such task; choose from niah_single_1, "),
        ([], ["vts"], "--tasks vts: there is no such task; choose from "),
    ],
)
def test_a_name_that_is_neither_is_told_with_those_there_are(suites, tasks, told):
    with pytest.raises(EvaluateError) as error:
        chosen(suites, tasks)
    assert str(error.value).startswith(told)


def settings(tmp_path, **more):
    server = ServerOptions("http://127.0.0.1:9/v1")
    plain = {"tasks": chosen([], ["vt"]), "lengths": [1024], "out": tmp_path / "out", "data": DataFiles(None)}
    return Settings(**{"model": "m", **plain, "server": server, **more})


@pytest.fixture
def console():
    return Console(file=io.StringIO(), width=200)


def test_what_cannot_be_measured_is_told_before_anything_is_loaded(tmp_path, console, monkeypatch):
    monkeypatch.setattr(command, "opened", None)
    with pytest.raises(EvaluateError, match=f"--data {tmp_path / 'none'} is not a folder; docs/evaluate/data.md lists"):
        command.measure(settings(tmp_path, data=DataFiles(tmp_path / "none")), console=console)
    (tmp_path / "model").mkdir()
    with pytest.raises(EvaluateError, match=", or the --url of a server"):
        command.measure(settings(tmp_path / "model", server=None, model=str(tmp_path / "model")), console=console)
    assert not (tmp_path / "out").exists()


def test_what_was_asked_reaches_the_measurement_and_its_results_are_printed(tmp_path, console, monkeypatch, capsys):
    seen = []
    measured = SimpleNamespace(name="measured")
    monkeypatch.setattr(command, "evaluate", lambda load, asked, progress: seen.append(asked) or measured)
    monkeypatch.setattr("nextlong.evaluate.report.show.as_json", lambda results: [one.name for one in results])
    command.measure(
        settings(tmp_path, samples=3, seed=5, label="x", lengths=[2048, 1024]), console=console, form="json"
    )
    (asked,) = seen
    assert [task.name for task in asked.tasks] == ["vt"]
    assert (asked.lengths, asked.samples, asked.seed, asked.label) == ([2048, 1024], 3, 5, "x")
    assert asked.negatives_cosine is None
    assert json.loads(capsys.readouterr().out) == ["measured"]


def test_what_was_finished_is_printed_before_it_ends_in_an_error(tmp_path, console, monkeypatch, capsys):
    def stopped(load, asked, progress):
        raise IncompleteError("one task failed", SimpleNamespace(name="half"))

    monkeypatch.setattr(command, "evaluate", stopped)
    monkeypatch.setattr("nextlong.evaluate.report.show.as_json", lambda results: [one.name for one in results])
    with pytest.raises(IncompleteError, match="one task failed"):
        command.measure(settings(tmp_path), console=console, form="json")
    assert json.loads(capsys.readouterr().out) == ["half"]


def test_a_model_on_trial_is_as_long_as_the_user_says(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "HuggingFaceModel", lambda name, load: SimpleNamespace(name=name, context=100))
    assert command.opened(settings(tmp_path, server=None)).context == 100
    assert command.opened(settings(tmp_path, server=None, context=8192)).context == 8192


def test_the_cosine_of_the_negatives_is_that_of_the_run(shared_run):
    import nextlong
    from nextlong.runs import stats

    assert command.negatives_cosine(None) is None
    assert command.negatives_cosine(shared_run) == stats.measure(nextlong.open(shared_run)).similarity.p50


JUDGE = {"nli": None, "data": None}


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda console: show.report([], outputs=[], figures=None, console=console), "report: no results are named"),
        (
            lambda console: judge.run([], name="m", server=None, console=console, **JUDGE),
            "judge: run nextlong evaluate judge",
        ),
        (
            lambda console: judge.run([Path("r")], name=None, server=None, console=console, **JUDGE),
            "--judge MODEL --url",
        ),
        (
            lambda console: import_helmet.read_into([Path("r.json")], out=None, label=None, console=console),
            "--out RESULTS",
        ),
    ],
)
def test_an_incomplete_command_says_how_it_is_written(console, call, told):
    with pytest.raises(EvaluateError) as error:
        call(console)
    assert told in str(error.value)
