"""Exports of every format, single and packed, are sound as written and found out when altered."""

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

import nextlong
from nextlong import pipeline
from nextlong.formats import arrow, jsonl, mds, megatron, parquet
from nextlong.schemas import packed
from nextlong.stages.resolve import resolve
from nextlong.steps import finished as finished_run
from nextlong.verify.artefacts import Artefacts
from nextlong.verify.exports import check_exports
from random_rows import joined, rows_of

SEQUENCES, TOKENS = 5, 512
EOD = 3


@pytest.fixture(scope="module")
def finished(recipe_for, tmp_path_factory):
    """A run of five sequences without exports, and these sequences resolved; read-only."""
    run_dir = tmp_path_factory.mktemp("exports") / "run"
    options = [f"compose.sequences={SEQUENCES}", f"compose.target_tokens={TOKENS}", "compose.min_meta_chunks=2"]
    pipeline.run(recipe_for(run_dir, *options))
    run = nextlong.open(run_dir)
    blocks = [
        block
        for path, take in zip(run.steps["compose"].files(".sequences.arrow"), run.sequences_per_part, strict=True)
        for block in resolve(
            path,
            take=take,
            corpus=run.corpus,
            tokens=finished_run.token_store(run.steps),
            special=finished_run.special_ids(run.steps),
            tokenizer=run.tokenizer,
        )
    ]
    return run, joined(blocks)


def write_shard(name, folder, blocks, run, **shard):
    stem = folder / f"part-{shard['shard']:05}"
    if name == "arrow":
        return arrow.write(stem, blocks, **shard)
    if name == "mds":
        return mds.write(stem, blocks, **shard, size_limit=1 << 20, compression="zstd")
    if name == "megatron":
        return megatron.write(stem, blocks, **shard, vocab_size=512, eod=EOD)
    if name == "parquet":
        return {"rows": parquet.write(Path(f"{stem}.parquet"), blocks, row_group_bytes=1)}
    special = run.special_texts
    return {"rows": jsonl.write(Path(f"{stem}.jsonl"), blocks, text_of=run.corpus.texts, special_text=special)}


def export(run_dir, finished, name, row_offsets, *, rows=None):
    """Write the sequences, joined to rows, or the first of these, as two shards into a copy of the run."""
    run, block = finished
    shutil.copytree(run.path, run_dir)
    folder = run_dir / f"99-{name}-0123456789ab"
    folder.mkdir()
    shards = rows_of([packed(block, np.array(row_offsets))])[:rows], []
    parts = []
    for shard, blocks in enumerate(shards):
        before = set(folder.iterdir())
        counts = write_shard(name, folder, blocks, run, shard=shard, shards=2)
        parts.append({"files": {path.name: {} for path in set(folder.iterdir()) - before}, "counts": counts})
    if name in ("arrow", "mds", "megatron"):
        {"arrow": arrow, "mds": mds, "megatron": megatron}[name].close(folder, [part["counts"] for part in parts])
    (folder / "manifest.json").write_text(json.dumps({"parts": parts, "inputs": {}, "fingerprint": "0123456789ab"}))
    record = json.loads((run_dir / "run.json").read_text())
    record["steps"][name] = folder.name
    record["recipe"]["export"]["formats"] = [name]
    (run_dir / "run.json").write_text(json.dumps(record))
    return folder


def check(run_dir):
    (outcome,) = check_exports(Artefacts(run_dir))
    return outcome


FORMATS = ["parquet", "arrow", "mds", "megatron", "jsonl"]


