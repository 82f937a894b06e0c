"""Finished: what finished steps give to later ones: results of their tasks, and the files that sequences refer to.

In:  finished steps by name. Out: results, stored in manifests as `counts`; `SequenceFiles` with paths of text, tokens and
tokenizer, and the ids inserted between chunks, which other processes can open without the recipe.

Only results that rooms below their step read, too, are defined here; others are defined next to their step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
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
from nextlong.engine.step import (
    Artifact,
    Artifacts,
    OnlyFile,
    ShardFiles,
    StepFiles,
    TaskResult,
)
from nextlong.schemas import SEQUENCE_INDEX, Ints

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_Examples = tuple[tuple[int, int, int], ...]


class IngestResult(TaskResult):
    """Documents and rejects of one task, which writes `shards` files; `example` describes the first reject, if any.

    `input_hashes` are the hashes of the files whose first part the task read, in order. `metadata_values` counts the documents
    with a value in each metadata column, `without_id` those without the id that the source names. `filter_examples` are ids and
    first characters of documents that the source's filter removed.
    """

    documents: int
    text_bytes: int
    chars: int
    rejects: int
    reject_reasons: dict[str, int]
    example: str
    shards: int
    input_hashes: tuple[str | None, ...] = ()  # None for a remote file
    filtered_out: int = 0
    filter_examples: tuple[tuple[str, str], ...] = ()
    metadata_values: Mapping[str, int] = {}
    without_id: int = 0
    excluded: int = 0  # by ingest.exclude
    excluded_examples: tuple[tuple[str, str], ...] = ()
    # Records that are no documents by their kind, by reason: how many, and file:line of one.
    skipped: Mapping[str, int] = {}
    skipped_examples: Mapping[str, str] = {}


class IngestFiles(StepFiles):
    """The DOCUMENTS of every shard, and what is known of each document.

    `normalized` exists for `ingest.dedup: normalized` alone; `rejects` are the records
    of a task that could not be read.
    """

    step = "ingest"
    documents = ShardFiles(".documents.arrow")
    hashes = ShardFiles(".hashes.npy")
    normalized = ShardFiles(".normalized.npy")
    id_hashes = ShardFiles(".id_hashes.npy")
    chars = ShardFiles(".chars.npy")
    rejects = ShardFiles(".rejects.arrow")


class ChunkResult(TaskResult):
    """Documents with chunks, their chunks, and the characters of these."""

    documents: int
    chunks: int
    chars: int


class ChunkFiles(StepFiles):
    """The CHUNKS of every shard."""

    step = "chunk"
    chunks = ShardFiles(".chunks.arrow")


class ExecutionResult(TaskResult):
    """How an encoder model runs, and the width of its vectors."""

    device: str
    dtype: str
    threads: int
    call_chunks: int
    task_chunks: int
    chunks_per_second: float  # of one task
    dimensions: int

    @property
    def chunks_at_once(self) -> int:
        """Chunks that the model gets in one call: a GPU gets a whole slice, sorted by length."""
        return self.task_chunks if self.device == "cuda" else self.call_chunks


class DraftResult(TaskResult):
    """Drafts of one task, and dropped documents by reason.

    `limited` is True if more drafts are possible; `starved` counts drafts given up for lack of neighbours. `near_duplicates`
    and `repeated_passages` count negatives filtered out of extended drafts, None if they are allowed.
    `near_duplicate_documents` and `unshared_keywords` (documents without a keyword in common with others) count documents that
    a method of whole documents filters out. `dropped_examples` holds a document's first chunk, chunks and tokens;
    `near_duplicate_examples` a chunk, and the first chunk and number of chunks of the text that it repeats.
    """

    drafts: int
    dropped: dict[str, int]
    dropped_examples: Mapping[str, _Examples] = {}
    limited: bool = False
    starved: int = 0
    near_duplicates: int | None = None
    repeated_passages: int | None = None
    near_duplicate_documents: int | None = None
    unshared_keywords: int | None = None
    near_duplicate_examples: _Examples = ()
    documents: int | None = None


class DraftFiles(StepFiles):
    """The DRAFTS of every task."""

    step = "draft"
    drafts = ShardFiles(".drafts.arrow")


class ReferencedChunksResult(TaskResult):
    """The drafts taken from each file and in total, and the chunks that they refer to."""

    take: tuple[int, ...]
    drafts: int
    chunks: int


class ReferencedChunksFiles(StepFiles):
    """The rows of CHUNKS that drafts refer to, sorted, of every shard."""

    step = "referenced_chunks"
    rows = ShardFiles(".rows.npy")


class TokensFiles(StepFiles):
    """The TOKENS of every shard: the ids of its referenced chunks, and their borders."""

    step = "tokens"
    offsets = ShardFiles(".offsets.npy")
    ids = ShardFiles(".ids.npy")


class TokenizerResult(TaskResult):
    """Characters per token (E), configured or measured on `measured_chunks` chunks, and the ids that composing needs.

    `vocab_size` is the highest id plus one; `separator_ids` are the separator's. `lost_share` is the fraction of the text that
    decoding does not restore.
    """

    chars_per_token: float
    measured_chunks: int
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    separator_ids: tuple[int, ...]
    special_texts: tuple[str, str, str]  # decoded separator, bos and eos
    lost_share: float = 0.0
    ordinary: tuple[
        str, ...
    ] = ()  # the keys, bos and eos, that name an ordinary token rather than a special one


class TokenizerFiles(StepFiles):
    """The tokenizer.json, and TOKEN_CHARS: the characters of every token."""

    step = "tokenizer"
    tokenizer = OnlyFile(".tokenizer.json")
    token_chars = OnlyFile(".tokenchars.npy")


def padding_id(eos_id: int | None) -> int:
    """Return the id that pads documents: EOS, or 0 for a tokenizer without one."""
    return 0 if eos_id is None else eos_id


class ComposeResult(TaskResult):
    """Sequences in total and by file, dropped drafts by reason, and the length of the longest draft that was too short."""

    sequences: int
    sequences_per_file: tuple[int, ...]
    dropped: dict[str, int]
    dropped_examples: Mapping[str, _Examples] = {}
    longest_dropped_tokens: int
    chunks_at_max_uses: int = 0


class ComposeFiles(StepFiles):
    """The SEQUENCES of every task."""

    step = "compose"
    sequences = ShardFiles(".sequences.arrow")


class ShardResult(TaskResult):
    """Rows of one exported file; `tokens` only if the format adds tokens to those of its rows."""

    rows: int
    tokens: int | None = None


@dataclass(frozen=True)
class CorpusFiles:
    """The files of the text: DOCUMENTS and CHUNKS, one file per shard, in shard order."""

    documents: Sequence[Path]
    chunks: Sequence[Path]

    def texts(self, chunk_ids: Ints) -> NDArray[np.object_]:
        shards, back = lookup.by_shard(chunk_ids)
        texts: list[str] = []
        for shard, rows in shards:
            for batch in iter_chunk_texts(
                self.documents[shard], self.chunks[shard], rows
            ):
                texts += batch.texts
        return np.array(texts, object)[back]

    def text(self, chunk_id: int) -> str:
        return str(self.texts(np.array([chunk_id]))[0])

    def begins(self, chunk_ids: Ints) -> NDArray[np.bool_]:
        """Return whether each chunk begins its document, shape (n,)."""
        (start,) = lookup.chunk_columns(chunk_ids, self.chunks, ("start",))
        return np.asarray(start == 0)


@dataclass(frozen=True)
class SpecialIds:
    """The token ids of separators and special tokens."""

    separator: tuple[int, ...] = ()
    bos: tuple[int, ...] = ()
    eos: tuple[int, ...] = ()

    def copy_into(
        self,
        target: NDArray[Any],
        *,
        roles: NDArray[np.int8],
        starts: Ints,
        lengths: Ints,
    ) -> None:
        """Write the first `lengths[j]` ids of each span's role to `target[starts[j]:]`; spans of chunks are skipped."""
        for role, ids in {
            schemas.SEPARATOR: self.separator,
            schemas.BOS: self.bos,
            schemas.EOS: self.eos,
        }.items():
            spans = np.flatnonzero(roles == role)
            for number, token in enumerate(ids):
                target[starts[spans[lengths[spans] > number]] + number] = token


