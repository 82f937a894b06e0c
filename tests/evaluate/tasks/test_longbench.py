"""LongBench v2: the official prompt, cut in its middle between tokens, and its table by difficulty and length."""

import hashlib
import json
import re
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support.answering_models import Oracle, asked, evaluated
from tests.support.evaluation_data import bpe_tokenizer

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.prompts import ModelOptions
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.settings import EvaluationSettings
from nextlong.evaluate.task import Sample, TaskRequest, TextTokenizer
from nextlong.evaluate.tasks import longbench

TASK = all_tasks()["longbench_v2"]


def made(data_folder, length):
    tokenizer = TextTokenizer(bpe_tokenizer())
    return tokenizer, list(
        islice(TASK.make(TaskRequest(length, tokenizer, DataFiles(data_folder))), 8)
    )


def test_a_prompt_that_fits_is_whole(data_folder):
    _, samples = made(data_folder, 131_072)
    assert len(samples) == 8
    sample = samples[0]
    assert sample.input_ids is None
    assert sample.prompt.startswith(
        "Please read the following text and answer the question below.\n\n<text>\n"
    )
    assert sample.prompt.endswith(
        'Format your response as follows: "The correct answer is (insert answer here)".'
    )


def test_a_longer_one_is_cut_in_its_middle_between_tokens(data_folder):
    tokenizer, samples = made(data_folder, 4096)
    cut = [sample for sample in samples if sample.details["middle_cut"]]
    assert (
        len(cut) == sum(sample.details["length"] == "long" for sample in samples) == 4
    )
    whole = {sample.prompt[-200:]: sample for sample in made(data_folder, 131_072)[1]}
    for sample in cut:
        ids = tokenizer.encode(whole[sample.prompt[-200:]].prompt)
        half = (4096 - 128) // 2
        assert (
            list(sample.input_ids) == ids[: half - 1] + ids[-half:]
        )  # the BOS is the first half's
        assert len(sample.input_ids) + 1 + sample.max_new_tokens == 4096
        assert (
            tokenizer.backend.decode(ids[: half - 1])
            + tokenizer.backend.decode(ids[-half:])
            == sample.prompt
        )


@pytest.mark.parametrize(
    ("answer", "accuracy", "parsed"),
    [
        ("The correct answer is ({})", 1, 1),
        ("{}", 0, 0),
        ("The correct answer is (E)", 0, 0),
    ],
)
def test_an_answer_without_a_letter_is_wrong(answer, accuracy, parsed, data_folder):
    _, (sample, *_) = made(data_folder, 131_072)
    assert TASK.score(answer.format(sample.references[0]), sample) == {
        "accuracy": accuracy,
        "parsed": parsed,
    }


def reference():
    return json.loads(
        (Path(__file__).parents[1] / "reference/longbench_v2.json").read_text()
    )


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(
    "name", ["longbench_v2", "longbench_v2_cot", "longbench_v2_no_context"]
)
def test_prompts_are_the_references(name, tmp_path):
    recorded = reference()
    row = {**recorded["row"], "answer": "B", "difficulty": "easy", "length": "short"}
    (tmp_path / "longbench-v2").mkdir()
    (tmp_path / longbench._DATA).write_text(json.dumps([row]))
    request = TaskRequest(4096, TextTokenizer(bpe_tokenizer()), DataFiles(tmp_path))
    (sample,) = all_tasks()[name].make(request)
    assert sha(sample.prompt) == recorded["prompt_sha256"][name]
    if name == "longbench_v2_cot":
        asked = all_tasks()[name].follow_up(f" {recorded['reasoning']}\n", sample)
        assert (sha(asked.prompt), asked.max_new_tokens) == (
            recorded["prompt_sha256"]["conclusion"],
            128,
        )


def test_letters_are_the_references():
    sample = Sample("", ("B",), 1)
    for one in reference()["letters"]:
        scores = TASK.score(one["answer"], sample)
        assert scores == {
            "accuracy": one["letter"] == "B",
            "parsed": one["letter"] is not None,
        }, one


@pytest.mark.parametrize(("prefix", "which"), [((), "without_bos"), ((0,), "with_bos")])
def test_a_prompt_is_cut_where_the_reference_cuts_it(prefix, which, monkeypatch):
    monkeypatch.setattr(longbench, "_MAX_TOKENS", 1001)
    tokenizer = SimpleNamespace(
        boundaries=lambda text: [(n, n + 1) for n in range(len(text))],
        encode=lambda text: [*text.encode()],
        prefix=prefix,
    )
    text = "".join(chr(97 + number % 26) for number in range(2600))
    cut, ids = longbench._truncate_middle(
        TaskRequest(131_072, tokenizer, None), text, 128
    )
    assert sha(cut) == reference()["cut_sha256"][which]
    assert bytes(ids).decode() == cut


class Reasoner(Oracle):
    """Reasons about a document, and names the letter only when it is asked for it without one."""

    def read(self, text):
        if "Based on the above" in text:
            return re.search(
                r"step by step: so it is (The correct answer is \([A-D]\))", text
            )[1]
        letter = next(letter for letter in "ABCD" if f"({letter})" in text)
        return f"so it is The correct answer is ({letter})"


def test_reasoning_is_asked_for_first_and_the_letter_of_the_second_answer_counts(
    data_folder, tmp_path
):
    model = Reasoner(bpe_tokenizer())
    measured = evaluated(
        model,
        asked(tmp_path / "r", "longbench_v2_cot", lengths=[131_072], data=data_folder),
    )
    assert [("<text>" in text) for text in model.asked] == [True, False] * 4
    (result,) = measured.finished
    assert result.values["scores"]["parsed"] == 100.0
    assert all(
        one["answer"].startswith("The correct answer is (")
        for one in result.values["samples"]
    )


def test_it_is_measured_at_its_own_length_unless_lengths_are_named(tmp_path):
    lengths = [8192, 131_072]
    named, default = (
        EvaluationSettings(
            [TASK],
            lengths,
            tmp_path,
            DataFiles(None),
            ModelOptions("model"),
            names_lengths=is_named,
        )
        for is_named in (True, False)
    )
    assert [length for _, length in named.pairs()] == lengths
    assert [length for _, length in default.pairs()] == [131_072]
