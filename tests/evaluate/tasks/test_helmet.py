import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.answering_models import Oracle
from tests.support.evaluation_data import (
    bpe_tokenizer,
    byte_tokenizer,
    word_tokenizer,
    write,
    write_helmet,
)
from tests.support.larger_cases import thorough

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import TaskRequest, TextTokenizer
from nextlong.evaluate.tasks.helmet import longqa, recall
from nextlong.evaluate.tasks.helmet.published import (
    QUESTIONS,
    SHOTS,
    sampled_examples,
    sampled_questions,
    shuffled,
)


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = TaskRequest(
        length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples
    )
    return list(islice(all_tasks()[name].make(request), samples))


def scored(name, sample, answer):
    task = all_tasks()[name]
    return task.score(answer, sample)[task.metric]


@pytest.mark.parametrize("name", ["nq", "popqa"])
def test_rag_asks_a_hundred_questions_at_every_depth_behind_two_examples(
    name, tmp_path
):
    samples = made(name, write_helmet(tmp_path, questions=130), samples=1000)
    popular = (
        3 / 5 if name == "popqa" else 1
    )  # PopQA keeps the subjects below a thousand views
    assert len(samples) == 2 * min(100, int(130 * popular))
    oracle = Oracle(word_tokenizer())
    for sample in samples[:20]:
        assert sample.prompt.count("\nQuestion: ") == 3
        assert sample.prompt.count("Document (Title: ") == 9
        assert scored(name, sample, f" {oracle.read(sample.text)}") == 1.0
        asked = sample.prompt.rsplit("Question: ", 1)[1]
        assert sample.prompt.count(asked) == 1 or name == "nq"
    assert [sample.text for sample in made(name, tmp_path, samples=5)] == [
        sample.text for sample in samples[:5]
    ]


def test_rerank_prompts_and_scores(tmp_path):
    write_helmet(tmp_path, questions=30)
    samples = made("msmarco", tmp_path, samples=30)
    assert len(samples) == 30
    for sample in samples:
        assert sample.prompt.count("\nRanking: ") == 3  # the format, and two examples
        assert scored("msmarco", sample, sample.references[0]) == 1.0
        assert scored("msmarco", sample, "none of them") == 0.0
        assert sample.references[0].count(" > ") == 11


@pytest.mark.parametrize(
    ("length", "keys"),
    [(8192, 105), (16_384, 220), (32_768, 440), (65_536, 900), (131_072, 1800)],
)
def test_json_kv_has_helmets_keys_and_two_shots(length, keys):
    samples = made("json_kv", None, length=length)
    assert [sample.details["depth"] for sample in samples] == [
        0.0,
        0.2,
        0.4,
        0.6,
        0.8,
        1.0,
    ]
    for sample in samples:
        listed = json.loads(
            sample.prompt.split("JSON data:\n")[1].split("\n\nExtract")[0]
        )
        assert len(listed) == keys
        assert sample.prompt.count("Key: ") == 3
        assert sample.text.endswith(f"Key: {Oracle_key(sample)}\nCorresponding value:")
        assert listed[Oracle_key(sample)] == sample.references[0]
        assert (
            scored("json_kv", sample, f" {sample.references[0]}\n\nKey: another") == 1.0
        )
        assert scored("json_kv", sample, " 00000000-0000-4000-8000-000000000000") == 0.0


def Oracle_key(sample):  # noqa: N802
    return sample.prompt.rsplit("Key: ", 1)[1]


def test_helmets_own_json_kv_is_read_where_it_is(tmp_path):
    rows = [
        {
            "context": '{"a": "b", "c": "d", "e": "f"}',
            "question": "e",
            "answer": "f",
            "demos": [["a", "b"], ["c", "d"]],
            "depth": 0.5,
            "num_kvs": 3,
        }
    ]
    write(tmp_path / "helmet/json_kv/test_k105_dep6.jsonl", json.dumps(rows[0]) + "\n")
    (sample,) = made("json_kv", tmp_path)
    assert sample.prompt == (
        '{"a": "b", "c": "d", "e": "f"}\n\nExtract the value corresponding to the specified key in the JSON object below.\n\n'
        "Key: a\nCorresponding value: b\n\nKey: c\nCorresponding value: d\n\nKey: e"
    )


@pytest.mark.heavy
def test_the_needles_have_helmets_budgets(data_folder):
    for name, budget in (
        ("ruler_mk_needle", 50),
        ("ruler_mk_uuid", 100),
        ("ruler_mv", 50),
    ):
        (sample,) = made(name, data_folder, samples=1)
        assert sample.max_new_tokens == budget
        assert scored(name, sample, " ".join(sample.references)) == 1.0
    assert recall._keys_at(4096) == 50


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
    numbers = {
        tuple(
            demo.rsplit("label: ", 1)[1] for demo in sample.prompt.split("\n\n")[1:-1]
        )
        for sample in samples
    }
    assert len(numbers) > 1


