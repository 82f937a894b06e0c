"""JSONL rows of hand-made sequences."""

import json
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from tests.support.random_rows import options

from nextlong.artifacts.blocks import Resolved, span_texts
from nextlong.export.formats import jsonl

TEXTS = {5: "meta\n", 7: "né🎉gative", 8: "third"}
SPECIAL = {3: "\n", 4: "<s>", 5: "</s>"}


def texts_of(ids):
    found = np.empty(len(ids), object)
    found[:] = [TEXTS[chunk] for chunk in ids.tolist()]
    return found


def files(text_of):
    return SimpleNamespace(corpus=SimpleNamespace(texts=text_of), special_texts=SPECIAL)


@pytest.fixture
def block():
    """Two sequences of 6 and 3 tokens: <s> meta, a negative cut after 3 characters, a separator; then `third`."""
    return Resolved(
        sequence_ids=["nextlong-1", "nextlong-2"],
        methods=["nextlong", "nextlong"],
        domains=["wiki", "law"],
        document_offsets=np.array([0, 1, 2]),
        document_lengths=np.array([6, 3], np.int32),
        token_offsets=np.array([0, 6, 9]),
        input_ids=np.arange(9, dtype=np.int32),
        span_offsets=np.array([0, 4, 5]),
        chunk_ids=np.array([-1, 5, 7, -1, 8]),
        doc_ids=np.array([-1, 2, 3, -1, 4]),
        source_ids=np.array(["", "a", 'b "x"\nי', "", "c"], object),
        metadata=np.array([None, None, '{"lang":"en"}', None, None], object),
        char_starts=np.array([-1, 10, 0, -1, 0]),
        char_ends=np.array([-1, 15, 3, -1, 5]),
        roles=np.array([4, 0, 1, 3, 0], np.int8),
        groups=np.array([-1, 0, 0, 0, 0], np.int32),
        token_starts=np.array([0, 1, 3, 5, 0], np.int32),
        token_ends=np.array([1, 3, 5, 6, 3], np.int32),
        scores=np.array([0, 1, 0.123456789, 0, 1], np.float32),
    )


def test_a_row_is_an_object_a_line(block, tmp_path):
    texts = np.array(span_texts(block, files(texts_of)), object)
    count = jsonl.FORMAT.write(
        tmp_path / "x", [replace(block, texts=texts)] * 2, options()
    ).rows
    lines = (tmp_path / "x.jsonl").read_text(encoding="utf-8").splitlines()
    assert count == len(lines) == 4
    first, second = json.loads(lines[0]), json.loads(lines[1])
    assert list(first) == [
        "sequence_id",
        "method",
        "domain",
        "length",
        "seq_lengths",
        "text",
        "spans",
    ]
    assert (first["sequence_id"], first["method"], first["length"]) == (
        "nextlong-1",
        "nextlong",
        6,
    )
    assert (first["domain"], first["seq_lengths"]) == ("wiki", [6])
    assert first["text"] == "<s>meta\nné🎉\n"
    assert (second["length"], second["text"]) == (3, "third")
    assert first["spans"][2] == {
        "chunk_id": 7, "doc_id": 3, "source_id": 'b "x"\nי', "metadata": '{"lang":"en"}',
        "char_start": 0, "char_end": 3, "role": "negative",
        "token_start": 3, "token_end": 5, "score": 0.123457,
    }  # fmt: skip
    assert first["spans"][0] == {
        "chunk_id": -1, "doc_id": -1, "source_id": "", "metadata": None, "char_start": -1, "char_end": -1, "role": "bos",
        "token_start": 0, "token_end": 1, "score": 0.0,
    }  # fmt: skip
    assert [json.loads(line) for line in lines[2:]] == [first, second]


def test_span_texts_of_one_sequence_ask_for_its_chunks_only(block):
    asked = []

    def text_of(ids):
        asked.extend(ids.tolist())
        return texts_of(ids)

    assert span_texts(block, files(text_of), slice(4, 5)) == ["third"]
    assert asked == [8]
    assert span_texts(block, files(texts_of)) == [
        "<s>",
        "meta\n",
        "né🎉",
        "\n",
        "third",
    ]


def test_no_blocks_are_an_empty_file(tmp_path):
    assert jsonl.FORMAT.write(tmp_path / "x", [], options()).rows == 0
    assert (tmp_path / "x.jsonl").read_bytes() == b""
