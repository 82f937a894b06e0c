"""Candidates: what is written of the nearest vectors, and exact search by blocks of the corpus."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.counted import counts_of
from tests.support.larger_cases import thorough
from tests.support.stored_vectors import clustered_rows, save_shards, unit_rows

from nextlong import pipeline, schemas
from nextlong.retrieval import mine
from nextlong.retrieval.indexes import exact_cpu
from nextlong.retrieval.indexes.base import IndexFiles
from nextlong.retrieval.sample import read_queries
from nextlong.retrieval.shortlist import MineResult
from nextlong.runs.run import Run
from nextlong.schemas import META_DOCUMENTS

META = np.array([(5, 23, 1 << 32, 3, 30), (7, 21, 0, 2, 20)], META_DOCUMENTS)


def test_candidates_of_chunks_are_of_other_documents_and_descend(tmp_path):
    # Chunks 0, 1 and 2 are of two documents of shard 0, three more of one of shard 1.
    np.save(tmp_path / "queries.npy", META)
    index = IndexFiles(
        "exact",
        tuple(save_shards(tmp_path, unit_rows(3, seed=1), unit_rows(3, seed=2))),
    )
    counts = mine._mine_block(
        tmp_path / "b", (tmp_path / "queries.npy", 1, 2), index, k=3
    )
    with pa.ipc.open_file(
        pa.memory_map(str(tmp_path / "b.candidates.arrow"))
    ) as reader:
        table = reader.read_all()
    assert table.schema == schemas.CANDIDATES
    assert table.column("chunk_id").to_pylist() == [0, 1]
    for ids, scores in zip(
        table.column("neighbour_ids").to_pylist(),
        table.column("scores").to_pylist(),
        strict=True,
    ):
        assert len(ids) == 3
        assert set(ids) <= {2, 1 << 32, (1 << 32) + 1, (1 << 32) + 2}
        assert scores == sorted(scores, reverse=True)
    assert counts == MineResult(queries=2, candidates=6)


def test_a_document_excludes_itself_alone(tmp_path):
    np.save(tmp_path / "queries.npy", np.array([5, (1 << 32) + 9]))
    ids, exclude, before = read_queries(tmp_path / "queries.npy", 1)
    assert (ids.tolist(), exclude.tolist(), before) == (
        [(1 << 32) + 9],
        [[(1 << 32) + 9, (1 << 32) + 10]],
        1,
    )
    index = IndexFiles("exact", tuple(save_shards(tmp_path, unit_rows(3, seed=1))))
    np.save(tmp_path / "queries.npy", np.array([1, 2]))
    for first, expected in ((0, (2, 4)), (2, (0, 0))):
        made = mine._mine_block(
            tmp_path / "o", (tmp_path / "queries.npy", first, 2), index, k=9
        )
        assert (made.queries, made.candidates) == expected


def test_queries_of_a_range_know_how_many_come_before(tmp_path):
    np.save(tmp_path / "queries.npy", META)
    assert read_queries(tmp_path / "queries.npy").ids.tolist() == [
        1 << 32,
        (1 << 32) + 1,
        (1 << 32) + 2,
        0,
        1,
    ]
    assert read_queries(tmp_path / "queries.npy", 1, 2).before == 3


@given(
    seed=st.integers(0, 99),
    sizes=st.lists(st.integers(0, 90), min_size=2, max_size=5),
    k=st.integers(1, 40),
    block_bytes=st.sampled_from([1, 3_000, 6_000]),
    sample=st.sampled_from([4, 30, 1 << 14]),
    shift=st.sampled_from([0.0, 0.3]),
)
def test_blocks_of_the_corpus_give_the_bytes_of_one_search(
    tmp_path_factory, seed, sizes, k, block_bytes, sample, shift
):
    # `shift` makes bounds that hide neighbours: such queries are searched for again.
    folder = tmp_path_factory.mktemp("blocks")
    vectors = save_shards(
        folder, *(clustered_rows(size, seed=seed + size) for size in (20, *sizes))
    )
    queries = folder / "queries.npy"
    np.save(queries, np.arange(20))
    index = IndexFiles("exact", tuple(vectors))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mine, "BLOCK_BYTES", block_bytes)
        patch.setattr(mine, "MIN_SAMPLE", sample)
        patch.setattr(mine, "MAX_SAMPLE", sample)
        patch.setattr(mine, "_BATCH", 7)
        patch.setattr(exact_cpu, "_WORTH_SAMPLING", 1)
        blocks = mine._corpus_blocks(vectors)
        assert [shard for block in blocks for shard in block] == (
            [*range(len(vectors))] if blocks else []
        )
        mine._find_min_scores(folder / "l", (queries, 0, 20), vectors=vectors, k=k)
        least = folder / "l.least.npy"
        np.save(least, np.load(least) + np.float32(shift))
        stems = tuple(folder / f"s{number}" for number in range(len(blocks)))
        for stem, block in zip(stems, blocks, strict=True):
            mine._scan_block(
                stem,
                queries=queries,
                min_scores=[least],
                vectors=vectors,
                block=block,
                k=k,
            )
        scans = mine._Scans((least,), stems) if blocks else None
        for first in (0, 11):
            mine._mine_block(
                folder / "merged", (queries, first, 20), index, k=k, scans=scans
            )
            mine._mine_block(folder / "whole", (queries, first, 20), index, k=k)
            merged, whole = (
                (folder / f"{name}.candidates.arrow").read_bytes()
                for name in ("merged", "whole")
            )
            assert merged == whole


def test_blocks_are_searched_for_no_queries_too(tmp_path):
    vectors = save_shards(tmp_path, unit_rows(3, seed=1), unit_rows(3, seed=2))
    queries, least = tmp_path / "queries.npy", tmp_path / "l.least.npy"
    np.save(queries, np.empty(0, np.int64))
    mine._find_min_scores(tmp_path / "l", (queries, 0, 0), vectors=vectors, k=2)
    assert np.load(least).shape == (0,)
    made = mine._scan_block(
        tmp_path / "s",
        queries=queries,
        min_scores=[least],
        vectors=vectors,
        block=range(2),
        k=2,
    )
    assert made == MineResult(queries=0, candidates=0)
    assert [
        len(np.load(tmp_path / f"s.{name}.npy")) for name in ("ids", "scores", "ends")
    ] == [0, 0, 1]


@pytest.mark.parametrize("method", ["nextlong", *thorough("knn")])
def test_a_run_by_blocks_of_the_corpus_has_the_candidates_of_one_without(
    recipe_for, started, shared_run, tmp_path, monkeypatch, method
):
    step = {"nextlong": "mine", "knn": "neighbours"}[method]
    keys = [f"compose.method={method}", "search.index=exact"]
    whole = (
        Run(shared_run).steps
        if method == "nextlong"
        else pipeline.run(recipe_for(tmp_path / "whole", *keys))
    )
    assert counts_of(whole["scan"]) == counts_of(whole["least_scores"]) == []
    monkeypatch.setattr(mine, "BLOCK_BYTES", 1)
    blocks = pipeline.run(recipe_for(started(tmp_path / "blocks"), *keys))
    assert len(counts_of(blocks["scan"])) > 1
    files = [
        [path.read_bytes() for path in done[step].files(".candidates.arrow")]
        for done in (whole, blocks)
    ]
    assert files[0] == files[1]
