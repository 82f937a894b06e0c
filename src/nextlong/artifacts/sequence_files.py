"""Sequence files: SEQUENCES, and the files of text, tokens and tokenizer they refer to.

In:  finished steps by name. Out: `SequenceFiles` with paths and
the ids inserted between chunks, which other processes can open
without the recipe; `TokenStore`, the tokens of chunks by id.
"""

from __future__ import annotations

import resource
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import AnyArray, Int8s, Int32s, Ints, UInt32s
from nextlong.artifacts.corpus_files import (
    CorpusFiles,
    FileVersion,
    by_shard,
    chunk_names,
    file_version,
    sequence_corpus,
)
from nextlong.artifacts.results import (
    ComposeFiles,
    IngestFiles,
    ReferencedChunksFiles,
    TokenizerFiles,
    TokenizerResult,
    TokensFiles,
    chunks_of,
    has_inserted,
    with_inserted,
)
from nextlong.engine.step import (
    Artifacts,
)
from nextlong.errors import RunError
from nextlong.schemas import SEQUENCE_INDEX

if TYPE_CHECKING:
    from tokenizers import Tokenizer


# A shard has three memory-mapped files, each of which stays open: use a quarter of the
# allowed open files for both stores.
SHARDS_KEPT = max(8, min(512, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 12))


class _TokenShard(NamedTuple):
    rows: Ints
    offsets: Ints
    ids: UInt32s


@dataclass(frozen=True, kw_only=True)
class TokenStore:
    """The tokens of all chunks that drafts refer to, by chunk id.

    `tokens` are the files of rows, of offsets and of ids, one of each kind per shard,
    in shard order. They are memory-mapped arrays: `rows` (n,), the sorted chunk rows
    that were tokenized, `offsets` (n + 1,) and `ids`; chunk row `rows[i]` has the
    tokens `ids[offsets[i]:offsets[i + 1]]`. `documents` and `chunks` are used only to
    name a chunk in an error.

    A process keeps its maps from task to task: opening and faulting them again took a
    third of the look-up time of an export.
    """

    tokens: tuple[Sequence[Path], Sequence[Path], Sequence[Path]]
    documents: Sequence[Path] = ()
    chunks: Sequence[Path] = ()
    _shards: dict[int, _TokenShard] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_shards": {}}

    def counts(self, chunk_ids: Ints) -> Ints:
        """Return the number of tokens of each chunk, shape (n,)."""
        starts, stops = self.bounds(chunk_ids)
        return stops - starts

    def bounds(self, chunk_ids: Ints) -> tuple[Ints, Ints]:
        """Return where the tokens of each chunk start and stop, shape (n,) each.

        In the ids of its shard.
        """
        shards, back = by_shard(chunk_ids)
        starts = []
        stops = []
        for number, rows in shards:
            if number >= len(self.tokens[0]):
                raise self._not_tokenized(schemas.pack_ids(number, rows[:1])[0])
            shard = self._shard(number)
            # The rows are sorted, so only the last one can lie behind all others.
            indices = np.searchsorted(shard.rows, rows)
            is_behind = indices[-1] == len(shard.rows)
            if is_behind or (shard.rows[indices] != rows).any():
                missing = rows[~np.isin(rows, shard.rows)]
                raise self._not_tokenized(schemas.pack_ids(number, missing)[0])
            starts.append(shard.offsets[indices])
            stops.append(shard.offsets[indices + 1])
        return np.concatenate(starts)[back], np.concatenate(stops)[back]

    def copy_into(
        self,
        target: AnyArray,
        *,
        chunk_ids: Ints,
        starts: Ints,
        at: Ints,
        lengths: Ints,
    ) -> None:
        """Copy the first `lengths[j]` ids of each chunk to `target[at[j]:]`.

        `starts` are those of `bounds`.
        """
        # One shard after the other: a block of sequences may refer to more shards than
        # a process may have open files.
        shards = schemas.shard_of(chunk_ids)
        order = np.argsort(shards, kind="stable")
        columns = [column[order].tolist() for column in (shards, starts, at, lengths)]
        # Slices of memoryviews cost half as much as slices of arrays, but do not
        # convert.
        is_same_type = target.dtype == np.int32
        into: Any = target.data if is_same_type else target
        shard_before = -1
        ids: Any = None
        for shard, start, position, length in zip(*columns, strict=True):
            if shard != shard_before:
                shard_before = shard
                ids = self._shard(shard).ids.view(np.int32)
                if is_same_type:
                    ids = ids.data
            into[position : position + length] = ids[start : start + length]

    def ids(self, chunk_ids: Ints, *, starts: Ints, stops: Ints) -> tuple[Int32s, Ints]:
        """Return the ids of all chunks, concatenated, and their offsets, (n + 1,).

        `starts` and `stops` are the chunks' `bounds`.
        """
        lengths = stops - starts
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ids = np.empty(offsets[-1], np.int32)
        self.copy_into(
            ids, chunk_ids=chunk_ids, starts=starts, at=offsets[:-1], lengths=lengths
        )
        return ids, offsets

    def _shard(self, number: int) -> _TokenShard:
        # A row refers to most shards, and asking the system for the versions of their
        # files takes half of the time that copying its ids takes.
        shard = self._shards.get(number)
        if shard is None:
            if len(self._shards) >= SHARDS_KEPT:
                self._shards.clear()
            shard = _open(*(file_version(files[number]) for files in self.tokens))
            self._shards[number] = shard
        return shard

    def _not_tokenized(self, chunk_id: int) -> RunError:
        try:
            ((document, ordinal),) = chunk_names(
                np.array([chunk_id]), documents=self.documents, chunks=self.chunks
            )
            name = f"{document} · chunk {ordinal}"
        except IndexError:
            name = "a chunk that is not in the corpus"
        return RunError(
            where=name,
            problem=(
                "it is used in a sequence but has no tokens, because a file of the run "
                "was altered"
            ),
            fix="run `nextlong verify RUN` to find the file",
        )


