"""Drafts as files: rows by hand, what is dropped, and which chunks they name."""

import numpy as np
import pyarrow as pa
import pytest
from tokenizers import Tokenizer, models, pre_tokenizers

from nextlong import schemas
from nextlong.methods.nextlong.candidates import read_candidates
from nextlong.methods.nextlong.draft import DraftRules, draft_block
from nextlong.results import DraftResult, NamedChunksResult
from nextlong.schemas import META_DOCUMENTS, DropReason
from nextlong.similarity.shingles import ShingleStore, shingles
from nextlong.tokens.encode import TextEncoder
from nextlong.tokens.named import list_named_chunks

SECOND = 1 << 32  # chunk 0 of shard 1


def write(path, schema, columns):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict(dict(zip(schema.names, columns, strict=True)), schema=schema))
    return path


@pytest.fixture
def mined(tmp_path):
    """Two shards of 6 and 4 chunks of 10 characters; documents of chunks 0-1 and of chunks 2-4 are drawn."""
    chunks = []
    for shard, rows in enumerate((6, 4)):
        starts = np.arange(rows) * 10
        columns = [np.zeros(rows), starts, starts + 10, np.zeros(rows, bool)]
        chunks.append(write(tmp_path / f"{shard}.chunks.arrow", schemas.CHUNKS, columns))
    metas = np.array([(1, 0xAB, 0, 2, 20), (2, 0xCD, 2, 3, 30)], META_DOCUMENTS)
    np.save(tmp_path / "metas.npy", metas)
    neighbours = [[2, 3, SECOND], [3, 4, SECOND + 1], [0, 1], [1, SECOND + 3], [0]]
    scores = [[0.9, 0.8, 0.7], [0.6, 0.5, 0.4], [0.3, 0.2], [0.1, 0.0], [-0.5]]
    candidates = write(tmp_path / "c.candidates.arrow", schemas.CANDIDATES, [[0, 1, 2, 3, 4], neighbours, scores])
    documents = [
        write(tmp_path / f"{shard}.documents.arrow", schemas.DOCUMENTS, [["x" * 10 * rows], [shard], ["s"], ["i"]])
        for shard, rows in enumerate((6, 4))
    ]
    pairs = Tokenizer(models.BPE(vocab={"x": 0, "xx": 1}, merges=[("x", "x")]))  # two characters a token
    pairs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pairs.save(str(tmp_path / "t.tokenizer.json"))
    return {
        "meta_documents": tmp_path / "metas.npy",
        "first": 0,
        "last": 2,
        "candidates": candidates,
        "documents": documents,
        "chunks": chunks,
        "tokenizer": tmp_path / "t.tokenizer.json",
    }


def settings(**changed):
    plain = {
        "target_tokens": 20, "chars_per_token": 2.0, "draft_factor": 1.5, "fit": "exact", "max_chars": 10,
        "negatives": "top", "pool": 512, "near_copies": None, "max_similarity": None, "seed": 0,
    }  # fmt: skip
    return {"vectors": [], "measure": None, "rules": DraftRules(**plain | changed)}


def read(path):
    with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
        assert reader.schema == schemas.DRAFTS
        return reader.read_all().to_pylist()


def test_candidates_come_one_meta_document_at_a_time(mined):
    first, second = read_candidates(mined["candidates"], np.array([2, 3]), mined["chunks"])
    assert [ids.tolist() for ids in first.ids] == [[2, 3, SECOND], [3, 4, SECOND + 1]]
    assert [ids.tolist() for ids in second.ids] == [[0, 1], [1, SECOND + 3], [0]]
    assert second.scores[0] == pytest.approx([0.3, 0.2])
    assert [chars.tolist() for chars in first.chars] == [[10, 10, 10], [10, 10, 10]]


def test_a_draft_is_each_meta_chunk_and_a_prefix_of_its_candidates(mined, tmp_path):
    # 40 characters for T; 60 drafted less the document's 20: 20 for each of two meta-chunks, of which 10 will be used.
    counts = draft_block(tmp_path / "d", **mined, **settings())
    first, second = read(tmp_path / "d.drafts.arrow")
    assert counts == DraftResult(drafts=2, dropped={DropReason.TOO_LONG: 0}, dropped_examples={DropReason.TOO_LONG: ()})
    assert first["sequence_id"] == "nextlong-00000000000000ab"
    assert first["chunk_id"] == [0, 2, 3, 1, 3, 4]
    assert first["role"] == [0, 1, 1, 0, 1, 1]
    assert first["group"] == [0, 0, 0, 1, 1, 1]
    assert first["score"] == pytest.approx([1, 0.9, 0.8, 1, 0.6, 0.5])
    # 10 characters for each of three; 0 is presumably used by the first.
    assert second["chunk_id"] == [2, 0, 3, 1, 4, 0]
    assert second["group"] == [0, 0, 1, 1, 2, 2]


def test_a_paper_draft_takes_k_negatives(mined, tmp_path):
    # k = (60 - 20) / (2 · 10) = 2 and (60 - 30) / (3 · 10) = 1
    draft_block(tmp_path / "d", **mined, **settings(fit="paper"))
    first, second = read(tmp_path / "d.drafts.arrow")
    assert first["chunk_id"] == [0, 2, 3, 1, 3, 4, SECOND + 1]
    assert second["chunk_id"] == [2, 0, 3, 1, 4, 0]


