"""Rows and exports of every format and split, single and packed, are sound as written and found out when altered."""

import json
import shutil
import struct
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import check_names
from tests.support.counted import total
from tests.support.exported_runs import (
    EOD,
    FORMATS,
    SEQUENCES,
    TOKENS,
    breaches,
    change_json,
    folder_of,
    outcomes_of,
    record_of,
)

from nextlong import pipeline
from nextlong.artifacts import variant_records
from nextlong.export.arrange import packed as packed_rows
from nextlong.runs import export as runs_export
from nextlong.schemas import SEQUENCE_INDEX
from nextlong.verify.checks import verify
from nextlong.verify.exports import _row_problems, _SplitRows
from nextlong.verify.files import check_files
from nextlong.verify.run_files import StoredRun
from nextlong.verify.sequences import check_sequences


@pytest.fixture(scope="session")
def finished(exported_run):
    return exported_run


def test_every_format_passes_as_written(exported_run):
    outcomes = outcomes_of(exported_run)
    assert breaches(exported_run) == {}
    assert {check: outcome.checked for check, outcome in outcomes.items()} == {
        check_names.ROWS_ONCE: SEQUENCES,
        **{f"{name} rows": SEQUENCES for name in FORMATS},
    }
    assert {outcome.result for outcome in outcomes.values()} == {"pass"}


