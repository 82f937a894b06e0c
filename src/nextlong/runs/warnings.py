"""Warnings: the problems of a data set that should be solved before training on it.

In:  the numbers of a finished run (`Stats`), its recipe and the counts of its steps.
Out: `Warned`, in the order of warnings.yaml, which has their texts; none if all checks pass. The checks of one topic are one
function. docs/warnings.md explains each threshold.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import yaml

from nextlong.artifacts.finished import (
    ChunkResult,
    IngestResult,
    TokenizerResult,
    read_tokenizer,
)
from nextlong.corpus.filter_report import LeftOutResult
from nextlong.corpus.ingest import unmet_exclusions
from nextlong.export.arrange import SplitResult, fill, percent
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe
from nextlong.runs.measures import OVERUSED
from nextlong.schemas import DropReason, Layout
from nextlong.sequences.shortfall import LONGER, MOST_DROPPED
from nextlong.sequences.tokenizer import find_ends, local_path, lossy_tokenizer
from nextlong.text import counted, public_name

if TYPE_CHECKING:
    from nextlong.runs.run import Run
    from nextlong.runs.stats import Stats


@dataclass(frozen=True)
class _Thresholds:
    """The values beyond which a warning is given; `docs/warnings.md` has the measurements behind them."""

    least_meta_share: float = 0.0025
    most_meta_share: float = 0.5
    least_distance: float = (
        0.01  # of a sequence, for nine in ten of the distances between meta-chunks
    )
    most_after_last: float = 0.3  # of the tokens, after the last meta-chunk
    most_short_last: float = 0.25  # of the sequences, whose last meta-chunk is short
    most_near_identical: float = 0.05
    source_share: float = 0.5  # of the negatives' tokens from one source, and …
    source_lift: float = (
        2.0  # … this many times its share of the meta-documents' tokens
    )
    stand_in_tokens: int = 32_768
    most_cut_off: float = 0.25  # of the tokens of the documents that are taken
    most_uses: float = 4.0  # of a chunk, on average
    most_overused: float = 0.1
    most_of_corpus: float = 0.1  # documents that one sequence takes chunks from, of all
    least_bytes_per_token: float = 2.0
    most_near_duplicates: float = 0.5  # of all documents
    most_without_keywords: float = 0.05  # of a source's documents
    most_unshared: float = 0.4  # of all documents, without a keyword of another one
    least_in_parts: float = 0.05  # of the documents in the sequences
    least_fill: float = 0.95  # of packed rows
    most_in_train: float = 0.05  # of the chunks of validation


THRESHOLDS: Final = _Thresholds()
_MOST_MIN_META_CHUNKS: Final = 8  # that is proposed
_MARGIN_AFTER_LAST: Final = 0.9  # for the documents of a run, which are a sample
_LEAST_LEFT: Final = 0.1  # of the sequences, if all are requested
LEAST_CHUNK_CHARS: Final = 64  # that is proposed
_MORE_KEYWORDS: Final = (
    "lower quest.min_keyword_score or min_keyword_chars, set quest.queries to a model "
    "that generates queries for such texts, or add documents on the same topics"
)
_MEMORIZED_USES: Final = 200  # of a chunk
_WEIGHED_SEQUENCES: Final = 16  # at most, whose text is read
FROM_SCRATCH: Final = "only with a model trained from scratch with this tokenizer"
_CONTROLS: Final = {  # what the negatives are where they are not simply the most similar chunks: the paper's ablation (§4.4)
    "random-retrieved": ("similar chunks in random order", "the hardest negatives"),
    "tail": (
        "the least similar of the chunks that search found",
        "the hardest negatives",
    ),
    "random-corpus": ("random", "hard negatives"),
    "self-repeat": ("copies of their meta-chunk", "hard negatives"),
}


_TEXTS: Final[dict[str, dict[str, str]]] = yaml.safe_load(
    Path(__file__).with_suffix(".yaml").read_text("utf-8")
)
CHECKS: Final = tuple(_TEXTS["run"])


@dataclass(frozen=True)
class Warned:
    """A problem of a data set: a stable name, and a message with the value, its effect and a fix.

    `change` is the setting of the recipe, KEY=VALUE, that is likely to solve it; "" if no single setting does.
    """

    name: str
    message: str
    change: str = ""

    def of(self, named: str) -> Warned:
        """Return the warning with the name of the run in its commands; files and the published card have RUN instead."""
        return replace(
            self, message=self.message.replace(" RUN ", f" {shlex.quote(named)} ")
        )

    def __str__(self) -> str:
        """Return the message and the name, by which docs/warnings.md lists it."""
        return f"{self.message} [{self.name}]"


def _warned(name: str, change: str = "", /, **values: Any) -> Warned:
    return Warned(name, (_TEXTS["run"] | _TEXTS["rows"])[name].format(**values), change)


def warnings(stats: Stats, run: Run) -> tuple[Warned, ...]:
    """Return the data-quality warnings of a run."""
    topics = (
        _of_yield(stats),
        _of_documents(stats, run),
        _of_corpus(stats, run),
        _of_tokenizer(stats, run),
    )
    return tuple(
        sorted(
            chain(_of_negatives(stats, run), *topics),
            key=lambda warned: CHECKS.index(warned.name),
        )
    )


def control(stats: Stats) -> str:
    """Return why the data are a control of an experiment, "" if they are meant for training."""
    if stats.negatives not in _CONTROLS:
        return ""
    what, hard = _CONTROLS[stats.negatives]
    compared = [("cosine", stats.similarity), ("random pairs", stats.random_similarity)]
    cosines = ", ".join(
        f"{name} {spread.mean:.2f}" for name, spread in compared if spread
    )
    return f"Negatives are {what}{f' ({cosines})' if cosines else ''}: a control of the paper's ablation, not {hard}."


def _drops_many(stats: Stats, tokens: int) -> bool:
    """Return whether sequences of this many tokens may drop more than half of the share that MOST_DROPPED allows."""
    is_extended = stats.layout == Layout.EXTENDED
    # A gap holds about as much as the meta-chunk before it, so a document beyond half the length has no room.
    longest = tokens * (stats.chars_per_token or 1.0) * (0.5 if is_extended else 1)
    bins = [
        one
        for one in stats.document_chars_histogram
        if one.most > stats.max_chars or not is_extended
    ]
    over = sum(
        one.count * min(1, max(0, one.most - longest) / (one.most - one.least + 1))
        for one in bins
    )
    return over > MOST_DROPPED / 2 * sum(one.count for one in bins)


def _of_yield(stats: Stats) -> Iterator[Warned]:
    """Check the number of sequences, and the documents and tokens that were dropped."""
    tokens, yields, cure = (
        stats.target_tokens,
        stats.yields,
        "add documents, or lower compose.target_tokens",
    )
    dropped, composed, longer, fewer = (
        sum(yields.dropped.values()),
        yields.drafts - yields.untried,
        "",
        cure,
    )
    too_long = sum(
        yields.dropped.get(reason, 0)
        for reason in (DropReason.TOO_LONG, DropReason.TOO_LITTLE_ROOM)
    )
    if 2 * too_long > dropped:
        cure = fewer = LONGER
        lengths = (
            tokens << power for power in range(1, 11)
        )  # the present length times a power of two
        longer = next(
            (
                f"compose.target_tokens={length}"
                for length in lengths
                if not _drops_many(stats, length)
            ),
            "",
        )
    elif _is_max_uses_reached(stats):
        cure = fewer = "raise compose.max_uses or compose.draft_factor"
        # Even if no draft were dropped, the sequences would not suffice.
        if isinstance(yields.asked, int) and composed < yields.asked:
            fewer += ", and add documents or lower compose.min_meta_chunks"
    elif stats.layout == Layout.EXTENDED:
        fewer += " or compose.min_meta_chunks"
    if isinstance(yields.asked, int) and stats.sequences < yields.asked:
        why = "the corpus is too small for more of this length"
        if fewer != LONGER and _is_max_uses_reached(stats):
            why = f"compose.max_uses={stats.max_uses} leaves too few negatives"
        unshared = _unshared_keywords(stats)
        if unshared is not None:
            why, fewer = f"{unshared} and are in no sequence", _MORE_KEYWORDS
        yield _warned("fewer-sequences", longer, stats=stats, why=why, cure=fewer)
    if dropped > MOST_DROPPED * composed:
        why = ", ".join(
            f"{count:,} {reason}" for reason, count in yields.dropped.items()
        )
        yield _warned(
            "many-dropped",
            longer,
            dropped=dropped,
            composed=composed,
            why=why,
            cure=cure,
        )
    if (cut := stats.cut_off) is not None and (
        share := cut.tokens / max(1, cut.of_tokens)
    ) > THRESHOLDS.most_cut_off:
        # Each sequence cuts about as many tokens at its end, however long it is.
        needed = (
            cut.tokens / stats.sequences * (1 / THRESHOLDS.most_cut_off - 1) / tokens
        )
        change = (
            f"compose.target_tokens={tokens << max(1, math.ceil(math.log2(needed)))}"
        )
        yield _warned("much-cut-off", change, cut=cut, share=share, cure=LONGER)
    if (
        copies := stats.near_duplicate_documents or 0
    ) > THRESHOLDS.most_near_duplicates * yields.documents:
        yield _warned(
            "many-near-duplicates",
            "ingest.dedup=minhash",
            count=copies,
            documents=yields.documents,
        )


def _is_max_uses_reached(stats: Stats) -> bool:
    """Return whether drafts were dropped, and compose.max_uses withheld chunks of them."""
    most_uses = stats.reuse.max
    if stats.max_uses is None or most_uses is None:
        return False
    return bool(stats.yields.dropped) and most_uses >= stats.max_uses


def _unshared_keywords(stats: Stats) -> str | None:
    """Return how many documents share no keyword with another one; None if these are few."""
    count, documents = stats.unshared_keywords or 0, stats.yields.documents
    if count <= THRESHOLDS.most_unshared * documents:
        return None
    share = count / documents
    return f"{count:,} of {documents:,} documents ({share:.0%}) share no keyword with another document"


def _of_documents(stats: Stats, run: Run) -> Iterator[Warned]:
    """Check the documents that sequences are about: their share of the tokens, and the distance between their parts."""
    share, tokens, spread = stats.meta_share, stats.target_tokens, stats.distance_tokens
    names = {each.path: public_name(each.path) for each in run.recipe.ingest.sources}
    without = []
    for source, of in (stats.keywords or {}).items():
        if (
            lacking := 1 - of.with_keywords / max(1, of.documents)
        ) > THRESHOLDS.most_without_keywords:
            count = f"{of.documents - of.with_keywords:,} of {of.documents:,}"
            without.append(f"{count} of {names.get(source, source)} ({lacking:.0%})")
    if without:
        yield _warned("no-keywords", sources=", ".join(without))
    unshared = _unshared_keywords(stats)
    if unshared is not None:
        yield _warned("unshared-keywords", documents=unshared, cure=_MORE_KEYWORDS)
    if (parts := stats.in_parts) and (
        in_parts := parts.in_parts / max(1, parts.documents)
    ) < THRESHOLDS.least_in_parts:
        chars = stats.document_chars
        change = (
            f"chunk.max_chars={int(min(stats.max_chars, chars.p90)) // 2}"
            if chars
            else ""
        )
        yield _warned("hardly-in-parts", change, parts=parts, share=in_parts)
    if share is not None and share < THRESHOLDS.least_meta_share:
        change = ""
        if stats.chunk_tokens:
            enough = math.ceil(
                THRESHOLDS.least_meta_share * tokens / stats.chunk_tokens.mean
            )
            enough = max(enough, run.recipe.compose.min_meta_chunks + 1)
            long = sum(
                one.count
                for one in stats.document_chars_histogram
                if one.least >= enough * stats.max_chars
            )
            change = (
                f"compose.min_meta_chunks={enough}" if long >= stats.sequences else ""
            )
        if share:
            yield _warned("low-meta-share", change, share=share, negatives=1 / share)
        else:
            none = "no token belongs to a meta-document, so nothing depends on distant context; raise compose.target_tokens"
            yield Warned("low-meta-share", none, change)
    if stats.repeat_meta_chunks:
        return
    if share is not None and share > THRESHOLDS.most_meta_share:
        yield _warned(
            "high-meta-share", f"compose.target_tokens={2 * tokens}", share=share
        )
    yield from _of_last_chunks(stats)
    if (
        stats.layout == Layout.EXTENDED
        and spread is not None
        and spread.p10 < THRESHOLDS.least_distance * tokens
    ):
        change = (
            f"compose.min_gap_tokens={math.ceil(THRESHOLDS.least_distance * tokens)}"
        )
        yield _warned(
            "short-distances", change, p10=spread.p10, share=spread.p10 / tokens
        )


def _of_last_chunks(stats: Stats) -> Iterator[Warned]:
    """Check what follows the last meta-chunks, and their length."""
    after, meta_chunks = stats.after_last, stats.meta_chunks
    if after is None or meta_chunks is None:
        return
    if after.share > THRESHOLDS.most_after_last:
        shares = shares_after_last(
            [(int(one.least), one.count) for one in stats.meta_chunks_histogram]
        )
        enough = enough_meta_chunks(shares)
        remaining = 0.0 if enough is None else shares[enough].remaining
        cure, change = _more_meta_chunks(stats, enough, remaining)
        yield _warned(
            "few-meta-chunks",
            change,
            share=after.share,
            median=meta_chunks.p50,
            cure=cure,
        )
    if after.short_share > THRESHOLDS.most_short_last:
        yield _warned("short-last-chunks", after=after, sequences=meta_chunks.count)


def _more_meta_chunks(
    stats: Stats, enough: int | None, remaining: float
) -> tuple[str, str]:
    """Return the cure of `few-meta-chunks`, and the setting that is likely to do it.

    Documents of `enough` chunks avoid the warning, and are the share `remaining` of those
    that can be extended. Each gives one sequence, so they may be too few.
    """
    asked = stats.yields.asked
    needed: float = stats.sequences * _LEAST_LEFT
    if isinstance(asked, int):
        needed = asked
    documents = remaining * stats.yields.eligible
    if enough is not None and documents >= needed:
        cure = (
            "raise compose.min_meta_chunks, so that only longer documents are extended "
            f"({remaining:.0%} of them have {enough} chunks or more)"
        )
        return cure, f"compose.min_meta_chunks={enough}"
    cure = "lower chunk.max_chars, so that documents have more chunks"
    if enough is not None:
        cure += (
            f" (only about {documents:,.0f} of {stats.yields.eligible:,} have {enough} "
            "or more, too few to raise compose.min_meta_chunks)"
        )
    smaller = stats.max_chars // 2
    if stats.document_chars is not None:
        smaller = min(smaller, three_chunk_chars(stats.document_chars.p50))
    change = ""
    if smaller >= LEAST_CHUNK_CHARS:
        change = f"chunk.max_chars={smaller}"
    return cure, change


def three_chunk_chars(median_chars: float) -> int:
    """Return the chunk size, a power of two, at which the median document has three."""
    third = max(1.0, median_chars / 3)
    return max(LEAST_CHUNK_CHARS, 1 << math.floor(math.log2(third)))


class AfterLast(NamedTuple):
    """The expected share of tokens after the last meta-chunk, and the share of the documents that remain."""

    share: float
    remaining: float


def shares_after_last(documents: Sequence[tuple[int, float]]) -> dict[int, AfterLast]:
    """Return what to expect of documents with at least 2, 3, … chunks; `documents` has (chunks, number) pairs.

    Negatives are shared evenly among the meta-chunks, so the last one of p is followed by one part in p. Corpora of real
    documents differ from this by at most 0.02.
    """
    eligible = [(chunks, count) for chunks, count in documents if chunks >= 2]
    total = sum(count for _, count in eligible)
    shares = {}
    for least in range(2, _MOST_MIN_META_CHUNKS + 1):
        kept = [(chunks, count) for chunks, count in eligible if chunks >= least]
        number = sum(count for _, count in kept)
        if number:
            after = sum(count / chunks for chunks, count in kept) / number
            shares[least] = AfterLast(after, number / total)
    return shares


def enough_meta_chunks(shares: Mapping[int, AfterLast]) -> int | None:
    """Return the least compose.min_meta_chunks that avoids the warning `few-meta-chunks`, with a margin; None if none does."""
    wanted = _MARGIN_AFTER_LAST * THRESHOLDS.most_after_last
    fitting = (least for least, expected in shares.items() if expected.share <= wanted)
    return next(fitting, None)


def _of_negatives(stats: Stats, run: Run) -> Iterator[Warned]:
    """Check the chunks between those of a document; repetitions are not checked in a control that repeats by design."""
    similarity, random, near, reuse = (
        stats.similarity,
        stats.random_similarity,
        stats.near_identical,
        stats.reuse,
    )
    if not stats.repeat_meta_chunks:
        if count := stats.own_document_negatives:
            yield _warned("own-document-negatives", count=count)
        if count := stats.repeated_chunks:
            yield _warned("repeated-chunks", count=count)
        if near is not None and near.share > THRESHOLDS.most_near_identical:
            yield _warned(
                "near-identical-negatives",
                f"mine.max_similarity={near.cosine}",
                near=near,
            )
        mean, overused, most = (
            reuse.mean or 0.0,
            reuse.overused_share or 0.0,
            reuse.max or 0,
        )
        if mean > THRESHOLDS.most_uses or overused > THRESHOLDS.most_overused:
            change = ""
            if (
                overused <= THRESHOLDS.most_overused
            ):  # the mean grows with the sequences, or a little slower
                change = f"compose.sequences={int(0.9 * THRESHOLDS.most_uses / mean * stats.sequences)}"
            elif stats.layout == Layout.EXTENDED:
                change = f"compose.max_uses={OVERUSED if mean <= THRESHOLDS.most_uses else int(THRESHOLDS.most_uses)}"
            of_all = f"{overused:.0%} of all uses go to chunks used more than 16 times"
            uses = f"{mean:.1f} times on average and up to {most:,} ({of_all})"
            yield heavy_reuse(uses, run.recipe, most=most, change=change)
    if (
        stats.negatives == "top"
        and similarity
        and random
        and similarity.mean <= random.mean
    ):
        yield _warned("unrelated-negatives", mean=similarity.mean, random=random.mean)
    negatives = stats.negatives_by_source
    if negatives and len(stats.tokens_by_source | negatives) > 1:
        meta_tokens = {
            source: count - negatives.get(source, 0)
            for source, count in stats.tokens_by_source.items()
        }
        source, tokens = max(negatives.items(), key=lambda item: item[1])
        share = tokens / sum(negatives.values())
        of_meta_tokens = meta_tokens.get(source, 0) / max(1, sum(meta_tokens.values()))
        if share >= max(
            THRESHOLDS.source_share, THRESHOLDS.source_lift * of_meta_tokens
        ):
            names = {
                each.path: public_name(each.path) for each in run.recipe.ingest.sources
            }
            yield _warned(
                "one-source",
                share=share,
                source=names.get(source, source),
                meta_share=of_meta_tokens,
            )


def heavy_reuse(uses: str, recipe: Recipe, *, most: float, change: str = "") -> Warned:
    """Return the warning about chunks that are used too often; `most` is the number of uses of one of them."""
    is_extended = method_of(recipe).layout == Layout.EXTENDED
    cure = (
        ", make fewer sequences, or cap it with compose.max_uses"
        if is_extended
        else " or make fewer sequences"
    )
    effect = (
        "is memorized"
        if most >= _MEMORIZED_USES
        else "is learned better than the rest, and later uses teach less"
    )
    return _warned("heavy-reuse", change, uses=uses, effect=effect, cure=cure)


def small_corpus(
    in_sequence: float, documents: float, *, change: str = ""
) -> Warned | None:
    """Return the warning about sequences that use too many of the corpus's documents, None below the threshold."""
    if in_sequence <= THRESHOLDS.most_of_corpus * documents:
        return None
    share = round(in_sequence) / round(documents)
    return _warned(
        "small-corpus",
        change,
        in_sequence=in_sequence,
        documents=documents,
        share=share,
    )


