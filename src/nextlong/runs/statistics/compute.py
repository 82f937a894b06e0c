"""Compute: the statistics of a finished run, from its sequences and its steps' counts.

In:  a finished run. Its SEQUENCES are read block by block; its text and tokens are not
     read.
Out: `Stats`, without the path and the costs of the run, so that the same sequences give
     the same bytes anywhere.

Memory grows with the distinct chunks and documents that the data set uses, at some
bytes each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import (
    ChunkResult,
    ComposeFiles,
    ComposeResult,
    DraftResult,
    TokenizerResult,
)
from nextlong.artifacts.sequence_files import token_store
from nextlong.corpus.decontaminate import DecontaminateResult
from nextlong.corpus.filter_report import LeftOut, read_filter_report
from nextlong.methods.base import method_of
from nextlong.methods.contexts import CONTEXTS_STEPS, ContextsResult
from nextlong.methods.keywords import KeywordsResult
from nextlong.recipe.keys import NEGATIVES, Compose
from nextlong.retrieval.index import describe_recall
from nextlong.retrieval.shortlist import describe_shortlist
from nextlong.runs.run import Run
from nextlong.runs.statistics import attention, measures, spans
from nextlong.runs.statistics.counting import (
    COSINE_UNIT,
    NEAR_IDENTICAL_COSINE,
    Counting,
)
from nextlong.runs.statistics.dependence import stored_dependence
from nextlong.runs.statistics.stats import (
    AfterLast,
    Attention,
    Chunks,
    ContextCounts,
    Corpus,
    Documents,
    InParts,
    MetaChunks,
    NearDuplicates,
    NearIdentical,
    Negatives,
    RankMean,
    Setting,
    Similarity,
    SourceMean,
    Stats,
    Tasks,
    Tokens,
    WithKeywords,
    Yields,
)
from nextlong.runs.statistics.tally import Tally
from nextlong.runs.statistics.warnings import warnings
from nextlong.sequences.shortfall import Attempt, dropped_examples

# Bins of 0.05, in units of a cosine.
_COSINE_EDGES: Final = np.arange(-10_000, 10_501, 500)
# 0, 1-63, 64-127, 128-255 …
_TOKEN_EDGES: Final = np.array([0, 1, *(1 << power for power in range(6, 41))])
# 1, 2, 3, 4, 5-8, 9-16, 17-32 …
_COUNT_EDGES: Final = np.array(
    [1, 2, 3, 4, *(1 + (1 << power) for power in range(2, 31))]
)
# With a last meta-chunk of fewer tokens, hardly any token depends on the text before
# the last gap (docs/warnings.md).
_SHORT_TOKENS: Final = 64
# The mean cosine is told of these ranks: 1, 2, 5, 10, 20, 50 …
_RANKS: Final = tuple(digit * 10**power for power in range(10) for digit in (1, 2, 5))


class _WholeChunks(NamedTuple):
    """The characters and tokens of all chunks that stand whole in a sequence."""

    chars: int
    tokens: int


def compute(run: Run) -> Stats:
    """Return the statistics of a run, without its path and costs."""
    counting, whole_chunks = _count(run)
    document_lengths = counting.document_lengths
    # Without `export.pack`, a row is one sequence.
    row_tokens = run.recipe.export.pack or 0
    sequences_per_row = max(1, row_tokens // run.recipe.sequence_tokens)
    stats = Stats(
        run="",
        setting=_setting(run),
        sequences=len(run),
        yields=_yields(run),
        tokens=_tokens(run, counting, whole_chunks),
        similarity=_similarity(run, counting),
        distance_tokens=counting.gaps.distribution(edges=_TOKEN_EDGES),
        negatives=_negatives(run, counting) if _is_extended(run) else None,
        meta_chunks=_meta_chunks(run, counting),
        dependence=stored_dependence(run),
        chunks=_chunks(run, counting),
        documents=_documents(run, counting),
        corpus=_corpus(run),
        near_duplicates=_near_duplicates(run),
        tasks=_tasks(run, counting),
        contexts=_contexts(run, counting),
        attention=Attention(
            work=attention.rank_work(document_lengths, per_row=sequences_per_row),
            exposure=attention.exposure(document_lengths),
        ),
        steps=(),
        warnings=(),
    )
    return replace(stats, warnings=warnings(stats, run))


def _count(run: Run) -> tuple[Counting, _WholeChunks]:
    """Read the sequences once; return what is in them, and the size of whole chunks."""
    counting = Counting()
    store = token_store(run.steps)
    chars = 0
    tokens = 0
    paths = ComposeFiles.of(run.steps).sequences
    for path, take in zip(paths, run.sequences_per_part, strict=True):
        for block in spans.read_blocks(path, take, run.corpus):
            counting.add(block)
            chunks = block.of(*spans.CHUNK_ROLES)
            # A cut chunk has more tokens in the store than in the sequence. It is left
            # out, because only its text could tell how many characters are left of it.
            is_whole = chunks.lengths == store.counts(chunks.chunk_ids)
            chunk_chars = corpus_files.chunk_chars(chunks.chunk_ids, run.corpus.chunks)
            chars += int(chunk_chars[is_whole].sum())
            tokens += int(chunks.lengths[is_whole].sum())
    return counting, _WholeChunks(chars, tokens)


def _is_extended(run: Run) -> bool:
    return method_of(run.recipe).layout == schemas.Layout.EXTENDED


def _setting(run: Run) -> Setting:
    recipe = run.recipe
    compose = recipe.compose
    method = method_of(recipe)
    is_extended = _is_extended(run)
    queries = None
    if "keywords" in run.steps:
        queries = run.steps["keywords"].results(KeywordsResult)[0].queries
    return Setting(
        method=compose.method,
        method_name=method.describe(recipe.options),
        layout=method.layout.value,
        scores=method.scores,
        negatives=compose.negatives if is_extended else None,
        hard_share=_hard_share(compose) if is_extended else None,
        position=compose.position if is_extended else None,
        fit=compose.fit if is_extended else None,
        max_uses=compose.max_uses if is_extended else None,
        min_meta_chunks=compose.min_meta_chunks if is_extended else None,
        encoder=recipe.encoder.model if "embed" in run.steps else None,
        search=describe_recall(run.steps) or None,
        shortlist=describe_shortlist(run.steps) or None,
        queries=queries,
        max_chars=recipe.chunk.max_chars,
        target_tokens=recipe.sequence_tokens,
    )


def _hard_share(compose: Compose) -> float | None:
    """Return `compose.hard_share`; None unless negatives are mixed."""
    is_mixed = NEGATIVES[compose.negatives].origin == "both"
    return compose.hard_share if is_mixed else None


def _yields(run: Run) -> Yields:
    attempt = Attempt(run.steps)
    chunked = run.steps["chunk"].results(ChunkResult)
    # Where documents are extended, each one drawn counts as a draft, also if enough
    # others were drafted before it.
    tried = attempt.drafted_or_dropped
    drafts = attempt.draw.drawn if "meta_documents" in run.steps else tried
    not_drafted = drafts - tried
    not_composed = attempt.drafts - attempt.referenced.drafts
    return Yields(
        documents=sum(shard.documents for shard in chunked),
        eligible=attempt.draw.eligible,
        drawn=attempt.draw.drawn,
        asked=run.recipe.compose.sequences,
        drafts=drafts,
        kept=len(run),
        spare=attempt.sequences - len(run),
        untried=not_drafted + not_composed,
        dropped=attempt.dropped,
        dropped_examples=dropped_examples(run.steps),
    )


def _tokens(run: Run, counting: Counting, whole_chunks: _WholeChunks) -> Tokens:
    by_role = dict(zip(schemas.ROLES, counting.role_tokens.tolist(), strict=True))
    total = sum(by_role.values())
    meta_share = None
    if _is_extended(run):
        meta_share = by_role["meta"] / max(1, total)
    chars_per_token = None
    if whole_chunks.tokens:
        chars_per_token = whole_chunks.chars / whole_chunks.tokens
    cut_off = measures.measure_cut_off(run, counting.taken, tokens=by_role["document"])
    return Tokens(
        total=total,
        by_role={role: count for role, count in by_role.items() if count},
        by_source=_by_source(run, counting.tokens_of_document),
        meta_share=meta_share,
        chars_per_token=chars_per_token,
        cut_off=cut_off,
    )


def _contexts(run: Run, counting: Counting) -> ContextCounts | None:
    found: list[ContextsResult] = []
    for name, step in run.steps.items():
        if name in CONTEXTS_STEPS:
            found += step.results(ContextsResult)
    if not found:
        return None
    return ContextCounts(
        documents=sum(part.documents for part in found),
        anchors=sum(part.anchors for part in found),
        candidates=sum(part.candidates for part in found),
        contexts=counting.contexts,
    )


def _tasks(run: Run, counting: Counting) -> Tasks | None:
    if run.recipe.compose.tasks.share == 0:
        return None
    doc_ids, _ = counting.task_documents.counted()
    texts = Counter[str]()
    if len(doc_ids):
        names = corpus_files.source_ids(doc_ids, run.corpus.documents).tolist()
        texts.update(name.partition(":")[0] for name in names)
    composed = run.steps["compose"].results(ComposeResult)
    return Tasks(
        sequences=counting.task_sequences,
        without_room=sum(part.without_room for part in composed),
        texts=dict(sorted(texts.items())),
    )


def _similarity(run: Run, counting: Counting) -> Similarity | None:
    cosine = counting.cosines.distribution(edges=_COSINE_EDGES, unit=COSINE_UNIT)
    if cosine is None:
        return None
    by_rank = []
    for rank in _RANKS:
        if rank < len(counting.rank_counts) and counting.rank_counts[rank]:
            count = int(counting.rank_counts[rank])
            mean = float(counting.rank_sums[rank]) / count
            by_rank.append(RankMean(rank, mean, count))
    # By source of the meta-document; the sums are in units of COSINE_UNIT.
    sums = _by_source(run, counting.cosine_sums_of_document)
    counts = _by_source(run, counting.cosine_counts_of_document)
    by_source = {}
    for source, count in counts.items():
        by_source[source] = SourceMean(sums[source] * COSINE_UNIT / count, count)
    random = None
    if _is_extended(run):
        random = measures.measure_random_similarity(run)
    # Only the quantiles have to be rounded to COSINE_UNIT: the sums of each rank are
    # exact, so the mean is too.
    mean = float(counting.rank_sums.sum()) / cosine.count
    return Similarity(
        cosine=replace(cosine, mean=mean),
        by_rank=tuple(by_rank),
        by_source=by_source,
        random=random,
    )


def _negatives(run: Run, counting: Counting) -> Negatives:
    near_identical = None
    if counting.negatives:
        # (sequences,) how many negatives are nearly identical to their meta-chunk.
        counts = np.concatenate(counting.near_identical)
        total = int(counts.sum())
        near_identical = NearIdentical(
            cosine=NEAR_IDENTICAL_COSINE,
            negatives=total,
            share=total / counting.negatives,
            sequence=int(counts.argmax()) if total else None,
            max_per_sequence=int(counts.max()),
        )
    return Negatives(
        from_own_document=counting.own_document,
        near_identical=near_identical,
        tokens_by_source=_by_source(run, counting.negative_tokens_of_document),
    )


def _meta_chunks(run: Run, counting: Counting) -> MetaChunks | None:
    per_sequence = counting.meta_chunks.distribution(edges=_COUNT_EDGES)
    if per_sequence is None:
        return None
    # A last meta-chunk is short below 64 tokens, or below a quarter of the longest
    # chunks if that is less.
    tokenizer = run.steps["tokenizer"].result(TokenizerResult)
    longest_tokens = run.recipe.chunk.max_chars / tokenizer.chars_per_token
    short_tokens = max(1, min(_SHORT_TOKENS, int(longest_tokens / 4)))
    # Sequences by the tokens of their last meta-chunk.
    last_tokens, counts = counting.last_chunk_tokens.counted()
    short = int(counts[last_tokens < short_tokens].sum())
    after_last = AfterLast(
        tokens=counting.tokens_after_last,
        share=counting.tokens_after_last / int(counting.role_tokens.sum()),
        short=short,
        short_share=short / int(counts.sum()),
        short_tokens=short_tokens,
    )
    return MetaChunks(per_sequence=per_sequence, after_last=after_last)


def _chunks(run: Run, counting: Counting) -> Chunks:
    return Chunks(
        tokens=counting.chunk_tokens.distribution(edges=_TOKEN_EDGES),
        reuse=measures.measure_reuse(run, counting.uses),
        repeated=counting.repeated,
    )


def _documents(run: Run, counting: Counting) -> Documents:
    in_parts = None
    if method_of(run.recipe).layout == schemas.Layout.INTERLEAVED:
        in_parts = InParts(counting.in_parts, counting.in_sequences)
    doc_ids, _ = counting.tokens_of_document.counted()
    return Documents(
        distinct=len(doc_ids),
        per_sequence=counting.documents.spread(),
        in_parts=in_parts,
    )


def _corpus(run: Run) -> Corpus:
    document_chars, chars_by_source = measures.corpus_chars(run)
    unshared = [
        part.unshared_keywords for part in run.steps["draft"].results(DraftResult)
    ]
    left_out: tuple[LeftOut, ...] = ()
    if "filter_report" in run.steps:
        left_out = read_filter_report(run.steps["filter_report"])
    keywords = None
    if "keywords" in run.steps:
        keywords = with_keywords(run.steps["keywords"].results(KeywordsResult))
    return Corpus(
        document_chars=document_chars.distribution(edges=_TOKEN_EDGES),
        chars_by_source=chars_by_source,
        left_out=left_out,
        contaminated=_contaminated(run),
        keywords=keywords,
        unshared_keywords=_sum_if_counted(unshared),
    )


def _contaminated(run: Run) -> dict[str, int] | None:
    """Return the chunks that each evaluation file removed; None if none was given."""
    if "decontaminate" not in run.steps:
        return None
    chunks_by_file = Counter[str]()
    for shard in run.steps["decontaminate"].results(DecontaminateResult):
        chunks_by_file.update(shard.files)
    return dict(chunks_by_file)


def with_keywords(shards: Sequence[KeywordsResult]) -> dict[str, WithKeywords]:
    """Return for each source how many of its documents have keywords.

    Sources without documents are left out.
    """
    documents = Counter[str]()
    having_keywords = Counter[str]()
    for shard in shards:
        documents[shard.source] += shard.documents
        having_keywords[shard.source] += shard.with_keywords
    return {
        source: WithKeywords(count, having_keywords[source])
        for source, count in documents.items()
        if count
    }


def _near_duplicates(run: Run) -> NearDuplicates:
    parts = run.steps["draft"].results(DraftResult)
    chunks = [part.near_duplicates for part in parts]
    passages = [part.repeated_passages for part in parts]
    documents = [part.near_duplicate_documents for part in parts]
    return NearDuplicates(
        chunks=_sum_if_counted(chunks),
        repeated_passages=_sum_if_counted(passages),
        documents=_sum_if_counted(documents),
    )


def _sum_if_counted(counts: Sequence[int | None]) -> int | None:
    """Return the sum of what tasks counted; None if none of them did."""
    counted = [count for count in counts if count is not None]
    return sum(counted) if counted else None


def _by_source(run: Run, by_document: Tally) -> dict[str, int]:
    """Return what is counted of documents, by source, the largest first.

    The documents of one shard are read at a time.
    """
    doc_ids, counts = by_document.counted()
    if not len(doc_ids):
        return {}
    total = Counter[str]()
    # The ids are sorted, so those of a shard follow each other.
    borders = np.flatnonzero(np.diff(schemas.shard_of(doc_ids))) + 1
    ids_by_shard = np.split(doc_ids, borders)
    counts_by_shard = np.split(counts, borders)
    for shard_ids, shard_counts in zip(ids_by_shard, counts_by_shard, strict=True):
        (sources,) = corpus_files.document_columns(
            shard_ids, run.corpus.documents, ("source",)
        )
        for source, count in zip(sources.tolist(), shard_counts.tolist(), strict=True):
            total[source] += count
    return measures.largest_first(total)
