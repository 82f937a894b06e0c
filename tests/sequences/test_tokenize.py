"""TOKENS of a shard: the wanted chunks, in order, with the ids that the tokenizer itself gives."""

import math
import shutil
from itertools import pairwise
from types import SimpleNamespace

import fastokens
import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tests.support.counted import total
from tests.support.spacing_tokenizers import made
from tokenizers import models, pre_tokenizers

from nextlong import pipeline, schemas
from nextlong.artifacts.corpus_files import iter_chunk_texts
from nextlong.artifacts.sequence_files import read_tokenizer
from nextlong.corpus.chunk import _chunk_shard
from nextlong.engine.runner import open_done
from nextlong.engine.step import Artifact, Step
from nextlong.errors import RunError
from nextlong.sequences import tokenize as stage
from nextlong.sequences.tokenize import (
    TextEncoder,
    TokensResult,
    _list_referenced_chunks,
    _RequestedRows,
    _tokenize_shards,
    tokenize_shard,
    tokens_step,
)
from nextlong.sequences.tokenizer import train_bpe

TEXTS = [
    f"It's document {number}: Zoë saw 東京.\nSecond line, {number**3} stars!\n\nEnd"
    for number in range(9)
]
TEXTS[4] = "A name of a token <|endoftext|> in the text.\n"


@pytest.fixture
def shard(tmp_path):
    documents = tmp_path / "documents.arrow"
    with (
        pa.OSFile(str(documents), "wb") as sink,
        pa.ipc.new_file(sink, schemas.DOCUMENTS) as writer,
    ):
        for first in range(0, len(TEXTS), 4):
            texts = TEXTS[first : first + 4]
            columns = {
                "text": texts,
                "content_hash": range(len(texts)),
                "source": texts,
                "source_id": texts,
            }
            writer.write_batch(
                pa.RecordBatch.from_pydict(columns, schema=schemas.DOCUMENTS)
            )
    np.save(tmp_path / "keep.npy", np.ones(len(TEXTS), bool))
    _chunk_shard(
        tmp_path / "s",
        documents=documents,
        keep=tmp_path / "keep.npy",
        max_chars=32,
        length="slice",
        oversize="split",
    )
    train_bpe(TEXTS, vocab_size=320).save(str(tmp_path / "tokenizer.json"))
    return {
        "documents": documents,
        "chunks": tmp_path / "s.chunks.arrow",
        "tokenizer": tmp_path / "tokenizer.json",
        "rows": tmp_path / "rows.npy",
    }


def chunk_texts(shard):
    return [
        text
        for batch in iter_chunk_texts(shard["documents"], shard["chunks"])
        for text in batch.texts
    ]


def run(shard, out, rows, *, engine="auto", known=()):
    np.save(shard["rows"], np.array(rows, np.int64))
    tokenizer, *paths = (
        shard["tokenizer"],
        shard["documents"],
        shard["chunks"],
        shard["rows"],
    )
    wanted = [_RequestedRows(0, *paths, known=known)]
    counts = _tokenize_shards(out, requested=wanted, tokenizer=tokenizer, engine=engine)
    return counts, *(
        np.load(f"{out}.00000.{name}.npy", mmap_mode="r") for name in ("ids", "offsets")
    )


def test_wanted_rows_in_order(shard, tmp_path):
    texts = chunk_texts(shard)
    assert len(texts) == 18
    rows = [0, 3, 4, 11, 17]
    counts, ids, offsets = run(shard, tmp_path / "out", rows)
    tokenizer = read_tokenizer(shard["tokenizer"])
    expected = [tokenizer.encode(texts[row]).ids for row in rows]
    assert [ids[start:end].tolist() for start, end in pairwise(offsets)] == expected
    assert (ids.dtype, offsets.dtype, offsets.shape) == (np.uint32, np.int64, (6,))
    assert counts == TokensResult(
        chunks=5,
        tokens=sum(map(len, expected)),
        chars=sum(len(texts[row]) for row in rows),
        copied_chunks=0,
        mismatches=0,
    )


def test_all_rows_decode_to_the_documents(shard, tmp_path):
    _, ids, _ = run(shard, tmp_path / "out", range(len(chunk_texts(shard))))
    tokenizer = tokenizers.Tokenizer.from_file(str(shard["tokenizer"]))
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == "".join(TEXTS)
    assert (ids == 0).sum() == 0  # a special token's name in the text is text


def test_no_rows(shard, tmp_path):
    counts, ids, offsets = run(shard, tmp_path / "out", [])
    assert (len(ids), offsets.tolist()) == (0, [0])
    assert counts == TokensResult(
        chunks=0, tokens=0, chars=0, copied_chunks=0, mismatches=0
    )


