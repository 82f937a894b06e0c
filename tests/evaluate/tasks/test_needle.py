import re
from itertools import islice

import pytest
from tests.support.evaluation_data import word_tokenizer, write

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import HAYSTACK, DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import TaskRequest, TextTokenizer
from nextlong.evaluate.tasks.haystack import haystack_text
from nextlong.evaluate.tasks.needle import samples

NEEDLE = "The best thing to do in San Francisco is eat a sandwich and sit in Dolores Park on a sunny day."


@pytest.fixture
def data(tmp_path):
    write(
        tmp_path / HAYSTACK,
        " ".join(f"Tide {number} came in." for number in range(300)),
    )
    return DataFiles(tmp_path)


def test_the_needle_goes_from_the_head_to_the_end_behind_whole_sentences(data):
    request = TaskRequest(512, TextTokenizer(word_tokenizer()), data)
    made = list(samples(request))
    assert len(made) == 11
    places = []
    for sample in made:
        text = re.search(r"<context>\n(.*)\n</context>", sample.prompt, re.DOTALL)[1]
        before, _, behind = text.partition(" " + NEEDLE)
        assert behind or sample is made[-1]
        assert not before or before.endswith(".") or sample is made[-1]
        assert request.fits(sample)
        places.append(len(before) / len(before + behind))
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0, 1)


def test_thirty_five_depths_are_an_option(data):
    task = all_tasks()["needle_35"]
    made = list(
        task.make(TaskRequest(512, TextTokenizer(word_tokenizer()), data, task.samples))
    )
    assert (
        task.suite,
        len(made),
        len({sample.details["depth"] for sample in made}),
    ) == ("needle-35", 35, 35)
    assert (made[0].details["depth"], made[-1].details["depth"]) == (0.0, 100.0)


@pytest.mark.parametrize(
    ("count", "depths"), [(1, [50]), (2, [0, 100]), (3, [0, 50, 100]), (12, [0, 0])]
)
def test_fewer_samples_are_spread_and_more_read_on(data, count, depths):
    made = list(
        samples(TaskRequest(256, TextTokenizer(word_tokenizer()), data, samples=count))
    )
    assert len(made) == count
    assert [
        sample.details["depth"]
        for sample in islice(made, 0, None, 11 if count > 11 else 1)
    ] == depths
    assert len({sample.prompt for sample in made}) == count


@pytest.mark.parametrize(
    ("answer", "found", "share"),
    [("Eat a SANDWICH in dolores park", 1, 1), ("Dolores Park", 0, 0.5), ("", 0, 0)],
)
def test_both_facts_are_asked_for(data, answer, found, share):
    (sample,) = samples(
        TaskRequest(256, TextTokenizer(word_tokenizer()), data, samples=1)
    )
    assert all_tasks()["needle"].score(answer, sample) == {
        "found": found,
        "found_share": share,
    }


def test_without_room_or_text_it_is_told(data, tmp_path):
    with pytest.raises(EvaluateError) as error:
        next(samples(TaskRequest(40, TextTokenizer(word_tokenizer()), data)))
    assert error.value.where == "--lengths"
    write(tmp_path / HAYSTACK, "  \n")
    with pytest.raises(EvaluateError) as error:
        haystack_text(data)
    assert error.value.where == HAYSTACK
