"""Warnings: the problems of a data set that should be solved before training on it.

In:  the numbers of a finished run (`Stats`), its recipe and the counts of its steps.
Out: `DataWarning`, in the order of warnings.yaml, which has their texts; none if all
checks pass. The checks of one topic are one function. docs/warnings.md explains each
threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from nextlong.artifacts.results import (
    ChunkResult,
    IngestResult,
    TokenizerFiles,
    TokenizerResult,
)
from nextlong.artifacts.sequence_files import read_tokenizer
from nextlong.corpus.filter_report import LeftOutResult
from nextlong.corpus.ingest import unmet_exclusions
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe
from nextlong.runs.run import Run
from nextlong.runs.statistics.after_last import (
    MIN_CHUNK_CHARS,
    enough_meta_chunks,
    shares_after_last,
    three_chunk_chars,
)
from nextlong.runs.statistics.measures import OVERUSED
from nextlong.runs.statistics.stats import DataWarning, MetaChunks, Negatives, Stats
from nextlong.runs.statistics.texts import CHECKS, warn
from nextlong.runs.statistics.thresholds import THRESHOLDS
from nextlong.schemas import DropReason, Layout
from nextlong.sequences.shortfall import LONGER, MOST_DROPPED
from nextlong.sequences.tokenizer import find_ends, local_path, lossy_tokenizer
from nextlong.text import counted, public_name

# Where all sequences are requested: the share of them that a fix must leave.
_MIN_LEFT: Final = 0.1
_MORE_KEYWORDS: Final = (
    "lower quest.min_keyword_score or min_keyword_chars, set quest.queries to a model "
    "that generates queries for such texts, or add documents on the same topics"
)
# A chunk used so often is memorized (docs/warnings.md).
_MEMORIZED_USES: Final = 200
# Sequences, at most, of which the text is read.
_READ_SEQUENCES: Final = 16
FROM_SCRATCH: Final = "only with a model trained from scratch with this tokenizer"


class _MoreSequences(NamedTuple):
    """How more sequences can be made: a fix per warning, and the setting to change.

    `change` is KEY=VALUE; "" if no single setting is likely to do it.
    """

    fix_if_dropped: str
    fix_if_fewer: str
    change: str = ""


def warnings(stats: Stats, run: Run) -> tuple[DataWarning, ...]:
    """Return the data-quality warnings of a run."""
    found = [
        *_of_yield(stats),
        *_of_keywords(stats, run),
        *_of_parts(stats),
        *_of_meta_documents(stats, run),
        *_of_repetition(stats),
        *_of_reuse(stats, run),
        *_of_negatives(stats, run),
        *_of_size(stats),
        *_of_ids(run),
        *_of_tokenizer(stats, run),
    ]
    return tuple(sorted(found, key=lambda warning: CHECKS.index(warning.name)))


def _of_yield(stats: Stats) -> Iterator[DataWarning]:
    """Check the number of sequences, and the documents and tokens that were dropped."""
    yields = stats.yields
    dropped = sum(yields.dropped.values())
    composed = yields.drafts - yields.untried
    # Both warnings have the same cause, and mostly the same fix.
    more = _more_sequences(stats)
    if isinstance(yields.asked, int) and stats.sequences < yields.asked:
        why = "the corpus is too small for more of this length"
        fix = more.fix_if_fewer
        if fix != LONGER and _is_max_uses_reached(stats):
            why = f"compose.max_uses={stats.setting.max_uses} leaves too few negatives"
        unshared = _unshared_keywords(stats)
        if unshared is not None:
            why = f"{unshared} and are in no sequence"
            fix = _MORE_KEYWORDS
        yield warn("fewer-sequences", more.change, stats=stats, why=why, fix=fix)
    if dropped > MOST_DROPPED * composed:
        reasons = [f"{count:,} {reason}" for reason, count in yields.dropped.items()]
        yield warn(
            "many-dropped",
            more.change,
            dropped=dropped,
            composed=composed,
            why=", ".join(reasons),
            fix=more.fix_if_dropped,
        )
    yield from _of_cut_off(stats)
    copies = stats.near_duplicates.documents or 0
    if copies > THRESHOLDS.max_near_duplicates * yields.documents:
        yield warn(
            "many-near-duplicates",
            "ingest.dedup=minhash",
            count=copies,
            documents=yields.documents,
        )


def _more_sequences(stats: Stats) -> _MoreSequences:
    """Return how more sequences can be made, by the reason why drafts were dropped."""
    yields = stats.yields
    dropped_as_long = sum(
        yields.dropped.get(reason, 0)
        for reason in (DropReason.TOO_LONG, DropReason.TOO_LITTLE_ROOM)
    )
    if 2 * dropped_as_long > sum(yields.dropped.values()):
        return _MoreSequences(LONGER, LONGER, _longer_sequences(stats))
    over_half = yields.dropped.get(DropReason.OVER_HALF, 0)
    if 2 * over_half > sum(yields.dropped.values()):
        return _MoreSequences(LONGER, LONGER)
    without_contexts = yields.dropped.get(DropReason.NO_CONTEXTS, 0)
    if 2 * without_contexts > sum(yields.dropped.values()):
        fix = "use a better encoder or scorer.model, or raise the method's candidates"
        return _MoreSequences(fix, f"{fix}, or add documents")
    if _is_max_uses_reached(stats):
        fix = "raise compose.max_uses or compose.draft_factor"
        composed = yields.drafts - yields.untried
        if isinstance(yields.asked, int) and composed < yields.asked:
            # Even if no draft were dropped, the sequences would not suffice.
            more = "add documents or lower compose.min_meta_chunks"
            return _MoreSequences(fix, f"{fix}, and {more}")
        return _MoreSequences(fix, fix)
    fix = "add documents, or lower compose.target_tokens"
    if stats.setting.is_extended:
        return _MoreSequences(fix, f"{fix} or compose.min_meta_chunks")
    return _MoreSequences(fix, fix)


def _longer_sequences(stats: Stats) -> str:
    """Return the setting of a length at which few documents are too long.

    It is the present length, doubled as often as needed; "" if ten times do not do.
    """
    for power in range(1, 11):
        length = stats.setting.target_tokens << power
        if not _drops_many(stats, length):
            return f"compose.target_tokens={length}"
    return ""


def _drops_many(stats: Stats, tokens: int) -> bool:
    """Return whether sequences of this many tokens may drop too many documents.

    To be safe, that is more than half of the share that MOST_DROPPED allows.
    """
    if stats.corpus.document_chars is None:
        return False
    is_extended = stats.setting.is_extended
    max_chars = tokens * (stats.tokens.chars_per_token or 1.0)
    if is_extended:
        # A gap holds about as much as the meta-chunk before it, so a document beyond
        # half the length has no room.
        max_chars /= 2
    documents = 0
    too_long = 0.0
    for chars in stats.corpus.document_chars.histogram:
        # Documents of one chunk are not extended.
        if is_extended and chars.high <= stats.setting.max_chars:
            continue
        # As if the lengths in a bin were spread evenly.
        share_too_long = (chars.high - max_chars) / (chars.high - chars.low + 1)
        too_long += chars.count * min(1, max(0, share_too_long))
        documents += chars.count
    return too_long > MOST_DROPPED / 2 * documents


def _of_cut_off(stats: Stats) -> Iterator[DataWarning]:
    """Check the tokens that are cut off at the ends of sequences."""
    cut = stats.tokens.cut_off
    if cut is None:
        return
    share = cut.tokens / max(1, cut.of_tokens)
    if share <= THRESHOLDS.max_cut_off:
        return
    # Each sequence cuts about as many tokens at its end, however long it is. So a
    # sequence of n tokens cuts the share cut_per_sequence / (cut_per_sequence + n).
    cut_per_sequence = cut.tokens / stats.sequences
    tokens = stats.setting.target_tokens
    times_longer = cut_per_sequence * (1 / THRESHOLDS.max_cut_off - 1) / tokens
    doublings = max(1, math.ceil(math.log2(times_longer)))
    yield warn(
        "much-cut-off",
        f"compose.target_tokens={tokens << doublings}",
        cut=cut,
        share=share,
        fix=LONGER,
    )


def _is_max_uses_reached(stats: Stats) -> bool:
    """Return whether drafts were dropped, and compose.max_uses withheld chunks."""
    allowed = stats.setting.max_uses
    uses = stats.chunks.reuse.max
    if allowed is None or uses is None:
        return False
    return bool(stats.yields.dropped) and uses >= allowed


def _unshared_keywords(stats: Stats) -> str | None:
    """Say how many documents share no keyword with another; None if few do not."""
    count = stats.corpus.unshared_keywords or 0
    documents = stats.yields.documents
    if count <= THRESHOLDS.max_unshared * documents:
        return None
    return (
        f"{count:,} of {documents:,} documents ({count / documents:.0%}) share no "
        "keyword with another document"
    )


def _of_keywords(stats: Stats, run: Run) -> Iterator[DataWarning]:
    """Check how many documents have keywords, and share one with another document."""
    names = _public_source_names(run)
    without = []
    for source, documents in (stats.corpus.keywords or {}).items():
        lacking = 1 - documents.with_keywords / max(1, documents.documents)
        if lacking > THRESHOLDS.max_without_keywords:
            count = documents.documents - documents.with_keywords
            without.append(
                f"{count:,} of {documents.documents:,} of {names.get(source, source)} "
                f"({lacking:.0%})"
            )
    if without:
        yield warn("no-keywords", sources=", ".join(without))
    unshared = _unshared_keywords(stats)
    if unshared is not None:
        yield warn("unshared-keywords", documents=unshared, fix=_MORE_KEYWORDS)


def _public_source_names(run: Run) -> dict[str, str]:
    """Return the last part of each source's path, by path."""
    return {
        source.path: public_name(source.path) for source in run.recipe.ingest.sources
    }