@dataclass(frozen=True, kw_only=True)
class SequenceFiles:
    """The SEQUENCES files of a finished run, how many sequences of each belong to the data set, and the files they refer to.

    CHUNKS and hashes have one file per shard. Runs whose chunk ids mean the same chunks have the same `corpus_id`.
    `special_texts` maps roles to the text of separators and special tokens.
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
    token_chars: (
        Path  # TOKEN_CHARS, from which the characters of a cut chunk are computed
    )

    @classmethod
    def of(cls, done: Artifacts, take: Sequence[int]) -> SequenceFiles:
        """Return the files of finished steps; the first `take[i]` sequences of SEQUENCES file i are the data set."""
        tokenizer = TokenizerFiles.of(done)
        special_texts = done["tokenizer"].result(TokenizerResult).special_texts
        roles = (schemas.SEPARATOR, schemas.BOS, schemas.EOS)
        return cls(
            fingerprint=done["compose"].manifest["fingerprint"],
            sequences=ComposeFiles.of(done).sequences,
            take=tuple(take),
            corpus=corpus(done),
            corpus_id=chunks_of(done).manifest["fingerprint"],
            hashes=IngestFiles.of(done).hashes,
            tokens=token_store(done),
            special=special_ids(done),
            special_texts=dict(zip(roles, special_texts, strict=True)),
            tokenizer=tokenizer.tokenizer,
            token_chars=tokenizer.token_chars,
        )

    def read_index(self, *, run: int = 0) -> NDArray[Any]:
        """Return the SEQUENCE_INDEX of the run in draft order; `run` is its number among several runs."""
        rows = [
            (
                run,
                part,
                place,
                batch.column("token_end").values[-1].as_py(),
                batch.column("key")[0].as_py(),
            )
            for part, place, batch in self._batches()
        ]
        return np.array(rows, SEQUENCE_INDEX)

    def chunk_ids(self) -> tuple[Ints, Ints]:
        """Return the chunk ids of the sequences in the order of `read_index`; those of i are ids[offsets[i]:offsets[i + 1]]."""
        id_arrays = (
            batch.column("chunk_id").values.to_numpy()
            for _, _, batch in self._batches()
        )
        chunk_ids = [ids[ids != schemas.NO_CHUNK] for ids in id_arrays]
        return np.concatenate([np.empty(0, np.int64), *chunk_ids]), np.cumsum(
            [0, *map(len, chunk_ids)], dtype=np.int64
        )

    def _batches(self) -> Iterator[tuple[int, int, pa.RecordBatch]]:
        """Yield part, place within it, and the record batch of each sequence of the data set."""
        for part, (path, count) in enumerate(
            zip(self.sequences, self.take, strict=True)
        ):
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
    text = corpus(done)
    tokens = TokensFiles.of(done)
    of_shards = (
        ReferencedChunksFiles.of(done).rows,
        tokens.offsets,
        tokens.ids,
    )
    return TokenStore(tokens=of_shards, documents=text.documents, chunks=text.chunks)


def chunks_of(done: Artifacts) -> Artifact:
    """Return the step whose CHUNKS all later steps read: after decontamination, if there is any."""
    return done["decontaminate"] if "decontaminate" in done else done["chunk"]


def chunk_files(done: Artifacts) -> ChunkFiles:
    """Return the files of the step whose CHUNKS all later steps read."""
    return ChunkFiles(chunks_of(done))


def corpus(done: Artifacts) -> CorpusFiles:
    return CorpusFiles(
        documents=IngestFiles.of(done).documents,
        chunks=chunk_files(done).chunks,
    )


def special_ids(done: Artifacts) -> SpecialIds:
    """Return the ids that a finished run inserts between chunks."""
    tokenizer = done["tokenizer"].result(TokenizerResult)
    bos, eos = (
        (special,) if special is not None else ()
        for special in (tokenizer.bos_id, tokenizer.eos_id)
    )
    return SpecialIds(separator=tokenizer.separator_ids, bos=bos, eos=eos)


def sequences_per_part(sequences: int | Literal["all"], compose: Artifact) -> list[int]:
    """Return how many sequences of each SEQUENCES file belong to the data set: the first `sequences` in draft order."""
    ends = np.cumsum(
        [
            0,
            *(
                count
                for part in compose.results(ComposeResult)
                for count in part.sequences_per_file
            ),
        ]
    )
    return list(
        map(int, np.diff(ends if sequences == "all" else np.minimum(ends, sequences)))
    )