@pytest.mark.parametrize("row_offsets", [[0, 1, 2, 3, 4, 5], [0, 2, 3, 5]], ids=["single", "packed"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_sound_export_passes(finished, tmp_path, name, row_offsets):
    export(tmp_path / "run", finished, name, row_offsets)
    outcome = check(tmp_path / "run")
    assert (outcome.examples, outcome.checked, outcome.result) == ([], SEQUENCES, "pass")


@pytest.mark.parametrize("name", FORMATS)
def test_rows_too_few_and_too_many_are_found(finished, tmp_path, name):
    export(tmp_path / "few", finished, name, [0, 2, 3, 5], rows=2)
    assert f"{name} row {3 if name == 'megatron' else 2} is missing" in check(tmp_path / "few").examples[0]
    export(tmp_path / "many", finished, name, [0, 2, 3, 5])
    record = json.loads((tmp_path / "many" / "run.json").read_text())
    record["sequences_per_part"][SEQUENCES - 1] = 0
    (tmp_path / "many" / "run.json").write_text(json.dumps(record))
    says = "1 rows more than" if name == "megatron" else f"{name} row 2 says that it holds 2 sequences, only 1"
    assert says in check(tmp_path / "many").examples[0]


def alter_arrow(folder, change):
    path = folder / "data-00000-of-00002.arrow"
    with pa.ipc.open_stream(path.read_bytes()) as reader:
        table = reader.read_all()
    rows = table.to_pylist()
    change(rows[0])
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, schema=table.schema))


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda row: row["input_ids"].__setitem__(TOKENS + 1, 400), f"row 0: input_ids[{TOKENS + 1}] is 400"),
        (lambda row: row.update(seq_lengths=[1, 1023]), "row 0: seq_lengths is [1, 1023], should be [512, 512]"),
        (lambda row: row.update(domain="law"), "row 0: domain is 'law', should be 'small'"),
        (lambda row: row["spans"][-1].update(token_end=9), "token_end is 9, should be 1024"),
    ],
)
def test_an_altered_arrow_row(finished, tmp_path, change, problem):
    alter_arrow(export(tmp_path / "run", finished, "arrow", [0, 2, 3, 5]), change)
    outcome = check(tmp_path / "run")
    assert outcome.breaches == 1
    assert problem in outcome.examples[0]


def test_an_altered_megatron_id_and_boundary(finished, tmp_path):
    folder = export(tmp_path / "run", finished, "megatron", [0, 2, 5])
    ids = np.memmap(folder / "part-00000.bin", np.uint16, "r+")
    assert ids[TOKENS] == EOD
    ids[TOKENS] = 4
    ids.flush()
    assert check(tmp_path / "run").examples == [f"megatron row 0: input_ids[{TOKENS}] is 4, should be {EOD}"]
    ids[TOKENS] = EOD
    index = bytearray((folder / "part-00000.idx").read_bytes())
    struct.pack_into("<2i", index, 34, TOKENS, TOKENS + 2)
    struct.pack_into("<2q", index, 34 + 4 * SEQUENCES, 0, 2 * TOKENS)
    (folder / "part-00000.idx").write_bytes(index)
    assert check(tmp_path / "run").examples[0] == f"megatron row 0: {TOKENS} ids, should be {TOKENS + 1}"


def test_an_altered_mds_index(finished, tmp_path):
    folder = export(tmp_path / "run", finished, "mds", [0, 2, 5])
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["samples"] = 1
    (folder / "index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="shard.00000.mds.zstd has 2 samples, index.json says 1"):
        check(tmp_path / "run")


def test_an_mds_row_with_other_boundaries_and_another_domain(finished, tmp_path):
    _, block = finished
    folder = export(tmp_path / "run", finished, "mds", [0, 2, 5])
    rows = packed(block, np.array([0, 2, 5]))
    rows.document_lengths[:2] += [-1, 1]
    rows.domains[1] = "law"
    try:
        options = {"size_limit": 1 << 20, "compression": "zstd"}
        counts = [mds.write(folder / "part", own, shard=n, shards=2, **options) for n, own in enumerate([[rows], []])]
    finally:
        rows.document_lengths[:2] -= [-1, 1]  # the arrays are the fixture's
    mds.close(folder, counts)
    assert check(tmp_path / "run").examples == [
        "mds row 0: indices is [[0, 511], [511, 1024]], should be [[0, 512], [512, 1024]]",
        "mds row 1: domain is 'law', should be 'small'",
    ]
