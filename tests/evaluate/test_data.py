"""The user's files: read line by line, row by row, compressed; one that is damaged is told with its source."""

import gzip
import json
import shutil

import pytest

from evaluation_data import word_tokenizer, write
from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.models.base import TextTokenizer
from nextlong.evaluate.task import Request, all_tasks

ODD = "one\u2028two\u2029three\u0085four\x0bfive\x0csix"  # str.splitlines ends a line at each


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_ends_at_its_newline_only(tmp_path, end):
    rows = [{"text": ODD}, {"text": "plain"}]
    lines = "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).replace("\\u000b", "").replace("\\f", "")
    (tmp_path / "a.jsonl").write_bytes(lines.encode())
    expected = [{"text": ODD.replace("\x0b", "").replace("\x0c", "")}, {"text": "plain"}]
    assert list(DataFiles(tmp_path).json_lines("a.jsonl")) == expected


def test_a_damaged_line_is_told_by_its_number(tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "a\u2028b"}\n{"text": \n')
    with pytest.raises(EvaluateError, match=r"a\.jsonl, line 2: no JSON"):
        list(DataFiles(tmp_path).json_lines("a.jsonl"))


def test_a_quoted_field_keeps_its_line_breaks(tmp_path):
    (tmp_path / "a.csv").write_bytes(f'text,label\r\n"first\nsecond\r\nthird {ODD}",x\r\nplain,y\r\n'.encode())
    assert DataFiles(tmp_path).rows("a.csv") == [
        {"text": f"first\nsecond\r\nthird {ODD}", "label": "x"},
        {"text": "plain", "label": "y"},
    ]


def test_a_damaged_gzip_is_told_with_its_source(tmp_path):
    whole = gzip.compress(b'{"text": "a long essay"}')
    (tmp_path / "ruler").mkdir()
    place = tmp_path / "ruler/PaulGrahamEssays.json.gz"
    for content in (whole[:-12], b"no gzip at all", whole[:12] + b"\xff\xff\xff" + whole[15:]):
        place.write_bytes(content)
        with pytest.raises(EvaluateError, match=r"Essays\.json\.gz cannot be read .* get it anew: it comes from"):
            DataFiles(tmp_path).json("ruler/PaulGrahamEssays.json")
    place.write_bytes(whole)
    assert DataFiles(tmp_path).json("ruler/PaulGrahamEssays.json") == {"text": "a long essay"}


RAG = "helmet/kilt/nq-dev-multikilt_1000_k50_dep6.jsonl"
RAG_EXAMPLES = "helmet/kilt/nq-train-multikilt_1000_k3_dep6.jsonl"
RANKED = "helmet/msmarco/test_reranking_data_k50_dep3.jsonl"
RANKED_EXAMPLES = "helmet/msmarco/test_reranking_data_k10_dep3.jsonl"
KEYS = "helmet/json_kv/test_k105_dep6.jsonl"
ASKED = {"question": "Where?", "answers": ["here"], "ctxs": [{"title": "T", "text": "t"}]}
QUERY = {"qid": "1", "query": "q", "ctxs": [{"id": "1", "text": "t", "label": 1}]}


def without(record, *path, put=None):
    """Return a copy of a record where a field is gone, or another value stands in it."""
    record = json.loads(json.dumps(record))
    inner = record
    for part in path[:-1]:
        inner = inner[part]
    if put is None:
        del inner[path[-1]]
    else:
        inner[path[-1]] = put
    return record


def damaged(task, file, *path, put=None):
    return pytest.param(task, file, path, put, id=f"{task}-{'.'.join(map(str, path))}-{put}")


@pytest.mark.parametrize(
    ("task", "file", "path", "put"),
    [
        damaged("longbench_v2", "longbench-v2/data.json", 0, "context"),
        damaged("longbench_v2", "longbench-v2/data.json", 0, "choice_A", put=3),
        damaged("longbench_v2", "longbench-v2/data.json", 0, "answer"),
        damaged("longbench_v2", "longbench-v2/data.json", 0, "difficulty"),
        damaged("qa_1", "ruler/squad.json", "data", 0, "paragraphs"),
        damaged("qa_1", "ruler/squad.json", "data", 0, "paragraphs", 0, "qas", 0, "question"),
        damaged("qa_1", "ruler/squad.json", "data", 0, "paragraphs", 0, "qas", 0, "answers"),
        damaged("qa_1", "ruler/squad.json", "data", 0, "paragraphs", 0, "qas", 0, put="x"),
        damaged("qa_2", "ruler/hotpotqa.json", 0, "answer"),
        damaged("qa_2", "ruler/hotpotqa.json", 0, "context", 0, put=["only a title"]),
        damaged("infbench_qa", "infinitebench/longbook_qa_eng.jsonl", 0, "input"),
        damaged("infbench_qa", "infinitebench/longbook_qa_eng.jsonl", 0, "answer", put=5),
        damaged("infbench_mc", "infinitebench/longbook_choice_eng.jsonl", 0, "options", put=["a", "b", "c", "d"]),
        damaged("narrativeqa", "narrativeqa/test.jsonl", 0, "document"),
        damaged("narrativeqa", "narrativeqa/test.jsonl", 0, "question", put="text"),
        damaged("nq", RAG, 0, "ctxs"),
        damaged("nq", RAG, 0, "ctxs", 0, "title"),
        damaged("nq", RAG, 0, "answers", put="here"),
        damaged("nq", RAG, 0, put="no record"),
        damaged("nq", RAG_EXAMPLES, 0, "question"),
        damaged("nq", RAG_EXAMPLES, 0, "answers", put=[1]),
        damaged("msmarco", RANKED, 0, "query"),
        damaged("msmarco", RANKED, 0, "ctxs", 0, "label", put="high"),
        damaged("msmarco", RANKED_EXAMPLES, 0, "ctxs", 0, "id"),
        damaged("json_kv", KEYS, 0, "answer"),
    ],
)
def test_a_record_of_another_form_is_told_with_its_file(data_folder, tmp_path, task, file, path, put):
    folder = shutil.copytree(data_folder, tmp_path / "data")
    for name, record in ((RAG, ASKED), (RAG_EXAMPLES, ASKED), (RANKED, QUERY), (RANKED_EXAMPLES, QUERY)):
        write(folder / name, json.dumps(record) + "\n")
    write(folder / KEYS, json.dumps({"context": "c", "question": "k", "answer": "v", "demos": []}) + "\n")
    text = (folder / file).read_text()
    value = [json.loads(line) for line in text.splitlines()] if file.endswith(".jsonl") else json.loads(text)
    write(folder / file, json.dumps(without(value, *path, put=put)))
    request = Request(8192, TextTokenizer(word_tokenizer()), DataFiles(folder), samples=8)
    with pytest.raises(EvaluateError, match=file.replace(".", r"\.")):
        list(all_tasks()[task].make(request))
