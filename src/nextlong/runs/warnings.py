"""Warnings: what a careful colleague would say about a data set before anybody trains on it, and why.

In:  the numbers of a finished run (`Stats`), its recipe and the counts of its steps.
Out: `Warned`, in the order of `CHECKS`; none where nothing looks poor. Why each threshold is where it is: docs/warnings.md.
The checks of one topic are one function, which yields name, message and the setting that is likely to help.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from nextlong.artifacts.finished import read_tokenizer
from nextlong.artifacts.results import ChunkResult, IngestResult, TokenizerResult
from nextlong.corpus.filter_report import LeftOutResult
from nextlong.corpus.ingest import unmet_exclusions
from nextlong.export.arrange import LEAST_FILL, SplitResult, fill, percent
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe
from nextlong.runs.measures import OVERUSED
from nextlong.schemas import DropReason, Layout
from nextlong.sequences.shortfall import LONGER, MOST_DROPPED
from nextlong.sequences.token_chars import lossy_tokenizer
from nextlong.sequences.tokenizer import find_ends, local_path
from nextlong.text import counted, public_name

if TYPE_CHECKING:
    from nextlong.runs.run import Run
    from nextlong.runs.stats import Stats

LEAST_META_SHARE: Final = 0.0025
MOST_META_SHARE: Final = 0.5
LEAST_DISTANCE: Final = 0.01  # of a sequence, that nine in ten of the distances between meta-chunks have
MOST_NEAR_IDENTICAL: Final = 0.05
SOURCE_SHARE: Final = 0.5  # of the negatives' tokens from one source, and …
SOURCE_LIFT: Final = 2.0  # … so many times its share of the meta-documents' tokens
STAND_IN_TOKENS: Final = 32_768
MOST_CUT_OFF: Final = 0.25  # of the tokens of the documents that are taken
MOST_USES: Final = 4.0  # of a chunk, on average
MOST_OVERUSED: Final = 0.1
_MEMORIZED_USES: Final = 200  # of a chunk
MOST_OF_CORPUS: Final = 0.1  # documents that one sequence takes chunks from, of all
LEAST_BYTES_PER_TOKEN: Final = 2.0
_WEIGHED_SEQUENCES: Final = 16  # at most, whose text is read
MOST_NEAR_DUPLICATES: Final = 0.5  # of all documents
MOST_WITHOUT_KEYWORDS: Final = 0.05  # of a source's documents
LEAST_IN_PARTS: Final = 0.05  # of the documents in the sequences
_MOST_IN_TRAIN: Final = 0.05  # of the chunks of validation
FROM_SCRATCH: Final = "only with a model trained from scratch with this tokenizer"
_CONTROLS: Final = {  # what the negatives are where they are not simply the most similar chunks: the paper's ablation (§4.4)
    "random-retrieved": ("similar chunks in random order", "the hardest negatives"),
    "tail": ("the least similar of the chunks that search found", "the hardest negatives"),
    "random-corpus": ("random", "hard negatives"),
    "self-repeat": ("copies of their meta-chunk", "hard negatives"),
}


@dataclass(frozen=True)
class Warned:
    """A problem of a data set, by a name that stays the same, and in words: what, why it matters, what helps.

    `change` is the setting of the recipe, KEY=VALUE, that is likely to solve it; "" where no single setting does.
    """

    name: str
    message: str
    change: str = ""

    def of(self, named: str) -> Warned:
        """Return it with the name of the run in its commands, which say RUN in files and in the card, which is published."""
        return replace(self, message=self.message.replace(" RUN ", f" {shlex.quote(named)} "))

    def __str__(self) -> str:
        """Return the message and, for looking it up, the name."""
        return f"{self.message} [{self.name}]"


CHECKS: Final = (
    *("own-document-negatives", "repeated-chunks", "fewer-sequences", "many-dropped", "much-cut-off"),
    *("many-near-duplicates", "no-keywords", "hardly-in-parts", "low-meta-share", "short-distances", "high-meta-share"),
    *("near-identical-negatives", "unrelated-negatives", "one-source", "heavy-reuse", "small-corpus"),
    *("stand-in-tokenizer", "lossy-tokenizer", "no-eos", "ordinary-eos", "small-tokens"),
    *("missing-ids", "same-ids", "unmet-exclusions"),
)
_Found = Iterator[
    tuple[str, str, str]
]  # name, message ("": nothing to warn of), and the setting that is likely to help or ""


def warnings(stats: Stats, run: Run) -> tuple[Warned, ...]:
    """Return the data-quality warnings of a run."""
    topics = (_of_yield(stats), _of_documents(stats, run), _of_corpus(stats, run), _of_tokenizer(stats, run))
    found = [Warned(*one) for one in chain(_of_negatives(stats, run), *topics) if one[1]]
    return tuple(sorted(found, key=lambda warned: CHECKS.index(warned.name)))


def control(stats: Stats) -> str:
    """Return why the data are a control of an experiment, "" if they are data for training."""
    if stats.negatives not in _CONTROLS:
        return ""
    what, hard = _CONTROLS[stats.negatives]
    compared = [("cosine", stats.similarity), ("random pairs", stats.random_similarity)]
    cosines = ", ".join(f"{name} {spread.mean:.2f}" for name, spread in compared if spread)
    return f"Negatives are {what}{f' ({cosines})' if cosines else ''}: a control of the paper's ablation, not {hard}."


def _drops_many(stats: Stats, tokens: int) -> bool:
    """Say whether sequences of this many tokens may drop half as many documents as MOST_DROPPED allows."""
    is_extended = stats.layout == Layout.EXTENDED
    # A gap holds about as much as the meta-chunk before it, so a document beyond half the length has no room.
    longest = tokens * (stats.chars_per_token or 1.0) * (0.5 if is_extended else 1)
    bins = [one for one in stats.document_chars_histogram if one.most > stats.max_chars or not is_extended]
    over = sum(one.count * min(1, max(0, one.most - longest) / (one.most - one.least + 1)) for one in bins)
    return over > MOST_DROPPED / 2 * sum(one.count for one in bins)


def _of_yield(stats: Stats) -> _Found:
    """Check how many sequences there are, and what was lost on the way to them."""
    tokens, yields, lower = stats.target_tokens, stats.yields, "add documents, or lower compose.target_tokens"
    too_long = sum(yields.dropped.get(reason, 0) for reason in (DropReason.TOO_LONG, DropReason.TOO_LITTLE_ROOM))
    lost_drafts, composed = sum(yields.dropped.values()), yields.drafts - yields.untried
    is_too_long, longer = 2 * too_long > lost_drafts, ""
    if is_too_long:  # the present length times a power of two
        lengths = (tokens << power for power in range(1, 11))
        longer = next((f"compose.target_tokens={length}" for length in lengths if not _drops_many(stats, length)), "")
    if isinstance(yields.asked, int) and stats.sequences < yields.asked:
        too_short = " or compose.min_meta_chunks" if stats.layout == Layout.EXTENDED else ""
        yield (
            "fewer-sequences",
            f"{stats.sequences:,} sequences were made, but {yields.asked:,} were requested: the corpus has no more of this length; "
            + (LONGER if is_too_long else lower + too_short),
            longer,
        )
    if lost_drafts > MOST_DROPPED * composed:
        why = ", ".join(f"{count:,} {reason}" for reason, count in yields.dropped.items())
        yield (
            "many-dropped",
            f"{lost_drafts:,} of {composed:,} drafts were dropped ({why}): the rest is a biased sample of the corpus; "
            + (LONGER if is_too_long else lower),
            longer,
        )
    if (cut := stats.cut_off) is not None and cut.share > MOST_CUT_OFF:
        # Each sequence cuts about as many tokens at its end, however long it is.
        needed = cut.tokens / stats.sequences * (1 / MOST_CUT_OFF - 1) / tokens
        yield (
            "much-cut-off",
            f"{cut.tokens:,} of the {cut.of_tokens:,} tokens of the documents in the sequences ({cut.share:.0%}) are cut off at "
            f"the sequences' ends: of long documents hardly more than the beginning is seen; {LONGER}",
            f"compose.target_tokens={tokens << max(1, math.ceil(math.log2(needed)))}",
        )
    if (copies := stats.near_duplicate_documents or 0) > MOST_NEAR_DUPLICATES * yields.documents:
        yield (
            "many-near-duplicates",
            f"{copies:,} of the corpus's {yields.documents:,} documents were filtered out as near-duplicates: the corpus is full "
            "of copies, or of pages that differ little; set ingest.dedup: minhash to see which, or raise the method's "
            "max_similarity",
            "ingest.dedup=minhash",
        )


def _of_documents(stats: Stats, run: Run) -> _Found:
    """Check what becomes of the documents that a sequence is about: their share, and how far their parts are apart."""
    share, tokens, spread = stats.meta_share, stats.target_tokens, stats.distance_tokens
    names = {each.path: public_name(each.path) for each in run.recipe.ingest.sources}
    without = [
        f"{of.documents - of.with_keywords:,} of {of.documents:,} of {names.get(source, source)} ({of.share_without:.0%})"
        for source, of in (stats.keywords or {}).items()
        if of.share_without > MOST_WITHOUT_KEYWORDS
    ]
    if without:
        yield (
            "no-keywords",
            f"documents without a keyword are in no sequence: {', '.join(without)}; lower quest.min_keyword_score or "
            "min_keyword_chars, or set quest.queries to a model that makes queries for such texts",
            "",
        )
    if (parts := stats.in_parts) is not None and parts.share < LEAST_IN_PARTS:
        chars = stats.document_chars
        yield (
            "hardly-in-parts",
            f"{parts.in_parts:,} of the {parts.documents:,} documents in the sequences ({parts.share:.1%}) are split into more "
            "than one part, so the data are nearly those of compose.method=standard: a document is split at its chunks, and most "
            "have one; lower chunk.max_chars, or use longer documents",
            f"chunk.max_chars={int(min(stats.max_chars, chars.p90)) // 2}" if chars else "",
        )
    if share is not None and share < LEAST_META_SHARE:
        change = ""
        if stats.chunk_tokens:
            enough = math.ceil(LEAST_META_SHARE * tokens / stats.chunk_tokens.mean)
            enough = max(enough, run.recipe.compose.min_meta_chunks + 1)
            long = sum(one.count for one in stats.document_chars_histogram if one.least >= enough * stats.max_chars)
            change = f"compose.min_meta_chunks={enough}" if long >= stats.sequences else ""
        yield (
            "low-meta-share",
            f"only {share:.2%} of the tokens belong to meta-documents ({1 / share:,.0f} tokens of negatives for each): few "
            "tokens depend on distant context; raise compose.min_meta_chunks so that longer documents are extended, or lower "
            "compose.target_tokens"
            if share
            else "no token belongs to a meta-document, so nothing depends on distant context; raise compose.target_tokens",
            change,
        )
    if stats.repeat_meta_chunks:
        return
    if share is not None and share > MOST_META_SHARE:
        yield (
            "high-meta-share",
            f"{share:.0%} of the tokens belong to meta-documents: these are nearly as long as the sequence, so their "
            "chunks are hardly moved apart; raise compose.target_tokens",
            f"compose.target_tokens={2 * tokens}",
        )
    if stats.layout == Layout.EXTENDED and spread is not None and spread.p10 < LEAST_DISTANCE * tokens:
        yield (
            "short-distances",
            f"one distance in ten between consecutive meta-chunks is {spread.p10:,.0f} tokens or less, "
            f"{spread.p10 / tokens:.2%} of a sequence: there the chunks of a document are hardly moved apart; raise "
            "compose.target_tokens, or compose.min_gap_tokens, which drops the documents that have no room for it",
            f"compose.min_gap_tokens={math.ceil(LEAST_DISTANCE * tokens)}",
        )


def _of_negatives(stats: Stats, run: Run) -> _Found:
    """Check what stands between the chunks of a document; nothing that a control repeats by design."""
    similarity, random, near = stats.similarity, stats.random_similarity, stats.near_identical
    if not stats.repeat_meta_chunks:
        if count := stats.own_document_negatives:
            told = f"{count:,} negatives come from their own meta-document, which gives the answer away; report it as a bug"
            yield "own-document-negatives", told, ""
        if count := stats.repeated_chunks:
            told = f"{count:,} chunks occur twice in the same sequence, which teaches copying instead of reading"
            yield "repeated-chunks", told, ""
        if near is not None and near.share > MOST_NEAR_IDENTICAL:
            yield (
                "near-identical-negatives",
                f"{near.share:.0%} of the negatives have a cosine of {near.cosine} or more to their meta-chunk, as in tables "
                "and forms that differ only in names and numbers: such negatives teach little; sequence "
                f"{near.sequence} has {near.most:,} of them: `nextlong peek RUN {near.sequence}`; set mine.max_similarity, or "
                "filter such pages out of the corpus",
                f"mine.max_similarity={near.cosine}",
            )
        reuse = stats.reuse
        mean, overused, most = reuse.mean or 0.0, reuse.overused_share or 0.0, reuse.max or 0
        if mean > MOST_USES or overused > MOST_OVERUSED:
            change = ""
            if overused <= MOST_OVERUSED:  # the mean grows with the sequences, or a little slower
                change = f"compose.sequences={int(0.9 * MOST_USES / mean * stats.sequences)}"
            elif stats.layout == Layout.EXTENDED:
                change = f"compose.max_uses={OVERUSED if mean <= MOST_USES else int(MOST_USES)}"
            uses = (
                f"{mean:.1f} times on average and up to {most:,} ({overused:.0%} of all uses go to chunks used more than "
                "16 times)"
            )
            yield "heavy-reuse", heavy_reuse(uses, run.recipe, most=most), change
    if stats.negatives == "top" and similarity and random and similarity.mean <= random.mean:
        yield (
            "unrelated-negatives",
            f"negatives are not more similar to their meta-chunk (mean cosine {similarity.mean:.2f}) than random pairs of chunks "
            f"are to each other ({random.mean:.2f}), so a model ignores them easily; add documents on the same topics, lower "
            "compose.target_tokens, or choose another encoder",
            "",
        )
    negatives = stats.negatives_by_source
    if negatives and len(stats.tokens_by_source | negatives) > 1:
        meta_tokens = {source: count - negatives.get(source, 0) for source, count in stats.tokens_by_source.items()}
        source, tokens = max(negatives.items(), key=lambda item: item[1])
        share = tokens / sum(negatives.values())
        of_meta_tokens = meta_tokens.get(source, 0) / max(1, sum(meta_tokens.values()))
        if share >= max(SOURCE_SHARE, SOURCE_LIFT * of_meta_tokens):
            named = {each.path: public_name(each.path) for each in run.recipe.ingest.sources}.get(source, source)
            yield (
                "one-source",
                f"{share:.0%} of the negatives' tokens come from {named}, but {of_meta_tokens:.0%} of the meta-documents' "
                "tokens: its style tells a model which text to skip; give the source a smaller ingest.sources weight or "
                "max_documents, or cap reuse with compose.max_uses",
                "",
            )


def heavy_reuse(uses: str, recipe: Recipe, *, most: float) -> str:
    """Return the warning about chunks that are used so often; `most` is how often one of them is."""
    is_extended = method_of(recipe).layout == Layout.EXTENDED
    cure = ", make fewer sequences, or cap it with compose.max_uses" if is_extended else " or make fewer sequences"
    effect = "is memorized" if most >= _MEMORIZED_USES else "is learned better than the rest, and later uses teach less"
    return f"a chunk is used {uses}: text that is repeated so often {effect}; add documents{cure}"


def small_corpus(in_sequence: float, documents: float) -> str:
    """Return the warning about sequences that use so many of the corpus's documents, "" if there is none."""
    if in_sequence <= MOST_OF_CORPUS * documents:
        return ""
    return (
        f"a sequence takes chunks from {in_sequence:,.0f} of the corpus's {documents:,.0f} documents, "
        f"{round(in_sequence) / round(documents):.0%}: with so few to choose from, the lowest-ranked negatives are "
        "unrelated to the meta-chunk; add documents, or lower compose.target_tokens"
    )


