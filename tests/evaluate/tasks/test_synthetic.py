"""Needle and HELMET's recall: an oracle that reads the context scores all, a blind model nothing, for any tokenizer and length."""

from itertools import islice

import pytest
from tests.support.answering_models import Blind, Oracle
from tests.support.evaluation_data import TOKENIZERS

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import TaskRequest, TextTokenizer

pytestmark = pytest.mark.heavy  # RULER's words and sentences

RECALL = [task.name for task in all_tasks().values() if task.category == "Recall"]


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize(
    ("name", "length"),
    [
        *((name, 24_576) for name in RECALL),
        ("needle", 2048),
        ("needle", 8192),
        ("needle", 65_536),
    ],
)
def test_an_oracle_scores_all_and_a_blind_model_nothing(
    name, length, kind, data_folder
):
    task, backend = all_tasks()[name], TOKENIZERS[kind]()
    oracle, blind = Oracle(backend), Blind(backend)
    request = TaskRequest(length, TextTokenizer(backend), DataFiles(data_folder), 3)
    made = list(islice(task.make(request), 3))
    samples = [sample for sample in made if sample is not None]
    # HELMET's number of keys is for tokenizers that know more of UUIDs: some are
    # refused.
    assert len(samples) == 3 or (samples and (name, kind) == ("json_kv", "unigram"))
    for sample in samples:
        assert oracle.tokenizer.count(sample.text) + sample.max_new_tokens <= length
        assert task.score(oracle.read(sample.text), sample)[task.metric] == 1.0
        assert task.score(blind.read(sample.text), sample)[task.metric] == 0.0


def test_there_are_four_tasks_of_recall():
    assert sorted(RECALL) == ["json_kv", "ruler_mk_needle", "ruler_mk_uuid", "ruler_mv"]
