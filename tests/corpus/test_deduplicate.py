"""Deduplicate: clusters of hand-made signatures, independence of sharding, and real signatures where rensa is installed."""

import importlib.util
import random
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nextlong import schemas
from nextlong.corpus import deduplicate as deduplicate_module
from nextlong.corpus.deduplicate import (
    PERMUTATIONS,
    NearDuplicatesResult,
    _connected,
    _keep_longest,
    _minhash_shard,
    _MinhashResult,
    _similar_pairs,
    _write_bands,
    band_width,
    passes_for,
)
from nextlong.corpus.ingest import content_hash
from nextlong.errors import RecipeError
from nextlong.schemas import DOCUMENTS

needs_rensa = pytest.mark.skipif(
    importlib.util.find_spec("rensa") is None, reason="needs nextlong[dedup]"
)


def variant(signature, *, equal, draw):
    """Return a signature that agrees with another in `equal` values."""
    changed = signature.copy()
    places = draw.permutation(PERMUTATIONS)[equal:]
    changed[places] = draw.integers(0, 2**32, len(places), np.uint32)
    return changed


def fresh(draw):
    return draw.integers(0, 2**32, PERMUTATIONS, np.uint32)


def found_near_duplicates(
    out, *, signatures, keep, hashes, chars, threshold, held_documents=1000
):
    """Run the three steps on the files of shards, as the route does; return the counts of the last."""
    bands = [path.with_suffix("") for path in signatures]
    width, pairs = band_width(threshold), []
    for stem, signature_path, keep_path in zip(bands, signatures, keep, strict=True):
        _write_bands(stem, np.load(signature_path), np.load(keep_path), width=width)
    files = {
        end: [Path(f"{stem}.{end}.npy") for stem in bands]
        for end in ("band_hashes", "band_rows")
    }
    files |= {"signatures": signatures, "hashes": hashes}
    passes = passes_for(
        sum(int(np.load(path).sum()) for path in keep), held_documents=held_documents
    )
    for band in range(PERMUTATIONS // width):
        for step in range(passes):
            part = Path(f"{out}.{band}.{step}")
            _similar_pairs(
                part, **files, band=band, step=step, passes=passes, threshold=threshold
            )
            pairs.append(Path(f"{part}.pairs.npy"))
    return _keep_longest(out, pairs=pairs, keep=keep, hashes=hashes, chars=chars)


def deduplicate(folder, shards, *, threshold=0.8, **options):
    """Run on shards of (content hash, chars, signature, kept); return the counts and the content hashes of what stays."""
    folder.mkdir(exist_ok=True)
    for number, rows in enumerate(shards):
        np.save(
            folder / f"{number}.hashes.npy",
            np.array([row[0] for row in rows], np.uint64),
        )
        np.save(
            folder / f"{number}.chars.npy", np.array([row[1] for row in rows], np.int64)
        )
        np.save(
            folder / f"{number}.signatures.npy",
            np.array([row[2] for row in rows], np.uint32).reshape(-1, PERMUTATIONS),
        )
        np.save(
            folder / f"{number}.old.npy", np.array([row[3] for row in rows], np.bool_)
        )
    files = {
        name: [folder / f"{number}.{end}.npy" for number in range(len(shards))]
        for name, end in {
            "hashes": "hashes",
            "chars": "chars",
            "signatures": "signatures",
            "keep": "old",
        }.items()
    }
    counts = found_near_duplicates(
        folder / "new", threshold=threshold, **files, **options
    )
    stays = set()
    for number, rows in enumerate(shards):
        keep = np.load(folder / f"new.{number:05d}.keep.npy")
        assert keep.dtype == np.bool_
        assert len(keep) == len(rows)
        stays |= {rows[row][0] for row in np.flatnonzero(keep)}
    for pair in (
        counts.examples
    ):  # which they are depends on the order; that they are right does not
        gone, instead = (
            shards[schemas.shard_of(doc)][schemas.row_of(doc)][0] for doc in pair
        )
        assert gone not in stays
        assert instead in stays
    assert bool(counts.examples) == bool(counts.near_duplicates)
    return counts.model_copy(update={"examples": ()}), stays


def test_the_longest_of_a_cluster_stays_and_of_equals_the_smallest_hash(tmp_path):
    draw = np.random.default_rng(0)
    first, second, third = fresh(draw), fresh(draw), fresh(draw)
    shards = [
        [
            (9, 100, first, True),
            (8, 120, variant(first, equal=120, draw=draw), True),
            (7, 50, second, True),
        ],
        [],
        [
            (6, 50, variant(second, equal=115, draw=draw), True),
            (5, 1, third, True),
            (4, 119, first, True),
        ],
    ]
    counts, stays = deduplicate(tmp_path, shards)
    assert stays == {8, 6, 5}
    assert counts == NearDuplicatesResult(near_duplicates=3, clusters=2)


def test_less_similar_documents_all_stay(tmp_path):
    draw = np.random.default_rng(0)
    first = fresh(draw)
    shards = [
        [
            (n, 10, variant(first, equal=equal, draw=draw), True)
            for n, equal in enumerate((128, 100, 90, 60))
        ]
    ]
    counts, stays = deduplicate(tmp_path, shards)
    assert stays == {0, 1, 2, 3}
    assert counts == NearDuplicatesResult(near_duplicates=0, clusters=0)


@pytest.mark.parametrize(
    ("equal", "stay"), [(PERMUTATIONS // 2, 1), (PERMUTATIONS // 2 - 1, 2)]
)
def test_a_pair_exactly_at_the_threshold_is_nearly_equal(tmp_path, equal, stay):
    draw = np.random.default_rng(2)
    one = fresh(draw)
    other = one.copy()
    other[equal:] ^= 1
    _, stays = deduplicate(
        tmp_path, [[(1, 10, one, True), (2, 20, other, True)]], threshold=0.5
    )
    assert len(stays) == stay


def test_the_threshold_is_a_choice(tmp_path):
    draw = np.random.default_rng(0)
    first = fresh(draw)
    shards = [
        [(1, 10, first, True), (2, 20, variant(first, equal=90, draw=draw), True)]
    ]
    assert deduplicate(tmp_path / "low", shards, threshold=0.7)[1] == {2}
    assert deduplicate(tmp_path / "high", shards, threshold=0.71)[1] == {1, 2}


def test_duplicates_of_duplicates_count(tmp_path):
    draw = np.random.default_rng(1)
    first = fresh(draw)
    second = variant(first, equal=108, draw=draw)
    third = variant(second, equal=108, draw=draw)
    assert (first == third).mean() < 0.8
    assert deduplicate(
        tmp_path, [[(1, 3, first, True), (2, 2, second, True), (3, 1, third, True)]]
    )[1] == {1}


def test_documents_dropped_before_neither_stay_nor_drop_others(tmp_path):
    draw = np.random.default_rng(0)
    first = fresh(draw)
    nothing = np.zeros(PERMUTATIONS, np.uint32)
    shards = [
        [(1, 99, nothing, False), (2, 5, first, True)],
        [(3, 98, nothing, False), (4, 4, first, True)],
    ]
    counts, stays = deduplicate(tmp_path, shards)
    assert stays == {2}
    assert counts.near_duplicates == 1


@settings(deadline=None, max_examples=15)
@given(
    seed=st.integers(0, 1000),
    shards=st.integers(1, 4),
    held=st.sampled_from([5, 9, 1000]),
)
def test_neither_sharding_nor_order_nor_memory_changes_what_stays(
    tmp_path_factory, seed, shards, held
):
    draw = np.random.default_rng(seed)
    rows = []
    for _ in range(6):
        first = fresh(draw)
        for _ in range(int(draw.integers(1, 5))):
            signature = variant(first, equal=int(draw.integers(96, 129)), draw=draw)
            rows.append(
                (
                    int(draw.integers(2**63)),
                    int(draw.integers(1, 4)),
                    signature,
                    bool(draw.random() < 0.9),
                )
            )
    folder = tmp_path_factory.mktemp("sharding")
    counts, stays = deduplicate(folder / "one", [rows])
    order = draw.permutation(len(rows))
    cuts = np.sort(draw.integers(0, len(rows), shards - 1))
    parts = [[rows[row] for row in part] for part in np.split(order, cuts)]
    assert deduplicate(folder / "many", parts, held_documents=held) == (counts, stays)
    assert len(stays) == sum(row[3] for row in rows) - counts.near_duplicates


def test_a_document_is_compared_with_the_one_before_it_where_the_first_of_a_band_differs(
    tmp_path,
):
    draw = np.random.default_rng(4)
    width = band_width(0.8)
    second, first = fresh(draw), fresh(draw)
    third = second.copy()
    third[width::width] += np.uint32(
        1
    )  # a value in every band but the first, which is all that the three share
    first[:width] = second[:width]
    shards = [[(1, 10, first, True), (2, 20, second, True), (3, 15, third, True)]]
    assert deduplicate(tmp_path, shards)[1] == {1, 2}


@pytest.mark.parametrize("held_bytes", [1, 400, 1 << 30])
def test_clusters_are_the_same_however_few_pairs_are_held(
    tmp_path, monkeypatch, held_bytes
):
    monkeypatch.setattr(deduplicate_module, "_HELD_PAIR_BYTES", held_bytes)
    draw, names, files = np.random.default_rng(3), {}, []
    for number in range(9):
        pairs = draw.integers(100, size=(int(draw.integers(0, 12)), 2))
        files.append(tmp_path / f"{number}.pairs.npy")
        np.save(files[-1], pairs)
        for one, other in pairs.tolist():
            merged = names.get(one, {one}) | names.get(other, {other})
            names |= dict.fromkeys(merged, merged)
    members, clusters = _connected(files)
    assert members.tolist() == sorted(names)
    found = {
        frozenset(members[clusters == cluster].tolist())
        for cluster in clusters.tolist()
    }
    assert found == {frozenset(cluster) for cluster in names.values()}
    assert len(found) > 3


def test_without_pairs_there_are_no_clusters(tmp_path):
    np.save(tmp_path / "none.npy", np.empty((0, 2), np.int64))
    for files in ([], [tmp_path / "none.npy"]):
        assert [len(column) for column in _connected(files)] == [0, 0]


def test_a_band_is_gone_through_in_as_many_ranges_as_memory_asks_for():
    assert [
        passes_for(documents, held_documents=4) for documents in (0, 4, 5, 8, 9)
    ] == [1, 1, 2, 2, 3]


def test_every_pair_above_the_threshold_is_found(tmp_path):
    draw = np.random.default_rng(3)
    rows = []
    for number in range(500):
        first = fresh(draw)
        rows += [
            (2 * number, 2, first, True),
            (2 * number + 1, 1, variant(first, equal=110, draw=draw), True),
        ]
    _, stays = deduplicate(tmp_path, [rows])
    assert stays == set(range(0, 1000, 2))


@pytest.mark.parametrize(
    ("threshold", "width"), [(0.5, 3), (0.7, 4), (0.8, 6), (0.9, 10), (1.0, 128)]
)
def test_bands_are_as_wide_as_finding_nearly_every_pair_allows(threshold, width):
    assert band_width(threshold) == width
    assert 1 - (1 - threshold**width) ** (PERMUTATIONS // width) >= 0.99


# _Signatures


def write_shard(stem, texts, keep=None):
    hashes = [content_hash(text.encode()) for text in texts]
    names = pa.array(["x"] * len(texts))
    with (
        pa.OSFile(f"{stem}.documents.arrow", "wb") as sink,
        pa.ipc.new_file(sink, DOCUMENTS) as writer,
    ):
        for start in range(0, len(texts), 4):
            columns = [
                pa.array(texts, pa.large_string()),
                pa.array(hashes, pa.uint64()),
                names,
                names,
            ]
            writer.write_batch(
                pa.record_batch([c.slice(start, 4) for c in columns], schema=DOCUMENTS)
            )
    np.save(
        f"{stem}.keep.npy",
        np.ones(len(texts), np.bool_) if keep is None else np.array(keep),
    )
    np.save(f"{stem}.hashes.npy", np.array(hashes, np.uint64))
    np.save(f"{stem}.chars.npy", np.array(list(map(len, texts)), np.int64))


def signatures_of(folder, texts, keep=None):
    write_shard(folder / "0", texts, keep)
    counts = _minhash_shard(
        folder / "0",
        documents=folder / "0.documents.arrow",
        keep=folder / "0.keep.npy",
        width=6,
    )
    return counts, np.load(folder / "0.signatures.npy")


@needs_rensa
def test_copies_with_a_few_words_changed_go_and_all_else_stays(tmp_path):
    draw = random.Random(0)
    texts = []
    for number in range(20):
        words = [f"w{draw.randrange(5000)}" for _ in range(300)]
        copy = [
            *words[:100],
            f"other{number}",
            *words[101:299],
        ]  # one word changed, the last dropped
        texts += [" ".join(words), " ".join(copy)]
    texts += ["short", "Short one", "?!", "...", "", "a b c d e", "a b c d f"]
    signatures_of(tmp_path, texts)
    found_near_duplicates(
        tmp_path / "out",
        signatures=[tmp_path / "0.signatures.npy"],
        keep=[tmp_path / "0.keep.npy"],
        hashes=[tmp_path / "0.hashes.npy"],
        chars=[tmp_path / "0.chars.npy"],
        threshold=0.8,
    )
    assert (
        np.load(tmp_path / "out.00000.keep.npy").tolist()
        == [True, False] * 20 + [True] * 7
    )


@needs_rensa
def test_signatures_estimate_the_jaccard_similarity_of_word_runs(tmp_path):
    words = [f"w{number}" for number in range(1004)]
    texts = [
        " ".join(words),
        " ".join(words[:804]),
        " ".join(f"x{number}" for number in range(1004)),
    ]
    counts, signatures = signatures_of(tmp_path, texts)
    assert counts == _MinhashResult(documents=3)
    assert (signatures[0] == signatures[1]).mean() == pytest.approx(
        0.8, abs=0.11
    )  # three standard errors
    assert (signatures[0] == signatures[2]).mean() < 0.05


@needs_rensa
def test_case_and_punctuation_do_not_matter_and_rows_not_kept_stay_empty(tmp_path):
    texts = [
        "One two, three four five six.",
        "one TWO three four: five six!",
        "one two three four five six",
    ]
    _, signatures = signatures_of(tmp_path, texts, keep=[True, True, False])
    assert np.array_equal(signatures[0], signatures[1])
    assert not signatures[2].any()


@needs_rensa
def test_the_signature_of_a_text_is_pinned(tmp_path):
    _, signatures = signatures_of(
        tmp_path, ["the quick brown fox jumps over the lazy dog"]
    )
    assert signatures[0, :4].tolist() == [
        3388038276,
        1318747122,
        3403878784,
        3256573413,
    ]


def test_without_rensa_the_cure_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rensa", None)
    with pytest.raises(RecipeError) as refused:
        signatures_of(tmp_path, ["text"])
    assert (refused.value.where, refused.value.value) == ("ingest.dedup", "minhash")
    assert "nextlong[dedup]" in refused.value.fix