def test_a_document_that_is_surely_too_long_is_dropped_here(mined, tmp_path):
    # The documents have 10 and 15 tokens.
    counts = draft_block(tmp_path / "d", **mined, **settings(target_tokens=12))
    assert counts == DraftResult(
        drafts=1, dropped={DropReason.TOO_LONG: 1}, dropped_examples={DropReason.TOO_LONG: ((2, 3, 15),)}
    )
    assert [row["sequence_id"] for row in read(tmp_path / "d.drafts.arrow")] == ["nextlong-00000000000000ab"]


def test_a_document_in_few_tokens_drafts_more_text(mined, tmp_path):
    # The corpus has half a character a token, these documents two: their own count.
    draft_block(tmp_path / "scarce", **mined, **settings(chars_per_token=0.5))
    draft_block(tmp_path / "plain", **mined, **settings())
    assert read(tmp_path / "scarce.drafts.arrow") == read(tmp_path / "plain.drafts.arrow")


def test_a_block_may_be_part_of_the_draw(mined, tmp_path):
    write(tmp_path / "one.arrow", schemas.CANDIDATES, [[2, 3, 4], [[0], [], [1]], [[0.5], [], [0.25]]])
    block = mined | {"first": 1, "candidates": tmp_path / "one.arrow"}
    draft_block(tmp_path / "d", **block, **settings())
    (row,) = read(tmp_path / "d.drafts.arrow")
    assert row["sequence_id"] == "nextlong-00000000000000cd"
    assert row["chunk_id"] == [2, 0, 3, 4, 1]


def test_the_tokenizers_engine_is_the_recipes(mined, tmp_path, monkeypatch):
    asked = []
    plain = TextEncoder.from_file

    def from_file(path, *, engine="auto"):
        asked.append(engine)
        return plain(path, engine=engine)

    monkeypatch.setattr(TextEncoder, "from_file", from_file)
    for engine in ("reference", "auto"):
        draft_block(tmp_path / engine, **mined, **settings(), engine=engine)
    assert asked == ["reference", "auto"]


@pytest.mark.parametrize(
    ("limit", "take", "rows"),
    [(None, [2, 1], [[0, 1, 2, 3, 4], [3]]), (2, [2, 0], [[0, 1, 2, 3, 4], []]), (1, [1, 0], [[0, 1, 2, 3, 4], []])],
)
def test_refer_lists_the_chunks_that_the_chosen_drafts_name(mined, tmp_path, limit, take, rows):
    draft_block(tmp_path / "d", **mined, **settings())
    write(
        tmp_path / "e.arrow",
        schemas.DRAFTS,
        [["x"], [7], ["extended"], [[SECOND + 3, 0]], [[0, 1]], [[0, 0]], [[1, 0.5]], [[]]],
    )
    drafts = [tmp_path / "d.drafts.arrow", tmp_path / "e.arrow"]
    counts = list_named_chunks(tmp_path / "r", drafts=drafts, chunks=mined["chunks"], limit=limit)
    assert counts == NamedChunksResult(take=tuple(take), drafts=sum(take), chunks=sum(map(len, rows)))
    assert [np.load(tmp_path / f"r.{shard:05d}.rows.npy").tolist() for shard in range(2)] == rows


def test_no_candidate_scores_above_the_ceiling(mined, tmp_path):
    draft_block(tmp_path / "d", **mined, **settings(max_similarity=0.8))
    first, _ = read(tmp_path / "d.drafts.arrow")
    assert first["chunk_id"] == [0, 3, SECOND, 1, 3, 4, SECOND + 1]
    assert first["score"] == pytest.approx([1, 0.8, 0.7, 1, 0.6, 0.5, 0.4])


def test_near_copies_are_left_out_or_paired_and_counted(mined, tmp_path):
    # Chunk 2 is a copy of chunk 0, hence of the first meta-document, chunk 4 one of chunk 3; the others are their own.
    for shard, blanks in enumerate(([1, 2, 1, 3, 3, 4], [5, 6, 7, 8])):
        texts = ["x" * blank + " " + "x" * (8 - blank) + "\n" for blank in blanks]
        columns = [["".join(texts)], [shard], ["s"], ["i"]]
        mined["documents"][shard] = write(tmp_path / f"{shard}.texts.arrow", schemas.DOCUMENTS, columns)
        found = shingles(texts)
        np.save(tmp_path / f"{shard}.shingles.npy", found.hashes)
        np.save(tmp_path / f"{shard}.offsets.npy", found.offsets)
    store = ShingleStore(
        hashes=[tmp_path / f"{shard}.shingles.npy" for shard in range(2)],
        offsets=[tmp_path / f"{shard}.offsets.npy" for shard in range(2)],
    )
    np.save(tmp_path / "w.npy", np.full(1 << 10, 1024, np.uint16))
    given = settings(near_copies=0.8) | {"measure": (store, tmp_path / "w.npy")}
    counts = draft_block(tmp_path / "d", **mined, **given)
    first, second = read(tmp_path / "d.drafts.arrow")
    assert first["chunk_id"] == [0, 3, SECOND, 1, 3, 4, SECOND + 1]
    assert first["near_copies"] == [3, 4]
    assert second["chunk_id"] == [2, 1, 3, 1, SECOND + 3, 4]
    assert second["near_copies"] == []
    assert counts == DraftResult(
        drafts=2,
        dropped={DropReason.TOO_LONG: 0},
        dropped_examples={DropReason.TOO_LONG: ()},
        near_copies=2 + 1,
        repeated_passages=0,
        near_copy_examples=((2, 0, 2), (4, 3, 1), (0, 2, 3)),
    )
