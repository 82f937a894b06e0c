from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong.evaluate.task import Request, Sample, Task, all_tasks

WORDS = SimpleNamespace(count=lambda text: len(text.split()))


@given(words=st.integers(0, 9), budget=st.integers(0, 9), overhead=st.integers(0, 9), length=st.integers(0, 30))
def test_a_sample_fits_with_its_answer_and_what_a_template_adds(words, budget, overhead, length):
    request = Request(length, WORDS, None, overhead=overhead)
    sample = Sample("w " * words, (), budget, answer_prefix="")
    assert request.fits(sample) == (words + budget + overhead <= length)


def test_given_ids_count_for_themselves():
    sample = Sample("a b c", (), 1, input_ids=(7,))
    assert Request(2, WORDS, None).fits(sample)


def test_the_text_is_the_prompt_and_what_the_answer_continues():
    assert Sample("Question:", ("x",), 1, answer_prefix=" Answer:").text == "Question: Answer:"


def test_every_task_has_a_name_and_says_what_it_reads():
    tasks = all_tasks()
    assert all(name == task.name for name, task in tasks.items())
    assert all(task.max_new_tokens > 0 and task.samples > 0 for task in tasks.values())
    task = Task("t", "s", "c", "m", None, None, 1, 1, files=("a",), files_at={8: ("b",)})
    assert (task.needs(8), task.needs(9)) == (("a", "b"), ("a",))


@pytest.mark.parametrize("suite", ["ruler", "helmet", "needle"])
def test_tasks_of_a_suite_stand_together(suite):
    suites = [task.suite for task in all_tasks().values()]
    first = suites.index(suite)
    assert suites[first : first + suites.count(suite)] == [suite] * suites.count(suite)
