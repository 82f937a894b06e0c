"""The user's files: read line by line, row by row, compressed; one that is damaged is told with its source."""

import gzip
import json
import shutil
from itertools import islice

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.evaluation_data import word_tokenizer, write

from nextlong.errors import EvaluateError
from nextlong.evaluate import data
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import TaskRequest, TextTokenizer

ODD = "one\u2028two\u2029three\u0085four\x0bfive\x0csix"  # str.splitlines ends a line at each


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_a_line_ends_at_its_newline_only(tmp_path, end):
    rows = [{"text": ODD}, {"text": "plain"}]
    lines = (
        "".join(json.dumps(row, ensure_ascii=False) + end for row in rows)
        .replace("\\u000b", "")
        .replace("\\f", "")
    )
    (tmp_path / "a.jsonl").write_bytes(lines.encode())
    expected = [
        {"text": ODD.replace("\x0b", "").replace("\x0c", "")},
        {"text": "plain"},
    ]
    assert list(DataFiles(tmp_path).json_lines("a.jsonl")) == expected


def test_a_damaged_line_is_told_by_its_number(tmp_path):
    write(tmp_path / "a.jsonl", '{"text": "a\u2028b"}\n{"text": \n')
    with pytest.raises(EvaluateError, match="not JSON") as error:
        list(DataFiles(tmp_path).json_lines("a.jsonl"))
    assert error.value.where == f"{tmp_path / 'a.jsonl'}, line 2"


def test_a_quoted_field_keeps_its_line_breaks(tmp_path):
    (tmp_path / "a.csv").write_bytes(
        f'text,label\r\n"first\nsecond\r\nthird {ODD}",x\r\nplain,y\r\n'.encode()
    )
    assert list(DataFiles(tmp_path).json_lines("a.csv")) == [
        {"text": f"first\nsecond\r\nthird {ODD}", "label": "x"},
        {"text": "plain", "label": "y"},
    ]


def test_every_missing_file_is_explained_and_those_of_one_origin_at_once():
    essays, squad = "ruler/PaulGrahamEssays.json", "ruler/squad.json"
    told = str(DataFiles(None).missing([essays, squad, RAG, RAG_EXAMPLES])).split("\n")
    where = "(in the folder that --data names)"
    assert told[0].startswith(f"{essays} {where}: ")
    assert told[1].startswith(f"{squad} {where}: ")
    assert told[2].startswith(f"{RAG} {where}, {RAG_EXAMPLES} {where}: ")
    assert len(told) == 3


def test_a_damaged_gzip_is_told_with_its_source(tmp_path):
    whole = gzip.compress(b'{"text": "a long essay"}')
    (tmp_path / "ruler").mkdir()
    place = tmp_path / "ruler/PaulGrahamEssays.json.gz"
    for content in (
        whole[:-12],
        b"no gzip at all",
        whole[:12] + b"\xff\xff\xff" + whole[15:],
    ):
        place.write_bytes(content)
        with pytest.raises(EvaluateError) as error:
            DataFiles(tmp_path).json("ruler/PaulGrahamEssays.json")
        assert error.value.where == str(place)
        assert "it comes from" in error.value.fix
    place.write_bytes(whole)
    assert DataFiles(tmp_path).json("ruler/PaulGrahamEssays.json") == {
        "text": "a long essay"
    }


RAG = "helmet/kilt/nq-dev-multikilt_1000_k50_dep6.jsonl"


RAG_EXAMPLES = "helmet/kilt/nq-train-multikilt_1000_k3_dep6.jsonl"


RANKED = "helmet/msmarco/test_reranking_data_k50_dep3.jsonl"


RANKED_EXAMPLES = "helmet/msmarco/test_reranking_data_k10_dep3.jsonl"


POPULAR = "helmet/kilt/popqa_test_1000_k50_dep6.jsonl"


