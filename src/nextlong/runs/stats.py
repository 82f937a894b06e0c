"""Stats: a data set in numbers.

In:  a finished run. Its SEQUENCES are read block by block; its text and tokens are not read.
Out: `Stats`: yield, similarity of the negatives, distance between meta-chunks, reuse, leaks, source mix, warnings.

The step `statistics` measures them once for a data set and keeps them as JSON; `measure` reads that file where it exists.
Memory grows with the distinct chunks and documents that the data set uses, at some bytes each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from pydantic import TypeAdapter, ValidationError

from nextlong import schemas
from nextlong.artifacts import finished, lookup
from nextlong.corpus.decontaminate import DecontaminateResult
from nextlong.corpus.filter_report import LeftOut, read_filter_report
from nextlong.engine import store
from nextlong.engine.step import Artifacts, Step, TaskResult
from nextlong.errors import RunError
from nextlong.export.steps import read_steps
from nextlong.methods.base import method_of
from nextlong.methods.keywords import KeywordsResult
from nextlong.recipe.keys import NEGATIVES
from nextlong.retrieval.index import describe_recall
from nextlong.retrieval.shortlist import describe_shortlist
from nextlong.runs import measures, spans
from nextlong.runs.run import Run
from nextlong.runs.spans import (
    COSINE_UNIT,
    NEAR_IDENTICAL_COSINE,
    Bin,
    Counting,
    Spread,
    Tally,
)
from nextlong.runs.warnings import Warned, control, warnings
from nextlong.sequences.shortfall import Attempt, dropped_examples
from nextlong.text import Json

STATISTICS: Final = "statistics"  # the step
_SUFFIX: Final = ".statistics.json"
_COSINE_EDGES = np.arange(-10_000, 10_501, 500)  # bins of 0.05, in units of a cosine
_TOKEN_EDGES = np.array(
    [0, 1, *(1 << power for power in range(6, 41))]
)  # 0, 1-63, 64-127, 128-255 …
_SHORT_TOKENS: Final = 64  # of a meta-chunk
# 1, 2, 3, 4, 5-8, 9-16, 17-32 …
_COUNT_EDGES = np.array([1, 2, 3, 4, *(1 + (1 << power) for power in range(2, 31))])
_EXTENDING = (
    "negatives",
    "position",
    "fit",
    "max_uses",
    "min_meta_chunks",
)  # settings of extended sequences alone


@dataclass(frozen=True)
class Yield:
    """From documents to sequences: `drafts` = `kept` + `spare` + `untried` + all of `dropped` (reason → count).

    Where documents are extended, each sampled document gives one draft. `spare` sequences were composed beyond the number
    requested; `untried` drafts were not needed.
    """

    documents: int
    eligible: int
    drawn: int
    asked: int | str
    drafts: int
    kept: int
    spare: int
    untried: int
    dropped: dict[str, int]
    dropped_examples: dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class WithKeywords:
    """How many of the `documents` of a source have a keyword."""

    documents: int
    with_keywords: int


@dataclass(frozen=True)
class _InParts:
    """How many of `documents` (each counted once per sequence) are split into parts with other documents in between."""

    in_parts: int
    documents: int


@dataclass(frozen=True)
class _RankMean:
    """The mean cosine of the negatives of one rank at their meta-chunks (or of documents behind the first)."""

    rank: int
    mean: float
    count: int


@dataclass(frozen=True)
class _SourceMean:
    """The mean cosine of the `count` negatives of a source's meta-documents (or of a source's documents)."""

    mean: float
    count: int


@dataclass(frozen=True)
class _NearIdentical:
    """How many negatives have a cosine of at least `cosine`; `sequence`, from 0, holds the most of them, `most`."""

    cosine: float
    negatives: int
    share: float
    sequence: int | None
    most: int


@dataclass(frozen=True)
class _AfterLast:
    """The tokens after the last meta-chunk, where they stretch no dependency, and sequences with a short last meta-chunk.

    A meta-chunk is short below `short_tokens`: 64, or a quarter of the longest chunks if these are shorter.
    """

    tokens: int
    share: float
    short: int
    short_share: float
    short_tokens: int


@dataclass(frozen=True)
class Stats:
    """A data set in numbers. Shares are in [0, 1], cosines in [-1, 1], distances in tokens; None: not applicable.

    `run` is what `nextlong.open` takes; a setting that the method does not use is None; `method_name` is the method as
    reports name it, `scores` what its cosines are to, `queries` the model that made the queries for keywords.
    `document_chars` counts every document of the corpus that has chunks; `chars_per_token` is over whole chunks.
    `near_duplicates` is what the run's steps counted, None if they did not look; `repeated_passages` are those of them that
    count only because of a shared 100-word passage; `contaminated` says how many chunks each evaluation file removed.
    `chunk_tokens` counts every chunk as it is in the sequences, cut ones too; `meta_chunks` and `after_last` are None
    without meta-chunks.
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
    search: (
        str | None
    )  # the approximate index and its measured recall; None if the search was exact
    shortlist: (
        str | None
    )  # the share of chunks embedded, and what that misses; None if all were
    queries: str | None
    max_chars: int
    min_meta_chunks: int | None
    target_tokens: int
    sequences: int
    tokens: int
    yields: Yield
    similarity: Spread | None
    similarity_by_rank: tuple[_RankMean, ...]
    similarity_histogram: tuple[Bin, ...]
    similarity_by_source: dict[str, _SourceMean]
    random_similarity: (
        Spread | None
    )  # of pairs of random chunks, the baseline; None without vectors or negatives
    distance_tokens: Spread | None
    distance_histogram: tuple[Bin, ...]
    meta_chunks: Spread | None  # of a sequence
    meta_chunks_histogram: tuple[Bin, ...]
    after_last: _AfterLast | None
    chunk_tokens: Spread | None
    chunk_tokens_histogram: tuple[Bin, ...]
    reuse: measures.Reuse
    own_document_negatives: int | None
    repeated_chunks: int
    cut_off: measures.CutOff | None
    near_duplicates: int | None
    repeated_passages: int | None
    near_duplicate_documents: (
        int | None
    )  # documents that the method itself filtered out as near-duplicates
    keywords: dict[str, WithKeywords] | None  # by source
    unshared_keywords: (
        int | None
    )  # documents without a keyword that another document has
    in_parts: _InParts | None
    contaminated: dict[str, int] | None
    left_out: tuple[LeftOut, ...]  # of the corpus, by reason
    meta_share: float | None
    tokens_by_role: dict[str, int]
    tokens_by_source: dict[str, int]
    corpus_by_source: dict[str, int]  # characters of all chunks
    negatives_by_source: dict[str, int] | None  # tokens
    near_identical: _NearIdentical | None
    chars_per_token: float | None
    documents_per_sequence: Spread | None
    distinct_documents: int
    document_chars: Spread | None
    document_chars_histogram: tuple[Bin, ...]
    attention_work: tuple[measures.RankWork, ...]  # by mask and context-parallel ranks
    exposure: tuple[measures.Exposure, ...]  # effective left context, by mask
    steps: tuple[measures.StepCost, ...]
    warnings: tuple[Warned, ...] = ()

    @property
    def repeat_meta_chunks(self) -> bool:
        """Whether the recipe asks for meta-chunks as their own negatives."""
        return (
            self.negatives is not None
            and NEGATIVES[self.negatives].origin == "meta-chunk"
        )

    def as_json(self) -> Json:
        """Return everything as plain dictionaries and lists."""
        return asdict(self) | {"control": control(self)}