def _of_corpus(stats: Stats, run: Run) -> Iterator[Warned]:
    """Check the size of the corpus and the ids of its documents."""
    if (
        spread := stats.documents_per_sequence
    ) is not None and stats.scores:  # else nothing was chosen by similarity
        documents = stats.yields.documents
        excess = spread.mean / (THRESHOLDS.most_of_corpus * documents)
        shorter = stats.target_tokens >> max(0, math.ceil(math.log2(excess)))
        change = (
            "" if _drops_many(stats, shorter) else f"compose.target_tokens={shorter}"
        )
        if warned := small_corpus(spread.mean, documents, change=change):
            yield warned
    ingested = run.steps["ingest"].results(IngestResult)
    if without := sum(part.without_id for part in ingested):
        columns = ", ".join(
            dict.fromkeys(
                source.id for source in run.recipe.ingest.sources if source.names_ids
            )
        )
        documents = sum(part.documents for part in ingested)
        yield _warned(
            "missing-ids", without=without, documents=documents, columns=columns
        )
    unmet, entries = unmet_exclusions(run.steps["ingest"])
    if unmet:
        yield _warned(
            "unmet-exclusions", unmet=unmet, entries=counted(entries, "entry")
        )
    result = (
        run.steps["filter_report"].result(LeftOutResult)
        if "filter_report" in run.steps
        else None
    )
    if result is not None and result.same_ids:
        example = dict(
            zip(("source", "id", "one", "other"), result.same_id_example, strict=True)
        )
        documents = sum(
            part.documents for part in run.steps["chunk"].results(ChunkResult)
        )
        yield _warned("same-ids", count=result.same_ids, documents=documents, **example)


