"""`export.boundaries: document`: the original documents of concatenations are marked, and verify counts them itself."""

import itertools
import json

import pyarrow.parquet as pq
import pytest

from exported_runs import breaches, folder_of
from nextlong import pipeline
from nextlong.errors import RecipeError

FORMATS = "export.formats=[parquet,jsonl,arrow,axolotl]"


@pytest.fixture(scope="module")
def bounded(recipe_for, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("bounded") / "run"
    changes = ["compose.method=standard", "tokenizer.bos=<|endoftext|>", "export.boundaries=document", FORMATS]
    pipeline.run(recipe_for(run_dir, *changes))
    return run_dir


def read(run, name):
    return pq.read_table(sorted(folder_of(run, name).glob("*.parquet")))


def rows_of(run):
    return read(run, "parquet").to_pylist()


def test_a_row_is_divided_where_its_spans_change_document(bounded):
    rows = rows_of(bounded)
    for row in rows:
        whole = [span for span in row["spans"] if span["role"] == "document"]
        changes = [new["token_start"] for old, new in itertools.pairwise(whole) if old["doc_id"] != new["doc_id"]]
        assert [0, *itertools.accumulate(row["seq_lengths"])] == [0, *changes, row["length"]]
    assert any(len(row["seq_lengths"]) > 3 for row in rows)


def test_labels_begin_anew_at_each_document(bounded):
    labels = read(bounded, "axolotl").column("labels").to_pylist()
    for row, row_labels in zip(rows_of(bounded), labels, strict=True):
        starts = [0, *itertools.accumulate(row["seq_lengths"])][:-1]
        assert [place for place, label in enumerate(row_labels) if label == -100] == starts


def test_verify_counts_the_documents_itself(bounded, tmp_path):
    import shutil

    assert breaches(bounded) == {}
    damaged = shutil.copytree(bounded, tmp_path / "run")
    (path,) = folder_of(damaged, "jsonl").glob("*.jsonl")
    first, *others = path.read_text().splitlines()
    row = json.loads(first)
    row["seq_lengths"] = [sum(row["seq_lengths"])]
    path.write_text("\n".join([json.dumps(row), *others]) + "\n")
    assert "seq_lengths is [2048], should be" in breaches(damaged)["jsonl rows"][0]


def test_extended_sequences_stay_one_document(recipe_for, tmp_path):
    pipeline.run(recipe_for(tmp_path / "run", "export.boundaries=document", "export.formats=[parquet]"))
    assert {len(row["seq_lengths"]) for row in rows_of(tmp_path / "run")} == {1}


def test_formats_that_mark_sequences_alone_refuse_it(recipe_for, tmp_path):
    with pytest.raises(RecipeError, match="boundaries is document but mds cannot take it"):
        recipe_for(tmp_path / "run", "export.boundaries=document", "export.formats=[mds]")
