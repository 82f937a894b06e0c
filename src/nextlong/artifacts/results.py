"""Results: what tasks tell beside their files, kept in manifests as `counts`; those here are read by rooms below their step."""

from __future__ import annotations

from collections.abc import Mapping

from nextlong.engine.step import TaskResult

_Examples = tuple[tuple[int, int, int], ...]


class IngestResult(TaskResult):
    """Documents and rejects of one task, which writes `shards` files; `example` is the first reject, or empty.

    `input_hashes` are those of the files whose beginning the task read, in order; `metadata_values` counts the documents
    with a value in each metadata column, `without_id` those without the id that the source names; `filter_examples` are ids and
    first characters of some documents that the source's filter removed.
    """

    documents: int
    text_bytes: int
    chars: int
    rejects: int
    reject_reasons: dict[str, int]
    example: str
    shards: int
    input_hashes: tuple[str | None, ...] = ()  # None of a file that is not here
    filtered_out: int = 0
    filter_examples: tuple[tuple[str, str], ...] = ()
    metadata_values: Mapping[str, int] = {}
    without_id: int = 0
    excluded: int = 0  # by ingest.exclude
    excluded_examples: tuple[tuple[str, str], ...] = ()


class ChunkResult(TaskResult):
    """Documents that have chunks, these chunks and their characters."""

    documents: int
    chunks: int
    chars: int


class ExecutionResult(TaskResult):
    """How a model runs, and its width."""

    device: str
    dtype: str
    threads: int
    call_chunks: int
    task_chunks: int
    chunks_per_second: float  # of one task
    dimensions: int


class DraftResult(TaskResult):
    """Drafts of one task, and documents that gave none by reason.

    `limited` says that there may be more, `starved` how many were given up because their neighbours ran out. `near_duplicates`
    and `repeated_passages` count negatives filtered out of extended drafts, None where they may stay; `near_duplicate_documents`
    and `unshared_keywords` (of documents whose keywords no other has) those that a method of whole documents filters out.
    `dropped_examples` are a document's first chunk, chunks and tokens each; `near_duplicate_examples` a chunk, and the first
    chunk and the chunks of what it repeats.
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
    """How many drafts are taken of each file and in all, and the chunks that they name."""

    take: tuple[int, ...]
    drafts: int
    chunks: int


class TokenizerResult(TaskResult):
    """E, measured on so many chunks or given, and the ids that composing needs.

    `vocab_size` is one more than the highest id; `separator_ids` are the separator's; `lost_share` of the text does not come back.
    """

    chars_per_token: float
    measured_chunks: int
    vocab_size: int
    bos_id: int | None
    eos_id: int | None
    separator_ids: tuple[int, ...]
    special_texts: tuple[str, str, str]  # what separator, bos and eos decode to
    lost_share: float = 0.0
    ordinary: tuple[str, ...] = ()  # the keys, bos and eos, that name a token which texts are made of


class ComposeResult(TaskResult):
    """Sequences in all and by file, drafts that became none by reason, and the longest of these that was too short."""

    sequences: int
    sequences_per_file: tuple[int, ...]
    dropped: dict[str, int]
    dropped_examples: Mapping[str, _Examples] = {}
    longest_dropped_tokens: int
    chunks_at_max_uses: int = 0


class ShardResult(TaskResult):
    """Rows of one file of an export; `tokens` only where a format adds some to those of its rows."""

    rows: int
    tokens: int | None = None
