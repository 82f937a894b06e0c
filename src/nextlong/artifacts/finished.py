"""Finished: the files that the sequences of a finished run refer to: text, tokens, tokenizer, and the ids between chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.lookup import Column, TokenStore, iter_chunk_texts, opened
from nextlong.artifacts.results import ComposeResult, TokenizerResult
from nextlong.engine.step import Artifact, Artifacts
from nextlong.schemas import SEQUENCE_INDEX

if TYPE_CHECKING:
    from tokenizers import Tokenizer


@dataclass(frozen=True)
class CorpusFiles:
    """Where the text lies: DOCUMENTS and CHUNKS, one file a shard, in shard order."""

    documents: tuple[Path, ...]
    chunks: tuple[Path, ...]

    def texts(self, chunk_ids: NDArray[np.int64]) -> NDArray[np.object_]:
        """Return the text of each chunk, shape (n,)."""
        if not len(chunk_ids):
            return np.empty(0, object)

        def load(shard: int, rows: NDArray[np.int64]) -> list[NDArray[np.object_]]:
            texts = [
                text
                for batch in iter_chunk_texts(self.documents[shard], self.chunks[shard], rows)
                for text in batch.texts
            ]
            column = np.empty(len(texts), object)
            column[:] = texts
            return [column]

        return lookup.by_shard(chunk_ids, load)[0]


@dataclass(frozen=True)
class SpecialIds:
    """The token ids of what stands between chunks."""

    separator: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()

    def by_role(self) -> dict[int, NDArray[np.int32]]:
        """Return the ids of each role that is no chunk."""
        named = {schemas.SEPARATOR: self.separator, schemas.BOS: self.bos, schemas.EOS: self.eos}
        return {role: np.array(ids, np.int32) for role, ids in named.items()}

    def copy_into(
        self, target: NDArray[Any], *, roles: NDArray[np.int8], at: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        """Write the first `lengths[j]` ids of each span's role to `target[at[j]:]`; spans of chunks are passed over."""
        for role, ids in self.by_role().items():
            spans = np.flatnonzero(roles == role)
            for number, token in enumerate(ids):
                target[at[spans[lengths[spans] > number]] + number] = token


@dataclass(frozen=True, kw_only=True)
class SequenceFiles:
    """The SEQUENCES files of a finished run, how many sequences of each are its data set, and what these refer to.

    CHUNKS and hashes have one file a shard. `corpus_id` is equal for runs whose chunk ids mean the same chunks; `special_texts`
    are what stands between chunks, by role.
    """

    sequences: tuple[Path, ...]
    take: tuple[int, ...]
    corpus: CorpusFiles
    corpus_id: str
    hashes: tuple[Path, ...]
    tokens: TokenStore
    special: SpecialIds
    special_texts: dict[int, str]
    tokenizer: Path
    token_chars: Path  # TOKEN_CHARS, which say how much of its text a cut chunk keeps

    @classmethod
    def of(cls, done: Artifacts, take: Sequence[int]) -> SequenceFiles:
        """Return the files of finished steps, of whose SEQUENCES the first `take[i]` of file i are the data set."""
        tokenizer = done["tokenizer"]
        roles = (schemas.SEPARATOR, schemas.BOS, schemas.EOS)
        return cls(
            sequences=tuple(sequence_files(done)),
            take=tuple(take),
            corpus=corpus(done),
            corpus_id=chunks_of(done).manifest["fingerprint"],
            hashes=tuple(done["ingest"].files(".hashes.npy")),
            tokens=token_store(done),
            special=special_ids(done),
            special_texts=dict(zip(roles, tokenizer.result(TokenizerResult).special_texts, strict=True)),
            tokenizer=tokenizer.file(".tokenizer.json"),
            token_chars=tokenizer.file(".tokenchars.npy"),
        )

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

        hashes: NDArray[np.uint64] = lookup.by_shard(lookup.documents_of(chunk_ids, self.corpus.chunks), load)[0]
        return hashes


@lru_cache(maxsize=2)
def read_tokenizer(path: Path) -> Tokenizer:
    """Read a run's tokenizer.json, once a process: nothing cut or padded, no BPE dropout; special tokens' names are text."""
    from tokenizers import Tokenizer

    tokenizer = without_options(Tokenizer.from_file(str(path)))
    tokenizer.encode_special_tokens = True
    return tokenizer


def without_options(tokenizer: Tokenizer) -> Tokenizer:
    """Switch off what would make ids other than the text's: truncation, padding, and BPE dropout, which draws them anew."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return tokenizer


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
    """Return the SEQUENCES files of a finished run."""
    return done["compose"].files(".sequences.arrow")
