import json
from itertools import islice

import pytest

from evaluation_data import word_tokenizer, write
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks
from nextlong.evaluate.tasks.helmet import recall


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = Request(length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples)
    return list(islice(all_tasks()[name].make(request), samples))


def scored(name, sample, answer):
    task = all_tasks()[name]
    return task.score(answer, sample)[task.metric]


@pytest.mark.parametrize(
    ("length", "keys"), [(8192, 105), (16_384, 220), (32_768, 440), (65_536, 900), (131_072, 1800)]
)
def test_json_kv_has_helmets_keys_and_two_shots(length, keys):
    samples = made("json_kv", None, length=length)
    assert [sample.details["depth"] for sample in samples] == [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    for sample in samples:
        listed = json.loads(sample.prompt.split("JSON data:\n")[1].split("\n\nExtract")[0])
        assert len(listed) == keys
        assert sample.prompt.count("Key: ") == 3
        assert sample.text.endswith(f"Key: {Oracle_key(sample)}\nCorresponding value:")
        assert listed[Oracle_key(sample)] == sample.references[0]
        assert scored("json_kv", sample, f" {sample.references[0]}\n\nKey: another") == 1.0
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
    for name, budget in (("ruler_mk_needle", 50), ("ruler_mk_uuid", 100), ("ruler_mv", 50)):
        (sample,) = made(name, data_folder, samples=1)
        assert sample.max_new_tokens == budget
        assert scored(name, sample, " ".join(sample.references)) == 1.0
    assert recall.keys_at(4096) == 50