def stand_in_tokenizer(recipe: Recipe, tokens: int) -> Warned | None:
    """Return the warning about a tokenizer trained on the corpus for sequences of this many tokens, None if they are short."""
    entries = recipe.tokenizer.train
    is_short = entries is None or tokens < THRESHOLDS.stand_in_tokens
    return (
        None
        if is_short
        else _warned("stand-in-tokenizer", entries=entries, tokens=tokens)
    )


def _of_tokenizer(stats: Stats, run: Run) -> Iterator[Warned]:
    """Check whether the tokenizer fits the texts and a model."""
    config, result = (
        run.recipe.tokenizer,
        run.steps["tokenizer"].result(TokenizerResult),
    )
    if warned := stand_in_tokenizer(run.recipe, stats.target_tokens):
        yield warned
    if loss := lossy_tokenizer(result.lost_share):
        yield _warned("lossy-tokenizer", loss=loss)
    if config.source is not None and config.eos is None:
        tokenizer = read_tokenizer(run.steps["tokenizer"].file(".tokenizer.json"))
        if (
            ends := find_ends(tokenizer, local_path(config.source).parent)
        ).eos is not None:
            yield _warned("no-eos", f"tokenizer.eos={ends.eos}", ends=ends)
    if result.ordinary:
        keys = " and ".join(
            f"tokenizer.{key}={getattr(config, key)!r}" for key in result.ordinary
        )
        yield _warned("ordinary-eos", keys=keys)
    # A character is a byte at least: otherwise no text is read.
    if (stats.chars_per_token or 0) < THRESHOLDS.least_bytes_per_token:
        spread = map(
            run.sequence, range(0, len(run), math.ceil(len(run) / _WEIGHED_SEQUENCES))
        )
        sizes = [
            (len(sequence.text.encode()), len(sequence.input_ids))
            for sequence in spread
        ]
        text_bytes, tokens = map(sum, zip(*sizes, strict=True))
        if (held := text_bytes / tokens) < THRESHOLDS.least_bytes_per_token:
            yield _warned("small-tokens", bytes=held)


