"""Results: what each step's tasks tell beside their files, a frozen model each; manifests keep it as `counts`.

In:  what a task has counted, found or chosen. Out: JSON in the manifest of its step, and the same model when it is read back.
A field with a default is one that only some tasks have something to say in.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from nextlong.engine.step import TaskResult

Examples = tuple[tuple[int, int, int], ...]


class LineCountResult(TaskResult):
    """`lines` that end in a part of a file; its `bytes`, decompressed; whether the last of them `ends_line`."""

    lines: int
    bytes: int = 0
    ends_line: bool = True


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


class Selected(TaskResult):
    """Documents that stay, and those that do not by reason."""

    kept: int
    duplicates: int
    capped: int
    weighted_out: int


class SelectResult(Selected):
    """The same for all sources, and for each by its label."""

    sources: dict[str, Selected]


class MinhashResult(TaskResult):
    """Documents that were given a signature."""

    documents: int


class NearDuplicatesResult(TaskResult):
    """Documents left out, and the clusters of nearly equal ones that they belong to.

    `examples` are rows of the corpus, of documents that go and of those that stay in their stead.
    """

    near_duplicates: int
    clusters: int
    largest_cluster: int
    examples: tuple[tuple[int, int], ...] = ()


class ChunkResult(TaskResult):
    """Documents that have chunks, these chunks and their characters."""

    documents: int
    chunks: int
    chars: int
    longest_chunk_chars: int = 0


class DecontaminateResult(ChunkResult):
    """The same of the chunks that stay; those that do not, how many each file met, and one `example`, in row `example_doc_row`."""

    contaminated: int
    files: dict[str, int]
    example: str  # "" where nothing was met
    example_doc_row: int = -1


class LeftOutResult(TaskResult):
    """How many records, documents or chunks filters of the corpus left out, by reason; and how many that stay share an id."""

    left_out: dict[str, int]
    same_ids: int = 0  # that have the user's id of an earlier one
    same_id_example: tuple[str, ...] = ()  # source, id and heads of two of them


class FitResult(TaskResult):
    """An encoder fitted on `fit_chunks` of the corpus's chunks: its terms, and the width of its vectors."""

    chunks: int
    fit_chunks: int
    terms: int
    dimensions: int


class ExecutionResult(TaskResult):
    """How a model runs (`embed.choose.Execution`), and its width."""

    device: str
    dtype: str
    threads: int
    call_chunks: int
    task_chunks: int
    chunks_per_second: float  # of one task
    dimensions: int


class ShortlistWordsResult(TaskResult):
    """Chunks of the corpus, the sampled ones with their characters, the words counted, and how many a chunk has on average."""

    chunks: int
    sampled: int
    chars: int
    words: int
    mean_words: float

    @property
    def chunk_chars(self) -> float:
        """Characters of a chunk, on average."""
        return self.chars / max(1, self.sampled)


class ShortlistResult(TaskResult):
    """Chunks of a shard, and those embedded: on the shortlist, or to measure what it misses."""

    chunks: int
    embedded: int


class EmbedResult(TaskResult):
    """Chunks of a shard, or of a slice of one, that were embedded, and the width of their vectors."""

    chunks: int
    dimensions: int


class IndexResult(TaskResult):
    """The index chosen, `exact` or a FAISS factory string, and why; of a trained one what it consists of."""

    index: str
    why: str
    vectors: int
    factory: str = ""
    clusters: int = 0
    sample: int = 0
    code_bytes: int = 0


class TuneResult(TaskResult):
    """How an index is searched, the `recall` that it promises with it, and what was measured on `sample` queries.

    `spare` is a share of the `k` neighbours asked for. Of the sample's queries, `recall_measured` is the mean recall@k and
    `recall_error` its standard error, `recall_p5` the 5th percentile, `recall_worst` the least; `recall_nearest` is the mean recall
    of the nearest `nearest` of the k, which the first negatives of a gap come from.
    """

    probes: int
    spare: float
    recall: float
    recall_measured: float
    recall_error: float
    recall_p5: float
    recall_worst: float
    recall_nearest: float
    nearest: int
    sample: int
    k: int