def _of_corpus(stats: Stats, run: Run) -> _Found:
    """Check the size of the corpus and the ids of its documents."""
    if (spread := stats.documents_per_sequence) is not None and stats.scores:  # else nothing was chosen by similarity
        documents = stats.yields.documents
        excess = spread.mean / (MOST_OF_CORPUS * documents)
        shorter = stats.target_tokens >> max(0, math.ceil(math.log2(excess)))
        change = "" if _drops_many(stats, shorter) else f"compose.target_tokens={shorter}"
        yield "small-corpus", small_corpus(spread.mean, documents), change
    ingested = run.steps["ingest"].results(IngestResult)
    if without := sum(part.without_id for part in ingested):
        columns = ", ".join(dict.fromkeys(source.id for source in run.recipe.ingest.sources if source.names_ids))
        yield (
            "missing-ids",
            f"{without:,} of {sum(part.documents for part in ingested):,} ingested documents have no value in the id column of "
            f"ingest.sources ({columns}): spans name them by file and line, which another copy of the files may not have; "
            "give them ids, or set another id column",
            "",
        )
    unmet, entries = unmet_exclusions(run.steps["ingest"])
    if unmet:
        yield (
            "unmet-exclusions",
            f"{unmet:,} of {counted(entries, 'entry')} of ingest.exclude name no document, so what was to be excluded may "
            "be in the data; correct their source or id as the corpus has them, or delete the lines",
            "",
        )
    result = run.steps["filter_report"].result(LeftOutResult) if "filter_report" in run.steps else None
    if result is not None and result.same_ids:
        source, name, one, other = result.same_id_example
        stay = sum(part.documents for part in run.steps["chunk"].results(ChunkResult))
        yield (
            "same-ids",
            f"{result.same_ids:,} of {stay:,} documents have the id of an earlier one of their source, so spans do not tell which "
            f"of them a token comes from; in source {source}, {name!r} is the id of “{one} …” and of “{other} …”; make ids "
            "unique, or name another column as ingest.sources[].id",
            "",
        )


