"""The draw of meta-documents."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextlong import schemas
from nextlong.recipe.keys import BLOCKS, MOST_QUERIES
from nextlong.retrieval.sample import (
    DrawResult,
    LengthCheck,
    list_documents,
    query_ranges,
    sample_meta_documents,
)
from nextlong.schemas import META_DOCUMENTS, DropReason


def write_shard(folder, number, chunks_per_document, hashes, chars=10):
    """Write CHUNKS of documents with so many chunks each (0: not kept), and their hashes."""
    rows = [
        (row, at * chars, (at + 1) * chars, False)
        for row, n in enumerate(chunks_per_document)
        for at in range(n)
    ]
    columns = [list(column) for column in zip(*rows, strict=True)] or [[]] * 4
    batch = pa.RecordBatch.from_pydict(
        dict(zip(schemas.CHUNKS.names, columns, strict=True)), schema=schemas.CHUNKS
    )
    path = Path(folder) / f"{number}.chunks.arrow"
    with (
        pa.OSFile(str(path), "wb") as sink,
        pa.ipc.new_file(sink, schemas.CHUNKS) as writer,
    ):
        writer.write_batch(batch)
    np.save(Path(folder) / f"{number}.hashes.npy", np.array(hashes, np.uint64))
    return path, Path(folder) / f"{number}.hashes.npy"


def draw(folder, shards, **options):
    paths = [write_shard(folder, number, *shard) for number, shard in enumerate(shards)]
    chars = []
    for number, (counts, *_) in enumerate(shards):
        chars.append(Path(folder) / f"{number}.chars.npy")
        np.save(chars[-1], np.array(counts) * 10)
    settings = {
        "draws": None,
        "min_meta_chunks": 2,
        "seed": 0,
        "chars": chars,
    } | options
    counts = sample_meta_documents(
        Path(folder) / "out",
        chunks=[chunks for chunks, _ in paths],
        hashes=[hashes for _, hashes in paths],
        **settings,
    )
    return counts, np.load(Path(folder) / "out.meta_documents.npy")


def test_the_draw_knows_each_documents_chunks(tmp_path):
    counts, metas = draw(tmp_path, [([3, 1, 0, 2], [11, 12, 13, 14]), ([2], [15])])
    assert counts == DrawResult(documents=4, eligible=3, drawn=3, meta_chunks=7)
    assert metas.dtype == META_DOCUMENTS
    by_hash = {int(meta["content_hash"]): meta for meta in metas}
    assert [(hash_, int(by_hash[hash_]["first_chunk"]), int(by_hash[hash_]["chunks"]), int(by_hash[hash_]["chars"]))
            for hash_ in sorted(by_hash)] == [(11, 0, 3, 30), (14, 4, 2, 20), (15, 1 << 32, 2, 20)]  # fmt: skip
    assert metas["key"].tolist() == sorted(metas["key"].tolist())
    (meta,) = metas[metas["content_hash"] == 14]
    assert (int(meta["first_chunk"]), int(meta["chunks"])) == (4, 2)


@pytest.mark.parametrize(
    ("min_meta_chunks", "eligible"), [(1, 4), (2, 3), (3, 1), (4, 0)]
)
def test_documents_with_fewer_chunks_are_no_meta_documents(
    tmp_path, min_meta_chunks, eligible
):
    counts, metas = draw(
        tmp_path,
        [([3, 1, 0, 2], [11, 12, 13, 14]), ([2], [15])],
        min_meta_chunks=min_meta_chunks,
    )
    assert counts.eligible == len(metas) == eligible


DOCUMENTS = [(2 + number % 3, 1000 + number) for number in range(40)]


@given(
    order=st.permutations(range(40)),
    cuts=st.lists(st.integers(0, 40), max_size=4),
    draws=st.integers(1, 50),
)
def test_the_draw_does_not_depend_on_shards_or_order(
    tmp_path_factory, order, cuts, draws
):
    documents = [DOCUMENTS[place] for place in order]
    bounds = [0, *sorted(cuts), 40]
    shards = [
        tuple(map(list, zip(*documents[first:last], strict=True)))
        if first < last
        else ([], [])
        for first, last in pairwise(bounds)
    ]
    _, metas = draw(tmp_path_factory.mktemp("draw"), shards, draws=draws, seed=5)
    _, whole = draw(
        tmp_path_factory.mktemp("whole"),
        [tuple(map(list, zip(*DOCUMENTS, strict=True)))],
        seed=5,
    )
    for name in ("key", "content_hash", "chunks", "chars"):
        assert metas[name].tolist() == whole[name][:draws].tolist()


@given(
    draws=st.none() | st.integers(1, 50),
    longer=st.sets(st.integers(0, 39)),
    cut=st.integers(0, 40),
)
def test_documents_longer_than_a_sequence_give_way_to_the_next(
    tmp_path_factory, draws, longer, cut
):
    """Documents of 4 chunks are checked; a few of them prove to be longer."""
    documents = [DOCUMENTS[:cut], DOCUMENTS[cut:]]
    shards = [
        tuple(map(list, zip(*some, strict=True))) or ([], []) for some in documents
    ]
    folder = tmp_path_factory.mktemp("long")
    _, whole = draw(folder, shards, seed=5)
    too_long = {1000 + number for number in longer if DOCUMENTS[number][0] == 4}
    hash_of = {int(meta["first_chunk"]): int(meta["content_hash"]) for meta in whole}
    checked = []

    def is_longer(first_chunk, chunks):
        assert chunks == 4
        checked.append(hash_of[first_chunk])
        return hash_of[first_chunk] in too_long

    counts, metas = draw(
        folder, shards, draws=draws, seed=5, length_check=LengthCheck(30, is_longer)
    )
    order = whole["content_hash"].tolist()
    fitting = [number for number in order if number not in too_long][:draws]
    assert metas["content_hash"].tolist() == fitting
    is_whole_sample = draws is None or len(fitting) < draws
    end = len(order) if is_whole_sample else order.index(fitting[-1]) + 1
    passed_over = [number for number in order[:end] if number in too_long]
    assert counts.drawn == len(fitting) + len(passed_over)
    assert counts.dropped == (
        {DropReason.TOO_LONG: len(passed_over)} if passed_over else {}
    )
    assert [hash_of[first] for examples in counts.dropped_examples.values()
            for first, _, _ in examples] == passed_over  # fmt: skip
    # Nothing is read that the sample does not need.
    assert all(order.index(number) < end for number in checked)


@pytest.mark.parametrize("draws", [None, 35])
def test_a_sample_is_not_sorted_again_for_each_long_document(
    tmp_path, monkeypatch, draws
):
    shards = [tuple(map(list, zip(*DOCUMENTS, strict=True)))]
    sort = np.sort
    sorted_sizes = []

    def recording(array, **options):
        sorted_sizes.append(len(array))
        return sort(array, **options)

    monkeypatch.setattr(np, "sort", recording)
    check = LengthCheck(20, lambda *_: False)
    _, metas = draw(tmp_path, shards, draws=draws, length_check=check)
    assert len(metas) == (draws or 40)
    # The short documents, the long ones, and the sample.
    assert len(sorted_sizes) <= 3


def test_another_seed_draws_others(tmp_path):
    shards = [tuple(map(list, zip(*DOCUMENTS, strict=True)))]
    drawn = [
        draw(tmp_path, shards, draws=10, seed=seed)[1]["content_hash"].tolist()
        for seed in (0, 1)
    ]
    assert set(drawn[0]) != set(drawn[1])


def test_a_document_that_lost_a_chunk_is_not_drawn(tmp_path):
    np.save(tmp_path / "longer.npy", np.array([30, 41, 20]))
    counts, metas = draw(
        tmp_path, [([3, 4, 2], [11, 12, 13])], chars=[tmp_path / "longer.npy"]
    )
    assert counts.documents == 3
    assert sorted(metas["content_hash"].tolist()) == [11, 13]


def test_another_seed_starts_sequences_with_other_documents(tmp_path):
    chunks, hashes = write_shard(tmp_path, 0, *zip(*DOCUMENTS, strict=True))
    queries, keys = [], []
    for number, seed in enumerate((0, 1, 1)):
        out = tmp_path / f"out{number}"
        list_documents(out, chunks=[chunks], hashes=[hashes], seeds=10, seed=seed)
        queries.append(np.load(f"{out}.queries.npy").tolist())
        keys.append(np.load(f"{out}.docs.npy")["key"].tolist())
    assert queries[0] != queries[1] == queries[2]
    assert keys[0] != keys[1] == keys[2]


def tiles(ranges, count):
    return [first for first, _ in ranges] == [0, *(last for _, last in ranges)][
        : len(ranges)
    ] and (not count or ranges[-1][1] == count)


@given(count=st.integers(0, 10**6))
def test_ranges_of_documents_tile_them(tmp_path_factory, count):
    path = tmp_path_factory.mktemp("ranges") / "queries.npy"
    np.save(path, np.zeros(count, np.int64))
    ranges = query_ranges(path)
    assert tiles(ranges, count)
    assert all(0 < last - first <= MOST_QUERIES for first, last in ranges)
    assert len(ranges) <= max(BLOCKS, -(-count // MOST_QUERIES))


@given(chunks=st.lists(st.integers(1, 3 * MOST_QUERIES), max_size=400))
def test_a_meta_document_is_never_divided_and_no_block_holds_many_chunks(
    tmp_path_factory, chunks
):
    drawn = np.zeros(len(chunks), META_DOCUMENTS)
    drawn["chunks"] = chunks
    path = tmp_path_factory.mktemp("blocks") / "drawn.npy"
    np.save(path, drawn)
    ranges = query_ranges(path)
    assert tiles(ranges, len(chunks))
    for first, last in ranges:
        assert last > first
        assert last == first + 1 or sum(chunks[first:last]) <= MOST_QUERIES
