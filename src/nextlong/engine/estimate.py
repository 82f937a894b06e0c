"""Estimate: how the time, disk and memory of a step grow, declared beside the step.

`nextlong plan` tries each step on a sample of the user's own files and takes both rates from there; those declared here stand
in where a sample is too small to tell, and for what no sample can (a server, evaluation files, an index).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, kw_only=True)
class Amounts:
    """How much there is to do, of a corpus or of a sample; what a plan is made of."""

    shards: float = 1.0
    text_bytes: float = 0.0  # of all documents that ingest reads
    documents: float = 0.0
    kept_documents: float = 0.0  # what select leaves, and from here on
    kept_chars: float = 0.0
    chunks: float = 0.0
    embedded: float = 0.0  # chunks that are encoded: all of them without a shortlist
    eligible: float = 0.0  # documents with at least compose.min_meta_chunks chunks …
    meta_chunks: float = 0.0  # … and their chunks
    evaluation_bytes: float = 0.0
    dimensions: float = 0.0
    vectors: float = 0.0  # what is searched: chunks or documents
    queries: float = 0.0
    neighbours: float = 0.0  # of each query
    index: str = "exact"  # or a FAISS factory string
    visited_share: float = 1.0  # the share of the vectors that a query is compared with
    drafts: float = 0.0
    drafted_chunks: float = 0.0  # of all drafts, one after the other
    referenced_chunks: float = 0.0  # those of them that are different
    sequences: float = 0.0
    tokens: float = 0.0  # of all sequences

    def of(self, amount: Amount) -> float:
        """Return one of the amounts by its name, or what a function makes of them."""
        return float(getattr(self, amount)) if isinstance(amount, str) else amount(self)

    def times(self, factor: float) -> Amounts:
        """Return the size of a corpus like this one, `factor` times as large."""
        grown = ("text_bytes", "documents", "kept_documents", "kept_chars", "chunks", "eligible", "meta_chunks")
        return replace(self, **{name: factor * getattr(self, name) for name in grown})

    @property
    def chunk_chars(self) -> float:
        """Characters of a chunk, on average."""
        return self.kept_chars / max(1.0, self.chunks)

    @property
    def referenced_chars(self) -> float:
        """Characters of the chunks that drafts name."""
        return self.referenced_chunks * self.chunk_chars

    @property
    def all_neighbours(self) -> float:
        """Neighbours of all queries."""
        return self.queries * min(self.neighbours, self.vectors)


Amount = str | Callable[[Amounts], float]  # the name of one of the amounts, or a function of all
TRIED = "tried"  # on the sample


def none(amounts: Amounts) -> float:  # noqa: ARG001
    """Return 0."""
    return 0.0


def one(amounts: Amounts) -> float:  # noqa: ARG001
    """Return 1."""
    return 1.0


def per_shard(amounts: Amounts) -> float:
    """Return a task for each shard."""
    return max(1.0, amounts.shards)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """`work` is counted in units of about `seconds` of one core, `disk` in units of about `bytes`.

    `tasks` is how many tasks share the work; `memory` the bytes that one of them holds beyond what every worker does. `rate`
    names the rate that plan measures apart where it is not tried on the sample; "": what is declared counts. A step that
    divides its work into tasks of about `task_s` seconds has at least so many. `reads` is how many bytes of its input files all
    tasks together read; None: all of them.
    """

    work: Amount
    seconds: float
    disk: Amount = none
    bytes: float = 0.0
    tasks: Amount = one
    memory: Amount = none
    rate: str = TRIED
    task_s: float = 0.0
    reads: Amount | None = None


# Of a step that declares nothing, as another distribution's may be.
BY_CHUNKS = Estimate(work="chunks", seconds=0.0, disk="chunks")