@lru_cache(maxsize=SHARDS_KEPT)
def _open(rows: FileVersion, offsets: FileVersion, ids: FileVersion) -> _TokenShard:
    """Memory-map the rows, offsets and ids of a shard."""
    return _TokenShard(
        rows=_mapped(rows),
        offsets=_mapped(offsets),
        ids=_mapped(ids),
    )


def _mapped(file: FileVersion) -> AnyArray:
    array: AnyArray = np.load(file.path, mmap_mode="r").view(np.ndarray)
    return array


def token_store(done: Artifacts) -> TokenStore:
    """Return the tokens of the chunks that the drafts of a run refer to.

    And those of inserted tasks, once they are composed.
    """
    text = sequence_corpus(done)
    referenced = done["referenced_chunks"]
    tokens = done["tokens"]
    return TokenStore(
        tokens=(
            with_inserted(ReferencedChunksFiles.rows, referenced, done),
            with_inserted(TokensFiles.offsets, tokens, done),
            with_inserted(TokensFiles.ids, tokens, done),
        ),
        documents=text.documents,
        chunks=text.chunks,
    )


def padding_id(eos_id: int | None) -> int:
    """Return the id that pads documents: EOS, or 0 for a tokenizer without one."""
    return 0 if eos_id is None else eos_id


@dataclass(frozen=True)
class SpecialIds:
    """The token ids of separators and special tokens."""

    separator: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()

    def copy_into(
        self,
        target: AnyArray,
        *,
        roles: Int8s,
        starts: Ints,
        lengths: Ints,
    ) -> None:
        """Write the first `lengths[j]` ids of each span's role to `target[starts[j]:]`.

        Spans of chunks are skipped.
        """
        ids_by_role = {
            schemas.SEPARATOR: self.separator,
            schemas.BOS: self.bos,
            schemas.EOS: self.eos,
        }
        for role, ids in ids_by_role.items():
            # A cut may leave only the first ids of a separator.
            spans = np.flatnonzero(roles == role)
            for number, token_id in enumerate(ids):
                long_enough = spans[lengths[spans] > number]
                target[starts[long_enough] + number] = token_id


def special_ids(done: Artifacts) -> SpecialIds:
    """Return the ids that a finished run inserts between chunks."""
    tokenizer = done["tokenizer"].result(TokenizerResult)
    return SpecialIds(
        separator=tokenizer.separator_ids,
        bos=() if tokenizer.bos_id is None else (tokenizer.bos_id,),
        eos=() if tokenizer.eos_id is None else (tokenizer.eos_id,),
    )


