"""The wording of errors about the corpus; other tests compare their parts."""

import sys

import pytest

from nextlong.artifacts.results import IngestResult
from nextlong.corpus.decontaminate import _evaluation_grams
from nextlong.corpus.deduplicate import minhash_class
from nextlong.corpus.ingest import _check_rejects, missing_id_column
from nextlong.corpus.select import exclusions_of
from nextlong.errors import CorpusError, RecipeError
from nextlong.recipe import Source


def refused_rejects(**counts):
    counts = {"documents": 0, "rejects": 0, "reject_reasons": {}, **counts}
    result = IngestResult(
        text_bytes=0, chars=0, shards=1, example="a.jsonl:7: empty", **counts
    )
    with pytest.raises(CorpusError) as refused:
        _check_rejects([result], 0.02, "run/part-*.rejects.arrow")
    return str(refused.value)


def test_too_many_rejects():
    message = refused_rejects(
        documents=97, rejects=3, reject_reasons={"empty": 1, "broken JSON": 2}
    )
    assert message == (
        "ingest.max_reject_share=0.02 is exceeded: 3 of 100 records (3.00%) were "
        "rejected: 2 × broken JSON, 1 × empty; first one: a.jsonl:7: empty; all of them: "
        "run/part-*.rejects.arrow; correct the files, or set "
        "ingest.max_reject_share=0.03 in the recipe"
    )


@pytest.mark.parametrize(
    ("counts", "message"),
    [
        (
            {"rejects": 2, "reject_reasons": {"empty": 2}},
            "ingest.sources: all 2 records were rejected: 2 × empty; first one: "
            "a.jsonl:7: empty; all of them: run/part-*.rejects.arrow; correct "
            "ingest.sources",
        ),
        (
            {},
            "ingest.sources: they have no records, because every file is empty; use "
            "files with documents",
        ),
        (
            {"skipped": {"HTTP status 404": 3}},
            "ingest.sources: none of their 3 records is a document (3 × HTTP status "
            "404); use other files",
        ),
        (
            {"excluded": 5},
            "ingest.exclude: it removes all 5 documents; delete lines of it, or set it "
            "to null",
        ),
        (
            {"filtered_out": 5},
            "ingest.sources[].filter: it matches none of 5 documents; check the values "
            "of its columns (a missing column is NULL) and correct the condition",
        ),
    ],
)
def test_no_document_at_all(counts, message):
    assert refused_rejects(**counts) == message


def test_a_column_without_ids():
    error = missing_id_column(
        Source(path="a.csv", id="docid"),
        "a.csv has no such column",
        ["doc_id", "text"],
        key="ingest.sources[0].id",
    )
    assert str(error) == (
        "ingest.sources[0].id='docid' cannot identify the documents: a.csv has no such "
        "column; columns of the first records: doc_id, text; did you mean 'doc_id'? Without an "
        "id column, documents are named file:line"
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            '{"id": "1"}',
            'ingest.exclude: PATH:1 is not {"source": …, "id": …}; correct or delete '
            "the line",
        ),
        (
            '{"source": "other"}',
            "ingest.exclude='PATH' has no entry for the sources of this recipe (a), only "
            "for other; correct the names, or set ingest.exclude to null",
        ),
    ],
)
def test_an_exclusion_list_that_cannot_be_used(tmp_path, text, problem):
    path = tmp_path / "marks.jsonl"
    path.write_text(text)
    with pytest.raises(CorpusError) as refused:
        exclusions_of(str(path), [Source(path="a", name="a")])
    assert str(refused.value) == problem.replace("PATH", str(path))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.json", None, "does not exist; correct the path or remove it"),
        (
            "a.parquet",
            b"",
            "has an unknown format; use files that end in json, jsonl, ndjson, csv, "
            "tsv, txt or md, plain or compressed (.gz, .zst, .bz2, .xz, .lz4)",
        ),
        (
            "a.json",
            b'["short text"]',
            "has no text of at least 8 words and no question of at least 3, so there is "
            "nothing to search for; remove it from the list",
        ),
    ],
)
def test_an_evaluation_file_that_cannot_serve(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(CorpusError) as refused:
        _evaluation_grams(tmp_path / "grams", files=[str(path)], ngram=13)
    assert str(refused.value) == f"decontaminate={path} {message}"


def test_deduplication_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(RecipeError) as refused:
        minhash_class()
    assert str(refused.value) == (
        "ingest.dedup=minhash needs the package rensa, which is not installed; "
        "pip install 'nextlong[dedup]', or set ingest.dedup: exact"
    )