def test_icl_demos_hold_every_label_in_every_round():
    train = [recall._Labelled(f"text {n}", f"label {n % 7}") for n in range(40)]
    demos = recall._balanced(train, 40, seed=1)
    assert len(demos) == 40
    for first in range(0, 35, 7):
        assert {demo.label for demo in demos[first : first + 7]} == {
            f"label {n}" for n in range(7)
        }


@pytest.mark.parametrize(
    "name", ["infbench_mc", *thorough("narrativeqa", "infbench_qa")]
)
def test_stories_are_cut_by_llama_2s_tokens_and_then_by_the_models_own(
    name, data_folder
):
    for backend, length in ((bpe_tokenizer(), 2048), (byte_tokenizer(), 4096)):
        tokenizer = TextTokenizer(backend)
        samples = made(name, data_folder, length=length, backend=backend)
        assert len(samples) == 6
        for sample in samples:
            story = sample.text[
                sample.details["chars_before"] : len(sample.text)
                - sample.details["chars_behind"]
            ]
            assert sample.details["context_cut"]
            assert "Question:" not in story
            assert (
                len(story.encode()) <= length - sample.max_new_tokens - 199
            )  # Llama 2's are bytes here
            assert tokenizer.count(sample.text) + sample.max_new_tokens <= length
            # Bytes are the model's tokens too, and the examples beside the story leave
            # less room than HELMET keeps.
            is_omitted = story.endswith(" ... [the rest of the text is omitted]")
            assert is_omitted == (backend.get_vocab_size() > 256)


def test_narrativeqa_asks_about_long_stories_only(data_folder, tmp_path):
    for name in (
        "narrativeqa/train.jsonl",
        "narrativeqa/test.jsonl",
        "helmet/llama2/tokenizer.json",
    ):
        write(tmp_path / name, (data_folder / name).read_text(encoding="utf-8"))
    rows = (
        (tmp_path / "narrativeqa/test.jsonl").read_text(encoding="utf-8").splitlines()
    )
    short = [json.loads(row) for row in rows[:4]]
    for row in short:
        row["document"]["text"] = row["document"]["text"][:131_072]
        row["question"]["text"] = "Which short story?"
    write(
        tmp_path / "narrativeqa/test.jsonl",
        "\n".join([*map(json.dumps, short), *rows[4:]]) + "\n",
    )
    samples = made("narrativeqa", tmp_path)
    assert len(samples) == len(rows) - 4
    assert not any("short story" in sample.prompt for sample in samples)
    write(tmp_path / "narrativeqa/test.jsonl", json.dumps(short[0]) + "\n")
    with pytest.raises(EvaluateError) as error:
        made("narrativeqa", tmp_path)
    assert error.value.where == str(tmp_path / "narrativeqa/test.jsonl")
    assert "131,072 tokens" in error.value.problem
    write(tmp_path / "helmet/llama2/tokenizer.json", "{}")
    longqa._llama2.cache_clear()
    with pytest.raises(EvaluateError) as error:
        made("narrativeqa", tmp_path)
    assert error.value.where == str(tmp_path / "helmet/llama2/tokenizer.json")


def test_multiple_choice_by_letter_or_whole_option(data_folder):
    (sample,) = made("infbench_mc", data_folder, length=65_536, samples=1)
    letter, option = sample.references
    for answer, score in (
        (f" {letter}\n", 1.0),
        (f" {option}", 1.0),
        (" none", 0.0),
        (f"Answer: {letter}", 1.0),
    ):
        assert scored("infbench_mc", sample, answer) == score


ROWS = [
    {"id": number // 3, "depth": number % 3, "of": number % 7} for number in range(450)
]


@given(seed=st.integers(0, 2**32 - 1))
def test_a_hundred_questions_are_drawn_with_all_their_depths(seed):
    drawn = sampled_questions(ROWS, "id", seed=seed)
    assert len({row["id"] for row in drawn}) == QUESTIONS
    assert len(drawn) == 3 * QUESTIONS
    assert drawn == sampled_questions(ROWS, "id", seed=seed)


def test_fewer_questions_are_all_taken():
    assert sampled_questions(ROWS[:30], "id", seed=1) == ROWS[:30]


@given(question=st.text(st.characters(codec="utf-8")))
def test_a_question_has_two_examples_always_the_same(question):
    examples = sampled_examples(ROWS, "id", question, {"3", "7"})
    assert examples == sampled_examples(ROWS, "id", question, {"3", "7"})
    assert len({row["id"] for row in examples}) == len(examples) == SHOTS
    assert all(row["id"] not in (3, 7) for row in examples)


def test_shuffling_is_a_permutation():
    order = shuffled(ROWS, seed=3)
    assert order != ROWS
    assert sorted(order, key=lambda row: (row["id"], row["depth"])) == ROWS