def test_packed_rows_and_validation_splits_pass_beside_the_rows_of_another_export(
    packed_run,
):
    outcomes = outcomes_of(packed_run)
    assert breaches(packed_run) == {}
    assert outcomes[check_names.SPLITS_APART].checked == SEQUENCES
    assert outcomes[check_names.ROWS_ONCE].checked == 2 * SEQUENCES
    assert outcomes["axolotl rows"].checked == SEQUENCES
    held_out = outcomes["megatron-validation rows"].checked
    assert held_out + outcomes["megatron rows"].checked == SEQUENCES
    assert outcomes["mds-validation rows"].checked == -(-held_out // 2)
    assert [outcome.examples for outcome in check_files(StoredRun(packed_run))] == [
        [],
        [],
    ]


def test_a_validation_split_of_other_rows_than_train_is_no_longer_the_runs(packed):
    runs_export.export([packed], formats=["parquet"], overrides=["workers=1"])
    assert "parquet-validation rows" not in outcomes_of(packed)
    assert not breaches(packed)


def change_parquet(folder, change):
    path = min(folder.glob("*.parquet"))
    table = pq.read_table(path)
    rows = change(table.to_pylist())
    pq.write_table(pa.Table.from_pylist(rows, schema=table.schema), path)


def change_arrow(folder, change):
    path = min(folder.glob("*.arrow"))
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = reader.read_all()
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(
            pa.Table.from_pylist(change(table.to_pylist()), schema=table.schema)
        )


def change_jsonl(folder, change):
    path = min(folder.glob("*.jsonl"))
    rows = change(
        [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


CHANGE = {
    "parquet": change_parquet,
    "axolotl": change_parquet,
    "arrow": change_arrow,
    "jsonl": change_jsonl,
}


def change_all(run, change):
    """Change the rows of each format; return what each check that found a breach says."""
    for name, changed in CHANGE.items():
        changed(folder_of(run, name), change)
    found = breaches(run)
    assert found.keys() == {f"{name} rows" for name in CHANGE}
    return {name: found[f"{name} rows"] for name in CHANGE}


def test_dropped_doubled_and_swapped_rows(run):
    for name, told in change_all(run, lambda rows: rows[:-1]).items():
        assert told == [f"{name} row {SEQUENCES - 1} is missing"]
    for name, told in change_all(run, lambda rows: [rows[0], *rows]).items():
        assert told[0].startswith(f"{name} row 1: ")
    for name, told in change_all(
        run, lambda rows: [rows[2], rows[1], *rows[3:]]
    ).items():
        assert told[0].startswith(f"{name} row 0: ")
        assert outcomes_of(run)[f"{name} rows"].checked == SEQUENCES - 1


def test_a_row_too_many(run):
    found = change_all(run, lambda rows: [*rows, rows[-1]])
    assert all(text.startswith("1 rows more") for (text,) in found.values())


def in_row(number, change):
    """Return a change of one row that `change` alters in place."""

    def changed(rows):
        change(rows[number])
        return rows

    return changed


ALTERED = [  # the rows of a format from the second on, and what is said of each
    (
        "parquet",
        lambda row: row["input_ids"].__setitem__(TOKENS + 1, 600),
        f"input_ids[{TOKENS + 1}] is 600",
    ),
    (
        "parquet",
        lambda row: row.update(seq_lengths=[511, 513]),
        "seq_lengths is [511, 513], expected [512, 512]",
    ),
    (
        "parquet",
        lambda row: row.update(method="quest"),
        "method is 'quest', expected 'nextlong'",
    ),
    (
        "arrow",
        lambda row: row.update(domain="law"),
        "domain is 'law', expected 'small'",
    ),
    (
        "arrow",
        lambda row: row["spans"][-1].update(token_end=9),
        "token_end is 9, expected ",
    ),
    (
        "arrow",
        lambda row: row["spans"][0].update(char_end=1, source_id="x"),
        "spans[0].source_id is 'x'",
    ),
    ("jsonl", lambda row: row.update(text="§" + row["text"][1:]), "its text is '§"),
    ("jsonl", lambda row: row.update(sequence_id="x"), "sequence_id is 'x'"),
    ("jsonl", lambda row: row["spans"].pop(), "spans, expected"),
]


def test_altered_packed_rows(packed):
    for place, (name, change, _) in enumerate(ALTERED):
        CHANGE[name](folder_of(packed, name), in_row(1 + place % 3, change))
    found = breaches(packed)
    assert found.keys() == {f"{name} rows" for name, *_ in ALTERED}
    for place, (name, _, problem) in enumerate(ALTERED):
        told = [
            one
            for one in found[f"{name} rows"]
            if one.startswith(f"{name} row {1 + place % 3}: ")
        ]
        assert problem in "".join(told)
    assert "spans[0].char_end is 1" in "".join(found["arrow rows"])


def mds_shard(folder):
    """Return the first shard's path and the offsets of its samples."""
    path = min(folder.glob("*.mds"))
    data = path.read_bytes()
    (count,) = struct.unpack_from("<I", data)
    return path, struct.unpack_from(f"<{count + 1}I", data, 4)


def poke(path, place, values):
    data = bytearray(path.read_bytes())
    data[place : place + len(values)] = values
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["mds", "prolong"])
def test_an_altered_id_boundary_and_domain_of_mds_samples(packed, name):
    path, offsets = mds_shard(folder_of(packed, name))
    # A sample: three sizes, "small", the shape of the indices, their values, the shape
    # of the ids, their values, the length.
    domain = offsets[1] + 12
    indices, ids = domain + 5 + 3, domain + 5 + 3 + 16 + 3
    poke(path, ids + 4 * 700, struct.pack("<I", 600))
    poke(path, indices + 4, struct.pack("<2I", 511, 511))
    poke(path, domain, b"smell")
    poke(path, offsets[3] - 8, struct.pack("<q", 1000))
    (found,) = breaches(packed).values()
    assert found[2].startswith(f"{name} row 1: input_ids[700] is 600, expected ")
    assert [*found[:2], *found[3:]] == [
        f"{name} row 1: domain is 'smell', expected 'small'",
        f"{name} row 1: indices is [[0, 511], [511, 1024]], expected [[0, 512], [512, 1024]]",
        f"{name} row 2: length is 1000, expected 1024",
    ]


def test_swapped_mds_samples(run):
    path, offsets = mds_shard(folder_of(run, "mds"))
    data = path.read_bytes()
    first, second = (data[start:stop] for start, stop in pairwise(offsets[:3]))
    poke(path, offsets[0], second + first)
    assert [example.partition(": ")[0] for example in breaches(run)["mds rows"]] == [
        "mds row 0",
        "mds row 1",
    ]


def change_lengths(folder, change):
    path = folder / "part-00000.idx"
    index = bytearray(path.read_bytes())
    (count,) = struct.unpack_from("<Q", index, 18)
    lengths = np.frombuffer(index, "<i4", count, 34).copy()
    change(lengths)
    struct.pack_into(f"<{count}i", index, 34, *lengths.tolist())
    struct.pack_into(
        f"<{count}q",
        index,
        34 + 4 * count,
        *(2 * (np.cumsum(lengths) - lengths)).tolist(),
    )
    path.write_bytes(index)


def test_an_altered_id_boundary_and_end_of_megatron_documents(run):
    folder = folder_of(run, "megatron")
    eod = StoredRun(run).tokenizer.token_to_id(EOD)
    ids = np.memmap(folder / "part-00000.bin", np.uint16, "r+")
    assert ids[TOKENS] == eod
    ids[TOKENS], ids[TOKENS + 3] = 600, 600
    ids.flush()
    first, second = breaches(run)["megatron rows"]
    assert first == f"megatron row 0: input_ids[{TOKENS}] is 600, expected {eod}"
    assert second.startswith("megatron row 1: input_ids[2] is 600, expected ")
    change_lengths(
        folder, lambda lengths: lengths.__iadd__([1, -1] + [0] * (SEQUENCES - 2))
    )
    assert (
        breaches(run)["megatron rows"][0]
        == f"megatron row 0: {TOKENS + 2} ids, expected {TOKENS + 1}"
    )


def test_a_format_that_the_record_lacks(run):
    change_json(record_of(run), lambda record: record["steps"].pop("mds"))
    (example,) = breaches(run)["mds rows"]
    assert "asks for mds" in example


def test_exports_that_others_took_the_place_of_are_still_verified(run):
    plain = folder_of(run, "parquet")
    runs_export.export(
        [run], formats=["parquet"], overrides=["export.pack=1024", "workers=1"]
    )
    assert folder_of(run, "parquet") != plain
    outcome = outcomes_of(run)[f"{plain.name} rows"]
    assert (outcome.result, outcome.checked) == ("pass", SEQUENCES)
    change_parquet(plain, in_row(2, lambda row: row["input_ids"].__setitem__(7, 600)))
    assert (
        f"{plain.name} row 2: input_ids[7] is 600"
        in breaches(run)[f"{plain.name} rows"][0]
    )
    assert any(
        f"{plain.name}/part-00000.parquet has" in told
        for told in check_files(StoredRun(run))[1].examples
    )


def test_the_exports_of_every_variant_are_verified_with_the_run(run, recipe_for):
    sizes = [
        "compose.sequences=3",
        "compose.target_tokens=256",
        "compose.min_meta_chunks=2",
        "export.formats=[mds]",
    ]
    other = variant_records.find(run).name
    pipeline.run(recipe_for(run, *sizes, "workers=1"))
    outcomes = {outcome.check: outcome for outcome in verify(run, sample=0)}
    assert {
        check: outcome.examples
        for check, outcome in outcomes.items()
        if outcome.breaches
    } == {}
    assert outcomes["mds rows"].checked == 3
    assert outcomes[f"{other}: parquet rows"].checked == SEQUENCES
    folder = run / variant_records.find(f"{run}@{other}").steps["parquet"]
    change_parquet(folder, in_row(2, lambda row: row["input_ids"].__setitem__(7, 600)))
    found = {
        outcome.check: outcome.examples
        for outcome in verify(run, sample=0)
        if outcome.breaches
    }
    assert found.keys() == {f"{other}: hashes", f"{other}: parquet rows"}
    assert "parquet row 2: input_ids[7] is 600" in found[f"{other}: parquet rows"][0]


def test_torchtitans_rows_pass_as_written_and_are_known_when_altered(titan):
    assert breaches(titan) == {}
    held_out = outcomes_of(titan)["torchtitan-validation rows"].checked
    assert 0 < held_out < outcomes_of(titan)["torchtitan rows"].checked
    (sequences, *_) = check_sequences(StoredRun(titan))
    assert sequences.checked
    assert not sequences.breaches  # of TOKENS + 1 each
    change_parquet(
        folder_of(titan, "torchtitan"), in_row(1, lambda row: row["input_ids"].pop())
    )
    change = in_row(0, lambda row: row["input_ids"].__setitem__(5, 600))
    change_parquet(folder_of(titan, "torchtitan-validation"), change)
    change_parquet(
        folder_of(titan, "torchtitan"),
        in_row(2, lambda row: row.update(seq_lengths=[row["seq_lengths"][0]])),
    )
    found = breaches(titan)
    assert found["torchtitan-validation rows"][0].startswith(
        "torchtitan-validation row 0: input_ids[5] is 600, expected"
    )
    assert "torchtitan row 1: 1,025 ids, expected 1,026" in found["torchtitan rows"]
    assert (
        "torchtitan row 2: seq_lengths is [513], expected [513, 513]"
        in found["torchtitan rows"]
    )


def test_altered_axolotl_rows(run):
    problems = {
        "input_ids[7] is 600, expected": lambda row: row["input_ids"].__setitem__(
            7, 600
        ),
        "labels[7] is 600, expected": lambda row: row["labels"].__setitem__(7, 600),
        "labels[7] is -100, expected": lambda row: row["labels"].__setitem__(7, -100),
        "expected -100": lambda row: row["labels"].__setitem__(0, row["input_ids"][0]),
        "attention_mask[7] is 0, expected 1": lambda row: row[
            "attention_mask"
        ].__setitem__(7, 0),
    }
    for number, change in enumerate(problems.values()):
        change_parquet(folder_of(run, "axolotl"), in_row(number, change))
    for number, (problem, told) in enumerate(
        zip(problems, breaches(run)["axolotl rows"], strict=True)
    ):
        assert told.startswith(f"axolotl row {number}: ")
        assert problem in told
    change_parquet(
        folder_of(run, "axolotl"),
        lambda rows: [rows[-1] | {"attention_mask": [1] * 511}, *rows[1:]],
    )
    assert "511 attention_mask, expected 512" in "".join(breaches(run)["axolotl rows"])


def test_a_megatron_index_of_another_version(run):
    path = folder_of(run, "megatron") / "part-00000.idx"
    index = bytearray(path.read_bytes())
    index[9:17] = (7).to_bytes(8, "little")
    path.write_bytes(index)
    assert "version 7" in breaches(run)["megatron rows"][0]


def test_megatron_documents_without_the_end_that_the_recipe_asks_for(run):
    path = folder_of(run, "megatron") / "manifest.json"
    change_json(path, lambda manifest: manifest["config"].update(megatron_eod=None))
    assert (
        breaches(run)["megatron rows"][0]
        == f"megatron row 0: {TOKENS + 1} ids, expected {TOKENS}"
    )
    change_json(
        path, lambda manifest: manifest["config"].update(megatron_eod="<|nothing|>")
    )
    assert "'<|nothing|>', " in breaches(run)["megatron rows"][0]


def test_an_index_of_mds_that_lies(run):
    problems = {
        "shard.00000.mds has 12 samples, index.json says 3": lambda shard: shard.update(
            samples=3
        ),
        "bytes, index.json says 9": lambda shard: shard["raw_data"].update(bytes=9),
        "names shard.00001.mds in place of": lambda shard: shard["raw_data"].update(
            basename="shard.00001.mds"
        ),
        "has size_limit 8000000, index.json says 1": lambda shard: shard.update(
            size_limit=1
        ),
        "zip_data": lambda shard: shard.pop("zip_data"),
    }
    path = folder_of(run, "mds") / "index.json"
    sound = path.read_text()
    for problem, change in problems.items():
        path.write_text(sound)
        change_json(path, lambda index: change(index["shards"][0]))  # noqa: B023
        (wrong,) = breaches(run)["mds rows"]
        assert "row 0 " in wrong
        assert problem in wrong


def test_a_blend_that_lies(run):
    for text, problem in (
        (
            "1 part-00000\n",
            f"part-00000.bin has {SEQUENCES * (TOKENS + 1):,} tokens, blend.txt says 1",
        ),
        (
            "6156 part-00001\n",
            "blend.txt names part-00001.bin in place of part-00000.bin",
        ),
        ("", "blend.txt names 0 files, but there are 1"),
    ):
        (folder_of(run, "megatron") / "blend.txt").write_text(text)
        ((name, (wrong,)),) = breaches(run).items()
        assert name == "megatron rows"
        assert wrong.endswith(problem)


def test_megatron_documents_cut_off(run):
    path = folder_of(run, "megatron") / "part-00000.bin"
    path.write_bytes(path.read_bytes()[:-2])
    assert "index lists" in breaches(run)["megatron rows"][0]


def test_what_load_from_disk_reads_must_be_what_was_written(run):
    folder = folder_of(run, "arrow")
    change_json(
        folder / "dataset_info.json",
        lambda info: info["features"]["length"].update(dtype="int64"),
    )
    assert "dataset_info.json" in breaches(run)["arrow rows"][0]
    change_json(
        folder / "state.json",
        lambda state: state["_data_files"].append(state["_data_files"][0]),
    )
    assert "state.json names 2" in breaches(run)["arrow rows"][0]


def test_files_and_columns_too_many_or_too_few(run):
    folder = folder_of(run, "parquet")
    shutil.copy(folder / "part-00000.parquet", folder / "part-00001.parquet")
    assert "part-00001.parquet is" in breaches(run)["parquet rows"][0]
    (folder_of(run, "jsonl") / "part-00000.jsonl").unlink()
    assert "such file" in breaches(run)["jsonl rows"][0]
    path = folder_of(run, "axolotl") / "part-00000.parquet"
    pq.write_table(pq.read_table(path, columns=["input_ids", "labels"]), path)
    assert "['input_ids', 'labels']" in breaches(run)["axolotl rows"][0]


def test_rows_that_are_gone(packed):
    shutil.rmtree(
        next(
            packed.glob(
                "*-rows-"
                + json.loads(
                    (folder_of(packed, "axolotl") / "manifest.json").read_text()
                )["inputs"]["rows"]
            )
        )
    )
    found = breaches(packed)
    assert found.pop(check_names.ROWS_ONCE)
    assert "axolotl rows" in found
    assert all("are missing" in told for (told,) in found.values())


def change_rows(run, change, split="train"):
    """Alter index and offsets of a split of the recorded rows; `change` gets both and returns both."""
    paths = [
        folder_of(run, "rows") / f"part-00000.{split}.{kind}.npy"
        for kind in ("index", "offsets")
    ]
    for path, array in zip(paths, change(*map(np.load, paths)), strict=True):
        np.save(path, array)


def row_breaches(run):
    return breaches(run)["rows hold each sequence once"]


def with_field(field, at, value):
    def change(index, offsets):
        index[field][at] = value
        return index, offsets

    return change


def test_rows_of_wrong_sequences_lengths_and_keys(run):
    change_rows(run, with_field("length", 3, 511))
    assert "sequence 3 is 511, expected 512" in row_breaches(run)[0]
    change_rows(run, with_field("length", 3, 512))
    change_rows(run, with_field("key", 3, 5))
    assert "sequence 3 is 0000000000000005, expected " in row_breaches(run)[0]


def test_a_sequence_twice_and_one_in_no_row(run):
    def change(index, offsets):
        index[1] = index[0]
        return index, offsets

    change_rows(run, change)
    found = "\n".join(row_breaches(run))
    assert "rows 2 times" in found
    assert "manifest records 0" in found
    assert "sequence 1 is" in found
    assert len(breaches(run)) == 1 + len(
        FORMATS
    )  # and every export has another second row


def test_a_sequence_that_is_not_of_the_data_set(run):
    change_rows(run, with_field("place", 0, 1000))
    assert "sequence 1000 of part 0" in row_breaches(run)[0]


def test_rows_that_are_swapped(run):
    change_rows(
        run, lambda index, offsets: (index[[1, 0, *range(2, SEQUENCES)]], offsets)
    )
    assert row_breaches(run)[0].endswith("before with 1")


def test_rows_packed_too_full_or_not_full_enough(packed):
    change_rows(packed, lambda index, offsets: (index, np.delete(offsets, 1)))
    assert "row 0 has 2,048 tokens, " in row_breaches(packed)[0]
    change_rows(
        packed,
        lambda index, offsets: (index, np.concatenate([[0, 1, 2, 3, 4], offsets[2:]])),
    )
    found = "\n".join(row_breaches(packed))
    assert "rows 0 and 1 have 512 and 512 tokens, " in found
    assert "manifest records {'rows'" in found


def test_offsets_that_are_none(run):
    change_rows(run, lambda index, offsets: (index, offsets[:-1]))
    assert "divide 12 sequences" in row_breaches(run)[0]


def test_a_sequence_of_validation_in_train(packed):
    held_out = np.load(folder_of(packed, "rows") / "part-00000.validation.index.npy")

    def change(index, offsets):
        index[0] = held_out[0]
        return index, offsets

    change_rows(packed, change)
    (found,) = breaches(packed)["train and validation apart"]
    number = f"{held_out['key'][0]:016x}"
    assert f"document {number}, " in found


@pytest.fixture
def parted(exported_run, tmp_path):
    """A copy divided by chunk too, to damage: some sequences share a chunk with validation and are in neither split."""
    run_dir = Path(shutil.copytree(exported_run, tmp_path / "parted"))
    asked = ["export.validation=0.4", "export.shared_chunks=leave-out", "workers=1"]
    done = runs_export.export([run_dir], formats=["axolotl"], overrides=asked).done
    assert total(done["rows"], "left_out")
    assert len(read_index(run_dir, "train"))
    return run_dir


def read_index(run, split):
    return np.load(folder_of(run, "rows") / f"part-00000.{split}.index.npy")


def test_what_shares_a_chunk_is_left_out_and_nothing_else(parted):
    assert breaches(parted) == {}
    drawn = np.load(
        min(parted.glob("*-rows-*/part-00000.train.index.npy"))
    )  # undivided, of the run itself
    train, validation = read_index(parted, "train"), read_index(parted, "validation")
    left_out, *_ = np.flatnonzero(~np.isin(drawn, np.concatenate([train, validation])))
    (kept,) = np.flatnonzero(drawn == train[-1])

    def change(index, offsets):
        index[-1] = drawn[left_out]
        return index, offsets

    change_rows(parted, change)
    found = breaches(parted)["train and validation apart"]
    assert len(found) == 2
    assert any(f"sequence {left_out} of train" in example for example in found)
    assert any(f"sequence {kept} is left" in example for example in found)


def test_a_split_that_keeps_shared_chunks_leaves_nothing_out(parted):
    path = folder_of(parted, "rows") / "manifest.json"
    change_json(path, lambda manifest: manifest["config"].update(shared_chunks="keep"))
    assert row_breaches(parted)[0].endswith("no row")


@given(st.lists(st.integers(1, 100), min_size=1, max_size=60))
def test_rows_packed_best_fit_are_sound_whatever_the_lengths(lengths):
    index = np.zeros(len(lengths), SEQUENCE_INDEX)
    index["length"], index["place"] = lengths, np.arange(len(lengths))
    split = _SplitRows(*packed_rows(index, row_tokens=100))
    assert list(_row_problems(split, 100, split.index["place"].astype(np.int64))) == []