def _of_parts(stats: Stats) -> Iterator[DataWarning]:
    """Check that enough documents are split, where the method interleaves parts."""
    parts = stats.documents.in_parts
    if parts is None:
        return
    share = parts.documents / max(1, parts.of_documents)
    if share >= THRESHOLDS.min_in_parts:
        return
    change = ""
    chars = stats.corpus.document_chars
    if chars is not None:
        # Chunks half as long as now, or as documents if these are shorter, so that one
        # document in ten has two chunks at least.
        chunk_chars = int(min(stats.setting.max_chars, chars.p90))
        change = f"chunk.max_chars={chunk_chars // 2}"
    yield warn("hardly-in-parts", change, parts=parts, share=share)


def _of_meta_documents(stats: Stats, run: Run) -> Iterator[DataWarning]:
    """Check the documents that sequences extend.

    What is checked is their share of the tokens, and the distance between their chunks.
    """
    share = stats.tokens.meta_share
    if share is None:
        return
    tokens = stats.setting.target_tokens
    if share < THRESHOLDS.min_meta_share:
        change = _longer_documents(stats, run)
        if share:
            yield warn("low-meta-share", change, share=share, negatives=1 / share)
        else:
            message = (
                "no token belongs to a meta-document, so nothing depends on distant "
                "context; raise compose.target_tokens"
            )
            yield DataWarning("low-meta-share", message, change)
    if stats.setting.repeats_meta_chunks:
        return
    if share > THRESHOLDS.max_meta_share:
        change = f"compose.target_tokens={2 * tokens}"
        yield warn("high-meta-share", change, share=share)
    if stats.meta_chunks is not None:
        yield from _of_last_chunks(stats, stats.meta_chunks)
    distance = stats.distance_tokens
    min_distance = THRESHOLDS.min_distance * tokens
    if distance is not None and distance.p10 < min_distance:
        yield warn(
            "short-distances",
            f"compose.min_gap_tokens={math.ceil(min_distance)}",
            p10=distance.p10,
            share=distance.p10 / tokens,
        )


