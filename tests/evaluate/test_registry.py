"""Registry: tasks and probes by name, those of other distributions among them."""

import sys

import pytest
from tests.support.answering_models import Oracle, asked, evaluated
from tests.support.evaluation_data import bpe_tokenizer

from nextlong.errors import EvaluateError, PluginError
from nextlong.evaluate import tables
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.registry import all_tasks, chosen, registered
from nextlong.evaluate.task import ImportedTask


def test_probes_are_suites():
    probes = [probe for probe in registered().values() if isinstance(probe, Probe)]
    assert {probe.suite for probe in probes} >= {"attention", "dependency", "short"}
    assert len([probe for probe in probes if probe.suite == "short"]) == 7


ECHO = """
from nextlong.evaluate.task import Sample, Task

def samples(request):
    for number in range(4):
        yield Sample(f"Repeat: word{number}", (f"word{number}",), 4, details={"half": "odd" if number % 2 else "even"})

def score(answer, sample):
    return {"echoed": float(answer == sample.references[0])}

TASKS = (
    Task("echo", "parrot", "Parrots", "echoed", 4, samples, score,
         splits=(("Odd", "half", "odd"), ("Even", "half", "even")), about="Words come back."),
)
"""


class Parrot(Oracle):
    def read(self, text):
        return text.split()[-1].replace("3", "4")


@pytest.fixture
def bring(tmp_path, monkeypatch):
    def install(source):
        info = tmp_path / "site" / "parrots-1.2.dist-info"
        info.mkdir(parents=True)
        (tmp_path / "site" / "parrots.py").write_text(source)
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: parrots\nVersion: 1.2\n"
        )
        (info / "entry_points.txt").write_text(
            "[nextlong.tasks]\nparrots = parrots:TASKS\n"
        )
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.delitem(sys.modules, "parrots", raising=False)
        registered.cache_clear()

    yield install
    sys.modules.pop("parrots", None)
    registered.cache_clear()


def test_it_is_measured_and_has_its_tables(bring, tmp_path):
    bring(ECHO)
    measured = evaluated(
        Parrot(bpe_tokenizer()),
        asked(tmp_path / "results", "echo", lengths=[64], label="polly"),
    )
    found = {table.title: table for table in tables.all_tables([measured])}
    shown = {
        title: [
            (name, *map(tables._text_of, cells)) for name, cells in found[title].rows
        ]
        for title in found
    }
    assert shown["Parrots, by length"] == [("polly", "75.00 [25.0, 100.0]", "4")]
    assert shown["polly: suite parrot, by task"] == [
        ("echo", "75.00 [25.0, 100.0]", "4")
    ]
    assert found["echo by half"].columns == ("Overall", "Odd", "Even", "n")
    assert shown["echo by half"] == [
        (
            "polly, 64",
            "75.00 [25.0, 100.0]",
            "50.00 [0.0, 100.0]",
            "100.00 [100.0, 100.0]",
            "2–4",
        )
    ]


def test_a_name_that_is_taken_and_what_is_no_task_are_told_with_their_distribution(
    bring,
):
    bring(ECHO.replace('"echo"', '"vt"'))
    with pytest.raises(PluginError, match="'vt'") as error:
        all_tasks()
    assert error.value.where.endswith("distribution parrots 1.2")
    sys.modules.pop("parrots")
    sys.modules["parrots"] = type(sys)("parrots")
    sys.modules["parrots"].TASKS = ["vt"]
    with pytest.raises(PluginError, match=r"\['vt'\]") as error:
        all_tasks()
    assert error.value.where.endswith("distribution parrots 1.2")


def names(suites=(), tasks=()):
    return [one.name for one in chosen(suites, tasks)]


def test_without_a_choice_every_task_and_probe_is_meant_in_the_order_of_the_report():
    elsewhere = {
        name for name, task in registered().items() if isinstance(task, ImportedTask)
    }
    assert names() == [name for name in registered() if name not in elsewhere]
    assert elsewhere >= {"alce_asqa", "longbench_v2", "graphwalks"}
    ruler = names(["ruler"])
    assert ruler == [
        name for name, task in all_tasks().items() if task.suite == "ruler"
    ]
    assert set(names(["ruler", "attention"])) == {*ruler, "attention"}
    assert names(tasks=["vt", "needle"]) == [
        name for name in names() if name in ("vt", "needle")
    ]


@pytest.mark.parametrize(
    ("suites", "tasks", "told"),
    [
        (
            ["rulers"],
            [],
            "--suite rulers: unknown suite; did you mean 'ruler'? Or choose from attention, ",
        ),
        (
            ["ruler"],
            ["needle"],
            "--tasks needle: unknown task; choose from niah_single_1, ",
        ),
        ([], ["vts"], "--tasks vts: unknown task; did you mean 'vt'? Or choose from "),
    ],
)
def test_a_name_that_is_neither_is_told_with_those_there_are(suites, tasks, told):
    with pytest.raises(EvaluateError) as error:
        chosen(suites, tasks)
    assert str(error.value).startswith(told)
