"""Documents: searched for against the corpus's own files, stopped and continued; one read whole; and marks, one a line."""

import json
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong import pipeline
from nextlong.errors import RunError
from nextlong.view import documents
from nextlong.view.documents import Mark, Place, Query


@pytest.fixture(scope="module")
def run(shared_run):
    return nextlong.open(shared_run)


@pytest.fixture(scope="module")
def rows(small_corpus):
    return [
        json.loads(line)
        for path in sorted(small_corpus.iterdir())
        for line in path.read_text().splitlines()
    ]


def everything(run, query, *, most=7, seconds=60.0):
    found, following = [], Place()
    while following is not None:
        some, following, share = documents.search(
            run.corpus, query, first=following, limit=most, seconds=seconds
        )
        found += some
        assert 0 <= share <= 1
    return found


@pytest.mark.parametrize(("most", "seconds"), [(7, 60.0), (1, 60.0), (1000, 0.0)])
def test_each_text_that_holds_the_words_is_found_once(run, rows, most, seconds):
    found = everything(run, Query(text='"SAIL REEF"'), most=most, seconds=seconds)
    expected = [row["id"] for row in rows if "sail reef" in row["text"].lower()]
    assert Counter(own["source_id"] for own in found) == Counter(expected)
    assert expected
    assert all(
        "sail reef" in [text.lower() for text, is_term in own["snippet"] if is_term]
        for own in found
    )


def test_names_and_sources_are_looked_for_without_any_text(run, rows):
    assert sorted(
        own["source_id"] for own in everything(run, Query(name="bread-"))
    ) == sorted(row["id"] for row in rows if row["id"].startswith("bread-"))
    assert everything(run, Query(source="other")) == []
    assert len(everything(run, Query(source="small"))) == len(rows)


def test_what_is_looked_for_is_no_pattern(run):
    assert everything(run, Query(text="sail.reef")) == []
    assert everything(run, Query(text="%")) == []


def test_a_document_is_read_whole(run, rows):
    texts = {row["id"]: row["text"] for row in rows}
    for own in everything(run, Query(name="law-"))[:5]:
        read = documents.read(run.corpus, own["doc_id"])
        assert (read["source"], read["source_id"], read["metadata"]) == (
            "small",
            own["source_id"],
            {},
        )
        assert "".join(read["texts"]) == texts[own["source_id"]]


@pytest.mark.parametrize("doc_id", [-1, 1 << 40, 1 << 20])
def test_there_is_no_such_document(run, doc_id):
    assert documents.read(run.corpus, doc_id) is None


def test_sources_are_named(run):
    assert list(documents.sources(run.corpus, max_shards=2)) == ["small"]


def test_columns_that_a_source_keeps_are_read(recipe_for, tmp_path):
    rows = [{"text": f"word{n} " * 200, "lang": "en", "id": f"d{n}"} for n in range(9)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    source = json.dumps([{"path": str(tmp_path / "c.jsonl"), "metadata": ["lang"]}])
    few = (
        "compose.method=standard",
        "compose.sequences=1",
        "compose.target_tokens=512",
    )
    pipeline.run(recipe_for(tmp_path / "run", f"ingest.sources={source}", *few))
    assert documents.read(nextlong.open(tmp_path / "run").corpus, 3)["metadata"] == {
        "lang": "en"
    }


# what a search box asks for


@pytest.mark.parametrize(
    ("text", "parsed"),
    [
        ("serverless lambda", ["serverless", "lambda"]),
        ('"market price" supply', ["market price", "supply"]),
        ('"not closed', ["not closed"]),
        ("", []),
        ('"" a', ['""', "a"]),
    ],
)
def test_words_and_phrases(text, parsed):
    assert documents.parse(text) == parsed


def test_every_term_has_to_be_there_and_none_is_a_pattern():
    texts = [
        "Lambda is a SERVERLESS service",
        "serverless lambda",
        "lambda",
        "a.b",
        "axb",
    ]
    assert documents.contain(texts, "serverless lambda").tolist() == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert documents.contain(texts, '"serverless lambda"').tolist() == [
        False,
        True,
        False,
        False,
        False,
    ]
    assert documents.contain(texts, "a.b").tolist() == [
        False,
        False,
        False,
        True,
        False,
    ]


def test_a_snippet_begins_a_little_before_the_first_term():
    pieces = documents.snippet(
        "x " * 500 + "the Reef here and a reef there " + "y " * 500, "reef"
    )
    assert [text for text, is_term in pieces if is_term] == ["Reef", "reef"]
    assert pieces[0][0].startswith("…")
    assert pieces[-1][0].endswith("…")


@given(st.text(), st.text())
def test_a_snippet_loses_nothing_and_invents_nothing(text, wanted):
    shown = "".join(piece for piece, _ in documents.snippet(text, wanted))
    assert shown.strip("…").replace(" ", "") in "".join(text.split())


def test_marks_are_added_replaced_and_removed(tmp_path):
    document, source = Mark("web", "d1", "spam"), Mark("web")
    for mark in (document, source, Mark("web", "d1", "a form letter")):
        documents.change_mark(tmp_path, mark, is_set=True)
    assert documents.read_marks(tmp_path) == [
        source,
        Mark("web", "d1", "a form letter"),
    ]
    documents.change_mark(tmp_path, document, is_set=False)
    assert documents.read_marks(tmp_path) == [source]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".marks.jsonl.lock",
        documents.MARKS_FILE,
    ]


def test_a_line_separator_within_a_mark_ends_no_line(tmp_path):
    mark = Mark("web\u2028", "d\u2029\x851", "a\x0bnote")
    documents.change_mark(tmp_path, mark, is_set=True)
    with (tmp_path / documents.MARKS_FILE).open("a") as file:
        file.write("\n  \n")
    assert documents.read_marks(tmp_path) == [mark]


def test_viewers_of_one_run_lose_no_mark(tmp_path):
    every = [Mark("web", f"d{number}") for number in range(40)]
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda mark: documents.change_mark(tmp_path, mark, is_set=True), every
            )
        )
    assert sorted(documents.read_marks(tmp_path), key=every.index) == every


def test_a_sequence_is_another_mark_than_its_document(tmp_path):
    for mark in (Mark("web", "d1"), Mark("web", "d1", sequence="base/3")):
        documents.change_mark(tmp_path, mark, is_set=True)
    assert [mark.kind for mark in documents.read_marks(tmp_path)] == [
        "document",
        "sequence",
    ]
    lines = (tmp_path / documents.MARKS_FILE).read_text().splitlines()
    assert list(map(json.loads, lines)) == [
        {"source": "web", "id": "d1"},
        {"source": "web", "id": "d1", "sequence": "base/3"},
    ]


@pytest.mark.parametrize(
    "line", ["{", '{"id": "no source"}', '{"source": "s", "colour": "red"}', "[]"]
)
def test_a_line_that_is_no_mark_is_named(tmp_path, line):
    (tmp_path / documents.MARKS_FILE).write_text(f'{{"source": "s"}}\n{line}\n')
    with pytest.raises(RunError) as error:
        documents.read_marks(tmp_path)
    assert error.value.where == f"{tmp_path / documents.MARKS_FILE}:2"
