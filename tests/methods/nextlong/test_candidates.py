"""Candidates of a meta-document, in the order of each choice of negatives."""

import numpy as np
import pyarrow as pa
import pytest

from nextlong import schemas
from nextlong.methods.nextlong.candidates import Candidates, ordered_candidates, read_candidates
from nextlong.recipe.negatives import NEGATIVES
from stored_vectors import save_shards, unit_rows

SECOND = 1 << schemas.SHARD_BITS  # chunk 0 of shard 1
META = np.array([(1, 0xAB, 0, 2, 30)], schemas.META_DOCUMENTS)[0]  # chunks 0 and 1, of 10 and 20 characters


def write(path, schema, columns):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        writer.write_batch(pa.RecordBatch.from_pydict(dict(zip(schema.names, columns, strict=True)), schema=schema))
    return path


@pytest.fixture
def corpus(tmp_path):
    """Shards of 6 and 4 chunks, the n-th of 10 · (n + 1) characters, with a vector each."""
    chunks = []
    for shard, rows in enumerate((6, 4)):
        sizes = 10 * np.arange(1, rows + 1)
        ends = np.cumsum(sizes)
        columns = [np.zeros(rows), ends - sizes, ends, np.zeros(rows, bool)]
        chunks.append(write(tmp_path / f"{shard}.chunks.arrow", schemas.CHUNKS, columns))
    vectors = unit_rows(10)
    return {"chunks": chunks, "vectors": save_shards(tmp_path, vectors[:6], vectors[6:])}


RETRIEVED = Candidates(
    [np.array([2, 3, SECOND, SECOND + 1]), np.array([4, 5])],
    [np.array([0.9, 0.7, 0.5, 0.3], np.float32), np.array([0.8, 0.2], np.float32)],
    [np.array([30, 40, 10, 20]), np.array([50, 60])],
)


def ordered(corpus, negatives, *, pool=3, max_similarity=None, seed=0):
    return ordered_candidates(
        META,
        RETRIEVED,
        negatives=NEGATIVES[negatives],
        pool=pool,
        max_similarity=max_similarity,
        drafted_chars=120.0,
        rng=np.random.default_rng(seed),
        **corpus,
    )


def test_lists_are_divided_among_meta_documents_and_measured(corpus, tmp_path):
    lists = [[0, 1, 2], [[2, SECOND + 3], [3], [0, 1]], [[0.9, 0.7], [0.5], [0.4, 0.3]]]
    path = write(tmp_path / "candidates.arrow", schemas.CANDIDATES, lists)
    first, second = read_candidates(path, np.array([1, 2]), corpus["chunks"])
    assert [ids.tolist() for ids in first.ids] == [[2, SECOND + 3]]
    assert [chars.tolist() for chars in first.chars] == [[30, 40]]
    assert [ids.tolist() for ids in second.ids] == [[3], [0, 1]]
    assert second.scores[1] == pytest.approx([0.4, 0.3])


def test_the_nearest_come_as_they_were_retrieved(corpus):
    found = ordered(corpus, "top")
    for mine, theirs in zip(found, RETRIEVED, strict=True):
        assert [one.tolist() for one in mine] == [one.tolist() for one in theirs]


def test_of_a_pool_the_farthest_come_first_and_the_others_behind_it(corpus):
    found = ordered(corpus, "tail")
    assert [ids.tolist() for ids in found.ids] == [[SECOND, 3, 2, SECOND + 1], [5, 4]]
    assert [chars.tolist() for chars in found.chars] == [[10, 40, 30, 20], [60, 50]]


def test_a_pool_is_shuffled_by_the_seed_alone(corpus):
    drawn = {tuple(ordered(corpus, "random-retrieved", seed=seed).ids[0].tolist()) for seed in range(40)}
    assert {frozenset(ids[:3]) for ids in drawn} == {frozenset([2, 3, SECOND])}
    assert {ids[3] for ids in drawn} == {SECOND + 1}
    assert len(drawn) == 6  # every order of three


@pytest.mark.parametrize("negatives", ["top", "tail", "random-retrieved", "random-corpus"])
def test_none_is_nearer_than_the_most_that_is_allowed(corpus, negatives):
    found = ordered(corpus, negatives, max_similarity=0.1)
    assert all((scores <= 0.1).all() for scores in found.scores)
    assert all((scores <= 0.5).all() for scores in ordered(corpus, negatives, max_similarity=0.5).scores)


def test_random_chunks_are_of_other_documents_with_their_true_cosines(corpus):
    stored = np.concatenate([np.load(path) for path in corpus["vectors"]]).astype(np.float32)
    for seed in range(20):
        found = ordered(corpus, "random-corpus", seed=seed)
        for meta_chunk, (ids, scores, chars) in enumerate(zip(*found, strict=True)):
            assert len(set(ids.tolist())) == len(ids) == len(RETRIEVED.ids[meta_chunk])
            assert not {0, 1} & set(ids.tolist())
            rows = np.where(ids < SECOND, ids, ids - SECOND + 6)
            assert scores == pytest.approx(stored[rows] @ stored[meta_chunk], abs=1e-6)
            assert chars.tolist() == np.where(ids < SECOND, 10 * (ids + 1), 10 * (ids - SECOND + 1)).tolist()


def test_a_meta_chunk_repeats_itself_often_enough(corpus):
    found = ordered(corpus, "self-repeat")
    assert [set(ids.tolist()) for ids in found.ids] == [{0}, {1}]
    assert [int(chars.sum()) >= 60 for chars in found.chars] == [True, True]  # half of 120 each
    assert all((scores == 1).all() for scores in found.scores)


def test_what_will_not_serve_has_no_characters(corpus):
    found = RETRIEVED.emptied([np.array([False, True, False, False]), np.array([True, True])])
    assert [chars.tolist() for chars in found.chars] == [[30, 0, 10, 20], [0, 0]]
