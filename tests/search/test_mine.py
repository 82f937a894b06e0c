"""What is written of the chunks nearest to meta-chunks."""

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.results import MineResult
from nextlong.schemas import META_DOCUMENTS
from nextlong.search.index import IndexFiles
from nextlong.search.mine import document_queries, mine_block, mine_documents
from stored_vectors import save_shards, unit_rows


def test_mine_block_writes_the_candidates_of_its_documents(tmp_path):
    # Chunks 0, 1 and 2 are of two documents of shard 0, three more of one of shard 1.
    drawn = np.array([(5, 23, 1 << 32, 3, 30), (7, 21, 0, 2, 20)], META_DOCUMENTS)
    np.save(tmp_path / "out.meta_documents.npy", drawn)
    index = IndexFiles("exact", tuple(save_shards(tmp_path, unit_rows(3, seed=1), unit_rows(3, seed=2))))
    counts = mine_block(
        tmp_path / "b",
        meta_documents=tmp_path / "out.meta_documents.npy",
        first=1,
        last=2,
        index=index,
        fetch=3,
    )
    with pa.ipc.open_file(pa.memory_map(str(tmp_path / "b.candidates.arrow"))) as reader:
        table = reader.read_all()
    assert table.schema == schemas.CANDIDATES
    assert table.column("chunk_id").to_pylist() == [0, 1]
    for ids, scores in zip(table.column("neighbour_ids").to_pylist(), table.column("scores").to_pylist(), strict=True):
        assert len(ids) == 3
        assert set(ids) <= {2, 1 << 32, (1 << 32) + 1, (1 << 32) + 2}
        assert scores == sorted(scores, reverse=True)
    assert counts == MineResult(queries=2, candidates=6, fewest=3)


def test_a_document_leaves_out_itself_alone(tmp_path):
    ids, exclude = document_queries(np.array([5, (1 << 32) + 9]))
    assert ids.tolist() == [5, (1 << 32) + 9]
    assert exclude.tolist() == [[5, 6], [(1 << 32) + 9, (1 << 32) + 10]]
    paths = save_shards(tmp_path, unit_rows(3, seed=1))
    np.save(tmp_path / "queries.npy", np.array([1, 2]))
    index = IndexFiles("exact", tuple(paths))
    made = mine_documents(tmp_path / "out", queries=tmp_path / "queries.npy", first=0, last=2, index=index, fetch=9)
    assert made == MineResult(queries=2, candidates=4, fewest=2)
    none = mine_documents(tmp_path / "none", queries=tmp_path / "queries.npy", first=2, last=2, index=index, fetch=9)
    assert none == MineResult(queries=0, candidates=0, fewest=0)
