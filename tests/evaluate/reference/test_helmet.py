"""Prompts and scores are HELMET's: recorded by running its data.py, utils.py and model_utils.py at the commit in helmet.json.

`write_data`'s and `write_intents`'s files and those in the recording were its input; a
tokenizer of bytes stood for Llama 2's, and what it draws without a seed (the examples
of NarrativeQA) was drawn with 42.
"""

import hashlib
import json
from itertools import islice
from pathlib import Path

import pytest
from tests.support.evaluation_data import (
    bpe_tokenizer,
    byte_tokenizer,
    word_tokenizer,
    write,
    write_data,
)
from tests.support.reference_inputs import write_intents

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import Sample, TaskRequest, TextTokenizer

pytestmark = pytest.mark.heavy
RECORDED = json.loads(
    Path(__file__).with_name("helmet.json").read_text(encoding="utf-8")
)
TEMPLATES = {
    "ruler_niah_mk_2": "niah_multikey_2",
    "ruler_niah_mv": "niah_multivalue",
    "ruler_cwe": "cwe",
    "ruler_vt": "vt",
    "ruler_fwe": "fwe",
    "ruler_qa_1": "qa_1",
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = write_data(tmp_path_factory.mktemp("data"), as_recorded_first=True)
    write_intents(folder)
    for name, rows in RECORDED["files"].items():
        write(folder / name, "".join(json.dumps(row) + "\n" for row in rows))
    return DataFiles(folder)


def digest(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "task", [task for task in RECORDED["prompts"] if task != "nq cut"]
)
def test_prompts_and_answers_are_helmets(task, data):
    expected = RECORDED["prompts"][task]
    # A negative overhead is room enough, so that nothing is cut but stories, by Llama
    # 2's tokens.
    request = TaskRequest(
        RECORDED["length"],
        TextTokenizer(word_tokenizer()),
        data,
        12,
        RECORDED["seed"],
        overhead=-100_000,
    )
    samples = list(islice(all_tasks()[task].make(request), len(expected)))
    assert [sample.text[-60:] for sample in samples] == [one["end"] for one in expected]
    assert [digest(sample.text) for sample in samples] == [
        one["sha256"] for one in expected
    ]
    assert [list(sample.references) for sample in samples] == [
        one["references"] for one in expected
    ]


def test_a_prompt_that_is_too_long_is_cut_where_helmet_cuts_it(data):
    for number, cut in enumerate(RECORDED["prompts"]["nq cut"]):
        request = TaskRequest(
            8192, TextTokenizer(bpe_tokenizer()), data, 12, overhead=8192 - cut["limit"]
        )
        sample = list(all_tasks()["nq"].make(request))[number]
        assert digest(sample.text) == cut["sha256"]


@pytest.mark.parametrize("task", sorted({one["task"] for one in RECORDED["scores"]}))
def test_scores_are_helmets(task):
    for one in (one for one in RECORDED["scores"] if one["task"] == task):
        example = one["example"]
        answers = example.get("answer", "")
        references = (answers,) if isinstance(answers, str) else tuple(answers)
        judged = {name: int(label) for name, label in example.get("qrel", [])}
        sample = Sample("", references, 1, prefixes()[task], details={"judged": judged})
        scores = all_tasks()[task].score(one["answer"], sample)
        assert {name: scores[name] for name in one["scores"]} == pytest.approx(
            one["scores"], abs=1e-5
        ), one


def prefixes():
    return {
        "nq": "\nAnswer:",
        "narrativeqa": "\nAnswer:",
        "infbench_mc": "\n\nAnswer:",
        "trec_coarse": "\nlabel:",
        "json_kv": "\nCorresponding value:",
        "msmarco": "\nRanking:",
        "helmet_cwe": "\nAnswer: The top 10 words that appear most often in the list are:",
        "helmet_qa_1": "\nAnswer:",
    }


def first_of(task, data):
    return next(
        all_tasks()[task].make(
            TaskRequest(16_384, TextTokenizer(byte_tokenizer()), data, 1)
        )
    )


@pytest.mark.parametrize("name", TEMPLATES)
def test_rulers_templates_are_helmets(name, data):
    template = RECORDED["templates"][name]["prompt"].replace("{example}", "")
    sample = first_of(f"helmet_{TEMPLATES[name]}", data)
    before, behind = template.split("{context}")
    fields = {
        "type_needle_v": "number" if name == "ruler_niah_mk_2" else "numbers",
        "num_v": 5,
    }
    fields["query"] = fields["question"] = "\0"
    parts = behind.format(**fields).split("\0")
    assert before.format(**fields).strip() in sample.prompt
    place = 0
    tail = sample.text[-len(behind) - 400 :]
    for part in parts:
        place = tail.index(part, place) + len(part)
    assert place == len(tail)


def test_the_examples_of_vt_and_cwe_end_with_an_empty_line(data):
    for task in ("vt", "cwe"):
        sample = first_of(f"helmet_{task}", data)
        start = sample.prompt[:30]
        assert sample.prompt.count(start) == 2
        assert sample.prompt[: sample.prompt.rindex(start)].endswith("\n\n")
