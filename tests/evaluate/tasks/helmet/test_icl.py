from itertools import islice

import pytest

from evaluation_data import word_tokenizer
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks
from nextlong.evaluate.tasks.helmet import icl


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = Request(length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples)
    return list(islice(all_tasks()[name].make(request), samples))


def scored(name, sample, answer):
    task = all_tasks()[name]
    return task.score(answer, sample)[task.metric]


ICL = ["trec_coarse", "trec_fine", "nlu", "banking77", "clinc150"]


@pytest.mark.parametrize("name", ICL)
def test_icl_shuffles_the_labels_of_every_sample(name, data_folder):
    samples = made(name, data_folder)
    assert len(samples) == 6
    for sample in samples:
        demos = sample.prompt.split("\n\n")[1:-1]
        assert len(demos) == sample.details["shots"]
        labels = {demo.rsplit("label: ", 1)[1] for demo in demos}
        assert labels == {str(number) for number in range(len(labels))}
        assert scored(name, sample, f" {sample.references[0]}\nmore") == 1.0
        assert scored(name, sample, f" {int(sample.references[0]) + 1}") == 0.0
        assert scored(name, sample, "") == 0.0
    numbers = {tuple(demo.rsplit("label: ", 1)[1] for demo in sample.prompt.split("\n\n")[1:-1]) for sample in samples}
    assert len(numbers) > 1


def test_icl_demos_hold_every_label_in_every_round():
    train = [icl.Labelled(f"text {n}", f"label {n % 7}") for n in range(40)]
    demos = icl.balanced(train, 40, seed=1)
    assert len(demos) == 40
    for first in range(0, 35, 7):
        assert {demo.label for demo in demos[first : first + 7]} == {f"label {n}" for n in range(7)}


def test_icl_shots_are_helmets():
    assert [icl._shots(400, 800, 1600, 3300, 6600)[length] for length in (8192, 131_072)] == [400, 6600]