def statistics_step(run: Run) -> Step:
    """Return the step that measures a run, whose record is written."""
    config, tasks = (
        {"sequences": run.recipe.compose.sequences},
        [partial(_measure_to, named=run.variant.named)],
    )
    embed = [Step.of(run.steps["embed"])] if "embed" in run.steps else []
    return Step(
        STATISTICS, 14, config, (*read_steps(run.steps), *embed), lambda _: tasks
    )


def _measure_to(out: Path, *, named: str) -> TaskResult:
    """Measure the variant of a run that `named` opens, and write `{out}.statistics.json`."""
    store.write_json(out.with_name(f"{out.name}{_SUFFIX}"), asdict(compute(Run(named))))
    return TaskResult()


@cache  # 40 ms
def _adapter() -> TypeAdapter[Stats]:
    return TypeAdapter(Stats)


def read(done: Artifacts) -> Stats | None:
    """Return what the step `statistics` measured, None if it has not run. Raises RunError for a damaged file."""
    if STATISTICS not in done:
        return None
    path = done[STATISTICS].file(_SUFFIX)
    try:
        return _adapter().validate_python(store.read_json(path))
    except ValidationError as error:
        why = error.errors()[0]["msg"]
        raise RunError(
            f"{path} is not what the step {STATISTICS} writes ({why}); run again"
        ) from None


def measure(run: Run) -> Stats:
    """Return the statistics of a finished run: those of its step `statistics` if there is one, else computed now."""
    measured = read(run.steps) or compute(run)
    costs = []
    for name, done in run.steps.items():
        plain = done.manifest
        peak = max(
            (
                part["peak_bytes"]
                for part in plain["parts"]
                if part.get("peak_bytes") is not None
            ),
            default=None,
        )
        costs.append(measures.StepCost(name, plain["seconds"], plain["bytes"], peak))
    warned = tuple(one.of(str(run)) for one in measured.warnings)
    return replace(measured, run=str(run), steps=tuple(costs), warnings=warned)


