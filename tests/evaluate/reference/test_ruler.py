"""Prompts and answers are NVIDIA's: recorded by running its scripts/data/synthetic at the commit that ruler.json names.

Their input were `write_data`'s files, the words of wonderwords 3.0.1 and
`word_tokenizer`.
"""

import hashlib
import json
from itertools import islice
from pathlib import Path

import pytest
from tests.support.evaluation_data import word_tokenizer, write_data

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import TaskRequest, TextTokenizer

pytestmark = pytest.mark.heavy
RECORDED = json.loads(
    Path(__file__).with_name("ruler.json").read_text(encoding="utf-8")
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return DataFiles(write_data(tmp_path_factory.mktemp("data")))


def test_every_task_of_ruler_is_recorded():
    assert set(RECORDED["prompts"]) == {
        name for name, task in all_tasks().items() if task.suite == "ruler"
    }


@pytest.mark.parametrize("name", RECORDED["prompts"])
def test_prompts_and_answers_are_nvidias(name, data):
    request = TaskRequest(
        RECORDED["tokens"], TextTokenizer(word_tokenizer()), data, 3, RECORDED["seed"]
    )
    samples = list(islice(all_tasks()[name].make(request), 3))
    expected = RECORDED["prompts"][name]
    assert [sample.answer_prefix for sample in samples] == [
        one["answer_prefix"] for one in expected
    ]
    assert [list(sample.references) for sample in samples] == [
        one["references"] for one in expected
    ]
    hashes = [hashlib.sha256(sample.text.encode()).hexdigest() for sample in samples]
    assert hashes == [one["sha256"] for one in expected]