POPULAR_EXAMPLES = "helmet/kilt/popqa_test_1000_k3_dep6.jsonl"


KEYS = "helmet/json_kv/test_k105_dep6.jsonl"


ASKED = {
    "question": "Where?",
    "answers": ["here"],
    "ctxs": [{"title": "T", "text": "t"}],
}


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


def damaged(task, file, *path, put=None, marks=()):
    return pytest.param(
        task,
        file,
        path,
        put,
        id=f"{task}-{'.'.join(map(str, path))}-{put}",
        marks=marks,
    )


@pytest.mark.parametrize(
    ("task", "file", "path", "put"),
    [
        damaged("qa_1", "ruler/squad.json", "data", 0, "paragraphs"),
        damaged(
            "qa_1", "ruler/squad.json", "data", 0, "paragraphs", 0, "qas", 0, "question"
        ),
        damaged(
            "qa_1", "ruler/squad.json", "data", 0, "paragraphs", 0, "qas", 0, "answers"
        ),
        damaged(
            "qa_1", "ruler/squad.json", "data", 0, "paragraphs", 0, "qas", 0, put="x"
        ),
        damaged("qa_2", "ruler/hotpotqa.json", 0, "answer"),
        damaged("qa_2", "ruler/hotpotqa.json", 0, "context", 0, put=["only a title"]),
        damaged("infbench_qa", "infinitebench/longbook_qa_eng.jsonl", 0, "input"),
        damaged(
            "infbench_qa", "infinitebench/longbook_qa_eng.jsonl", 0, "answer", put=5
        ),
        damaged(
            "infbench_mc",
            "infinitebench/longbook_choice_eng.jsonl",
            0,
            "options",
            put=["a", "b", "c", "d"],
        ),
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
        damaged("json_kv", KEYS, 0, "demos", put=5),
        damaged("json_kv", KEYS, 0, "demos", put=[["a key alone"]]),
        damaged("json_kv", KEYS, 0, "context", put=7),
        damaged("json_kv", KEYS, put={"data": 5}),
        damaged("popqa", POPULAR, 0, "s_pop", put="many"),
        damaged("popqa", POPULAR, 0, "s_pop", put=0),
        damaged("popqa", POPULAR, 0, "s_pop"),
        damaged("popqa", POPULAR_EXAMPLES, 0, "s_pop", put=-3),
        damaged("popqa", POPULAR, 0, "answers", put=[]),
        damaged("msmarco", RANKED, 0, "qid", put=["1"]),
        damaged("msmarco", RANKED, 0, "ctxs", 0, put="a passage"),
        damaged(
            "clinc150", "icl/clinc150/data_full.json", "train", 0, put=["no intent"]
        ),
        damaged("clinc150", "icl/clinc150/data_full.json", "oos_val"),
        damaged(
            "cwe", "ruler/english_words.json", put=["word"], marks=pytest.mark.heavy
        ),
        damaged("niah_single_2", "ruler/PaulGrahamEssays.json", "text", put=5),
        damaged("niah_single_2", "ruler/PaulGrahamEssays.json", "text", put=" "),
    ],
)
def test_a_record_of_another_form_is_told_with_its_file(
    data_folder, tmp_path, task, file, path, put
):
    folder = shutil.copytree(data_folder, tmp_path / "data")
    for name, record in (
        (RAG, ASKED),
        (RAG_EXAMPLES, ASKED),
        (RANKED, QUERY),
        (RANKED_EXAMPLES, QUERY),
    ):
        write(folder / name, json.dumps(record) + "\n")
    for name in (POPULAR, POPULAR_EXAMPLES):
        write(folder / name, json.dumps({**ASKED, "s_pop": 10}) + "\n")
    write(
        folder / KEYS,
        json.dumps({"context": "c", "question": "k", "answer": "v", "demos": []})
        + "\n",
    )
    text = (folder / file).read_text()
    value = (
        [json.loads(line) for line in text.splitlines()]
        if file.endswith(".jsonl")
        else json.loads(text)
    )
    write(folder / file, json.dumps(without(value, *path, put=put) if path else put))
    request = TaskRequest(
        8192, TextTokenizer(word_tokenizer()), DataFiles(folder), samples=8
    )
    with pytest.raises(EvaluateError, match=file.replace(".", r"\.")):
        list(all_tasks()[task].make(request))


