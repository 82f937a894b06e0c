"""Results: what the tasks of steps return, and the files that finished steps have.

In:  finished steps by name. Out: results, stored in manifests as `counts`, and paths by
the name of what they hold.

Only what rooms below its step read, too, is declared here; other results and files are
declared next to their step.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np

from nextlong.engine.step import (
    Artifact,
    Artifacts,
    OnlyFile,
    ShardFiles,
    StepFiles,
    TaskResult,
)

_Examples = tuple[tuple[int, int, int], ...]


class IngestResult(TaskResult):
    """Documents and rejects of one task, which writes `shards` files.

    `example` describes the first reject, if any. `input_hashes` are the hashes of the
    files whose first part the task read, in order, None for a remote file.
    `metadata_values` counts the documents with a value in each metadata column,
    `without_id` those without the id that the source names. `filter_examples` are ids
    and first characters of documents that the source's filter removed; `excluded` were
    removed by `ingest.exclude`. `skipped` counts records that are no documents by their
    kind, by reason, and `skipped_examples` has the file:line of one.
    """

    documents: int
    text_bytes: int
    chars: int
    rejects: int
    reject_reasons: dict[str, int]
    example: str
    shards: int
    input_hashes: tuple[str | None, ...] = ()
    filtered_out: int = 0
    filter_examples: tuple[tuple[str, str], ...] = ()
    metadata_values: Mapping[str, int] = {}
    without_id: int = 0
    excluded: int = 0
    excluded_examples: tuple[tuple[str, str], ...] = ()
    skipped: Mapping[str, int] = {}
    skipped_examples: Mapping[str, str] = {}


class IngestFiles(StepFiles):
    """The DOCUMENTS of every shard, and what is known of each document.

    `normalized` exists for `ingest.dedup: normalized` alone; `rejects` are the records
    of a task that could not be read.
    """

    step = "ingest"
    documents = ShardFiles(".documents.arrow")
    # (documents,) uint64: hashes of the text, of the normalized text, of source and id.
    hashes = ShardFiles(".hashes.npy")
    normalized = ShardFiles(".normalized.npy")
    id_hashes = ShardFiles(".id_hashes.npy")
    # (documents,) int64.
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
    """How an encoder model runs, and the width of its vectors.

    `chunks_per_second` is that of one task.
    """

    device: str
    dtype: str
    threads: int
    call_chunks: int
    task_chunks: int
    chunks_per_second: float
    dimensions: int

    @property
    def chunks_at_once(self) -> int:
        """Chunks that the model gets in one call.

        A GPU gets a whole slice, sorted by length.
        """
        return self.task_chunks if self.device == "cuda" else self.call_chunks


class DraftResult(TaskResult):
    """Drafts of one task, and dropped documents by reason.

    `limited` is True if more drafts are possible; `starved` counts drafts given up for
    lack of neighbours. `near_duplicates` and `repeated_passages` count negatives
    filtered out of extended drafts, None if they are allowed.
    `near_duplicate_documents` and `unshared_keywords` (documents without a keyword in
    common with others) count documents that a method of whole documents filters out.
    `dropped_examples` holds a document's first chunk, chunks and tokens;
    `near_duplicate_examples` a chunk, and the first chunk and number of chunks of the
    text that it repeats.
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
    """The drafts taken from each file and in total, and the chunks they refer to."""

    take: tuple[int, ...]
    drafts: int
    chunks: int


class ReferencedChunksFiles(StepFiles):
    """The rows of CHUNKS that drafts refer to, sorted, of every shard."""

    step = "referenced_chunks"
    # (referenced chunks,) the rows that TOKENS are for.
    rows = ShardFiles(".rows.npy")


class TokensFiles(StepFiles):
    """The TOKENS of every shard: ids of its referenced chunks, and their borders."""

    step = "tokens"
    # (chunks + 1,) where the ids of each chunk begin in `ids`.
    offsets = ShardFiles(".offsets.npy")
    ids = ShardFiles(".ids.npy")


class TokenizerResult(TaskResult):
    """Characters per token (E), and the ids that composing needs.

    `chars_per_token` is configured, or measured on `measured_chunks` chunks.
    `vocab_size` is the highest id plus one; `separator_ids` are the separator's;
    `special_texts` are the decoded separator, bos and eos. `lost_share` is the fraction
    of the text that decoding does not restore. `ordinary` are the keys, bos and eos,
    that name an ordinary token rather than a special one.
    """

    chars_per_token: float
    measured_chunks: int
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    separator_ids: tuple[int, ...]
    special_texts: tuple[str, str, str]
    lost_share: float = 0.0
    ordinary: tuple[str, ...] = ()


class TokenizerFiles(StepFiles):
    """The tokenizer.json, and TOKEN_CHARS: the characters of every token."""

    step = "tokenizer"
    tokenizer = OnlyFile(".tokenizer.json")
    token_chars = OnlyFile(".tokenchars.npy")


class ComposeResult(TaskResult):
    """Sequences in total and by file, and dropped drafts by reason.

    `longest_dropped_tokens` is the length of the longest draft that was too short.
    `without_room` sequences were chosen for tasks but have none.
    """

    sequences: int
    sequences_per_file: tuple[int, ...]
    dropped: dict[str, int]
    dropped_examples: Mapping[str, _Examples] = {}
    longest_dropped_tokens: int
    chunks_at_max_uses: int = 0
    without_room: int = 0


class ComposeFiles(StepFiles):
    """The SEQUENCES of every task."""

    step = "compose"
    sequences = ShardFiles(".sequences.arrow")


def has_inserted(done: Artifacts) -> bool:
    """Return whether composing inserted tasks with known answers."""
    return "compose" in done and "tasks" in done["compose"].manifest["config"]


def with_inserted(files: ShardFiles, step: Artifact, done: Artifacts) -> list[Path]:
    """Return files of a step, then those of the texts that composing inserted.

    These texts are shards after those of the corpus, with files of the same names.
    """
    inserted = files.of(done["compose"]) if has_inserted(done) else []
    return [*files.of(step), *inserted]


class ShardResult(TaskResult):
    """Rows of one exported file.

    `tokens` only if the format adds tokens to those of its rows.
    """

    rows: int
    tokens: int | None = None


def chunks_of(done: Artifacts) -> Artifact:
    """Return the step whose CHUNKS all later steps read.

    Decontamination, if there is any.
    """
    return done["decontaminate"] if "decontaminate" in done else done["chunk"]


def chunk_files(done: Artifacts) -> ChunkFiles:
    """Return the files of the step whose CHUNKS all later steps read."""
    return ChunkFiles(chunks_of(done))


def sequences_per_part(sequences: int | Literal["all"], compose: Artifact) -> list[int]:
    """Return how many sequences of each SEQUENCES file belong to the data set.

    They are the first `sequences` in draft order.
    """
    # Tasks compose in draft order, so the first sequences are those of the first files.
    counts = [0]
    for part in compose.results(ComposeResult):
        counts += part.sequences_per_file
    ends = np.cumsum(counts)
    if sequences != "all":
        ends = np.minimum(ends, sequences)
    per_file: list[int] = np.diff(ends).tolist()
    return per_file
