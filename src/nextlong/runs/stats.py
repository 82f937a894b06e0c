"""Stats: a data set in numbers.

In:  a finished run. Its SEQUENCES are read block by block; its text and tokens are not read.
Out: `Stats`: yield, similarity of the negatives, distance between meta-chunks, reuse, leaks, source mix, warnings.

The step `statistics` measures them once for a data set and keeps them as JSON; `measure` reads that file where it exists.
Memory grows with the distinct chunks and documents that the data set uses, at some bytes each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from nextlong import schemas
from nextlong.artifacts import finished, lookup
from nextlong.artifacts.results import (
    FILTER_REPORT_SUFFIX,
    ChunkResult,
    DecontaminateResult,
    DraftResult,
    KeywordsResult,
    LeftOut,
    ReferencedChunksResult,
    read_filter_report,
)
from nextlong.engine import store
from nextlong.engine.step import Artifact, Step, TaskResult
from nextlong.errors import RunError
from nextlong.export.steps import read_steps
from nextlong.methods.base import method_of
from nextlong.recipe.keys import NEGATIVES
from nextlong.retrieval.index import describe_recall
from nextlong.retrieval.shortlist import describe_shortlist
from nextlong.runs import spans
from nextlong.runs.attention import AttentionCounter, Exposure, RankWork, document_lengths
from nextlong.runs.measures import (
    COSINE_UNIT,
    CutOff,
    Reuse,
    StepCost,
    corpus_chars,
    measure_cut_off,
    measure_random_similarity,
    measure_reuse,
    step_costs,
)
from nextlong.runs.run import Run
from nextlong.runs.spans import Block
from nextlong.runs.tally import Bin, Spread, Tally
from nextlong.runs.warnings import Warned, warnings
from nextlong.schemas import DropReason
from nextlong.sequences.shortfall import composed_sequences, draw_of, dropped, dropped_examples
from nextlong.text import Json

STATISTICS: Final = "statistics"  # the step
NEAR_IDENTICAL_COSINE: Final = 0.95  # docs/warnings.md has what corpora show
_SUFFIX: Final = ".statistics.json"
_COSINE_EDGES = np.arange(-10_000, 10_501, 500)  # bins of 0.05, in units of a cosine
_TOKEN_EDGES = np.array([0, 1, *(1 << power for power in range(6, 41))])  # 0, 1-63, 64-127, 128-255 …
_SHORT = (DropReason.TOO_FEW_NEGATIVES, DropReason.TOO_FEW_DOCUMENTS)


@dataclass(frozen=True)
class Yield:
    """From documents to sequences: `drafts` = `kept` + `spare` + `untried` + all of `dropped` (reason → count).

    Where documents are extended, each sampled document gives one draft. `spare` sequences were composed beyond the number
    requested; `untried` drafts were not needed; `short` is the part of `dropped` that fell short of T.
    """

    documents: int
    eligible: int
    drawn: int
    asked: int | str
    drafts: int
    kept: int
    spare: int
    untried: int
    short: int
    dropped: dict[str, int]
    dropped_examples: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class WithKeywords:
    """How many of the `documents` of a source have a keyword."""

    documents: int
    with_keywords: int

    @property
    def share_without(self) -> float:
        """The share of the documents that have no keyword."""
        return 1 - self.with_keywords / max(1, self.documents)


@dataclass(frozen=True)
class InParts:
    """How many of `documents` (each counted once per sequence) are split into parts with other documents in between."""

    in_parts: int
    documents: int

    @property
    def share(self) -> float:
        """The share of the documents that is in parts."""
        return self.in_parts / max(1, self.documents)


@dataclass(frozen=True)
class RankMean:
    """The mean cosine of the negatives of one rank at their meta-chunks (or of documents behind the first)."""

    rank: int
    mean: float
    count: int


@dataclass(frozen=True)
class SourceMean:
    """The mean cosine of the `count` negatives of a source's meta-documents (or of a source's documents)."""

    mean: float
    count: int


@dataclass(frozen=True)
class NearIdentical:
    """How many negatives have a cosine of at least `cosine`; `sequence`, from 0, holds the most of them, `most`."""

    cosine: float
    negatives: int
    share: float
    sequence: int | None
    most: int


@dataclass(frozen=True)
class Stats:
    """A data set in numbers. Shares are in [0, 1], cosines in [-1, 1], distances in tokens; None: there is nothing to count.

    `run` is what `nextlong.open` takes; a setting that the method does not use is None; `method_name` is the method as
    reports name it, `scores` what its cosines are to, `queries` the model that made the queries for keywords.
    `document_chars` counts every document of the corpus that has chunks; `chars_per_token` is over whole chunks.
    `near_duplicates` is what the run's steps counted, None if they did not look; `repeated_passages` are those of them that
    count only because of a shared 100-word passage; `contaminated` says how many chunks each evaluation file removed.
    `chunk_tokens` counts every chunk as it is in the sequences, cut ones too.
    """

    run: str
    method: str
    method_name: str
    layout: str
    scores: str
    negatives: str | None
    position: str | None
    fit: str | None
    max_uses: int | None
    encoder: str | None
    search: str | None  # the approximate index and its measured recall; None if the search was exact
    shortlist: str | None  # the share of chunks embedded, and what that misses; None if all were
    queries: str | None
    max_chars: int
    min_meta_chunks: int | None
    target_tokens: int
    sequences: int
    tokens: int
    yields: Yield
    similarity: Spread | None
    similarity_by_rank: tuple[RankMean, ...]
    similarity_histogram: tuple[Bin, ...]
    similarity_by_source: dict[str, SourceMean]
    random_similarity: Spread | None  # of pairs of random chunks, the baseline; None without vectors or negatives
    distance_tokens: Spread | None
    distance_histogram: tuple[Bin, ...]
    chunk_tokens: Spread | None
    chunk_tokens_histogram: tuple[Bin, ...]
    reuse: Reuse
    own_document_negatives: int | None
    repeated_chunks: int
    cut_off: CutOff | None
    near_duplicates: int | None
    repeated_passages: int | None
    near_duplicate_documents: int | None  # documents that the method itself filtered out as near-duplicates
    keywords: dict[str, WithKeywords] | None  # by source
    unshared_keywords: int | None  # documents without a keyword that another document has
    in_parts: InParts | None
    contaminated: dict[str, int] | None
    left_out: tuple[LeftOut, ...]  # of the corpus, by reason
    meta_share: float | None
    tokens_by_role: dict[str, int]
    tokens_by_source: dict[str, int]
    corpus_by_source: dict[str, int]  # characters of all chunks
    negatives_by_source: dict[str, int] | None  # tokens
    near_identical: NearIdentical | None
    chars_per_token: float | None
    documents_per_sequence: Spread | None
    distinct_documents: int
    document_chars: Spread | None
    document_chars_histogram: tuple[Bin, ...]
    attention_work: tuple[RankWork, ...]  # by mask and context-parallel ranks
    exposure: tuple[Exposure, ...]  # effective left context, by mask
    steps: tuple[StepCost, ...]
    warnings: tuple[Warned, ...] = ()

    @property
    def repeat_meta_chunks(self) -> bool:
        """Whether the recipe asks for meta-chunks as their own negatives."""
        return self.negatives is not None and NEGATIVES[self.negatives].repeat_meta_chunk

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists."""
        return asdict(self)