@pytest.mark.parametrize(
    ("file", "content", "told"),
    [
        (
            KEYS,
            '{"context": "c", "question": "k", "answer": "v", "demos": []}\n{"context": 5}\n',
            ", line 2: context is 5, but it",
        ),
        (
            RANKED,
            json.dumps(without(QUERY, "ctxs", 0, "label", put="x")),
            "record 1: ctxs[0].label is 'x', but it should be a valid",
        ),
        (
            RANKED,
            json.dumps(without(QUERY, "ctxs", 0, "text")),
            "record 1: ctxs[0] has no 'text' (it has id, label)",
        ),
        (RANKED, "[" * 100_000, "not JSON"),
        (
            "icl/trec/train_5500.label",
            "DESC:manner How ?\nno label\n",
            ", line 2: it is 'no label', not `LABEL:label text`",
        ),
        (
            "icl/nlu/train.csv",
            "text,scenario,intent\nhello,a,b\nhi,a\n",
            "line 3: the record has no 'intent' (it has text, scenario)",
        ),
        (
            "icl/nlu/train.csv",
            'text,scenario,intent\n"hello,a,b\n',
            "not valid CSV (unexpected end of data)",
        ),
        (
            "icl/nlu/train.csv",
            "text,scenario,intent\n",
            "holds no row below its header",
        ),
    ],
)
def test_a_mistake_is_told_by_its_line_field_and_value(
    data_folder, tmp_path, file, content, told
):
    folder = shutil.copytree(data_folder, tmp_path / "data")
    for name, record in ((RANKED, QUERY), (RANKED_EXAMPLES, QUERY)):
        write(folder / name, json.dumps(record) + "\n")
    write(folder / file, content)
    tasks = {
        KEYS: "json_kv",
        RANKED: "msmarco",
        "icl/trec/train_5500.label": "trec_fine",
        "icl/nlu/train.csv": "nlu",
    }
    request = TaskRequest(
        8192, TextTokenizer(word_tokenizer()), DataFiles(folder), samples=2
    )
    with pytest.raises(EvaluateError) as error:
        list(all_tasks()[tasks[file]].make(request))
    assert f"{folder / file}" in str(error.value)
    assert told in str(error.value)
    assert "it comes" in str(error.value)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["text", "id", "0"]), inner, max_size=2)
    ),
    max_leaves=5,
)


RECORDS = {
    "popqa": (POPULAR, {**ASKED, "s_pop": 10}),
    "nq": (RAG, ASKED),
    "msmarco": (RANKED, QUERY),
    "json_kv": (
        KEYS,
        {"context": "c", "question": "k", "answer": "v", "demos": [["a", "b"]]},
    ),
    "narrativeqa": ("narrativeqa/test.jsonl", None),
    "infbench_mc": ("infinitebench/longbook_choice_eng.jsonl", None),
    "qa_1": ("ruler/squad.json", None),
    "qa_2": ("ruler/hotpotqa.json", None),
    "clinc150": ("icl/clinc150/data_full.json", None),
}


