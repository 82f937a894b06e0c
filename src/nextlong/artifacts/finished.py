"""Finished: the artifacts of a finished run, as the objects that reading it needs."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.lookup import Column, opened
from nextlong.artifacts.resolve import CorpusFiles, SpecialIds
from nextlong.artifacts.results import ComposeResult, TokenizerResult
from nextlong.artifacts.rows import RowSource
from nextlong.artifacts.tokens import TokenStore
from nextlong.engine.step import Artifact, Artifacts
from nextlong.schemas import SEQUENCE_INDEX


class References(NamedTuple):
    """Where the references of one run lie: SEQUENCES files, how many of each to take, and, one file a shard, CHUNKS and hashes.

    `corpus` is equal for runs whose chunk ids mean the same chunks.
    """

    sequences: tuple[Path, ...]
    take: tuple[int, ...]
    chunks: tuple[Path, ...]
    hashes: tuple[Path, ...]
    corpus: Hashable

    def read_index(self, *, run: int = 0) -> NDArray[Any]:
        """Return the SEQUENCE_INDEX of the run, in draw order, as number `run` of several."""
        index = np.zeros(sum(self.take), SEQUENCE_INDEX)
        row = 0
        for part, (path, count) in enumerate(zip(self.sequences, self.take, strict=True)):
            with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
                for place in range(count):
                    batch = reader.get_batch(place)
                    tokens, key = batch.column("token_end").values[-1].as_py(), batch.column("key")[0].as_py()
                    index[row] = (run, part, place, tokens, key)
                    row += 1
        return index

    def chunk_ids(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the chunk ids of the sequences that `read_index` gives: those of i are ids[offsets[i]:offsets[i + 1]]."""
        chunk_ids = []
        for path, count in zip(self.sequences, self.take, strict=True):
            with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
                for place in range(count):
                    ids = reader.get_batch(place).column("chunk_id").values.to_numpy()
                    chunk_ids.append(ids[ids != schemas.NO_CHUNK])
        offsets = np.cumsum([0, *map(len, chunk_ids)], dtype=np.int64)
        return np.concatenate([np.empty(0, np.int64), *chunk_ids]), offsets

    def document_hashes(self, chunk_ids: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the content hash of the document of each chunk, shape (n,)."""

        def load(shard: int, rows: NDArray[np.int64]) -> list[Column]:
            return [opened(self.hashes[shard])[rows]]

        hashes: NDArray[np.uint64] = lookup.by_shard(lookup.documents_of(chunk_ids, self.chunks), load)[0]
        return hashes


def token_store(done: Artifacts) -> TokenStore:
    """Return the tokens of a finished run."""
    tokens, text = done["tokens"], corpus(done)
    return TokenStore(
        rows=done["referenced_chunks"].files(".rows.npy"),
        offsets=tokens.files(".offsets.npy"),
        ids=tokens.files(".ids.npy"),
        documents=text.documents,
        chunks=text.chunks,
    )


def chunks_of(done: Artifacts) -> Artifact:
    """Return the step whose CHUNKS everything below reads: the cleaned ones, where there are any."""
    return done["decontaminate"] if "decontaminate" in done else done["chunk"]


def corpus(done: Artifacts) -> CorpusFiles:
    """Return the text of a finished run."""
    return CorpusFiles(tuple(done["ingest"].files(".documents.arrow")), tuple(chunks_of(done).files(".chunks.arrow")))


def special_ids(done: Artifacts) -> SpecialIds:
    """Return the ids that a finished run puts between chunks."""
    tokenizer = done["tokenizer"].result(TokenizerResult)
    bos, eos = ((special,) if special is not None else () for special in (tokenizer.bos_id, tokenizer.eos_id))
    return SpecialIds(separator=tokenizer.separator_ids, bos=bos, eos=eos)


def special_texts(done: Artifacts) -> dict[int, str]:
    """Return what stands between chunks of a finished run as text, by role."""
    separator, bos, eos = done["tokenizer"].result(TokenizerResult).special_texts
    return {schemas.SEPARATOR: separator, schemas.BOS: bos, schemas.EOS: eos}


def sequences_per_part(sequences: int | Literal["all"], compose: Artifact) -> list[int]:
    """Return how many sequences of each SEQUENCES file belong to the data set: the first `sequences` in draw order."""
    composed = [count for part in compose.results(ComposeResult) for count in part.sequences_per_file]
    left = sum(composed) if sequences == "all" else sequences
    take = []
    for there in composed:
        take.append(min(left, there))
        left -= take[-1]
    return take


def sequence_files(done: Artifacts) -> list[Path]:
    """Return the SEQUENCES files of a finished run. Raises RunError if they are of a version that had other columns."""
    files = done["compose"].files(".sequences.arrow")
    for path in files[:1]:
        with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
            if lacking := set(schemas.SEQUENCES.names).difference(reader.schema.names):
                raise done["compose"].of_earlier_version(f"column {min(lacking)}")
    return files


def references(done: Artifacts, take: Sequence[int]) -> References:
    """Return where the sequences of a data set lie: the first `take[i]` of each SEQUENCES file."""
    return References(
        sequences=tuple(sequence_files(done)),
        take=tuple(take),
        chunks=tuple(chunks_of(done).files(".chunks.arrow")),
        hashes=tuple(done["ingest"].files(".hashes.npy")),
        corpus=chunks_of(done).manifest["fingerprint"],
    )


def row_source(done: Artifacts) -> RowSource:
    """Return what the rows of a finished run are read from."""
    return RowSource(tuple(sequence_files(done)), token_store(done), special_ids(done))