def compute(run: Run) -> Stats:
    """Return the statistics of a run without its path and costs: the same sequences give the same bytes anywhere."""
    counting, tokens, whole_chars, whole_tokens = (
        Counting(),
        finished.token_store(run.steps),
        0,
        0,
    )
    for path, take in zip(
        run.steps["compose"].files(".sequences.arrow"),
        run.sequences_per_part,
        strict=True,
    ):
        for block in spans.read_blocks(path, take, run.corpus):
            counting.add(block)
            chunks = block.of(*spans.CHUNK_ROLES)
            whole = chunks.lengths == tokens.counts(chunks.chunk_ids)
            whole_chars += int(
                lookup.chunk_chars(chunks.chunk_ids, run.corpus.chunks)[whole].sum()
            )
            whole_tokens += int(chunks.lengths[whole].sum())
    counted = _stats(
        run,
        counting,
        chars_per_token=whole_chars / whole_tokens if whole_tokens else None,
    )
    return replace(counted, warnings=warnings(counted, run))


def _stats(run: Run, counting: Counting, *, chars_per_token: float | None) -> Stats:
    per_row = (run.recipe.export.pack or 0) // run.recipe.sequence_tokens or 1
    compose, by_role = (
        run.recipe.compose,
        dict(zip(schemas.ROLES, counting.role_tokens.tolist(), strict=True)),
    )
    tokens, method = sum(by_role.values()), method_of(run.recipe)
    is_extended, is_interleaved = (
        method.layout == schemas.Layout.EXTENDED,
        method.layout == schemas.Layout.INTERLEAVED,
    )
    settings: dict[str, Any] = {
        key: getattr(compose, key) if is_extended else None for key in _EXTENDING
    }
    drafted, (lengths, source_chars) = (
        run.steps["draft"].results(finished.DraftResult),
        measures.corpus_chars(run),
    )
    counts: dict[
        str, Any
    ] = {}  # the sum of what tasks counted, None if none of them did
    for key in (
        "near_duplicates",
        "repeated_passages",
        "near_duplicate_documents",
        "unshared_keywords",
    ):
        of_tasks = [
            count for part in drafted if (count := getattr(part, key)) is not None
        ]
        counts[key] = sum(of_tasks) if of_tasks else None
    keyword_shards = (
        run.steps["keywords"].results(KeywordsResult) if "keywords" in run.steps else []
    )
    contaminated = Counter[str]()  # chunks by evaluation file
    for shard in (
        run.steps["decontaminate"].results(DecontaminateResult)
        if "decontaminate" in run.steps
        else ()
    ):
        contaminated.update(shard.files)
    similarity = counting.cosines.spread(unit=COSINE_UNIT)
    if similarity is not None:  # the quantiles are rounded, the mean is not
        similarity = replace(
            similarity, mean=float(counting.rank_sums.sum()) / similarity.count
        )
    near = (
        _NearIdentical(NEAR_IDENTICAL_COSINE, *counting.nearly_identical)
        if counting.negatives
        else None
    )
    cosine_sums = _by_source(
        run, counting.cosines_of_document
    )  # by source of the meta-document, in units
    return Stats(
        run="",
        method=compose.method,
        method_name=method.describe(run.recipe.options),
        layout=method.layout.value,
        scores=method.scores,
        **settings,
        **counts,
        encoder=run.recipe.encoder.model if "embed" in run.steps else None,
        search=describe_recall(run.steps) or None,
        shortlist=describe_shortlist(run.steps) or None,
        queries=keyword_shards[0].queries if keyword_shards else None,
        max_chars=run.recipe.chunk.max_chars,
        target_tokens=run.recipe.sequence_tokens,
        sequences=len(run),
        tokens=tokens,
        yields=_yield(run),
        similarity=similarity,
        similarity_by_rank=tuple(  # at ranks 1, 2, 5, 10, 20, 50 … as far as there are any
            _RankMean(rank, float(counting.rank_sums[rank]) / count, count)
            for rank in (
                digit * 10**power for power in range(10) for digit in (1, 2, 5)
            )
            if rank < len(counting.rank_counts)
            and (count := int(counting.rank_counts[rank]))
        ),
        similarity_histogram=counting.cosines.histogram(
            edges=_COSINE_EDGES, unit=COSINE_UNIT
        ),
        similarity_by_source={
            source: _SourceMean(cosine_sums[source] * COSINE_UNIT / count, count)
            for source, count in _by_source(run, counting.scores_of_document).items()
        },
        random_similarity=measures.measure_random_similarity(run)
        if is_extended and similarity is not None
        else None,
        distance_tokens=counting.gaps.spread(),
        distance_histogram=counting.gaps.histogram(edges=_TOKEN_EDGES),
        meta_chunks=counting.meta_chunks.spread(),
        meta_chunks_histogram=counting.meta_chunks.histogram(edges=_COUNT_EDGES),
        after_last=_after_last(run, counting, tokens=tokens),
        chunk_tokens=counting.chunk_tokens.spread(),
        chunk_tokens_histogram=counting.chunk_tokens.histogram(edges=_TOKEN_EDGES),
        reuse=measures.measure_reuse(run, counting.uses),
        own_document_negatives=counting.own_document if is_extended else None,
        repeated_chunks=counting.repeated,
        cut_off=measures.measure_cut_off(
            run, counting.taken, tokens=by_role["document"]
        ),
        keywords=with_keywords(keyword_shards) if keyword_shards else None,
        in_parts=_InParts(counting.in_parts, counting.in_sequences)
        if is_interleaved
        else None,
        contaminated=dict(contaminated) if "decontaminate" in run.steps else None,
        left_out=read_filter_report(run.steps["filter_report"])
        if "filter_report" in run.steps
        else (),
        meta_share=by_role["meta"] / max(1, tokens) if is_extended else None,
        tokens_by_role={role: count for role, count in by_role.items() if count},
        tokens_by_source=_by_source(run, counting.tokens_of_document),
        corpus_by_source=source_chars,
        negatives_by_source=_by_source(run, counting.negative_tokens_of_document)
        if is_extended
        else None,
        near_identical=near,
        chars_per_token=chars_per_token,
        documents_per_sequence=counting.documents.spread(),
        distinct_documents=len(counting.tokens_of_document.counted()[0]),
        document_chars=lengths.spread(),
        document_chars_histogram=lengths.histogram(edges=_TOKEN_EDGES),
        attention_work=measures.rank_work(counting.document_lengths, per_row=per_row),
        exposure=measures.exposure(counting.document_lengths),
        steps=(),
    )