def statistics_step(run: Run) -> Step:
    """Return the step that measures a run, whose record is written."""
    config = {"sequences": run.recipe.compose.sequences}
    tasks = [partial(measure_to, named=run.variant.named)]
    embed = [Step.of(run.steps["embed"])] if "embed" in run.steps else []
    return Step(STATISTICS, 10, config, (*read_steps(run.steps), *embed), lambda _: tasks)


def measure_to(out: Path, *, named: str) -> TaskResult:
    """Measure the variant of a run that `named` opens, and write `{out}.statistics.json`."""
    run = Run(named)
    measured = compute(run)
    # Without the path of the run and the seconds of its steps: the same sequences give the same bytes anywhere.
    store.write_json(out.with_name(f"{out.name}{_SUFFIX}"), replace(measured, run="", steps=()).as_json())
    return TaskResult()


def read(done: Artifact) -> Stats:
    """Return what the step `statistics` measured. Raises RunError for a damaged file."""
    path = done.file(_SUFFIX)
    try:
        return _stats_adapter().validate_python(store.read_json(path))
    except ValidationError as error:
        raise RunError(
            f"{path} is not what the step {STATISTICS} writes ({error.errors()[0]['msg']}); run again"
        ) from None


@lru_cache(maxsize=1)
def _stats_adapter() -> TypeAdapter[Stats]:
    return TypeAdapter(Stats)


