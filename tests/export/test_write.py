"""Rows become files: which rows make one, and that blocks and runs beside each other leave no trace."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from nextlong import schemas
from nextlong.errors import PluginError
from nextlong.export import write
from nextlong.export.formats.base import Options, format_of
from nextlong.export.write import Shard, divide_into_shards, read_rows, shards_of


def test_a_file_takes_as_many_rows_as_it_has_room_for_and_one_at_least():
    rows = np.array([4, 4, 4, 30, 1, 1])
    assert shards_of(rows, shard_bytes=8) == [
        Shard(0, 4, 0, 2),
        Shard(1, 4, 2, 3),
        Shard(2, 4, 3, 4),
        Shard(3, 4, 4, 6),
    ]
    assert shards_of(rows, shard_bytes=1000) == [Shard(0, 1, 0, 6)]
    assert shards_of(np.array([], np.int64), shard_bytes=8) == []


@given(rows=st.lists(st.integers(0, 50), max_size=30), room=st.integers(1, 80))
def test_files_hold_every_row_once_and_none_could_take_one_more(rows, room):
    shards = shards_of(np.array(rows, np.int64), shard_bytes=room)
    assert [place for shard in shards for place in range(shard.first, shard.last)] == list(range(len(rows)))
    assert [(shard.number, shard.total) for shard in shards] == [(place, len(shards)) for place in range(len(shards))]
    for shard in shards:
        held = rows[shard.first : shard.last]
        assert len(held) == 1 or sum(held) <= room
        if shard.last < len(rows):
            assert sum(held) + rows[shard.last] > room


def test_sequences_of_several_runs_are_counted_run_by_run():
    assert write._order(np.array([0, 0, 1, 0, 1, 1], np.int32)) == [(0, 0, 2), (1, 0, 1), (0, 2, 3), (1, 1, 3)]


def index_of(*runs):
    """A SEQUENCE_INDEX of all sequences of some runs, one of each run in turn."""
    places = [
        (number, part, place, run.recipe.compose.target_tokens)
        for number, run in enumerate(runs)
        for part, take in enumerate(run.sequences_per_part)
        for place in range(take)
    ]
    turns = [[own[0] for own in places[:n]].count(places[n][0]) for n in range(len(places))]
    rows = [(*places[n], 0) for n in sorted(range(len(places)), key=lambda n: (turns[n], places[n][0]))]
    index = np.array(
        [(run, part, place, length, key) for run, part, place, length, key in rows], schemas.SEQUENCE_INDEX
    )
    assert len(np.flatnonzero(np.diff(index["run"]))) > 10 or len(runs) == 1
    return index


def options(shard_bytes):
    return Options(keys={}, shard_bytes=shard_bytes, vocab_size=512, bos_id=None, eos_id=None, token_id=int)


@pytest.fixture
def runs(shared_run, shorter_run):
    return [nextlong.open(shared_run), nextlong.open(shorter_run)]


def test_small_blocks_give_the_rows_that_large_ones_give(runs, monkeypatch):
    index, origins = index_of(*runs), [run.files for run in runs]
    offsets = np.array([0, 2, 3, 7, len(index)])

    def rows():
        return [
            (block.input_ids.tolist(), texts) for block, texts in read_rows(index, offsets, origins, wanted="texts")
        ]

    (large,) = rows()
    monkeypatch.setattr(write, "_BLOCK_TOKENS", 5000)
    small = rows()
    assert len(small) > 2
    assert [token for ids, _ in small for token in ids] == large[0]
    assert [text for _, texts in small for text in texts] == large[1]


def test_rows_of_two_runs_hold_the_sequences_of_both(runs):
    index = index_of(*runs)
    ((block, texts),) = read_rows(index, np.arange(len(index) + 1), [run.files for run in runs], wanted="spans")
    assert texts == []
    of_runs = [[sequence.input_ids.tolist() for sequence in run.sequences()] for run in runs]
    left = [iter(own) for own in of_runs]
    assert block.input_ids.tolist() == [token for row in index for token in next(left[row["run"]])]


def test_a_format_without_a_rule_of_its_own_has_files_of_so_many_bytes(runs):
    index = index_of(runs[0])
    offsets = np.arange(len(index) + 1)
    shards = divide_into_shards(index, offsets, [runs[0].files], name="jsonl", options=options(3 * 2048 * 4))
    assert [(shard.first, shard.last) for shard in shards] == [(0, 3), (3, 6), (6, 9), (9, 12)]


def test_a_format_that_returns_no_result_is_named(runs, tmp_path, monkeypatch):
    np.save(tmp_path / "index.npy", index_of(runs[0]))
    np.save(tmp_path / "offsets.npy", np.arange(3))
    broken = replace(format_of("jsonl"), write=lambda *_: "rows")
    monkeypatch.setattr(write, "format_of", lambda name: broken)
    with pytest.raises(PluginError, match="returns 'rows' from write, which must be its ShardResult"):
        write.export_shard(
            tmp_path / "part",
            name="jsonl",
            shard=Shard(0, 1, 0, 2),
            index=tmp_path / "index.npy",
            offsets=tmp_path / "offsets.npy",
            origins=[runs[0].files],
            options=options(1),
        )
