"""Finished: the files that the sequences of a finished run refer to.

In:  finished steps by name. Out: `SequenceFiles` with paths of text, tokens and tokenizer, and the ids inserted between chunks,
which other processes can open without the recipe.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.lookup import TokenStore, iter_chunk_texts
from nextlong.artifacts.results import ComposeResult, TokenizerResult
from nextlong.engine.step import Artifact, Artifacts
from nextlong.schemas import SEQUENCE_INDEX, Ints

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class CorpusFiles:
    """The files of the text: DOCUMENTS and CHUNKS, one file per shard, in shard order."""

    documents: Sequence[Path]
    chunks: Sequence[Path]

    def texts(self, chunk_ids: Ints) -> NDArray[np.object_]:
        shards, back = lookup.by_shard(chunk_ids)
        texts: list[str] = []
        for shard, rows in shards:
            for batch in iter_chunk_texts(self.documents[shard], self.chunks[shard], rows):
                texts += batch.texts
        return np.array(texts, object)[back]

    def text(self, chunk_id: int) -> str:
        return str(self.texts(np.array([chunk_id]))[0])


@dataclass(frozen=True)
class SpecialIds:
    """The token ids of separators and special tokens."""

    separator: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()

    def copy_into(self, target: NDArray[Any], *, roles: NDArray[np.int8], starts: Ints, lengths: Ints) -> None:
        """Write the first `lengths[j]` ids of each span's role to `target[starts[j]:]`; spans of chunks are skipped."""
        for role, ids in {schemas.SEPARATOR: self.separator, schemas.BOS: self.bos, schemas.EOS: self.eos}.items():
            spans = np.flatnonzero(roles == role)
            for number, token in enumerate(ids):
                target[starts[spans[lengths[spans] > number]] + number] = token


@dataclass(frozen=True, kw_only=True)
class SequenceFiles:
    """The SEQUENCES files of a finished run, how many sequences of each belong to the data set, and the files they refer to.

    CHUNKS and hashes have one file per shard. Runs whose chunk ids mean the same chunks have the same `corpus_id`.
    `special_texts` maps roles to the text of separators and special tokens.
    """

    sequences: Sequence[Path]
    take: tuple[int, ...]
    corpus: CorpusFiles
    corpus_id: str
    hashes: Sequence[Path]
    tokens: TokenStore
    special: SpecialIds
    special_texts: dict[int, str]
    tokenizer: Path
    token_chars: Path  # TOKEN_CHARS, from which the characters of a cut chunk are computed

    @classmethod
    def of(cls, done: Artifacts, take: Sequence[int]) -> SequenceFiles:
        """Return the files of finished steps; the first `take[i]` sequences of SEQUENCES file i are the data set."""
        tokenizer = done["tokenizer"]
        roles = (schemas.SEPARATOR, schemas.BOS, schemas.EOS)
        return cls(
            sequences=done["compose"].files(".sequences.arrow"),
            take=tuple(take),
            corpus=corpus(done),
            corpus_id=chunks_of(done).manifest["fingerprint"],
            hashes=done["ingest"].files(".hashes.npy"),
            tokens=token_store(done),
            special=special_ids(done),
            special_texts=dict(zip(roles, tokenizer.result(TokenizerResult).special_texts, strict=True)),
            tokenizer=tokenizer.file(".tokenizer.json"),
            token_chars=tokenizer.file(".tokenchars.npy"),
        )

    def read_index(self, *, run: int = 0) -> NDArray[Any]:
        """Return the SEQUENCE_INDEX of the run in draft order; `run` is its number among several runs."""
        rows = [
            (run, part, place, batch.column("token_end").values[-1].as_py(), batch.column("key")[0].as_py())
            for part, place, batch in self._batches()
        ]
        return np.array(rows, SEQUENCE_INDEX)

    def chunk_ids(self) -> tuple[Ints, Ints]:
        """Return the chunk ids of the sequences in the order of `read_index`; those of i are ids[offsets[i]:offsets[i + 1]]."""
        id_arrays = (batch.column("chunk_id").values.to_numpy() for _, _, batch in self._batches())
        chunk_ids = [ids[ids != schemas.NO_CHUNK] for ids in id_arrays]
        return np.concatenate([np.empty(0, np.int64), *chunk_ids]), np.cumsum([0, *map(len, chunk_ids)], dtype=np.int64)

    def _batches(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield part, place within it, and the record batch of each sequence of the data set."""
        for part, (path, count) in enumerate(zip(self.sequences, self.take, strict=True)):
            with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
                for place in range(count):
                    yield part, place, reader.get_batch(place)


@lru_cache(maxsize=2)
def read_tokenizer(path: Path) -> Tokenizer:
    """Load a run's tokenizer.json, once per process; special tokens spelled out in documents are encoded as text."""
    from tokenizers import Tokenizer

    tokenizer = without_options(Tokenizer.from_file(str(path)))
    tokenizer.encode_special_tokens = True
    return tokenizer


def without_options(tokenizer: Tokenizer) -> Tokenizer:
    """Disable truncation, padding and BPE dropout, which would change or randomize the ids of a text."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return tokenizer


def token_store(done: Artifacts) -> TokenStore:
    text, tokens = corpus(done), done["tokens"]
    of_shards = done["referenced_chunks"].files(".rows.npy"), tokens.files(".offsets.npy"), tokens.files(".ids.npy")
    return TokenStore(tokens=of_shards, documents=text.documents, chunks=text.chunks)


def chunks_of(done: Artifacts) -> Artifact:
    """Return the step whose CHUNKS all later steps read: after decontamination, if there is any."""
    return done["decontaminate"] if "decontaminate" in done else done["chunk"]


def corpus(done: Artifacts) -> CorpusFiles:
    return CorpusFiles(done["ingest"].files(".documents.arrow"), chunks_of(done).files(".chunks.arrow"))


def special_ids(done: Artifacts) -> SpecialIds:
    """Return the ids that a finished run inserts between chunks."""
    tokenizer = done["tokenizer"].result(TokenizerResult)
    bos, eos = ((special,) if special is not None else () for special in (tokenizer.bos_id, tokenizer.eos_id))
    return SpecialIds(separator=tokenizer.separator_ids, bos=bos, eos=eos)


def sequences_per_part(sequences: int | Literal["all"], compose: Artifact) -> list[int]:
    """Return how many sequences of each SEQUENCES file belong to the data set: the first `sequences` in draft order."""
    composed = [count for part in compose.results(ComposeResult) for count in part.sequences_per_file]
    ends = np.cumsum([0, *composed])
    return list(map(int, np.diff(ends if sequences == "all" else np.minimum(ends, sequences))))
