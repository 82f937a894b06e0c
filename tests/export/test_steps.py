"""Rows become files: which rows make one, and that blocks and runs beside each other leave no trace."""

import itertools
import json
import shutil
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.counted import counts_of
from tests.support.exported_runs import (
    breaches,
    change_json,
    exported,
    folder_of,
    parquet_rows,
    record_of,
)

import nextlong
from nextlong import pipeline, schemas
from nextlong.errors import NextlongError, PluginError, RecipeError
from nextlong.export import steps
from nextlong.export.formats.base import Options, format_of
from nextlong.export.steps import _read_rows, _shard_bounds
from nextlong.recipe import Export
from nextlong.runs import export as runs_export


def bounds_of(rows, room, form="jsonl"):
    """Return where shards of rows of the given tokens end, where a file has room for so many tokens."""
    index = np.zeros(len(rows), schemas.SEQUENCE_INDEX)
    index["length"] = rows
    return _shard_bounds(
        index,
        np.arange(len(rows) + 1),
        [],
        written=format_of(form),
        options=options(shard_bytes=4 * room),
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


@pytest.mark.parametrize(
    ("rows", "room", "bounds"),
    [
        ([4, 4, 4, 4, 4], 8, [0, 2, 5]),
        ([4, 4, 4], 1, [0, 3]),
        ([4, 4, 4, 4], 1, [0, 2, 4]),
        ([4], 8, [0, 1]),
        ([], 8, [0]),
    ],
)
def test_a_megatron_file_never_has_a_single_row_beside_others(rows, room, bounds):
    assert bounds_of(rows, room, form="megatron") == bounds


@given(rows=st.lists(st.integers(0, 50), max_size=30), room=st.integers(1, 80))
def test_megatron_files_hold_every_row_once_and_at_least_two(rows, room):
    bounds = bounds_of(rows, room, form="megatron")
    sizes = np.diff(bounds).tolist()
    assert sum(sizes) == len(rows)
    assert all(size >= min(2, len(rows)) for size in sizes)


def index_of(*runs):
    """A SEQUENCE_INDEX of all sequences of some runs, one of each run in turn."""
    places = [
        (number, part, place, run.recipe.compose.target_tokens)
        for number, run in enumerate(runs)
        for part, take in enumerate(run.sequences_per_part)
        for place in range(take)
    ]
    turns = [
        [own[0] for own in places[:n]].count(places[n][0]) for n in range(len(places))
    ]
    rows = [
        (*places[n], 0)
        for n in sorted(range(len(places)), key=lambda n: (turns[n], places[n][0]))
    ]
    index = np.array(
        [(run, part, place, length, key) for run, part, place, length, key in rows],
        schemas.SEQUENCE_INDEX,
    )
    assert len(np.flatnonzero(np.diff(index["run"]))) > 10 or len(runs) == 1
    return index


def options(shard_bytes):
    return Options(
        keys={},
        shard_bytes=shard_bytes,
        vocab_size=512,
        bos_id=None,
        eos_id=None,
        token_id=int,
    )


def fingerprint_of(run, **keys):
    """Return the fingerprint of the Parquet export with some keys of the recipe."""
    read = steps.read_steps(run.steps)
    exported_steps = steps.export_steps(Export(**keys), read, sequences="all")
    return exported_steps[-1].fingerprint


def test_exports_whose_files_differ_never_share_a_fingerprint(shared_run):
    run = nextlong.open(shared_run)
    changed = [
        {},
        {"compression": "none"},
        {"compression": "lz4"},
        {"compression": "snappy"},
        {"row_group_mb": 1},
        {"shard_mb": 1},
        {"boundaries": "document"},
        {"pad_documents_to": 16},
    ]
    fingerprints = [fingerprint_of(run, **keys) for keys in changed]
    assert len(set(fingerprints)) == len(changed)
    assert fingerprint_of(run, compression="zstd") == fingerprint_of(run)


@pytest.fixture
def runs(shared_run, shorter_run):
    return [nextlong.open(shared_run), nextlong.open(shorter_run)]


def test_small_blocks_give_the_rows_that_large_ones_give(runs, monkeypatch):
    index, origins = index_of(*runs), [run.files for run in runs]
    offsets = np.array([0, 2, 3, 7, len(index)])

    def rows():
        blocks = _read_rows(index, offsets, origins, wanted="texts")
        return [(block.input_ids.tolist(), block.texts.tolist()) for block in blocks]

    (large,) = rows()
    monkeypatch.setattr(steps, "_BLOCK_TOKENS", 5000)
    small = rows()
    assert len(small) > 2
    assert [token for ids, _ in small for token in ids] == large[0]
    assert [text for _, texts in small for text in texts] == large[1]


def test_rows_of_two_runs_hold_the_sequences_of_both(runs):
    index = index_of(*runs)
    (block,) = _read_rows(
        index, np.arange(len(index) + 1), [run.files for run in runs], wanted="spans"
    )
    assert block.texts.tolist() == []
    of_runs = [
        [sequence.input_ids.tolist() for sequence in run.sequences()] for run in runs
    ]
    left = [iter(own) for own in of_runs]
    assert block.input_ids.tolist() == [
        token for row in index for token in next(left[row["run"]])
    ]


def test_a_format_that_returns_no_result_is_named(runs, tmp_path, monkeypatch):
    np.save(tmp_path / "index.npy", index_of(runs[0]))
    np.save(tmp_path / "offsets.npy", np.arange(3))
    broken = replace(format_of("jsonl"), write=lambda *_: "rows")
    monkeypatch.setattr(steps, "format_of", lambda name: broken)
    with pytest.raises(PluginError, match="returns 'rows'"):
        steps._export_shard(
            tmp_path / "part",
            name="jsonl",
            rows=(0, 2),
            index=tmp_path / "index.npy",
            offsets=tmp_path / "offsets.npy",
            origins=[runs[0].files],
            options=options(1),
        )


def test_keys_of_the_recipe_for_formats_that_are_not_written_now_are_no_mistake(
    own_run,
):
    changed = {"compression": "lz4", "row_group_mb": 1.0}
    change_json(
        record_of(own_run), lambda record: record["recipe"]["export"].update(changed)
    )
    written = runs_export.export([own_run], formats=["mds"])
    assert (written.recipe.export.compression, written.recipe.export.row_group_mb) == (
        "auto",
        64.0,
    )
    kept = runs_export.export([own_run], formats=["mds", "parquet"]).recipe.export
    assert (kept.compression, kept.row_group_mb) == ("lz4", 1.0)


def test_a_token_that_should_end_documents_is_looked_for_before_anything_runs(
    shared_run, recipe_for, tmp_path
):
    tokenizer = nextlong.open(shared_run).steps["tokenizer"].file(".tokenizer.json")
    asked = [
        f"tokenizer={{source: {tokenizer}}}",
        "export.formats=[megatron]",
        "export.megatron_eod=nope",
    ]
    with pytest.raises(
        NextlongError, match=r"export\.megatron_eod='nope' is not in the tokenizer"
    ):
        pipeline.run(recipe_for(tmp_path / "run", *asked))
    assert list((tmp_path / "run").glob("[0-9]*")) == []
    with pytest.raises(
        NextlongError, match=r"export\.megatron_eod='nope' is not in the tokenizer"
    ):
        pipeline.run(
            recipe_for(tmp_path / "trained", "compose.method=standard", *asked[1:])
        )
    made = {path.name.split("-")[1] for path in (tmp_path / "trained").glob("[0-9]*")}
    assert made >= {"ingest", "chunk", "tokenizer"}
    assert made.isdisjoint(
        {"draft", "rows"}
    )  # what waits for the tokenizer; others may have begun beside it


T = 2048


def ids_by_name(rows):
    """Return the tokens of each sequence by its id, rows taken apart at their boundaries."""
    found = {}
    for row in rows:
        pieces = np.split(
            np.array(row["input_ids"]), np.cumsum(row["seq_lengths"])[:-1]
        )
        found |= dict(
            zip(
                row["sequence_id"].split(),
                (piece.tolist() for piece in pieces),
                strict=True,
            )
        )
    return found


def test_packed_rows_hold_whole_sequences_and_say_where_they_lie(own_run, shared_ids):
    done = exported(
        [own_run], formats=["parquet"], overrides=["export.pack=6144", "workers=1"]
    )
    rows = parquet_rows(done["parquet"].folder)
    assert [row["seq_lengths"] for row in rows] == [[T, T, T]] * 4
    assert [row["length"] for row in rows] == [3 * T] * 4
    assert ids_by_name(rows) == shared_ids
    spans = rows[0]["spans"]
    assert (spans[0]["token_start"], spans[-1]["token_end"]) == (0, 3 * T)
    assert all(a["token_end"] == b["token_start"] for a, b in pairwise(spans))
    assert (
        nextlong.open(own_run).exported("parquet")[0].parent == done["parquet"].folder
    )


def test_a_row_that_cannot_be_filled_is_short_and_counted(own_run, shared_ids):
    done = exported(
        [own_run], formats=["jsonl"], overrides=["export.pack=10240", "workers=1"]
    )
    (path,) = done["jsonl"].files(".jsonl")
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    assert [len(row["seq_lengths"]) for row in rows] == [5, 5, 2]
    documents, chunks = (
        {span[key] for row in rows for span in row["spans"]} - {-1}
        for key in ("doc_id", "chunk_id")
    )
    assert counts_of(done["rows"])[0]["train"] == {
        "rows": 3,
        "sequences": 12,
        "documents": len(documents),
        "tokens": 12 * T,
        "of_runs": [],
        "of_components": [],
        "short_rows": 1,
        "chunks": len(chunks),
        "chunks_in_train": 0,
    }
    texts = {
        sequence.id: sequence.text for sequence in nextlong.open(own_run).sequences()
    }
    assert rows[0]["text"] == "".join(
        texts[name] for name in rows[0]["sequence_id"].split()
    )


def test_a_split_parts_meta_documents_the_same_way_in_every_run(
    own_run, shorter_run, shared_ids
):
    split = ["export.validation=0.4", "workers=1"]
    done = exported([own_run], formats=["parquet"], overrides=split)
    train, validation = (
        ids_by_name(parquet_rows(done[name].folder))
        for name in ("parquet", "parquet-validation")
    )
    assert train
    assert validation
    assert train | validation == shared_ids
    held, read = (
        {
            span["chunk_id"]
            for row in parquet_rows(done[name].folder)
            for span in row["spans"]
        }
        - {-1}
        for name in ("parquet-validation", "parquet")
    )
    counted = counts_of(done["rows"])[0]["validation"]
    assert (counted["chunks"], counted["chunks_in_train"]) == (
        len(held),
        len(held & read),
    )
    assert held & read
    done = exported([shorter_run], formats=["parquet"], overrides=split)
    shorter = ids_by_name(parquet_rows(done["parquet-validation"].folder))
    common = (
        shared_ids.keys()
        & (shorter | ids_by_name(parquet_rows(done["parquet"].folder))).keys()
    )
    assert common
    assert all((name in validation) == (name in shorter) for name in common)


FORMATS = "export.formats=[parquet,jsonl,arrow,axolotl]"


@pytest.fixture(scope="module")
def bounded(recipe_for, started, tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("bounded") / "run"
    changes = [
        "compose.method=standard",
        "tokenizer.bos=<|endoftext|>",
        "export.boundaries=document",
        FORMATS,
    ]
    pipeline.run(recipe_for(started(run_dir), *changes))
    return run_dir


def read(run, name):
    return pq.read_table(sorted(folder_of(run, name).glob("*.parquet")))


def rows_of(run):
    return read(run, "parquet").to_pylist()


def test_a_row_is_divided_where_its_spans_change_document(bounded):
    rows = rows_of(bounded)
    for row in rows:
        whole = [span for span in row["spans"] if span["role"] == "document"]
        changes = [
            new["token_start"]
            for old, new in itertools.pairwise(whole)
            if old["doc_id"] != new["doc_id"]
        ]
        assert [0, *itertools.accumulate(row["seq_lengths"])] == [
            0,
            *changes,
            row["length"],
        ]
    assert any(len(row["seq_lengths"]) > 3 for row in rows)


def test_labels_begin_anew_at_each_document(bounded):
    labels = read(bounded, "axolotl").column("labels").to_pylist()
    for row, row_labels in zip(rows_of(bounded), labels, strict=True):
        starts = [0, *itertools.accumulate(row["seq_lengths"])][:-1]
        assert [
            place for place, label in enumerate(row_labels) if label == -100
        ] == starts


def test_verify_counts_the_documents_itself(bounded, tmp_path):
    assert breaches(bounded) == {}
    damaged = shutil.copytree(bounded, tmp_path / "run")
    (path,) = folder_of(damaged, "jsonl").glob("*.jsonl")
    first, *others = path.read_text().splitlines()
    row = json.loads(first)
    row["seq_lengths"] = [sum(row["seq_lengths"])]
    path.write_text("\n".join([json.dumps(row), *others]) + "\n")
    assert "seq_lengths is [2048], expected" in breaches(damaged)["jsonl rows"][0]


def test_extended_sequences_stay_one_document(recipe_for, own_run):
    pipeline.run(
        recipe_for(own_run, "export.boundaries=document", "export.formats=[parquet]")
    )
    assert {len(row["seq_lengths"]) for row in rows_of(own_run)} == {1}


def test_formats_that_mark_sequences_alone_refuse_it(recipe_for, tmp_path):
    with pytest.raises(
        RecipeError, match="boundaries is document but mds does not support it"
    ):
        recipe_for(
            tmp_path / "run", "export.boundaries=document", "export.formats=[mds]"
        )


@pytest.fixture(scope="module")
def padded(bounded, tmp_path_factory):
    """The same documents, padded to multiples of 8, beside the unpadded ones."""
    run = shutil.copytree(bounded, tmp_path_factory.mktemp("padded") / "run")
    runs_export.export(
        [run],
        formats=["parquet", "arrow"],
        overrides=["export.pad_documents_to=8", "workers=1"],
    )
    return run


def test_padded_rows_hold_the_documents_of_the_unpadded_ones(bounded, padded):
    rows = rows_of(padded)
    assert any(row["seq_lengths"] != row["seq_lengths_padded"] for row in rows)
    for row, plain in zip(rows, rows_of(bounded), strict=True):
        assert row["seq_lengths"] == plain["seq_lengths"]
        assert all(room % 8 == 0 for room in row["seq_lengths_padded"])
        assert row["length"] == len(row["input_ids"]) == sum(row["seq_lengths_padded"])
        ids, place = [], 0
        for length, room in zip(
            row["seq_lengths"], row["seq_lengths_padded"], strict=True
        ):
            ids += row["input_ids"][place : place + length]
            labels = row["labels"][place : place + room]
            assert labels == [-100, *row["input_ids"][place + 1 : place + length]] + [
                -100
            ] * (room - length)
            place += room
        assert ids == plain["input_ids"]
    with pa.ipc.open_stream(
        min(folder_of(padded, "arrow").glob("*.arrow")).read_bytes()
    ) as reader:
        columns = [
            name for name in reader.schema.names if name != "spans"
        ]  # scores are NaN
        assert reader.read_all().select(columns) == read(padded, "parquet").select(
            columns
        )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("input_ids", "input_ids[{padding}] is 7, expected 0"),
        ("labels", "labels[{padding}] is 7, expected -100"),
        ("seq_lengths_padded", "seq_lengths_padded is [7"),
    ],
)
def test_verify_composes_padded_rows_itself(padded, tmp_path, name, problem):
    assert breaches(padded) == {}
    damaged = shutil.copytree(padded, tmp_path / "run")
    path = min(folder_of(damaged, "parquet").glob("*.parquet"))
    table = pq.read_table(path)
    rows = table.to_pylist()
    padding = rows[0]["seq_lengths"][0] if name != "seq_lengths_padded" else 0
    assert rows[0]["seq_lengths_padded"][0] > rows[0]["seq_lengths"][0]
    rows[0][name][padding] = 7
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)
    (wrong,) = breaches(damaged)["parquet rows"]
    assert problem.format(padding=padding) in wrong


@pytest.mark.parametrize(
    "name", ["jsonl", "mds", "megatron", "olmo", "axolotl", "torchtitan"]
)
def test_formats_that_cannot_mark_padding_refuse_it(recipe_for, tmp_path, name):
    changes = [
        "export.pad_documents_to=8",
        "tokenizer.eos=<|endoftext|>",
        f"export.formats=[parquet,{name}]",
    ]
    formats = "parquet and arrow|arrow and parquet"
    with pytest.raises(
        RecipeError,
        match=f"pad_documents_to is 8 but {name} cannot mark padding; .* export only ({formats})",
    ):
        recipe_for(tmp_path / "run", *changes)


@pytest.mark.parametrize("multiple", [0, 1, -4])
def test_padding_is_to_a_multiple_of_two_or_more(recipe_for, tmp_path, multiple):
    with pytest.raises(RecipeError, match="export.pad_documents_to"):
        recipe_for(tmp_path / "run", f"export.pad_documents_to={multiple}")


def test_the_card_names_the_columns_of_padding(padded):
    card = (padded / "data" / "parquet" / "README.md").read_text("utf-8")
    assert "| `seq_lengths_padded` |" in card
    assert "| `labels` |" in card
