"""A task of another distribution: one file and an entry point, and it is measured and reported like ours."""

import sys

import pytest
from rich.console import Console

from answering_models import Oracle
from evaluation_data import bpe_tokenizer
from nextlong.errors import PluginError
from nextlong.evaluate.asked import Asked
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.progress import Progress
from nextlong.evaluate.report import tables
from nextlong.evaluate.run import evaluate
from nextlong.evaluate.task import all_tasks

ECHO = """
from nextlong.evaluate.task import Sample, Task

def samples(request):
    for number in range(4):
        yield Sample(f"Repeat: word{number}", (f"word{number}",), 4, details={"half": "odd" if number % 2 else "even"})

def score(answer, sample):
    return {"echoed": float(answer == sample.references[0])}

TASKS = (
    Task("echo", "parrot", "Parrots", "echoed", samples, score, samples=4, max_new_tokens=4,
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
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrots\nVersion: 1.2\n")
        (info / "entry_points.txt").write_text("[nextlong.tasks]\nparrots = parrots:TASKS\n")
        monkeypatch.syspath_prepend(tmp_path / "site")
        monkeypatch.delitem(sys.modules, "parrots", raising=False)
        all_tasks.cache_clear()

    yield install
    sys.modules.pop("parrots", None)
    all_tasks.cache_clear()


def test_it_is_measured_and_has_its_tables(bring, tmp_path):
    bring(ECHO)
    asked = Asked([all_tasks()["echo"]], [64], tmp_path / "results", DataFiles(None), label="polly")
    measured = evaluate(lambda: Parrot(bpe_tokenizer()), asked, progress=Progress(Console(quiet=True)))
    found = {table.title: table for table in tables.all_tables([measured])}
    shown = {title: [(name, *map(tables.text_of, cells)) for name, cells in found[title].rows] for title in found}
    assert shown["Parrots, by length"] == [("polly", "75.00 [25.0, 100.0]", "4")]
    assert shown["polly: suite parrot, by task"] == [("echo", "75.00 [25.0, 100.0]", "4")]
    assert found["echo by half"].columns == ("Overall", "Odd", "Even", "n")
    assert shown["echo by half"] == [
        ("polly, 64", "75.00 [25.0, 100.0]", "50.00 [0.0, 100.0]", "100.00 [100.0, 100.0]", "2–4")
    ]


def test_a_name_that_is_taken_and_what_is_no_task_are_told_with_their_distribution(bring):
    bring(ECHO.replace('"echo"', '"vt"'))
    with pytest.raises(PluginError, match=r"distribution parrots 1\.2 brings a second task 'vt'"):
        all_tasks()
    sys.modules.pop("parrots")
    sys.modules["parrots"] = type(sys)("parrots")
    sys.modules["parrots"].TASKS = ["vt"]
    with pytest.raises(PluginError, match=r"distribution parrots 1\.2 has no tuple"):
        all_tasks()
