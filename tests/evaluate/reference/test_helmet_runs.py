"""Prompts and scores of runs of HELMET's eval.py with its own configurations: recorded by record_helmet.py.

They cover what a run decides beside its task: where an answer ends (nowhere), whether a
chat model is asked by its template, and samples that are read from HELMET's own files.
"""

import json
from functools import cache
from pathlib import Path

import pytest
from tests.evaluate.reference.record_helmet import digest, first
from tests.support.helmet_runs import (
    LENGTH,
    helmet_folder,
    instruct_tokenizer,
    predictions,
)

from nextlong.evaluate.answers import scored_answers
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.prompts import Prompts
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.results import Shard
from nextlong.evaluate.task import TaskRequest, TextTokenizer

pytestmark = pytest.mark.heavy
RUNS = json.loads(
    Path(__file__).with_name("helmet_runs.json").read_text(encoding="utf-8")
)["runs"]
# Drawn without a seed there, so that no two runs of HELMET have the same prompts.
DRAWN_ANEW = ("narrativeqa",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return helmet_folder(tmp_path_factory.mktemp("data"))


class Recorder:
    """An instruction-tuned model that keeps what it is asked, and says nothing."""

    context = None

    def __init__(self, prompts):
        self.prompts = prompts
        self.samples = []

    def answers(self, samples, *, done=()):
        for number, sample in samples:
            self.samples.append(sample)
            yield number, sample, ""


@pytest.fixture(scope="module")
def asked(folder):
    """Return a function: the name of a task → a model that was asked its samples."""

    @cache
    def ask(name):
        task = all_tasks()[name]
        template = instruct_tokenizer()
        tokenizer = TextTokenizer(template.backend_tokenizer)
        chat = Prompts(tokenizer, "chat", template=template)
        model = Recorder(chat.under(task.chat))
        request = TaskRequest(
            LENGTH,
            tokenizer,
            DataFiles(folder),
            samples=24,
            overhead=model.prompts.overhead,
            begins_answer=model.prompts.begins_answer,
        )
        list(scored_answers(model, task, request, shard=Shard(), done=()))
        return model

    return ask


@pytest.mark.parametrize("name", RUNS)
def test_a_chat_model_reads_the_ids_of_helmets_run(name, asked):
    run = RUNS[name]
    model = asked(name)
    assert (model.prompts.format == "chat") == run["use_chat_template"]
    assert run["stops"] is None
    assert all(sample.stop is None for sample in model.samples)
    ids = [model.prompts.ids(sample) for sample in model.samples[: len(run["tokens"])]]
    if name == "trec_coarse":
        # Its labels have other numbers, which is no difference on average.
        assert [len(one) for one in ids] == run["tokens"]
    elif name not in DRAWN_ANEW:
        assert [digest(one) for one in ids] == run["ids_sha256"]


@pytest.mark.parametrize("name", RUNS)
def test_predictions_with_line_breaks_score_as_in_helmets_run(name, asked):
    task = all_tasks()[name]
    model = asked(name)
    for kind, recorded in enumerate(RUNS[name]["scores"]):
        for sample, expected in zip(model.samples, recorded, strict=False):
            prediction = predictions(first(sample.references))[kind]
            scores = task.score(model.prompts.answer(prediction, sample), sample)
            assert task.metric in expected
            shared = scores.keys() & expected.keys()
            assert {key: scores[key] for key in shared} == pytest.approx(
                {key: expected[key] for key in shared}, abs=1e-5
            ), prediction
