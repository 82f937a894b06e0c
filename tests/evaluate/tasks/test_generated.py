"""MRCR and NoLiMa: an oracle that reads the context scores all and a blind model nothing, at every length
and for any tokenizer; scores and prompts are those of the pinned references in tests/evaluate/reference."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.support.answering_models import Blind, Oracle
from tests.support.evaluation_data import TOKENIZERS, word_tokenizer

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import Sample, TaskRequest, TextTokenizer
from nextlong.evaluate.tasks import nolima, openai

TASKS = all_tasks()
MADE = [name for name, task in TASKS.items() if task.suite == "nolima-own"]
MINED = [name for name, task in TASKS.items() if task.suite == "mrcr-mined"]


def recorded(name):
    return json.loads(
        (Path(__file__).parents[1] / f"reference/{name}.json").read_text(
            encoding="utf-8"
        )
    )


def made(name, folder, backend, *, length, samples=3, run=None):
    request = TaskRequest(
        length, TextTokenizer(backend), DataFiles(folder), samples, run=run
    )
    return [
        sample
        for sample in islice(TASKS[name].make(request), samples)
        if sample is not None
    ]


def judged(name, sample, backend):
    task = TASKS[name]
    sample = replace(sample, answer_prefix="")
    return [
        task.score(model(backend).read(sample.text), sample)[task.metric]
        for model in (Oracle, Blind)
    ]


@pytest.mark.parametrize(
    ("kind", "length"),
    [
        ("bytes", 24_576),
        ("bpe", 8192),
        ("unigram", 16_384),
        pytest.param("bpe", 1_048_576, marks=pytest.mark.thorough),
    ],
)
@pytest.mark.parametrize("name", MADE)
def test_an_oracle_scores_all_and_a_blind_model_nothing(
    name, kind, length, data_folder
):
    backend = TOKENIZERS[kind]()
    samples = made(
        name, data_folder, backend, length=length, samples=1 if length > 100_000 else 2
    )
    assert len(samples) in (1, 2)
    for sample in samples:
        tokens = TextTokenizer(backend).count(sample.text) + sample.max_new_tokens
        assert 0.85 * length < tokens <= length
        assert judged(name, sample, backend) == [1.0, 0.0]
    assert len({sample.prompt for sample in samples}) == len(samples)


@pytest.mark.parametrize("name", [*MADE])
def test_the_same_request_gives_the_same_samples_and_another_seed_others(
    name, data_folder
):
    tokenizer = TextTokenizer(word_tokenizer())
    requests = [
        TaskRequest(4096, tokenizer, DataFiles(data_folder), 2, seed)
        for seed in (42, 42, 43)
    ]
    first, again, other = (
        [one.prompt for one in islice(TASKS[name].make(request), 2)]
        for request in requests
    )
    assert first == again != other


@pytest.mark.parametrize("name", MADE)
def test_a_length_without_room_is_refused(name, data_folder):
    with pytest.raises(
        EvaluateError,
        match=r"needs at least [\d,]+ tokens, not 128; leave the length or the task out",
    ):
        made(name, data_folder, word_tokenizer(), length=128)


@pytest.mark.parametrize("name", MINED[:2])
def test_a_mined_conversation_is_answered_by_whoever_reads_it(name, shared_run):
    backend = word_tokenizer()
    samples = made(name, None, backend, length=3072, run=shared_run)
    assert samples
    for sample in samples:
        assert (
            1500
            < TextTokenizer(backend).count(sample.text) + sample.max_new_tokens
            <= 3072
        )
        assert judged(name, sample, backend) == [1.0, 0.0]
        asked = [content for role, content in sample.turns[:-1] if role == "user"]
        needles = [
            one
            for one in asked
            if one in sample.turns[-1][1].replace("passage", "Write a passage")
        ]
        subject = sample.turns[-1][1].split("(1 indexed) ")[1].split(". Do not")[0]
        assert len([one for one in asked if one == f"Write a {subject}."]) == int(
            name.rsplit("_", 1)[1]
        ), needles
        assert len(sample.references[0]) >= 110
        assert not any(one.endswith((". .", "..")) for one in asked)
        passages = [content for role, content in sample.turns if role == "assistant"]
        assert len(set(passages)) == len(passages)


def test_a_run_without_so_many_meta_chunks_is_told(shared_run):
    with pytest.raises(EvaluateError) as error:
        list(
            openai._mined_samples(
                TaskRequest(
                    4096,
                    TextTokenizer(word_tokenizer()),
                    DataFiles(None),
                    run=shared_run,
                ),
                99,
            )
        )
    assert error.value.where == "mrcr_mined_99"
    assert "100 characters" in error.value.problem


def test_openais_conversations_are_read_as_turns_at_their_length(tmp_path):
    def row(words):
        turns = [
            ("user", "Write a poem about tapirs."),
            ("assistant", "one " * words),
            ("user", "Write a poem about tapirs."),
        ]
        turns += [
            ("assistant", "two"),
            (
                "user",
                "Prepend aYooSG8CQg to the 2nd (1 indexed) poem about tapirs. Do not include it.",
            ),
        ]
        return {
            "prompt": json.dumps(
                [{"role": role, "content": content} for role, content in turns]
            ),
            "answer": "aYooSG8CQgtwo",
            "random_string_to_prepend": "aYooSG8CQg",
        }

    for part, words in enumerate((300, 700)):
        file = tmp_path / openai._MRCR[2][part]
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.Table.from_pylist([row(words), row(2 * words)]), file)
    (sample,) = made("mrcr_2", tmp_path, word_tokenizer(), length=512)
    assert [role for role, _ in sample.turns] == [
        "user",
        "assistant",
        "user",
        "assistant",
        "user",
    ]
    assert sample.text.endswith("Do not include it.\n\nAssistant:")
    assert sample.text.count("one") == 300
    assert judged("mrcr_2", sample, word_tokenizer()) == [1.0, 0.0]
    (tmp_path / openai._MRCR[2][1]).write_bytes(b"no parquet")
    with pytest.raises(EvaluateError) as error:
        made("mrcr_2", tmp_path, word_tokenizer(), length=512)
    assert error.value.where == str(tmp_path / openai._MRCR[2][1])


def test_mrcrs_scores_are_the_references():
    reference = recorded("mrcr")
    sample = Sample("", (reference["right"],), 1, details={"mark": reference["mark"]})
    for one in reference["scores"]:
        assert (
            openai._mrcr_score(one["answer"], sample)["sequence_match"] == one["score"]
        ), one


def test_nolimas_needles_and_scores_are_the_references(tmp_path):
    reference = recorded("nolima")
    (tmp_path / nolima._NEEDLES).parent.mkdir()
    (tmp_path / nolima._NEEDLES).write_text(json.dumps(reference["needle_set"]))
    needles = list(nolima._published_needles(DataFiles(tmp_path)))
    keys = ("needle", "question", "answers", "names")
    found = [
        dict(
            zip(keys, (n.text, n.question, list(n.answers), list(n.names)), strict=True)
        )
        for n in needles
    ]
    assert found == reference["tests"]
    for one in reference["scores"]:
        assert (
            all_tasks()["nolima"].score(
                one["answer"], Sample("", tuple(one["right"]), 1)
            )["contains"]
            == one["score"]
        ), one
    for book in nolima._BOOKS:
        (tmp_path / book).parent.mkdir(exist_ok=True)
        (tmp_path / book).write_text(
            "\n".join(f"Line {n} of {{a}} book." for n in range(400))
        )
    for sample in made("nolima", tmp_path, word_tokenizer(), length=1024, samples=20):
        assert sample.text.count("\n") > 20
        assert "{CHAR}" not in sample.text
        assert sample.text.startswith(("Read this.", "Below is a part"))


def test_a_needle_stands_at_its_depth_behind_a_line(data_folder):
    for sample in made(
        "nolima_own", data_folder, word_tokenizer(), length=4096, samples=20
    ):
        body = sample.prompt.split("\n\n", 1)[1].rsplit("\n\nAnswer the question", 1)[0]
        lines = body.splitlines()
        (number,) = (
            number for number, line in enumerate(lines) if sample.references[0] in line
        )
        assert abs(number / len(lines) - sample.details["depth"] / 100) < 0.03