def of_rows(
    splits: Mapping[str, SplitResult],
    *,
    lengths: Collection[int],
    pack: int | None,
    runs: Sequence[str] = (),
) -> Iterator[Warned]:
    """Yield the warnings about the rows of each split.

    `lengths` are the distinct sequence lengths of the runs, in tokens; `pack` is
    `export.pack`, None if a row is one sequence; `runs` are the names of mixed runs.
    """
    room = pack or max(lengths)
    for name, split in splits.items():
        filled = fill(split.tokens, rows=split.rows, room=room)
        if filled < THRESHOLDS.least_fill:
            yield _warned(
                "empty-rows",
                name=name,
                room=room,
                filled=percent(filled),
                why=_why_rows_are_short(sorted(lengths), pack=pack),
            )
        sequences = [taken for taken, _ in split.of_runs]
        yield from unused_runs(runs, sequences, split=name)
        if split.chunks_in_train > THRESHOLDS.most_in_train * split.chunks:
            yield _warned("read-in-train", split=split, name=name)


def unused_runs(
    runs: Sequence[str], sequences: Sequence[int], *, split: str
) -> Iterator[Warned]:
    """Yield a warning for each run of a mix of which a split has no sequence."""
    # One run is no mix.
    if len(runs) < 2:
        return
    for name, taken in zip(runs, sequences, strict=False):
        if not taken:
            yield _warned("unused-run", run=name, split=split)


def _why_rows_are_short(lengths: Sequence[int], *, pack: int | None) -> str:
    """Return why rows have fewer tokens than they can hold, with the fix."""
    if pack is None and len(lengths) > 1:
        listed = " and ".join(f"{length:,}" for length in lengths)
        cure = "set export.pack, or make all sequences equally long"
        return f"the runs have sequences of {listed} tokens; {cure}"
    if pack is None:
        return "sequences vary in length; set export.pack, or compose.fit=exact"
    multiple = math.lcm(*lengths)
    if pack % multiple:
        cure = f"set it to a multiple of {multiple:,}"
        return f"export.pack={pack:,} is not a multiple of the sequence length; {cure}"
    return "there are too few sequences to fill the last rows; make more sequences"


def of_files(
    format_name: str, *, split: str, added_tokens: int, target_tokens: int
) -> Iterator[Warned]:
    """Yield the warnings about the files of a format, which has `added_tokens`."""
    if added_tokens:
        yield _warned(
            "longer-documents",
            name=format_name,
            split=split,
            added=added_tokens,
            tokens=target_tokens,
        )