def _after_last(run: Run, counting: Counting, *, tokens: int) -> _AfterLast | None:
    """Return what follows the last meta-chunks in the `tokens` of all sequences; None without meta-chunks."""
    last_tokens, counts = counting.last_chunk_tokens.counted()
    sequences = int(counts.sum())
    if not sequences:
        return None
    tokenizer = run.steps["tokenizer"].result(finished.TokenizerResult)
    longest = run.recipe.chunk.max_chars / tokenizer.chars_per_token
    short_tokens = max(1, min(_SHORT_TOKENS, int(longest / 4)))
    short = int(counts[last_tokens < short_tokens].sum())
    return _AfterLast(
        tokens=counting.tokens_after_last,
        share=counting.tokens_after_last / tokens,
        short=short,
        short_share=short / sequences,
        short_tokens=short_tokens,
    )


def _yield(run: Run) -> Yield:
    made = Attempt(run.steps)
    drafts, lost, draw = (
        sum(part.drafts for part in made.drafted),
        made.dropped,
        made.draw,
    )
    documents = made.drafted_or_dropped
    begun = draw.drawn if "meta_documents" in run.steps else documents
    return Yield(
        documents=sum(
            shard.documents
            for shard in run.steps["chunk"].results(finished.ChunkResult)
        ),
        eligible=draw.eligible,
        drawn=draw.drawn,
        asked=run.recipe.compose.sequences,
        drafts=begun,
        kept=len(run),
        spare=made.sequences - len(run),
        untried=begun - documents + drafts - made.referenced.drafts,
        dropped=lost,
        dropped_examples=dropped_examples(run.steps),
    )


def with_keywords(shards: Sequence[KeywordsResult]) -> dict[str, WithKeywords]:
    """Return for each source how many of its documents have keywords."""
    documents, found = Counter[str](), Counter[str]()
    for shard in shards:
        documents[shard.source] += shard.documents
        found[shard.source] += shard.with_keywords
    return {
        source: WithKeywords(count, found[source])
        for source, count in documents.items()
        if count
    }


def _by_source(run: Run, by_document: Tally) -> dict[str, int]:
    """Return what is counted of documents, by source, the largest first; one shard's documents at a time."""
    doc_ids, counts = by_document.counted()
    total = Counter[str]()
    borders = np.flatnonzero(np.diff(schemas.shard_of(doc_ids))) + 1
    for ids, of_ids in (
        zip(np.split(doc_ids, borders), np.split(counts, borders), strict=True)
        if len(doc_ids)
        else ()
    ):
        (sources,) = lookup.document_columns(ids, run.corpus.documents, ("source",))
        for source, count in zip(sources.tolist(), of_ids.tolist(), strict=True):
            total[source] += count
    return measures.largest_first(total)