def _longer_documents(stats: Stats, run: Run) -> str:
    """Return the setting with which only documents of enough tokens are extended.

    "" if there are fewer such documents than sequences.
    """
    if stats.chunks.tokens is None or stats.corpus.document_chars is None:
        return ""
    needed = THRESHOLDS.min_meta_share * stats.setting.target_tokens
    enough = math.ceil(needed / stats.chunks.tokens.mean)
    enough = max(enough, run.recipe.compose.min_meta_chunks + 1)
    min_chars = enough * stats.setting.max_chars
    long_documents = sum(
        chars.count
        for chars in stats.corpus.document_chars.histogram
        if chars.low >= min_chars
    )
    if long_documents < stats.sequences:
        return ""
    return f"compose.min_meta_chunks={enough}"


def _of_last_chunks(stats: Stats, meta_chunks: MetaChunks) -> Iterator[DataWarning]:
    """Check what follows the last meta-chunks, and their length."""
    after = meta_chunks.after_last
    per_sequence = meta_chunks.per_sequence
    if after.share > THRESHOLDS.max_after_last:
        counts = [(int(chunks.low), chunks.count) for chunks in per_sequence.histogram]
        shares = shares_after_last(counts)
        enough = enough_meta_chunks(shares)
        remaining = 0.0 if enough is None else shares[enough].remaining
        fix, change = _more_meta_chunks(stats, enough, remaining)
        yield warn(
            "few-meta-chunks",
            change,
            share=after.share,
            median=per_sequence.p50,
            fix=fix,
        )
    if after.short_share > THRESHOLDS.max_short_last:
        yield warn("short-last-chunks", after=after, sequences=per_sequence.count)


