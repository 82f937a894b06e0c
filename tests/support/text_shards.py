"""Shards of invented texts, an LSA encoder fitted on them, and an encoder that spoils a row; shared by tests of embedding."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import xxhash

from nextlong import recipe, schemas
from nextlong.artifacts.corpus_files import CorpusFiles
from nextlong.corpus.chunk import _chunk_shard
from nextlong.retrieval.encoders.lsa import FitResult, fit_on_chunks

LSA = recipe.Encoder.from_dict(
    {"lsa": {"dimensions": 8, "fit_chunks": 60, "max_terms": 500}}
)


def texts_of(count: int) -> list[str]:
    rng = np.random.default_rng(1)
    words = [f"word{number}" for number in range(80)]
    return [
        "".join(f"{' '.join(rng.choice(words, 9))}\n" for _ in range(1 + number % 4))
        for number in range(count)
    ]


def write_shard(folder: Path, name: str, texts: list[str]) -> tuple[Path, Path]:
    """Write DOCUMENTS in batches of three rows, and their CHUNKS, one paragraph each."""
    documents = folder / f"{name}.documents.arrow"
    rows = [
        {
            "text": text,
            "content_hash": xxhash.xxh64_intdigest(text.encode()),
            "source": "tests",
            "source_id": f"{name}:{row}",
        }
        for row, text in enumerate(texts)
    ]
    with (
        pa.OSFile(str(documents), "wb") as sink,
        pa.ipc.new_file(sink, schemas.DOCUMENTS) as writer,
    ):
        for first in range(0, len(rows), 3):
            writer.write_batch(
                pa.RecordBatch.from_pylist(
                    rows[first : first + 3], schema=schemas.DOCUMENTS
                )
            )
    keep = folder / f"{name}.keep.npy"
    np.save(keep, np.ones(len(texts), np.bool_))
    _chunk_shard(
        folder / name,
        documents=documents,
        keep=keep,
        max_chars=80,
        length="slice",
        oversize="split",
    )
    return documents, folder / f"{name}.chunks.arrow"


def fit(
    folder: Path,
    shards: list[tuple[Path, Path]],
    *,
    seed: int = 0,
    encoder: recipe.Encoder = LSA,
) -> FitResult:
    return fit_on_chunks(
        folder,
        corpus=CorpusFiles(*zip(*shards, strict=True)),
        options=encoder.options,
        seed=seed,
    )


class WrongAt:
    """An encoder that spoils one row of all it has encoded."""

    dimensions = 4

    def __init__(self, row: int, vector: list[float]) -> None:
        self.row, self.vector, self.done = row, vector, 0

    def encode(self, texts: list[str]) -> np.ndarray:
        vectors = np.tile(np.array([1, 0, 0, 0], np.float32), (len(texts), 1))
        if self.done <= self.row < self.done + len(texts):
            vectors[self.row - self.done] = self.vector
        self.done += len(texts)
        return vectors
