import json
import random
from itertools import islice

import pytest

from answering_models import Oracle
from evaluation_data import fact, word_tokenizer, write
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = Request(length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples)
    return list(islice(all_tasks()[name].make(request), samples))


def scored(name, sample, answer):
    task = all_tasks()[name]
    return task.score(answer, sample)[task.metric]


def write_kilt(folder, *, questions=130):
    draw = random.Random(3)
    for name, key in (
        ("nq-dev-multikilt_1000_k50_dep6", "id"),
        ("nq-train-multikilt_1000_k3_dep6", "id"),
        ("popqa_test_1000_k50_dep6", "id"),
        ("popqa_test_1000_k3_dep6", "id"),
    ):
        rows = []
        for number in range(questions):
            text, question, answer = fact(draw, number)
            for depth in (0.0, 1.0):
                passages = [{"title": f"T{n}", "text": fact(draw, 5000 + n)[0]} for n in range(3)]
                passages[int(depth * 2)] = {"title": "gold", "text": text}
                rows.append(
                    {
                        key: f"q{number}",
                        "question": question,
                        "answers": [answer],
                        "ctxs": passages,
                        "depth": depth,
                        "s_pop": 10 ** (number % 5),
                    }
                )
        write(folder / f"helmet/kilt/{name}.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    return folder


@pytest.mark.parametrize("name", ["nq", "popqa"])
def test_rag_asks_a_hundred_questions_at_every_depth_behind_two_examples(name, tmp_path):
    samples = made(name, write_kilt(tmp_path), samples=1000)
    popular = 3 / 5 if name == "popqa" else 1  # PopQA keeps the subjects below a thousand views
    assert len(samples) == 2 * min(100, int(130 * popular))
    oracle = Oracle(word_tokenizer())
    for sample in samples[:20]:
        assert sample.prompt.count("\nQuestion: ") == 3
        assert sample.prompt.count("Document (Title: ") == 9
        assert scored(name, sample, f" {oracle.read(sample.text)}") == 1.0
        asked = sample.prompt.rsplit("Question: ", 1)[1]
        assert sample.prompt.count(asked) == 1 or name == "nq"
    assert [sample.text for sample in made(name, tmp_path, samples=5)] == [sample.text for sample in samples[:5]]
