"""Settings: which tasks at which lengths, and what is refused before a model is loaded."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.probe import Probe, local_model
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.settings import EvaluationSettings, check


def probe(name, **parts):
    return Probe(name, name, "Probes", "score", 5, lambda *_: {}, **parts)


ONCE = probe("once", lengths=None)


EACH = probe("each")


OF_A_RUN = probe("of-a-run", reads="run")


SOME_LENGTHS = next(task for task in all_tasks().values() if task.lengths)


ANY_LENGTH = all_tasks()["vt"]


def asking(*tasks, lengths=(4096, 1024), folder=None, **more):
    return EvaluationSettings(
        tasks,
        lengths,
        Path("results"),
        DataFiles(folder),
        ModelOptions("model"),
        **more,
    )


def test_short_lengths_come_first_and_what_has_none_last():
    assert asking(ONCE, ANY_LENGTH, EACH).pairs() == [
        (ANY_LENGTH, 1024),
        (EACH, 1024),
        (ANY_LENGTH, 4096),
        (EACH, 4096),
        (ONCE, None),
    ]


def test_a_task_is_measured_only_where_its_benchmark_defines_it():
    defined = SOME_LENGTHS.lengths[0]
    assert asking(SOME_LENGTHS, lengths=[defined, 77]).pairs() == [
        (SOME_LENGTHS, defined)
    ]
    with pytest.raises(EvaluateError, match=SOME_LENGTHS.name) as error:
        asking(SOME_LENGTHS, lengths=[77]).pairs()
    assert error.value.where == SOME_LENGTHS.name


def test_a_length_beyond_the_model_is_refused_unless_nobody_knows_how_long_it_is():
    of = asking(EACH)
    check(of, context=4096)
    check(of, context=None)
    with pytest.raises(EvaluateError, match=r"4,095.*--context") as error:
        check(of, context=4095)
    assert error.value.where == "--lengths 4,096"


def test_a_probe_that_reads_a_run_wants_one():
    with pytest.raises(EvaluateError, match="add --run RUN") as error:
        check(asking(OF_A_RUN), context=None)
    assert error.value.where == "of-a-run"
    check(asking(OF_A_RUN, run=Path("run")), context=None)


def test_every_file_that_is_missing_is_told_at_once_and_each_once(tmp_path):
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle" / "there.txt").touch()
    one = replace(
        ANY_LENGTH,
        name="one",
        files=("needle/there.txt", "needle/both.txt", "needle/one.txt"),
    )
    other = replace(
        ANY_LENGTH,
        name="other",
        files=("needle/both.txt",),
        files_at={4096: ("needle/long.txt",)},
    )
    with pytest.raises(EvaluateError) as error:
        check(asking(one, other, folder=tmp_path), context=None)
    named = re.findall(r"needle/(\w+)\.txt", str(error.value))
    assert sorted(named) == ["both", "long", "one"]


def test_a_file_may_have_another_in_its_place(tmp_path):
    data = DataFiles(tmp_path)
    (tmp_path / "ruler").mkdir()
    assert not data.has(data.source("needle/haystack.txt"))
    (tmp_path / "ruler/PaulGrahamEssays.json").write_text("{}")
    assert data.has(data.source("needle/haystack.txt"))
    assert not data.has(data.source("ruler/squad.json"))


def test_a_probe_of_a_server_is_refused_before_any_task(tmp_path):
    model = SimpleNamespace(prompts=SimpleNamespace(tokenizer=None))
    with pytest.raises(EvaluateError) as error:
        local_model(model, EACH)
    assert error.value.where == "each"