def _more_meta_chunks(
    stats: Stats, enough: int | None, remaining: float
) -> tuple[str, str]:
    """Return the fix of `few-meta-chunks`, and the setting that is likely to do it.

    Documents of at least `enough` chunks avoid the warning; they are the share
    `remaining` of those that can be extended. Each gives one sequence, so they may be
    too few. `enough` is None if no number of chunks avoids it.
    """
    asked = stats.yields.asked
    needed: float = stats.sequences * _MIN_LEFT
    if isinstance(asked, int):
        needed = asked
    documents = remaining * stats.yields.eligible
    if enough is not None and documents >= needed:
        fix = (
            "raise compose.min_meta_chunks, so that only longer documents are extended "
            f"({remaining:.0%} of them have {enough} chunks or more)"
        )
        return fix, f"compose.min_meta_chunks={enough}"
    fix = "lower chunk.max_chars, so that documents have more chunks"
    if enough is not None:
        fix += (
            f" (only about {documents:,.0f} of {stats.yields.eligible:,} have {enough} "
            "or more, too few to raise compose.min_meta_chunks)"
        )
    smaller = stats.setting.max_chars // 2
    if stats.corpus.document_chars is not None:
        median = stats.corpus.document_chars.p50
        smaller = min(smaller, three_chunk_chars(median))
    change = ""
    if smaller >= MIN_CHUNK_CHARS:
        change = f"chunk.max_chars={smaller}"
    return fix, change


def _of_repetition(stats: Stats) -> Iterator[DataWarning]:
    """Check for text that repeats within a sequence."""
    negatives = stats.negatives
    # A control repeats its meta-chunks by design.
    if stats.setting.repeats_meta_chunks:
        return
    if negatives is not None and negatives.from_own_document:
        yield warn("own-document-negatives", count=negatives.from_own_document)
    if stats.chunks.repeated:
        yield warn("repeated-chunks", count=stats.chunks.repeated)
    if negatives is not None and negatives.near_identical is not None:
        near = negatives.near_identical
        if near.share > THRESHOLDS.max_near_identical:
            change = f"mine.max_similarity={near.cosine}"
            yield warn("near-identical-negatives", change, near=near)


