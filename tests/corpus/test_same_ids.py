"""Ids that several documents of a source have, against counting them by hand."""

import tracemalloc
from collections import Counter
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nextlong import corpus, pipeline, schemas
from nextlong.corpus.same_ids import same_ids
from nextlong.inputs.remembered import input_files


def write(folder, shards):
    """Write shards of (source, id, whether it stays); the text says which document it is."""
    documents, keep = [], []
    for number, rows in enumerate(shards):
        documents.append(folder / f"{number}.documents.arrow")
        keep.append(folder / f"{number}.keep.npy")
        plain = [
            {
                "text": f"document {number}.{row}\nof  {name} " + "x" * 90,
                "content_hash": row,
                "source": source,
                "source_id": name,
            }
            for row, (source, name, _) in enumerate(rows)
        ]
        with pa.OSFile(str(documents[-1]), "wb") as sink, pa.ipc.new_file(sink, schemas.DOCUMENTS) as writer:
            writer.write_batch(pa.RecordBatch.from_pylist(plain, schema=schemas.DOCUMENTS))
        np.save(keep[-1], np.array([stays for _, _, stays in rows], np.bool_))
    return documents, keep


def test_a_pair_is_told_with_how_each_begins(tmp_path):
    shards = [[("web", "a", True), ("web", "b", True)], [("books", "a", True), ("web", "b", True)]]
    count, told = same_ids(*write(tmp_path, shards))
    assert (count, told[:2]) == (1, ("web", "b"))
    assert [text[: len("document 0.1 of b x")] for text in told[2:]] == ["document 0.1 of b x", "document 1.1 of b x"]
    assert max(map(len, told[2:])) <= 60


def test_an_id_of_two_sources_is_two_ids_and_one_left_out_is_none(tmp_path):
    shards = [[("web", "a", True), ("books", "a", True)], [("web", "a", False)], []]
    assert same_ids(*write(tmp_path, shards)) == (0, ())


ROWS = st.lists(st.tuples(st.sampled_from("wb"), st.sampled_from("abcd"), st.booleans()), max_size=6)


@given(st.lists(ROWS, max_size=4))
def test_each_document_after_the_first_of_its_id_counts(tmp_path_factory, shards):
    count, told = same_ids(*write(tmp_path_factory.mktemp("ids"), shards))
    held = Counter((source, name) for rows in shards for source, name, stays in rows if stays)
    assert count == held.total() - len(held)
    assert held[told[:2]] > 1 if told else count == 0


def test_no_more_is_held_than_plan_says(recipe_for, tmp_path, monkeypatch):
    shards, rows = 8, 50_000
    hashed = ((None, np.arange(first, shards * rows, shards, np.uint64)) for first in range(shards))
    monkeypatch.setattr(corpus.same_ids, "_hashes", lambda *_: hashed)
    recipe = recipe_for(tmp_path)
    (step,) = [step for step in pipeline.route(recipe, input_files(recipe)) if step.name == "left_out"]
    tracemalloc.start()
    try:
        assert same_ids([], []) == (0, ())
        held = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    told = step.estimate.memory(SimpleNamespace(documents=shards * rows))
    assert 0.9 * told < held < 1.1 * told
