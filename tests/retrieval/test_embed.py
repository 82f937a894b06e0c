"""Embedding shards: VECTORS row for row, a fit that does not see the sharding, and errors that name the document."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.support.text_shards import LSA, WrongAt, fit, texts_of, write_shard

from nextlong import recipe
from nextlong.artifacts.corpus_files import iter_chunk_texts
from nextlong.errors import EncoderError
from nextlong.retrieval import embed as embed_chunks
from nextlong.retrieval.embed import EmbedResult, embed_rows
from nextlong.retrieval.encoders.lsa import FitResult, Lsa


def saved(stem: Path) -> list[bytes]:
    return [
        Path(f"{stem}.{suffix}").read_bytes()
        for suffix in ("terms.json", "idf.npy", "components.npy")
    ]


def test_vectors_are_the_encoders_row_for_row_in_half_precision(tmp_path, monkeypatch):
    monkeypatch.setattr(embed_chunks, "_BLOCK_CHUNKS", 7)
    documents, chunks = write_shard(tmp_path, "a", texts_of(25))
    fit(tmp_path / "fit", [(documents, chunks)])
    counts = embed_rows(
        tmp_path / "part", (documents, chunks, None), LSA, tmp_path / "fit"
    )
    vectors = np.load(tmp_path / "part.vectors.npy", mmap_mode="r")
    chunk_texts = [
        text for batch in iter_chunk_texts(documents, chunks) for text in batch.texts
    ]
    assert vectors.dtype == np.float16
    assert vectors.flags.c_contiguous
    assert counts == EmbedResult(chunks=len(chunk_texts), dimensions=8)
    assert len(chunk_texts) == 61  # six times 1 + 2 + 3 + 4, and 1
    np.testing.assert_array_equal(
        vectors, Lsa.load(tmp_path / "fit").encode(chunk_texts).astype(np.float16)
    )


def test_a_shard_without_chunks_has_no_rows(tmp_path):
    shard = write_shard(tmp_path, "a", texts_of(25))
    fit(tmp_path / "fit", [shard])
    documents, chunks = write_shard(tmp_path, "empty", [])
    embed_rows(tmp_path / "part", (documents, chunks, None), LSA, tmp_path / "fit")
    assert np.load(tmp_path / "part.vectors.npy").shape == (0, 8)


def test_the_fit_depends_on_the_documents_and_the_seed_alone(tmp_path):
    texts = texts_of(80)
    counts = fit(tmp_path / "one", [write_shard(tmp_path, "all", texts)])
    halves = [
        write_shard(tmp_path, "second", texts[33:][::-1]),
        write_shard(tmp_path, "first", texts[:33]),
    ]
    assert fit(tmp_path / "two", halves) == counts
    assert saved(tmp_path / "one") == saved(tmp_path / "two")
    fit(tmp_path / "other", halves, seed=1)
    assert saved(tmp_path / "one") != saved(tmp_path / "other")


def test_the_fit_sees_about_as_many_chunks_as_asked_for(tmp_path):
    shard = write_shard(tmp_path, "a", texts_of(400))
    counts = fit(tmp_path / "some", [shard])
    assert counts.chunks == 1000
    assert (
        35 < counts.fit_chunks < 85
    )  # 60 asked for; binomial, three standard deviations
    everything = recipe.Encoder.from_dict(
        {"lsa": {"dimensions": 8, "fit_chunks": 1000}}
    )
    assert fit(tmp_path / "all", [shard], encoder=everything) == FitResult(
        chunks=1000, fit_chunks=1000, terms=80, dimensions=8
    )


@pytest.mark.parametrize(
    ("vector", "what"),
    [
        ([np.nan, 0, 0, 0], "length nan"),
        ([0, 0, 0, 0], "length 0"),
        ([np.inf, 0, 0, 0], "length inf"),
        ([2, 0, 0, 0], "length 2"),
    ],
)
def test_a_vector_that_cannot_be_right_stops_the_run_and_names_the_document(
    tmp_path, monkeypatch, vector, what
):
    monkeypatch.setattr(embed_chunks, "_BLOCK_CHUNKS", 4)
    documents, chunks = write_shard(tmp_path, "a", texts_of(12))
    # Documents 0-3 hold 1 + 2 + 3 + 4 chunks, so row 10 is document 4, row 11 document
    # 5.
    monkeypatch.setattr(embed_chunks, "loaded_encoder", lambda *_: WrongAt(11, vector))
    remote = recipe.Encoder(model="openai:m")
    with pytest.raises(EncoderError, match=f"a:5 · chunk 1 .*{what}") as error:
        embed_rows(tmp_path / "part", (documents, chunks, None), remote)
    assert error.value.where == "encoder.model"
    assert error.value.value == "openai:m"


def test_vectors_of_the_wrong_width_stop_the_run(tmp_path, monkeypatch):
    documents, chunks = write_shard(tmp_path, "a", texts_of(3))
    narrow = WrongAt(-1, [])
    narrow.dimensions = 5
    monkeypatch.setattr(embed_chunks, "loaded_encoder", lambda *_: narrow)
    with pytest.raises(EncoderError, match=r"a:0 · chunk 1 .*\(6, 4\), not \(6, 5\)"):
        embed_rows(tmp_path / "part", (documents, chunks, None), LSA)