def _of_reuse(stats: Stats, run: Run) -> Iterator[DataWarning]:
    """Check how often chunks are used; not in a control that repeats by design."""
    if stats.setting.repeats_meta_chunks:
        return
    reuse = stats.chunks.reuse
    mean_uses = reuse.mean or 0.0
    overused = reuse.overused_share or 0.0
    max_uses = reuse.max or 0
    if mean_uses > THRESHOLDS.max_uses or overused > THRESHOLDS.max_overused:
        uses = (
            f"{mean_uses:.1f} times on average and up to {max_uses:,} ({overused:.0%} "
            "of all uses go to chunks used more than 16 times)"
        )
        change = _less_reuse(stats, mean_uses=mean_uses, overused_share=overused)
        yield heavy_reuse(uses, run.recipe, max_uses=max_uses, change=change)


def _less_reuse(stats: Stats, *, mean_uses: float, overused_share: float) -> str:
    """Return the setting that is likely to end heavy reuse; "" if none does."""
    if overused_share <= THRESHOLDS.max_overused:
        # The mean grows with the sequences, or a little slower.
        fewer = int(0.9 * THRESHOLDS.max_uses / mean_uses * stats.sequences)
        return f"compose.sequences={fewer}"
    if not stats.setting.is_extended:
        return ""
    allowed = OVERUSED
    if mean_uses > THRESHOLDS.max_uses:
        allowed = int(THRESHOLDS.max_uses)
    return f"compose.max_uses={allowed}"


def heavy_reuse(
    uses: str, recipe: Recipe, *, max_uses: float, change: str = ""
) -> DataWarning:
    """Return the warning about chunks that are used too often.

    `max_uses` is the number of uses of the most used one.
    """
    # Follows "add documents".
    fix = " or make fewer sequences"
    if method_of(recipe).layout == Layout.EXTENDED:
        fix = ", make fewer sequences, or cap it with compose.max_uses"
    effect = "is learned better than the rest, and later uses teach less"
    if max_uses >= _MEMORIZED_USES:
        effect = "is memorized"
    return warn("heavy-reuse", change, uses=uses, effect=effect, fix=fix)


def _of_negatives(stats: Stats, run: Run) -> Iterator[DataWarning]:
    """Check that negatives are similar to their meta-chunks, and of several sources."""
    if stats.negatives is None:
        return
    similarity = stats.similarity
    random = None if similarity is None else similarity.random
    if (
        not stats.control
        and similarity is not None
        and random is not None
        and similarity.cosine.mean <= random.mean
    ):
        yield warn(
            "unrelated-negatives",
            mean=similarity.cosine.mean,
            random=random.mean,
        )
    yield from _of_sources(stats, stats.negatives, run)


def _of_sources(stats: Stats, negatives: Negatives, run: Run) -> Iterator[DataWarning]:
    """Check that the negatives of all sources do not come from the same one."""
    by_source = negatives.tokens_by_source
    sources = stats.tokens.by_source.keys() | by_source.keys()
    if not by_source or len(sources) < 2:
        return
    meta_tokens = {
        source: tokens - by_source.get(source, 0)
        for source, tokens in stats.tokens.by_source.items()
    }
    source, tokens = max(by_source.items(), key=lambda item: item[1])
    share = tokens / sum(by_source.values())
    total_meta_tokens = max(1, sum(meta_tokens.values()))
    meta_share = meta_tokens.get(source, 0) / total_meta_tokens
    max_share = max(THRESHOLDS.source_share, THRESHOLDS.source_lift * meta_share)
    if share >= max_share:
        names = _public_source_names(run)
        yield warn(
            "one-source",
            share=share,
            source=names.get(source, source),
            meta_share=meta_share,
        )


def _of_size(stats: Stats) -> Iterator[DataWarning]:
    """Check the size of the corpus, where chunks are chosen by similarity."""
    per_sequence = stats.documents.per_sequence
    if per_sequence is None or not stats.setting.scores:
        return
    documents = stats.yields.documents
    # A sequence of half the length takes chunks from about half as many documents.
    # Below the threshold, there are no halvings and no warning.
    excess = per_sequence.mean / (THRESHOLDS.max_of_corpus * documents)
    halvings = max(0, math.ceil(math.log2(excess)))
    shorter = stats.setting.target_tokens >> halvings
    change = ""
    if not _drops_many(stats, shorter):
        change = f"compose.target_tokens={shorter}"
    warning = small_corpus(per_sequence.mean, documents, change=change)
    if warning is not None:
        yield warning


