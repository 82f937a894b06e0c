"""Rows become files: which rows make one, and that blocks and runs beside each other leave no trace."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import nextlong
from exported_runs import change_json, record_of
from nextlong import pipeline, schemas
from nextlong.errors import NextlongError, PluginError
from nextlong.export import steps
from nextlong.export.formats.base import Options, format_of
from nextlong.export.steps import _read_rows, _shard_bounds
from nextlong.runs import export as runs_export


def bounds_of(rows, room):
    """Return where shards of rows of the given tokens end, where a file has room for so many tokens."""
    index = np.zeros(len(rows), schemas.SEQUENCE_INDEX)
    index["length"] = rows
    return _shard_bounds(
        index, np.arange(len(rows) + 1), [], made=format_of("jsonl"), options=options(shard_bytes=4 * room)
    )


def test_a_file_takes_as_many_rows_as_it_has_room_for_and_one_at_least():
    assert bounds_of([4, 4, 4, 30, 1, 1], 8) == [0, 2, 3, 4, 6]
    assert bounds_of([4, 4, 4, 30, 1, 1], 1000) == [0, 6]
    assert bounds_of([], 8) == [0]


@given(rows=st.lists(st.integers(0, 50), max_size=30), room=st.integers(1, 80))
def test_files_hold_every_row_once_and_none_could_take_one_more(rows, room):
    bounds = bounds_of(rows, room)
    assert bounds[0] == 0
    assert bounds[-1] == len(rows)
    for first, last in pairwise(bounds):
        held = rows[first:last]
        assert len(held) == 1 or (held and sum(held) <= room)
        if last < len(rows):
            assert sum(held) + rows[last] > room


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
            (block.input_ids.tolist(), texts) for block, texts in _read_rows(index, offsets, origins, wanted="texts")
        ]

    (large,) = rows()
    monkeypatch.setattr(steps, "_BLOCK_TOKENS", 5000)
    small = rows()
    assert len(small) > 2
    assert [token for ids, _ in small for token in ids] == large[0]
    assert [text for _, texts in small for text in texts] == large[1]


def test_rows_of_two_runs_hold_the_sequences_of_both(runs):
    index = index_of(*runs)
    ((block, texts),) = _read_rows(index, np.arange(len(index) + 1), [run.files for run in runs], wanted="spans")
    assert texts == []
    of_runs = [[sequence.input_ids.tolist() for sequence in run.sequences()] for run in runs]
    left = [iter(own) for own in of_runs]
    assert block.input_ids.tolist() == [token for row in index for token in next(left[row["run"]])]


def test_a_format_that_returns_no_result_is_named(runs, tmp_path, monkeypatch):
    np.save(tmp_path / "index.npy", index_of(runs[0]))
    np.save(tmp_path / "offsets.npy", np.arange(3))
    broken = replace(format_of("jsonl"), write=lambda *_: "rows")
    monkeypatch.setattr(steps, "format_of", lambda name: broken)
    with pytest.raises(PluginError, match="returns 'rows' from write, which must be its ShardResult"):
        steps._export_shard(
            tmp_path / "part",
            name="jsonl",
            rows=(0, 2),
            index=tmp_path / "index.npy",
            offsets=tmp_path / "offsets.npy",
            origins=[runs[0].files],
            options=options(1),
        )


def test_keys_of_the_recipe_for_formats_that_are_not_written_now_are_no_mistake(own_run):
    changed = {"compression": "lz4", "row_group_mb": 1.0}
    change_json(record_of(own_run), lambda record: record["recipe"]["export"].update(changed))
    written = runs_export.export([own_run], formats=["mds"])
    assert (written.recipe.export.compression, written.recipe.export.row_group_mb) == ("auto", 64.0)
    kept = runs_export.export([own_run], formats=["mds", "parquet"]).recipe.export
    assert (kept.compression, kept.row_group_mb) == ("lz4", 1.0)


def test_a_token_that_should_end_documents_is_looked_for_before_anything_runs(shared_run, recipe_for, tmp_path):
    tokenizer = nextlong.open(shared_run).steps["tokenizer"].file(".tokenizer.json")
    asked = [f"tokenizer={{source: {tokenizer}}}", "export.formats=[megatron]", "export.megatron_eod=nope"]
    with pytest.raises(NextlongError, match=r"export\.megatron_eod='nope' is not a token of the tokenizer"):
        pipeline.run(recipe_for(tmp_path / "run", *asked))
    assert list((tmp_path / "run").glob("[0-9]*")) == []
    with pytest.raises(NextlongError, match=r"export\.megatron_eod='nope' is not a token of the tokenizer"):
        pipeline.run(recipe_for(tmp_path / "trained", *asked[1:]))
    made = {path.name.split("-")[1] for path in (tmp_path / "trained").glob("[0-9]*")}
    assert made >= {"ingest", "chunk", "tokenizer"}
    assert made.isdisjoint({"draft", "rows"})  # what waits for the tokenizer; others may have begun beside it