def stand_in_tokenizer(recipe: Recipe, tokens: int) -> str:
    """Return the warning about sequences of this many tokens of a tokenizer trained on the corpus, "" if there is none."""
    if recipe.tokenizer.train is None or tokens < STAND_IN_TOKENS:
        return ""
    return (
        f"the tokenizer is a stand-in trained on this corpus (tokenizer.train={recipe.tokenizer.train:,}), not compatible "
        f"with any pretrained model, and sequences of {tokens:,} tokens are rarely for a model from scratch; set "
        "tokenizer.source to your model's tokenizer.json: embeddings and search results are reused"
    )


def _of_tokenizer(stats: Stats, run: Run) -> _Found:
    """Check whether the tokenizer fits the texts and a model."""
    config, result = run.recipe.tokenizer, run.steps["tokenizer"].result(TokenizerResult)
    yield "stand-in-tokenizer", stand_in_tokenizer(run.recipe, stats.target_tokens), ""
    if loss := lossy_tokenizer(result.lost_share):
        yield "lossy-tokenizer", f"the tokenizer {loss}", ""
    if config.source is not None and config.eos is None:
        tokenizer = read_tokenizer(run.steps["tokenizer"].file(".tokenizer.json"))
        if (ends := find_ends(tokenizer, local_path(config.source).parent)).eos is not None:
            yield (
                "no-eos",
                "no sequence ends with an end-of-text token (tokenizer.eos is null), so a model trained on these data never "
                f"learns to stop; the tokenizer has {ends.eos} (according to {ends.eos_said_by}): set tokenizer.eos",
                f"tokenizer.eos={ends.eos}",
            )
    if result.ordinary:
        named = " and ".join(f"tokenizer.{key}={getattr(config, key)!r}" for key in result.ordinary)
        yield (
            "ordinary-eos",
            f"{named}: an ordinary token of this vocabulary, which a model cannot tell from text; name a special "
            "token, as the model's tokenizer_config.json does",
            "",
        )
    if (
        stats.chars_per_token or 0
    ) < LEAST_BYTES_PER_TOKEN:  # a character is a byte at least: otherwise no text is read
        spread = map(run.sequence, range(0, len(run), math.ceil(len(run) / _WEIGHED_SEQUENCES)))
        sizes = [(len(sequence.text.encode()), len(sequence.input_ids)) for sequence in spread]
        text_bytes, tokens = map(sum, zip(*sizes, strict=True))
        if (held := text_bytes / tokens) >= LEAST_BYTES_PER_TOKEN:
            return
        yield (
            "small-tokens",
            f"a token holds {held:.2f} bytes of text on average: the tokenizer encodes most of these texts byte by byte, so that a "
            "sequence holds little text; check that it is your model's tokenizer and supports this language",
            "",
        )


def of_rows(name: str, split: SplitResult, *, room: int) -> tuple[Warned, ...]:
    """Return the warnings about the rows of a split, which hold `room` tokens each."""
    told, filled = [], fill(split.tokens, rows=split.rows, room=room)
    if filled < LEAST_FILL:
        message = (
            f"{split.rows * room - split.tokens:,} tokens in the rows of {name} are padding ({percent(filled)} are filled), which "
            "wastes training compute; make export.pack a multiple of the sequence length, or make more sequences"
        )
        told.append(Warned("empty-rows", message))
    if split.chunks_in_train > _MOST_IN_TRAIN * split.chunks:
        message = (
            f"{split.chunks_in_train:,} of the {split.chunks:,} chunks of {name} are also in train: its loss will be lower than on "
            "unseen texts; set export.shared_chunks: leave-out, which removes their sequences from train, or hold out documents "
            "of your own"
        )
        told.append(Warned("read-in-train", message))
    return tuple(told)