def small_corpus(
    in_sequence: float, documents: float, *, change: str = ""
) -> DataWarning | None:
    """Return the warning about sequences of too many of the corpus's documents.

    None unless there are more than the threshold.
    """
    if in_sequence <= THRESHOLDS.max_of_corpus * documents:
        return None
    return warn(
        "small-corpus",
        change,
        in_sequence=in_sequence,
        documents=documents,
        share=round(in_sequence) / round(documents),
    )


def _of_ids(run: Run) -> Iterator[DataWarning]:
    """Check the ids of the documents, and the ids that the recipe excludes."""
    ingested = run.steps["ingest"].results(IngestResult)
    without_id = sum(part.without_id for part in ingested)
    if without_id:
        columns = [
            source.id for source in run.recipe.ingest.sources if source.names_ids
        ]
        yield warn(
            "missing-ids",
            without=without_id,
            documents=sum(part.documents for part in ingested),
            columns=", ".join(dict.fromkeys(columns)),
        )
    unmet, entries = unmet_exclusions(run.steps["ingest"])
    if unmet:
        yield warn("unmet-exclusions", unmet=unmet, entries=counted(entries, "entry"))
    if "filter_report" not in run.steps:
        return
    filtered = run.steps["filter_report"].result(LeftOutResult)
    if filtered.same_ids:
        source, shared_id, first, second = filtered.same_id_example
        chunked = run.steps["chunk"].results(ChunkResult)
        yield warn(
            "same-ids",
            count=filtered.same_ids,
            documents=sum(part.documents for part in chunked),
            source=source,
            id=shared_id,
            first=first,
            second=second,
        )


def stand_in_tokenizer(recipe: Recipe, tokens: int) -> DataWarning | None:
    """Return the warning about sequences by a tokenizer that was trained on the corpus.

    None for another tokenizer, and for sequences of few `tokens`.
    """
    entries = recipe.tokenizer.train
    if entries is None or tokens < THRESHOLDS.stand_in_tokens:
        return None
    return warn("stand-in-tokenizer", entries=entries, tokens=tokens)


def _of_tokenizer(stats: Stats, run: Run) -> Iterator[DataWarning]:
    """Check whether the tokenizer fits the texts and a model."""
    config = run.recipe.tokenizer
    result = run.steps["tokenizer"].result(TokenizerResult)
    stand_in = stand_in_tokenizer(run.recipe, stats.setting.target_tokens)
    if stand_in is not None:
        yield stand_in
    loss = lossy_tokenizer(result.lost_share)
    if loss:
        yield warn("lossy-tokenizer", loss=loss)
    if config.source is not None and config.eos is None:
        tokenizer = read_tokenizer(TokenizerFiles.of(run.steps).tokenizer)
        ends = find_ends(tokenizer, local_path(config.source).parent)
        if ends.eos is not None:
            yield warn("no-eos", f"tokenizer.eos={ends.eos}", ends=ends)
    if result.ordinary:
        keys = [f"tokenizer.{key}={getattr(config, key)!r}" for key in result.ordinary]
        yield warn("ordinary-eos", keys=" and ".join(keys))
    yield from _of_token_sizes(stats, run)


def _of_token_sizes(stats: Stats, run: Run) -> Iterator[DataWarning]:
    """Check that tokens are not single bytes."""
    # A character is a byte at least, so mostly no text has to be read to know.
    if (stats.tokens.chars_per_token or 0) >= THRESHOLDS.min_bytes_per_token:
        return
    text_bytes = 0
    tokens = 0
    # A few sequences, evenly spaced, because their text has to be read.
    step = math.ceil(len(run) / _READ_SEQUENCES)
    for number in range(0, len(run), step):
        sequence = run.sequence(number)
        text_bytes += len(sequence.text.encode())
        tokens += len(sequence.input_ids)
    bytes_per_token = text_bytes / tokens
    if bytes_per_token < THRESHOLDS.min_bytes_per_token:
        yield warn("small-tokens", bytes=bytes_per_token)
