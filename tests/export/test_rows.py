import json
from itertools import pairwise

import numpy as np

import nextlong
from counted import counts_of
from exported_runs import exported, parquet_rows

T = 2048


def ids_by_name(rows):
    """Return the tokens of each sequence by its id, rows taken apart at their boundaries."""
    found = {}
    for row in rows:
        pieces = np.split(np.array(row["input_ids"]), np.cumsum(row["seq_lengths"])[:-1])
        found |= dict(zip(row["sequence_id"].split(), (piece.tolist() for piece in pieces), strict=True))
    return found


def test_packed_rows_hold_whole_sequences_and_say_where_they_lie(own_run, shared_ids):
    done = exported([own_run], formats=["parquet"], overrides=["export.pack=6144", "workers=1"])
    rows = parquet_rows(done["parquet"].folder)
    assert [row["seq_lengths"] for row in rows] == [[T, T, T]] * 4
    assert [row["length"] for row in rows] == [3 * T] * 4
    assert ids_by_name(rows) == shared_ids
    spans = rows[0]["spans"]
    assert (spans[0]["token_start"], spans[-1]["token_end"]) == (0, 3 * T)
    assert all(a["token_end"] == b["token_start"] for a, b in pairwise(spans))
    assert nextlong.open(own_run).exported("parquet")[0].parent == done["parquet"].folder


def test_a_row_that_cannot_be_filled_is_short_and_counted(own_run, shared_ids):
    done = exported([own_run], formats=["jsonl"], overrides=["export.pack=10240", "workers=1"])
    (path,) = done["jsonl"].files(".jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [len(row["seq_lengths"]) for row in rows] == [5, 5, 2]
    documents, chunks = ({span[key] for row in rows for span in row["spans"]} - {-1} for key in ("doc_id", "chunk_id"))
    assert counts_of(done["rows"])[0]["train"] == {
        "rows": 3,
        "sequences": 12,
        "documents": len(documents),
        "tokens": 12 * T,
        "of_runs": [],
        "short_rows": 1,
        "chunks": len(chunks),
        "chunks_in_train": 0,
    }
    texts = {sequence.id: sequence.text for sequence in nextlong.open(own_run).sequences()}
    assert rows[0]["text"] == "".join(texts[name] for name in rows[0]["sequence_id"].split())


def test_a_split_parts_meta_documents_the_same_way_in_every_run(own_run, shorter_run, shared_ids):
    split = ["export.validation=0.4", "workers=1"]
    done = exported([own_run], formats=["parquet"], overrides=split)
    train, validation = (ids_by_name(parquet_rows(done[name].folder)) for name in ("parquet", "parquet-validation"))
    assert train
    assert validation
    assert train | validation == shared_ids
    held, read = (
        {span["chunk_id"] for row in parquet_rows(done[name].folder) for span in row["spans"]} - {-1}
        for name in ("parquet-validation", "parquet")
    )
    counted = counts_of(done["rows"])[0]["validation"]
    assert (counted["chunks"], counted["chunks_in_train"]) == (len(held), len(held & read))
    assert held & read
    done = exported([shorter_run], formats=["parquet"], overrides=split)
    shorter = ids_by_name(parquet_rows(done["parquet-validation"].folder))
    common = shared_ids.keys() & (shorter | ids_by_name(parquet_rows(done["parquet"].folder))).keys()
    assert common
    assert all((name in validation) == (name in shorter) for name in common)