@dataclass(frozen=True, kw_only=True)
class SequenceFiles:
    """The SEQUENCES files of a finished run, and the files that they refer to.

    `take` says how many sequences of each file belong to the data set. CHUNKS and
    hashes have one file per shard. Runs whose chunk ids mean the same chunks have the
    same `corpus_id`. `special_texts` maps roles to the text of separators and special
    tokens. The characters of a cut chunk are computed from `token_chars` (TOKEN_CHARS).

    `fingerprint` is that of the step `compose`: it covers the texts, the tokenizer and
    every setting that the token ids depend on.
    """

    fingerprint: str
    sequences: Sequence[Path]
    take: tuple[int, ...]
    corpus: CorpusFiles
    corpus_id: str
    hashes: Sequence[Path]
    tokens: TokenStore
    special: SpecialIds
    special_texts: dict[int, str]
    tokenizer: Path
    token_chars: Path

    @classmethod
    def of(cls, done: Artifacts, take: Sequence[int]) -> SequenceFiles:
        """Return the files of finished steps.

        The first `take[i]` sequences of SEQUENCES file i are the data set.
        """
        tokenizer = TokenizerFiles.of(done)
        special_texts = done["tokenizer"].result(TokenizerResult).special_texts
        roles = (schemas.SEPARATOR, schemas.BOS, schemas.EOS)
        corpus_id = chunks_of(done).manifest["fingerprint"]
        if has_inserted(done):
            # Ids of inserted tasks mean other texts in every variant.
            corpus_id += done["compose"].manifest["fingerprint"]
        return cls(
            fingerprint=done["compose"].manifest["fingerprint"],
            sequences=ComposeFiles.of(done).sequences,
            take=tuple(take),
            corpus=sequence_corpus(done),
            corpus_id=corpus_id,
            hashes=with_inserted(IngestFiles.hashes, done["ingest"], done),
            tokens=token_store(done),
            special=special_ids(done),
            special_texts=dict(zip(roles, special_texts, strict=True)),
            tokenizer=tokenizer.tokenizer,
            token_chars=tokenizer.token_chars,
        )

    def read_index(self, *, run: int = 0) -> AnyArray:
        """Return the SEQUENCE_INDEX of the run in draft order.

        `run` is its number among several runs.
        """
        rows = []
        for part, number, batch in self._batches():
            length = batch.column("token_end").values[-1].as_py()
            key = batch.column("key")[0].as_py()
            rows.append((run, part, number, length, key))
        return np.array(rows, SEQUENCE_INDEX)

    def chunk_ids(self) -> tuple[Ints, Ints]:
        """Return the chunk ids of the sequences in the order of `read_index`.

        Those of sequence i are ids[offsets[i]:offsets[i + 1]].
        """
        ids_of_sequences = [np.empty(0, np.int64)]
        counts = [0]
        for _, _, batch in self._batches():
            ids = batch.column("chunk_id").values.to_numpy()
            ids_of_sequences.append(ids[ids != schemas.NO_CHUNK])
            counts.append(len(ids_of_sequences[-1]))
        offsets = np.cumsum(counts, dtype=np.int64)
        return np.concatenate(ids_of_sequences), offsets

    def table(self, index: AnyArray) -> pa.Table:
        """Return the SEQUENCES that an index of this run names, in its order.

        Consecutive ones of a file are read together.
        """
        batches: list[pa.RecordBatch] = []
        changes = np.flatnonzero(np.diff(index["part"])) + 1
        for part in np.split(index, changes):
            path = str(self.sequences[part["part"][0]])
            # Mapped: of a file only the named sequences are read.
            with pa.ipc.open_file(pa.memory_map(path)) as reader:
                places = part["place"].tolist()
                batches += [reader.get_batch(number) for number in places]
        return pa.Table.from_batches(batches)

    def _batches(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield the sequences of the data set: part, number in it, and record batch."""
        parts = zip(self.sequences, self.take, strict=True)
        for part, (path, count) in enumerate(parts):
            with pa.ipc.open_file(pa.memory_map(str(path))) as reader:
                for number in range(count):
                    yield part, number, reader.get_batch(number)


@lru_cache(maxsize=2)
def read_tokenizer(path: Path) -> Tokenizer:
    """Load a run's tokenizer.json, once per process.

    Special tokens spelled out in documents are encoded as text.
    """
    from tokenizers import Tokenizer

    loaded = Tokenizer.from_file(str(path))
    tokenizer = without_options(loaded)
    tokenizer.encode_special_tokens = True
    return tokenizer


def without_options(tokenizer: Tokenizer) -> Tokenizer:
    """Disable truncation, padding and BPE dropout.

    They would change or randomize the ids of a text.
    """
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        tokenizer.model.dropout = None
    return tokenizer
