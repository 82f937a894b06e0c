"""Results: what tasks return besides their files, stored in manifests as `counts`.

Only results that rooms below their step read, too, are defined here; others are defined next to their step.
"""

from __future__ import annotations

from collections.abc import Mapping

from nextlong.engine.step import TaskResult

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


class ChunkResult(TaskResult):
    """Documents with chunks, their chunks, and the characters of these."""

    documents: int
    chunks: int
    chars: int


class ExecutionResult(TaskResult):
    """How an encoder model runs, and the width of its vectors."""

    device: str
    dtype: str
    threads: int
    call_chunks: int
    task_chunks: int
    chunks_per_second: float  # of one task
    dimensions: int


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


class ReferencedChunksResult(TaskResult):
    """The drafts taken from each file and in total, and the chunks that they refer to."""

    take: tuple[int, ...]
    drafts: int
    chunks: int


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
    ordinary: tuple[str, ...] = ()  # the keys, bos and eos, that name an ordinary token rather than a special one


class ComposeResult(TaskResult):
    """Sequences in total and by file, dropped drafts by reason, and the length of the longest draft that was too short."""

    sequences: int
    sequences_per_file: tuple[int, ...]
    dropped: dict[str, int]
    dropped_examples: Mapping[str, _Examples] = {}
    longest_dropped_tokens: int
    chunks_at_max_uses: int = 0


class ShardResult(TaskResult):
    """Rows of one exported file; `tokens` only if the format adds tokens to those of its rows."""

    rows: int
    tokens: int | None = None