def places(value, path=()):
    """Yield the path of every value inside a value, the first of each list."""
    yield path
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from places(inner, (*path, key))
    elif isinstance(value, list) and value:
        yield from places(value[0], (*path, 0))


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_stands_in_a_file_is_read_or_told(data, data_folder, tmp_path_factory):
    """No value in any field of any file ends in anything but samples or an error for the user."""
    folder = tmp_path_factory.mktemp("any")
    shutil.copytree(data_folder, folder, dirs_exist_ok=True)
    for name, record in (
        (RAG, ASKED),
        (RAG_EXAMPLES, ASKED),
        (RANKED, QUERY),
        (RANKED_EXAMPLES, QUERY),
    ):
        write(folder / name, json.dumps(record) + "\n")
    for name in (POPULAR, POPULAR_EXAMPLES):
        write(folder / name, json.dumps({**ASKED, "s_pop": 10}) + "\n")
    task = data.draw(st.sampled_from(sorted(RECORDS)))
    file, record = RECORDS[task]
    if record is None:
        text = (folder / file).read_text()
        value = (
            [json.loads(line) for line in text.splitlines()]
            if file.endswith(".jsonl")
            else json.loads(text)
        )
    else:
        value = [record]
    path = data.draw(st.sampled_from(sorted(places(value), key=str)))
    put = data.draw(JSON)
    write(folder / file, json.dumps(without(value, *path, put=put) if path else put))
    request = TaskRequest(
        8192, TextTokenizer(word_tokenizer()), DataFiles(folder), samples=1
    )
    told, made = file, []
    try:
        made = list(islice(all_tasks()[task].make(request), 1))
    except EvaluateError as error:
        told = str(error)
    shutil.rmtree(folder)
    assert file in told
    assert all(
        isinstance(reference, str)
        for sample in made
        if sample
        for reference in sample.references
    )


def made(name, folder, *, length=8192, samples=6, backend=None):
    request = TaskRequest(
        length, TextTokenizer(backend or word_tokenizer()), DataFiles(folder), samples
    )
    return list(islice(all_tasks()[name].make(request), samples))


def test_a_helmet_file_that_is_missing_is_named_with_its_source(tmp_path):
    with pytest.raises(EvaluateError, match="HELMET's archive") as error:
        made("nq", tmp_path)
    assert error.value.where.endswith("nq-dev-multikilt_1000_k50_dep6.jsonl")


def test_a_file_of_another_form_is_told(tmp_path):
    write(tmp_path / "icl/banking77/train.csv", "sentence,category\nhello,greeting\n")
    with pytest.raises(EvaluateError, match=r"no 'text'") as error:
        made("banking77", tmp_path)
    file = tmp_path / "icl/banking77/train.csv"
    assert error.value.where == f"{file}, line 2"


def test_every_file_of_the_hub_belongs_to_a_task():
    from nextlong.evaluate.registry import all_tasks

    named = {name for task in all_tasks().values() for name in task.files}
    assert set(data.HUB) <= named
    pinned = [file for file in data.HUB.values() if file.repo.startswith("openai/")]
    assert len(pinned) == 6
    assert all(len(file.sha256) == 64 and len(file.revision) == 40 for file in pinned)


def test_without_a_folder_the_documentation_of_python_stands_for_four_files(tmp_path):
    none = DataFiles(None)
    for name in (data.ESSAYS, data.HAYSTACK, data.SQUAD, data.HOTPOTQA):
        assert none.source(name) == data.DEMO
        assert DataFiles(tmp_path).source(name) == name
    assert none.has(data.DEMO)
    assert "json.dumps(obj" in none.text(data.DEMO)
    assert len(none.hash(data.DEMO)) == 32
    assert not none.has(none.source("icl/trec/TREC_10.label"))


@pytest.mark.parametrize(
    "name",
    [
        "qa_1",
        "needle",
        pytest.param("niah_single_2", marks=pytest.mark.heavy),  # needs wonderwords
    ],
)
def test_tasks_of_the_documentation_hide_their_answers_in_it(name):
    task = all_tasks()[name]
    tokenizer = TextTokenizer(word_tokenizer())
    request = TaskRequest(4096, tokenizer, DataFiles(None), samples=3)
    for sample in islice(task.make(request), 3):
        assert request.fits(sample)
        assert any(reference in sample.prompt for reference in sample.references)