class DrawResult(TaskResult):
    """Documents that have chunks, those of them that may be drawn, and those that were."""

    documents: int
    eligible: int
    drawn: int


class MetaDocumentsResult(DrawResult):
    """The same, and the chunks of the drawn ones."""

    meta_chunks: int


class DocumentsResult(DrawResult):
    """The same, `drawn` being those whose neighbours are wanted; and the characters of all documents."""

    chars: int


class MineResult(TaskResult):
    """Queries, the neighbours of all of them, and the fewest that one of them has.

    With a shortlist, `judged` queries have a control chunk among their neighbours; the nearest one of `shortlisted` is on it.
    """

    queries: int
    candidates: int
    fewest: int
    judged: int = 0
    shortlisted: int = 0


class KeywordsResult(TaskResult):
    """Documents of a shard of `source`, those that have a keyword, and what the keywords were taken from."""

    documents: int
    with_keywords: int
    queries: str
    source: str = ""


class ClustersResult(TaskResult):
    """In how many parts documents are drafted, and how many clusters make these up."""

    parts: int
    clusters: int


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
    dropped_examples: Mapping[str, Examples] = {}
    limited: bool = False
    starved: int = 0
    near_duplicates: int | None = None
    repeated_passages: int | None = None
    near_duplicate_documents: int | None = None
    unshared_keywords: int | None = None
    near_duplicate_examples: Examples = ()
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


class TokensResult(TaskResult):
    """Chunks encoded, or copied from an earlier variant of the run; `mismatches` are those with other ids than the reference."""

    chunks: int
    tokens: int
    chars: int
    copied_chunks: int
    mismatches: int


class ComposeResult(TaskResult):
    """Sequences in all and by file, drafts that became none by reason, and the longest of these that was too short."""

    sequences: int
    sequences_per_file: tuple[int, ...]
    dropped: dict[str, int]
    dropped_examples: Mapping[str, Examples] = {}
    longest_dropped_tokens: int
    chunks_at_max_uses: int = 0


class ShardResult(TaskResult):
    """Rows of one file of an export; `tokens` only where a format adds some to those of its rows."""

    rows: int
    tokens: int | None = None


FILTER_REPORT_SUFFIX = ".filter_report.json"

# Why a filter left something out; behind the first stands what is wrong with the records.
REJECTED = "rejected: "
FILTERED = "removed by the source filter"
EXCLUDED = "excluded by ingest.exclude"
EXACT = "exact duplicate of another document"
NORMALIZED = "normalized duplicate of another document"
OVER = "over max_documents, max_chars or weight"
NEARLY_EQUAL = "near-duplicate of another document"
CONTAMINATED = "shares words with an evaluation text"


@dataclass(frozen=True)
class Example:
    """One that was left out: its own id, the source's name, how its text begins, and what there is to say of it."""

    source_id: str
    source: str
    head: str
    note: str


@dataclass(frozen=True)
class LeftOut:
    """How many `unit` were left out for one reason; `examples` are some of them."""

    reason: str
    unit: str
    count: int
    examples: tuple[Example, ...]


def write_filter_report(path: Path, reasons: Sequence[LeftOut]) -> None:
    """Write what was left out as JSON."""
    path.write_text(json.dumps([asdict(one) for one in reasons], indent=1, ensure_ascii=False), encoding="utf-8")


def read_filter_report(path: Path) -> tuple[LeftOut, ...]:
    """Return what `write_filter_report` wrote."""
    return tuple(
        LeftOut(**{**one, "examples": tuple(Example(**example) for example in one["examples"])})
        for one in json.loads(path.read_text(encoding="utf-8"))
    )