def measure(run: Run) -> Stats:
    """Return the statistics of a finished run: those of its step `statistics` if there is one, else computed now."""
    measured = read(run.steps[STATISTICS]) if STATISTICS in run.steps else compute(run)
    told = tuple(one.of(str(run)) for one in measured.warnings)
    return replace(measured, run=str(run), steps=step_costs(run), warnings=told)


def compute(run: Run) -> Stats:
    """Read all sequences of a run and return its statistics."""
    counting = _Counting(per_row=(run.recipe.export.pack or 0) // run.recipe.sequence_tokens or 1)
    tokens = finished.token_store(run.steps)
    for path, take in zip(finished.sequence_files(run.steps), run.sequences_per_part, strict=True):
        for block in spans.read_blocks(path, take, run.corpus):
            counting.add(block)
            chunks = block.of(schemas.META, schemas.NEGATIVE, schemas.DOCUMENT)
            whole = chunks.lengths == tokens.counts(chunks.chunk_ids)
            counting.whole_chars += int(lookup.chunk_chars(chunks.chunk_ids, run.corpus.chunks)[whole].sum())
            counting.whole_tokens += int(chunks.lengths[whole].sum())
    counted = _stats(run, counting)
    return replace(counted, warnings=warnings(counted, run))


class _Counting:
    """The sums over all blocks so far."""

    def __init__(self, *, per_row: int) -> None:
        self.attention = AttentionCounter(per_row=per_row)
        self.cosines, self.gaps, self.uses, self.documents = Tally(), Tally(), Tally(), Tally()
        self.tokens_of_document, self.chunk_tokens, self.taken = Tally(), Tally(), Tally()
        self.negative_tokens_of_document = Tally()
        self.cosines_of_document, self.scores_of_document = Tally(), Tally()  # their sums, in units; how many there are
        self.rank_sums, self.rank_counts = np.zeros(0), np.zeros(0, np.int64)  # (ranks + 1,) by rank, from 1
        self.role_tokens = np.zeros(len(schemas.ROLES), np.int64)
        self.own_document = self.repeated = self.in_parts = self.in_sequences = 0
        self.whole_chars = self.whole_tokens = 0
        self.sequences = self.negatives = self.near_identical = self.most_near_identical = 0
        self.most_near_identical_in: int | None = None

    def add(self, block: Block) -> None:
        self.attention.add(document_lengths(block))
        ranks, scores, owners = spans.ranked_scores(block)
        cosines = np.rint(scores / COSINE_UNIT).astype(np.int64)
        self.cosines.add(cosines)
        self.cosines_of_document.add(owners, cosines)
        self.scores_of_document.add(owners)
        self.rank_sums = _padded_sum(self.rank_sums, np.bincount(ranks, weights=scores))
        self.rank_counts = _padded_sum(self.rank_counts, np.bincount(ranks))
        self.gaps.add(spans.distances(block))
        self.uses.add(block.of(schemas.NEGATIVE, schemas.DOCUMENT).chunk_ids)
        self.documents.add(spans.documents_per_sequence(block))
        self.taken.add(spans.documents_taken(block))
        chunks = block.of(schemas.META, schemas.NEGATIVE, schemas.DOCUMENT)
        self.tokens_of_document.add(chunks.doc_ids, chunks.lengths)
        self.chunk_tokens.add(chunks.lengths)
        self.own_document += spans.own_document_negatives(block)
        self.repeated += spans.repeated_chunks(block)
        in_parts, documents = spans.documents_in_parts(block)
        self.in_parts += in_parts
        self.in_sequences += documents
        np.add.at(self.role_tokens, block.roles, block.lengths)
        negatives, sequences = block.of(schemas.NEGATIVE), int(block.sequence[-1]) + 1
        self.negative_tokens_of_document.add(negatives.doc_ids, negatives.lengths)
        # (sequences,) the negatives of each sequence of the block that are nearly identical to their meta-chunk
        near = np.bincount(negatives.sequence[negatives.scores >= NEAR_IDENTICAL_COSINE], minlength=sequences)
        if near.max() > self.most_near_identical:
            self.most_near_identical = int(near.max())
            self.most_near_identical_in = self.sequences + int(near.argmax())
        self.negatives += len(negatives.roles)
        self.near_identical += int(near.sum())
        self.sequences += sequences

    def nearly_identical(self) -> NearIdentical | None:
        if not self.negatives:
            return None
        share = self.near_identical / self.negatives
        most, place = self.most_near_identical, self.most_near_identical_in
        return NearIdentical(NEAR_IDENTICAL_COSINE, self.near_identical, share, place, most)


def _padded_sum(left: NDArray[Any], right: NDArray[Any]) -> NDArray[Any]:
    longer, shorter = (left, right) if len(left) >= len(right) else (right, left)
    added = longer.copy()  # a block without a rank beyond `shorter` adds nothing there
    added[: len(shorter)] += shorter
    return added


def _stats(run: Run, counting: _Counting) -> Stats:
    compose, by_role = run.recipe.compose, dict(zip(schemas.ROLES, counting.role_tokens.tolist(), strict=True))
    tokens = sum(by_role.values())
    method = method_of(run.recipe)
    is_extended = method.layout == schemas.Layout.EXTENDED
    drafted, (lengths, source_chars) = run.steps["draft"].results(DraftResult), corpus_chars(run)
    keyword_shards = run.steps["keywords"].results(KeywordsResult) if "keywords" in run.steps else []
    contaminated = Counter[str]()  # chunks by evaluation file
    for shard in run.steps["decontaminate"].results(DecontaminateResult) if "decontaminate" in run.steps else ():
        contaminated.update(shard.files)
    similarity = counting.cosines.spread(unit=COSINE_UNIT)
    if similarity is not None:  # the quantiles are rounded, the mean is not
        similarity = replace(similarity, mean=float(counting.rank_sums.sum()) / similarity.count)
    cosine_sums = _by_source(run, counting.cosines_of_document)  # by source of the meta-document, in units
    cosine_counts = _by_source(run, counting.scores_of_document)
    return Stats(
        run=str(run),
        method=compose.method,
        method_name=method.describe(run.recipe.options),
        layout=method.layout.value,
        scores=method.scores,
        negatives=compose.negatives if is_extended else None,
        position=compose.position if is_extended else None,
        fit=compose.fit if is_extended else None,
        max_uses=compose.max_uses if is_extended else None,
        encoder=run.recipe.encoder.model if "embed" in run.steps else None,
        search=describe_recall(run.steps) or None,
        shortlist=describe_shortlist(run.steps) or None,
        queries=keyword_shards[0].queries if keyword_shards else None,
        max_chars=run.recipe.chunk.max_chars,
        min_meta_chunks=compose.min_meta_chunks if is_extended else None,
        target_tokens=run.recipe.sequence_tokens,
        sequences=len(run),
        tokens=tokens,
        yields=_yield(run),
        similarity=similarity,
        similarity_by_rank=_by_rank(counting),
        similarity_histogram=counting.cosines.histogram(edges=_COSINE_EDGES, unit=COSINE_UNIT),
        similarity_by_source={
            source: SourceMean(cosine_sums[source] * COSINE_UNIT / count, count)
            for source, count in cosine_counts.items()
        },
        random_similarity=measure_random_similarity(run) if is_extended and similarity is not None else None,
        distance_tokens=counting.gaps.spread(),
        distance_histogram=counting.gaps.histogram(edges=_TOKEN_EDGES),
        chunk_tokens=counting.chunk_tokens.spread(),
        chunk_tokens_histogram=counting.chunk_tokens.histogram(edges=_TOKEN_EDGES),
        reuse=measure_reuse(run, counting.uses),
        own_document_negatives=counting.own_document if is_extended else None,
        repeated_chunks=counting.repeated,
        cut_off=measure_cut_off(run, counting.taken, tokens=by_role["document"]),
        near_duplicates=_sum(part.near_duplicates for part in drafted),
        repeated_passages=_sum(part.repeated_passages for part in drafted),
        near_duplicate_documents=_sum(part.near_duplicate_documents for part in drafted),
        keywords=with_keywords(keyword_shards) if keyword_shards else None,
        unshared_keywords=_sum(part.unshared_keywords for part in drafted),
        in_parts=InParts(counting.in_parts, counting.in_sequences)
        if method.layout == schemas.Layout.INTERLEAVED
        else None,
        contaminated=dict(contaminated) if "decontaminate" in run.steps else None,
        left_out=read_filter_report(run.steps["filter_report"].file(FILTER_REPORT_SUFFIX))
        if "filter_report" in run.steps
        else (),
        meta_share=by_role["meta"] / max(1, tokens) if is_extended else None,
        tokens_by_role={role: count for role, count in by_role.items() if count},
        tokens_by_source=_by_source(run, counting.tokens_of_document),
        corpus_by_source=source_chars,
        negatives_by_source=_by_source(run, counting.negative_tokens_of_document) if is_extended else None,
        near_identical=counting.nearly_identical(),
        chars_per_token=counting.whole_chars / counting.whole_tokens if counting.whole_tokens else None,
        documents_per_sequence=counting.documents.spread(),
        distinct_documents=len(counting.tokens_of_document.counted()[0]),
        document_chars=lengths.spread(),
        document_chars_histogram=lengths.histogram(edges=_TOKEN_EDGES),
        attention_work=counting.attention.work(),
        exposure=counting.attention.exposure(),
        steps=step_costs(run),
    )


def _yield(run: Run) -> Yield:
    drafted = run.steps["draft"].results(DraftResult)
    drafts = sum(part.drafts for part in drafted)
    lost, draw = dropped(run.steps), draw_of(run.steps)
    documents = drafts + sum(sum(part.dropped.values()) for part in drafted)
    begun = draw.drawn if "meta_documents" in run.steps else documents
    return Yield(
        documents=sum(shard.documents for shard in run.steps["chunk"].results(ChunkResult)),
        eligible=draw.eligible,
        drawn=draw.drawn,
        asked=run.recipe.compose.sequences,
        drafts=begun,
        kept=len(run),
        spare=composed_sequences(run.steps) - len(run),
        untried=begun - documents + drafts - run.steps["referenced_chunks"].result(ReferencedChunksResult).drafts,
        short=sum(lost.get(reason, 0) for reason in _SHORT),
        dropped=lost,
        dropped_examples=dropped_examples(run.steps),
    )


def _sum(counts: Iterable[int | None]) -> int | None:
    """Return the sum of what tasks counted, None if none of them did."""
    counted = [count for count in counts if count is not None]
    return sum(counted) if counted else None


def with_keywords(shards: Sequence[KeywordsResult]) -> dict[str, WithKeywords]:
    """Return for each source how many of its documents have keywords."""
    documents, found = Counter[str](), Counter[str]()
    for shard in shards:
        documents[shard.source] += shard.documents
        found[shard.source] += shard.with_keywords
    return {source: WithKeywords(count, found[source]) for source, count in documents.items() if count}


def _by_rank(counting: _Counting) -> tuple[RankMean, ...]:
    """Return the means at ranks 1, 2, 5, 10, 20, 50 … and at the last."""
    last = len(counting.rank_counts) - 1
    steps = [
        digit * 10**power for power in range(math.ceil(math.log10(last + 1)) if last > 0 else 0) for digit in (1, 2, 5)
    ]
    ranks = [rank for rank in steps if rank <= last]
    return tuple(
        RankMean(rank, float(counting.rank_sums[rank]) / count, count)
        for rank in ranks
        if (count := int(counting.rank_counts[rank]))
    )


def _by_source(run: Run, by_document: Tally) -> dict[str, int]:
    """Return what is counted of documents, by source, the largest first; one shard's documents at a time."""
    doc_ids, counts = by_document.counted()
    total: Counter[str] = Counter()
    shards = schemas.shard_of(doc_ids)  # (documents,)
    for shard in np.unique(shards).tolist():
        of_shard = shards == shard
        (sources,) = lookup.document_columns(doc_ids[of_shard], run.corpus.documents, ("source",))
        for source, count in zip(sources.tolist(), counts[of_shard].tolist(), strict=True):
            total[source] += count
    return dict(sorted(total.items(), key=lambda item: (-item[1], item[0])))
