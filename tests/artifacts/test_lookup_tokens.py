"""Random access to TOKENS: counts, places and copies by chunk id."""

import pickle

import numpy as np
import pytest

from nextlong.artifacts.lookup import TokenStore
from nextlong.errors import RunError


@pytest.fixture
def store(tmp_path):
    shards = [([1, 4], [[7, 8, 9], [5]]), ([], []), ([0, 2, 3], [[1], [], [2, 3]])]
    paths = {"rows": [], "offsets": [], "ids": []}
    for number, (rows, texts) in enumerate(shards):
        arrays = {
            "rows": np.array(rows, np.int64),
            "offsets": np.cumsum([0, *map(len, texts)]),
            "ids": np.array([token for text in texts for token in text], np.uint32),
        }
        for name, array in arrays.items():
            paths[name].append(tmp_path / f"{number}.{name}.npy")
            np.save(paths[name][-1], array)
    return TokenStore(**paths)


IDS = np.array([(2 << 32) + 3, 4, (2 << 32) + 2, 1, 1])


def test_a_file_that_takes_the_place_of_another_is_read_anew(tmp_path):
    paths = {name: tmp_path / f"{name}.npy" for name in ("rows", "offsets", "ids")}

    def written(ids):
        for name, array in (("rows", [0]), ("offsets", [0, len(ids)]), ("ids", ids)):
            np.save(tmp_path / "new.npy", np.array(array, np.uint32 if name == "ids" else np.int64))
            (tmp_path / "new.npy").replace(paths[name])
        return TokenStore(**{name: [path] for name, path in paths.items()})

    first = np.zeros(1, np.int64)
    for ids in ([7, 8, 9], [5, 6, 4], [1]):
        tokens = written(ids)
        starts, stops = tokens.bounds(first)
        assert tokens.ids(first, starts=starts, stops=stops)[0].tolist() == ids


def test_counts_follow_the_ids(store):
    assert store.counts(IDS).tolist() == [2, 1, 0, 3, 3]


def test_bounds_are_places_in_a_shards_ids(store):
    starts, stops = store.bounds(IDS)
    assert starts.tolist() == [1, 3, 1, 0, 0]
    assert stops.tolist() == [3, 4, 1, 3, 3]


def test_copy_into_takes_the_first_tokens_of_each_chunk(store):
    target = np.full(8, -1, np.int32)
    starts, _ = store.bounds(IDS)
    store.copy_into(
        target, chunk_ids=IDS, starts=starts, at=np.array([0, 2, 3, 3, 6]), lengths=np.array([2, 1, 0, 3, 2])
    )
    assert target.tolist() == [2, 3, 5, 7, 8, 9, 7, 8]


def test_ids_are_all_tokens_of_each_chunk(store):
    starts, stops = store.bounds(IDS)
    ids, offsets = store.ids(IDS, starts=starts, stops=stops)
    assert ids.tolist() == [2, 3, 5, 7, 8, 9, 7, 8, 9]
    assert offsets.tolist() == [0, 2, 3, 3, 6, 9]


@pytest.mark.parametrize("chunk", [2, 5, 1 << 32, 3 << 32])
def test_a_chunk_that_was_never_tokenized_was_put_there_by_an_altered_file(store, chunk):
    with pytest.raises(
        RunError, match="chunk that is not in the corpus is in a sequence but was never tokenized.*nextlong verify"
    ):
        store.counts(np.array([chunk]))


def test_a_store_travels_to_a_worker(store):
    assert pickle.loads(pickle.dumps(store)).counts(IDS).tolist() == [2, 1, 0, 3, 3]
