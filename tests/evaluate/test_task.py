"""A task: what fits a length, and what `--lengths` accepts."""

import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import Sample, Task, TaskRequest, parse_lengths, short

WORDS = SimpleNamespace(count=lambda text: len(text.split()))


@given(
    words=st.integers(0, 9),
    budget=st.integers(0, 9),
    overhead=st.integers(0, 9),
    length=st.integers(0, 30),
)
def test_a_sample_fits_with_its_answer_and_what_a_template_adds(
    words, budget, overhead, length
):
    request = TaskRequest(length, WORDS, None, overhead=overhead)
    sample = Sample("w " * words, (), budget, answer_prefix="")
    assert request.fits(sample) == (words + budget + overhead <= length)


def test_the_text_is_the_prompt_and_what_the_answer_continues():
    assert (
        Sample("Question:", ("x",), 1, answer_prefix=" Answer:").text
        == "Question: Answer:"
    )


def test_every_task_has_a_name_and_says_what_it_reads():
    tasks = all_tasks()
    assert all(name == task.name for name, task in tasks.items())
    assert all(task.samples > 0 for task in tasks.values())
    task = Task("t", "s", "c", "m", 1, None, None, files=("a",), files_at={8: ("b",)})
    assert (task.needs(8), task.needs(9)) == (("a", "b"), ("a",))


@pytest.mark.parametrize("suite", ["ruler", "helmet", "needle"])
def test_tasks_of_a_suite_stand_together(suite):
    suites = [task.suite for task in all_tasks().values()]
    first = suites.index(suite)
    assert suites[first : first + suites.count(suite)] == [suite] * suites.count(suite)


@pytest.mark.parametrize(
    ("text", "lengths"),
    [
        ("8k", [8192]),
        ("8k..64k", [8192, 16_384, 32_768, 65_536]),
        ("32k, 8k,8192", [8192, 32_768]),
        ("6000..13000", [6000, 12_000]),
        ("1M", [1_048_576]),
    ],
)
def test_lengths(text, lengths):
    assert parse_lengths(text) == lengths


@pytest.mark.parametrize("text", ["", "8x", "8k..", "64k..8k", "0", "-8k", "8k;16k"])
def test_what_is_no_length_is_refused(text):
    with pytest.raises(EvaluateError, match="--lengths"):
        parse_lengths(text)


def test_lengths_are_written_as_people_do():
    assert [short(length) for length in (8192, 1_048_576, 6000, None)] == [
        "8K",
        "1M",
        "6,000",
        "–",
    ]


def test_a_module_that_is_there_is_returned():
    assert required("math") is math


@pytest.mark.parametrize(
    ("name", "extra"),
    [
        ("no_such_package.inside", "evaluate"),
        ("lm_eval", "short-text"),
    ],
)
def test_one_that_is_missing_is_named_with_its_extra(name, extra, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, name, None)
    with pytest.raises(EvaluateError) as error:
        required(name)
    assert f"'nextlong[{extra}]'" in error.value.fix