def test_ids_are_an_ordinary_npy_file(shard, tmp_path):
    run(shard, tmp_path / "out", [0, 1])
    with open(tmp_path / "out.00000.ids.npy", "rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        assert file.tell() == 128
        rest = file.read()
    assert (len(shape), fortran_order, dtype) == (1, False, np.dtype("<u4"))
    assert len(rest) == 4 * shape[0] > 0


def test_shards_of_one_task_are_written_apart(shard, tmp_path):
    rows = [tmp_path / "first.npy", tmp_path / "second.npy"]
    np.save(rows[0], np.array([0, 3]))
    np.save(rows[1], np.array([4, 11, 17]))
    paths = shard["documents"], shard["chunks"]
    wanted = [_RequestedRows(7, *paths, rows[0]), _RequestedRows(8, *paths, rows[1])]
    together = _tokenize_shards(
        tmp_path / "two", requested=wanted, tokenizer=shard["tokenizer"], engine="auto"
    )
    whole, ids, offsets = run(shard, tmp_path / "one", [0, 3, 4, 11, 17])
    assert together == whole
    assert np.array_equal(
        np.concatenate([np.load(tmp_path / f"two.0000{n}.ids.npy") for n in (7, 8)]),
        ids,
    )
    assert np.array_equal(
        np.load(tmp_path / "two.00008.offsets.npy") + offsets[2], offsets[2:]
    )


@pytest.mark.parametrize("worth_an_entry", [0, stage._CHARS_WORTH_AN_ENTRY])
def test_every_engine_writes_the_same_bytes(
    shard, tmp_path, monkeypatch, worth_an_entry
):
    monkeypatch.setattr(stage, "_CHARS_WORTH_AN_ENTRY", worth_an_entry)
    rows = range(len(chunk_texts(shard)))
    for name, engine in (("reference", "reference"), ("other", "auto")):
        counts, *_ = run(shard, tmp_path / name, rows, engine=engine)
        assert counts.mismatches == 0
    for kind in ("ids", "offsets"):
        made, right = (
            tmp_path / f"{name}.00000.{kind}.npy" for name in ("other", "reference")
        )
        assert made.read_bytes() == right.read_bytes()


@pytest.fixture
def wrong_ids(shard, monkeypatch):
    """Let fastokens give the ids of another tokenizer; return how many of the first 16 texts have other ids then."""
    other = train_bpe(TEXTS[:2], vocab_size=300)
    wrong = fastokens.Tokenizer.from_json_str(other.to_str())
    monkeypatch.setattr(
        stage,
        "fastokens",
        SimpleNamespace(Tokenizer=SimpleNamespace(from_json_str=lambda _: wrong)),
    )
    monkeypatch.setattr(stage, "_CHARS_WORTH_AN_ENTRY", 0)
    monkeypatch.setattr(stage, "_verdicts", {})
    stage._kept.clear()
    reference = read_tokenizer(shard["tokenizer"])
    other.encode_special_tokens = True
    yield sum(
        reference.encode(text).ids != other.encode(text).ids
        for text in chunk_texts(shard)[:16]
    )
    stage._kept.clear()


def test_a_fastokens_that_gives_other_ids_on_trial_is_not_taken(
    shard, tmp_path, wrong_ids
):
    assert wrong_ids > 0
    assert run(shard, tmp_path / "out", range(18))[0].mismatches == 0


def test_each_task_counts_its_own_differences(shard, tmp_path, wrong_ids, monkeypatch):
    monkeypatch.setattr(stage, "_trial_texts", lambda _: [])
    assert run(shard, tmp_path / "first", range(18))[0].mismatches == wrong_ids > 0
    assert run(shard, tmp_path / "second", range(18))[0].mismatches == wrong_ids
    assert run(shard, tmp_path / "third", [])[0].mismatches == 0


def known_rows(shard, folder, rows):
    folder.mkdir()
    run(shard, folder / "t", rows)
    np.save(folder / "rows.npy", np.array(rows, np.int64))
    return (
        folder / "rows.npy",
        folder / "t.00000.offsets.npy",
        folder / "t.00000.ids.npy",
    )


@pytest.mark.parametrize(
    ("earlier", "copied"),
    [
        ([[]], 0),
        ([[1, 5]], 1),
        ([[0, 3, 4], [4, 11, 16]], 4),
        ([range(18)], 5),
        ([[0, 3], [], [4, 11, 17]], 5),
    ],
)
@pytest.mark.parametrize("rows_at_a_time", [2, 4096])
def test_rows_known_before_are_copied_and_the_bytes_the_same(
    shard, tmp_path, monkeypatch, earlier, copied, rows_at_a_time
):
    monkeypatch.setattr(stage, "_COPIED_ROWS", rows_at_a_time)
    known = [
        known_rows(shard, tmp_path / f"earlier-{number}", rows)
        for number, rows in enumerate(earlier)
    ]
    rows = [0, 3, 4, 5 if copied == 1 else 11, 17]
    counts, *_ = run(shard, tmp_path / "anew", rows)
    folder = tmp_path / "result"
    folder.mkdir()
    assert run(shard, folder / "out", rows, known=known)[0] == counts.model_copy(
        update={"copied_chunks": copied}
    )
    assert sorted(path.name for path in folder.iterdir()) == [
        "out.00000.ids.npy",
        "out.00000.offsets.npy",
    ]
    for name in ("ids", "offsets"):
        made, anew = (
            folder / f"out.00000.{name}.npy",
            tmp_path / f"anew.00000.{name}.npy",
        )
        assert made.read_bytes() == anew.read_bytes()


def test_a_known_row_is_not_encoded_again(shard, tmp_path):
    rows_path, offsets_path, ids_path = known_rows(shard, tmp_path / "earlier", [3, 4])
    np.save(ids_path, np.full(len(np.load(ids_path)), 9, np.uint32))
    _, ids, offsets = run(
        shard, tmp_path / "out", [0, 3], known=[(rows_path, offsets_path, ids_path)]
    )
    assert set(ids[offsets[1] :].tolist()) == {9}
    assert set(ids[: offsets[1]].tolist()) != {9}


def test_the_ids_of_a_whole_shard_serve_any_of_its_rows(shard, tmp_path):
    paths = {name: shard[name] for name in ("documents", "chunks", "tokenizer")}
    counts, lengths = tokenize_shard(tmp_path / "all", **paths, engine="auto")
    texts = chunk_texts(shard)
    assert (counts.chunks, counts.chars) == (len(texts), sum(map(len, texts)))
    assert lengths.tolist() == np.diff(np.load(tmp_path / "all.offsets.npy")).tolist()
    rows = [0, 3, 4, 17]
    anew, *_ = run(shard, tmp_path / "anew", rows)
    known = [(None, tmp_path / "all.offsets.npy", tmp_path / "all.ids.npy")]
    copied, *_ = run(shard, tmp_path / "copied", rows, known=known)
    assert copied == anew.model_copy(update={"copied_chunks": 4})
    for name in ("ids", "offsets"):
        first, second = (
            (tmp_path / f"{stem}.00000.{name}.npy").read_bytes()
            for stem in ("anew", "copied")
        )
        assert first == second


def test_a_word_level_tokenizer_goes_the_reference_way(shard, tmp_path):
    words = tokenizers.Tokenizer(
        models.WordLevel({"[UNK]": 0, "Second": 5, "line": 7}, unk_token="[UNK]")
    )
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    shard["tokenizer"] = tmp_path / "words.json"
    second_line = next(
        row for row, text in enumerate(chunk_texts(shard)) if text.startswith("Second")
    )
    counts, ids, _ = run(shard, tmp_path / "out", [second_line])
    assert (
        TextEncoder(read_tokenizer(tmp_path / "words.json")).expect(math.inf)
        == "reference"
    )
    assert ids[:3].tolist() == [5, 7, 0]
    assert counts.chunks == 1


# the step


def run_at_another_length(recipe_for, run_dir):
    """Run with another length; return the TOKENS of that."""
    before = set(run_dir.glob("*-tokens-*"))
    pipeline.run(recipe_for(run_dir, "compose.target_tokens=1024"))
    (folder,) = set(run_dir.glob("*-tokens-*")) - before
    return open_done("tokens", folder)


def test_another_length_copies_what_an_intact_earlier_one_tokenized(
    recipe_for, own_run, tmp_path
):
    harmed = shutil.copytree(own_run, tmp_path / "harmed")
    copied = run_at_another_length(recipe_for, own_run)
    next(harmed.glob("*-tokens-*/*.ids.npy")).write_bytes(b"")
    anew = run_at_another_length(recipe_for, harmed)
    assert 0 < total(copied, "copied_chunks") <= total(copied, "chunks")
    assert total(anew, "copied_chunks") == 0
    for suffix in (".ids.npy", ".offsets.npy"):
        pairs = list(zip(copied.files(suffix), anew.files(suffix), strict=True))
        assert [first.read_bytes() for first, _ in pairs] == [
            second.read_bytes() for _, second in pairs
        ]


@pytest.mark.parametrize("name", ["llama2", "byte-level"])
def test_no_chunks_have_no_ids(name):
    ids, lengths = TextEncoder(made(name), engine="reference").encode_chunks([], [])
    assert (len(ids), len(lengths)) == (0, 0)


@pytest.mark.parametrize("method", ["standard", "quest"])
def test_a_method_of_whole_documents_encodes_no_chunk_twice(
    recipe_for, started, tmp_path, method
):
    run_dir = started(tmp_path / "run")
    done = pipeline.run(recipe_for(run_dir, f"compose.method={method}"))
    assert 0 < total(done["tokens"], "chunks") == total(done["tokens"], "copied_chunks")
    chunks = total(done["chunk"], "chunks")
    assert total(done["lengths"], "chunks") == chunks >= total(done["tokens"], "chunks")


def test_another_tokenizer_copies_nothing(recipe_for, own_run):
    before = set(own_run.glob("*-tokens-*"))
    pipeline.run(recipe_for(own_run, "tokenizer.engine=reference"))
    (folder,) = set(own_run.glob("*-tokens-*")) - before
    made, (kept,) = open_done("tokens", folder), before
    assert total(made, "copied_chunks") == 0
    for path in kept.glob("*.npy"):
        assert (folder / path.name).read_bytes() == path.read_bytes()


def test_differences_stop_the_run_and_name_the_tasks(tmp_path):
    inputs = [
        Step(name, 1, {}, (), lambda done: [])
        for name in ("ingest", "chunk", "tokenizer", "referenced_chunks")
    ]
    step = tokens_step(*inputs, engine="auto")
    encoded = TokensResult(
        chunks=9, tokens=30, chars=90, copied_chunks=0, mismatches=0
    ).model_dump()
    parts = [{"counts": encoded | {"mismatches": count}} for count in (0, 3, 0, 1)]
    step.check(Artifact("tokens", tmp_path, {"parts": parts[:1]}))
    with pytest.raises(
        RunError,
        match=r"\(3 of task 1, 1 of task 3\); .* --set tokenizer\.engine=reference",
    ):
        step.check(Artifact("tokens", tmp_path, {"parts": parts}))


SHARDS = (5, 0, 3)  # chunks of each
IDS = [
    shard << schemas.SHARD_BITS | row
    for shard, rows in enumerate(SHARDS)
    for row in range(rows)
]


def write(path, schema, batches):
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def draft(ids):
    row = {name: [0] for name in schemas.DRAFTS.names} | {
        "shortage": [""],
        "sequence_id": ["s"],
        "layout": ["extended"],
    }
    lists = {
        field.name: [[0] * len(ids)]
        for field in schemas.DRAFTS
        if pa.types.is_list(field.type)
    }
    columns = row | lists | {"chunk_id": [ids]}
    return pa.record_batch(
        [pa.array(columns[field.name], field.type) for field in schemas.DRAFTS],
        schemas.DRAFTS,
    )


@given(
    files=st.lists(
        st.lists(st.lists(st.sampled_from(IDS), max_size=6), max_size=4), max_size=3
    ),
    limit=st.none() | st.integers(0, 8),
)
def test_the_chunks_of_the_first_drafts_are_listed_once_by_shard(
    tmp_path_factory, files, limit
):
    folder = tmp_path_factory.mktemp("named")
    one_column = pa.schema([("start", pa.int64())])
    chunks = [
        write(
            folder / f"{shard}.chunks.arrow",
            one_column,
            [pa.record_batch([pa.array(range(rows), pa.int64())], one_column)],
        )
        for shard, rows in enumerate(SHARDS)
    ]
    drafts = [
        write(folder / f"{number}.drafts.arrow", schemas.DRAFTS, map(draft, held))
        for number, held in enumerate(files)
    ]
    result = _list_referenced_chunks(
        folder / "out", drafts=drafts, chunks=chunks, limit=limit
    )
    taken = [ids for held in files for ids in held][:limit]
    named = {one for ids in taken for one in ids}
    assert result.drafts == sum(result.take) == len(taken)
    assert result.chunks == len(named)
    found = [
        np.load(folder / f"out.{shard:05d}.rows.npy") for shard in range(len(SHARDS))
    ]
    assert [
        shard << schemas.SHARD_BITS | row
        for shard, rows in enumerate(found)
        for row in rows.tolist()
    ] == sorted(named)
