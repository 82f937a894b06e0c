"""TOKENS of a shard: the wanted chunks, in order, with the ids that the tokenizer itself gives."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from nextlong import schemas
from nextlong.stages import tokenize as stage
from nextlong.stages.chunk import chunk_shard, iter_chunk_texts
from nextlong.stages.fast_bpe import TextEncoder
from nextlong.stages.tokenize import tokenize_shard
from nextlong.stages.tokenizer import train_bpe

TEXTS = [f"It's document {number}: Zoë saw 東京.\nSecond line, {number**3} stars!\n\nEnd" for number in range(9)]
TEXTS[4] = "A name of a token <|endoftext|> in the text.\n"


@pytest.fixture
def shard(tmp_path):
    documents = tmp_path / "documents.arrow"
    with pa.OSFile(str(documents), "wb") as sink, pa.ipc.new_file(sink, schemas.DOCUMENTS) as writer:
        for first in range(0, len(TEXTS), 4):
            texts = TEXTS[first : first + 4]
            columns = {"text": texts, "content_hash": range(len(texts)), "source": texts, "source_id": texts}
            writer.write_batch(pa.RecordBatch.from_pydict(columns, schema=schemas.DOCUMENTS))
    np.save(tmp_path / "keep.npy", np.ones(len(TEXTS), bool))
    chunk_shard(
        tmp_path / "s", documents=documents, keep=tmp_path / "keep.npy", max_chars=32, length="slice", oversize="split"
    )
    train_bpe(TEXTS, vocab_size=320).save(str(tmp_path / "tokenizer.json"))
    return {
        "documents": documents,
        "chunks": tmp_path / "s.chunks.arrow",
        "tokenizer": tmp_path / "tokenizer.json",
        "rows": tmp_path / "rows.npy",
    }


def chunk_texts(shard):
    return [text for batch in iter_chunk_texts(shard["documents"], shard["chunks"]) for text in batch.texts]


def run(shard, out, rows):
    np.save(shard["rows"], np.array(rows, np.int64))
    counts = tokenize_shard(out, **shard)
    return counts, np.load(f"{out}.ids.npy", mmap_mode="r"), np.load(f"{out}.offsets.npy", mmap_mode="r")


def test_wanted_rows_in_order(shard, tmp_path):
    texts = chunk_texts(shard)
    assert len(texts) == 18
    rows = [0, 3, 4, 11, 17]
    counts, ids, offsets = run(shard, tmp_path / "out", rows)
    tokenizer = tokenizers.Tokenizer.from_file(str(shard["tokenizer"]))
    expected = [tokenizer.encode(texts[row]).ids for row in rows]
    assert [ids[start:end].tolist() for start, end in pairwise(offsets)] == expected
    assert (ids.dtype, offsets.dtype, offsets.shape) == (np.uint32, np.int64, (6,))
    assert counts == {
        "chunks": 5,
        "tokens": sum(map(len, expected)),
        "chars": sum(len(texts[row]) for row in rows),
        "fallback_chunks": 0,
        "mismatches": 0,
    }


def test_all_rows_decode_to_the_documents(shard, tmp_path):
    counts, ids, _ = run(shard, tmp_path / "out", range(len(chunk_texts(shard))))
    tokenizer = tokenizers.Tokenizer.from_file(str(shard["tokenizer"]))
    assert tokenizer.decode(ids.tolist(), skip_special_tokens=False) == "".join(TEXTS)
    assert counts["fallback_chunks"] == 1
    assert (ids == 0).sum() == 1


def test_no_rows(shard, tmp_path):
    counts, ids, offsets = run(shard, tmp_path / "out", [])
    assert (len(ids), offsets.tolist()) == (0, [0])
    assert counts == {"chunks": 0, "tokens": 0, "chars": 0, "fallback_chunks": 0, "mismatches": 0}


def test_ids_are_an_ordinary_npy_file(shard, tmp_path):
    run(shard, tmp_path / "out", [0, 1])
    with open(tmp_path / "out.ids.npy", "rb") as file:
        assert np.lib.format.read_magic(file) == (1, 0)
        shape, fortran_order, dtype = np.lib.format.read_array_header_1_0(file)
        assert file.tell() == 128
        rest = file.read()
    assert (len(shape), fortran_order, dtype) == (1, False, np.dtype("<u4"))
    assert len(rest) == 4 * shape[0] > 0


def test_the_encoder_is_read_once_a_process(shard, tmp_path):
    run(shard, tmp_path / "first", [0])
    shard["tokenizer"].unlink()
    run(shard, tmp_path / "second", [0])
    assert (tmp_path / "first.ids.npy").read_bytes() == (tmp_path / "second.ids.npy").read_bytes()


def test_a_shard_caught_in_a_difference_is_written_anew(shard, tmp_path):
    rows = range(len(chunk_texts(shard)))
    run(shard, tmp_path / "clean", rows)
    stage._encoder.cache_clear()
    encoder = stage._encoder(shard["tokenizer"])
    # Wrong ids for a piece of the first and of the last record batch, found in the last: the first is written by then.
    encoder._cutter._ids_of.__self__["8"] = np.array([7, 7], np.uint32).tobytes()
    encoder._is_checked = lambda text: encoder._encoded_texts >= 16
    counts, _, _ = run(shard, tmp_path / "caught", rows)
    assert counts["mismatches"] == 1
    for name in ("ids", "offsets"):
        assert (tmp_path / f"clean.{name}.npy").read_bytes() == (tmp_path / f"caught.{name}.npy").read_bytes()


def test_a_word_level_tokenizer_goes_the_reference_way(shard, tmp_path):
    words = tokenizers.Tokenizer(models.WordLevel({"[UNK]": 0, "Second": 5, "line": 7}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    shard["tokenizer"] = tmp_path / "words.json"
    second_line = next(row for row, text in enumerate(chunk_texts(shard)) if text.startswith("Second"))
    counts, ids, _ = run(shard, tmp_path / "out", [second_line])
    assert TextEncoder.from_file(tmp_path / "words.json").engine == "reference"
    assert ids[:3].tolist() == [5, 7, 0]
    assert counts["chunks"] == 1
