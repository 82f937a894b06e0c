"""What is asked of a model: which tasks at which lengths, and what is refused before the first is begun."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.asked import Asked, check, check_probes, files_of, is_there, pairs, request_of
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.task import all_tasks


def probe(name, **parts):
    return Probe(name, name, "score", lambda *_: {}, **{"samples": 5, **parts})


ONCE = probe("once", lengths="none")
EACH = probe("each", lengths="each")
OF_A_RUN = probe("of-a-run", lengths="each", reads="run")
SOME_LENGTHS = next(task for task in all_tasks().values() if task.lengths)
ANY_LENGTH = all_tasks()["vt"]


def asking(*tasks, lengths=(4096, 1024), folder=None, **more):
    return Asked(tasks, lengths, Path("results"), DataFiles(folder), **more)


def test_short_lengths_come_first_and_what_has_none_last():
    assert pairs(asking(ONCE, ANY_LENGTH, EACH)) == [
        (ANY_LENGTH, 1024),
        (EACH, 1024),
        (ANY_LENGTH, 4096),
        (EACH, 4096),
        (ONCE, None),
    ]


def test_a_task_is_measured_only_where_its_benchmark_defines_it():
    defined = SOME_LENGTHS.lengths[0]
    assert pairs(asking(SOME_LENGTHS, lengths=[defined, 77])) == [(SOME_LENGTHS, defined)]
    with pytest.raises(EvaluateError, match=f"--lengths: {SOME_LENGTHS.name} is defined at {defined}.* only; add one"):
        pairs(asking(SOME_LENGTHS, lengths=[77]))


def test_a_length_beyond_the_model_is_refused_unless_nobody_knows_how_long_it_is():
    of = asking(EACH)
    check(of, context=4096)
    check(of, context=None)
    with pytest.raises(EvaluateError, match=r"--lengths 4,096: the model's context is 4,095 tokens; .*--context says"):
        check(of, context=4095)


def test_a_probe_that_reads_a_run_wants_one():
    with pytest.raises(EvaluateError, match="of-a-run: say --run RUN, the run whose sequences are read"):
        check(asking(OF_A_RUN), context=None)
    check(asking(OF_A_RUN, run=Path("run")), context=None)


def test_every_file_that_is_missing_is_told_at_once_and_each_once(tmp_path):
    (tmp_path / "needle").mkdir()
    (tmp_path / "needle" / "there.txt").touch()
    one = replace(ANY_LENGTH, name="one", files=("needle/there.txt", "needle/both.txt", "needle/one.txt"))
    other = replace(ANY_LENGTH, name="other", files=("needle/both.txt",), files_at={4096: ("needle/long.txt",)})
    with pytest.raises(EvaluateError) as error:
        check(asking(one, other, folder=tmp_path), context=None)
    named = re.findall(r"needle/(\w+)\.txt", str(error.value))
    assert sorted(named) == ["both", "long", "one"]


def test_a_file_may_have_another_in_its_place(tmp_path):
    data = DataFiles(tmp_path)
    (tmp_path / "ruler").mkdir()
    assert not is_there("needle/haystack.txt", data)
    (tmp_path / "ruler/PaulGrahamEssays.json").write_text("{}")
    assert is_there("needle/haystack.txt", data)
    assert not is_there("ruler/squad.json", data)


def test_probes_need_no_file_to_be_there():
    assert files_of(EACH, 1024) == ()
    assert isinstance(files_of(ANY_LENGTH, 1024), tuple)


def test_what_is_measured_already_is_not_looked_into_again(tmp_path):
    looked = []
    mine = probe("mine", lengths="each", check_model=lambda model, run: looked.append("model"), check=looked.append)
    of = Asked([mine], [1024], tmp_path, DataFiles(None))
    with pytest.raises(EvaluateError, match="mine: a server does not give away what is inside its model"):
        check_probes([(mine, 1024)], of, SimpleNamespace(prompts=SimpleNamespace(tokenizer=None, overhead=0)))
    place = results.place_of(tmp_path, "mine", 1024)
    place.parent.mkdir(parents=True)
    place.write_text("{}")
    check_probes([(mine, 1024)], of, SimpleNamespace(prompts=SimpleNamespace(tokenizer=None, overhead=0)))
    assert looked == []


@pytest.mark.parametrize(("samples", "expected"), [(None, ANY_LENGTH.samples), (7, 7)])
def test_a_benchmark_says_how_many_samples_unless_the_user_does(samples, expected):
    model = SimpleNamespace(prompts=SimpleNamespace(tokenizer="tokenizer", overhead=3))
    request = request_of(ANY_LENGTH, 1024, asking(ANY_LENGTH, samples=samples, seed=9), model)
    assert (request.length, request.samples, request.seed, request.overhead) == (1024, expected, 9, 3)
    assert request_of(ONCE, None, asking(ONCE), model).length == 0
