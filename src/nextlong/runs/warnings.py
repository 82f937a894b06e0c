"""Warnings: what a careful colleague would say about a data set before anybody trains on it, and why.

In:  the numbers of a finished run (`Stats`), its recipe and the counts of its steps.
Out: `Warned`, in the order of `CHECKS`; none where nothing looks poor. Why each threshold is where it is: docs/warnings.md.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from nextlong.artifacts.finished import read_tokenizer
from nextlong.artifacts.results import ChunkResult, IngestResult, LeftOutResult, TokenizerResult
from nextlong.corpus.select import met_none
from nextlong.export.arrange import LEAST_FILL, SplitResult, fill, percent
from nextlong.export.card import public_name
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe
from nextlong.runs.measures import OVERUSED, bytes_per_token
from nextlong.schemas import DropReason, Layout
from nextlong.sequences.shortfall import LONGER, MOST_DROPPED
from nextlong.sequences.token_chars import lossy_tokenizer
from nextlong.sequences.tokenizer import Ends, find_ends, local_path
from nextlong.text import counted

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
MEMORIZED_USES: Final = 200  # of a chunk
MOST_OF_CORPUS: Final = 0.1  # documents that one sequence takes chunks from, of all
LEAST_BYTES_PER_TOKEN: Final = 2.0
MOST_NEAR_DUPLICATES: Final = 0.5  # of all documents
MOST_WITHOUT_KEYWORDS: Final = 0.05  # of a source's documents
LEAST_IN_PARTS: Final = 0.05  # of the documents in the sequences
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


class Seen(NamedTuple):
    """What the checks look at."""

    stats: Stats
    run: Run


def warnings(stats: Stats, run: Run) -> tuple[Warned, ...]:
    """Return the data-quality warnings of a run."""
    seen = Seen(stats, run)
    messages = ((name, check(seen)) for name, check in CHECKS.items())
    return tuple(Warned(name, message, _change(name, seen)) for name, message in messages if message)


def control(stats: Mapping[str, Any]) -> str:
    """Return, from `Stats.as_json()`, why the data are a control of an experiment, "" if they are data for training."""
    if stats["negatives"] not in _CONTROLS:
        return ""
    what, hard = _CONTROLS[stats["negatives"]]
    compared = [("cosine", stats["similarity"]), ("random pairs", stats["random_similarity"])]
    cosines = ", ".join(f"{name} {spread['mean']:.2f}" for name, spread in compared if spread)
    return f"Negatives are {what}{f' ({cosines})' if cosines else ''}: a control of the paper's ablation, not {hard}."


def _change(name: str, seen: Seen) -> str:
    """Return the setting that is likely to solve a problem; a length is the present one times a power of two."""
    stats, tokens, chars_per_token = seen.stats, seen.stats.target_tokens, seen.stats.chars_per_token or 1.0
    is_extended = stats.layout == Layout.EXTENDED

    def drops_many(tokens: int) -> bool:
        """Say whether sequences of this many tokens may drop half as many documents as MOST_DROPPED allows."""
        # A gap holds about as much as the meta-chunk before it, so a document beyond half the length has no room.
        longest = tokens * chars_per_token * (0.5 if is_extended else 1)
        bins = [one for one in stats.document_chars_histogram if one.most > stats.max_chars or not is_extended]
        over = sum(one.count * min(1, max(0, one.most - longest) / (one.most - one.least + 1)) for one in bins)
        return over > MOST_DROPPED / 2 * sum(one.count for one in bins)

    if name == "small-corpus" and stats.documents_per_sequence:
        excess = stats.documents_per_sequence.mean / (MOST_OF_CORPUS * stats.yields.documents)
        shorter = tokens >> math.ceil(math.log2(excess))
        return "" if drops_many(shorter) else f"compose.target_tokens={shorter}"
    if name in ("many-dropped", "fewer-sequences") and _mostly_too_long(seen):
        longer = next((length for power in range(1, 11) if not drops_many(length := tokens << power)), 0)
        return f"compose.target_tokens={longer}" if longer else ""
    if name == "much-cut-off" and stats.cut_off:
        # Each sequence cuts about as many tokens at its end, however long it is.
        needed = stats.cut_off.tokens / stats.sequences * (1 / MOST_CUT_OFF - 1) / tokens
        return f"compose.target_tokens={tokens << max(1, math.ceil(math.log2(needed)))}"
    if name == "low-meta-share" and stats.chunk_tokens:
        enough = math.ceil(LEAST_META_SHARE * tokens / stats.chunk_tokens.mean)
        enough = max(enough, seen.run.recipe.compose.min_meta_chunks + 1)
        long = sum(one.count for one in stats.document_chars_histogram if one.least >= enough * stats.max_chars)
        return f"compose.min_meta_chunks={enough}" if long >= stats.sequences else ""
    if name == "hardly-in-parts" and stats.document_chars:
        return f"chunk.max_chars={int(min(stats.max_chars, stats.document_chars.p90)) // 2}"
    if name == "heavy-reuse" and stats.reuse.mean and stats.reuse.overused_share is not None:
        if stats.reuse.overused_share <= MOST_OVERUSED:  # the mean grows with the sequences, or a little slower
            return f"compose.sequences={int(0.9 * MOST_USES / stats.reuse.mean * stats.sequences)}"
        most = OVERUSED if stats.reuse.mean <= MOST_USES else int(MOST_USES)
        return f"compose.max_uses={most}" if is_extended else ""
    if name == "no-eos":
        return f"tokenizer.eos={_ends(seen.run).eos}"
    changes = {
        "many-near-duplicates": "ingest.dedup=minhash",
        "short-distances": f"compose.min_gap_tokens={math.ceil(LEAST_DISTANCE * tokens)}",
        "high-meta-share": f"compose.target_tokens={2 * tokens}",
        "near-identical-negatives": f"mine.max_similarity={stats.near_identical.cosine if stats.near_identical else 1}",
    }
    return changes.get(name, "")


def _own_document(seen: Seen) -> str:
    count = seen.stats.own_document_negatives
    if not count or _repeats_itself(seen):
        return ""
    return f"{count:,} negatives come from their own meta-document, which gives the answer away; report it as a bug"


def _repeated_chunks(seen: Seen) -> str:
    if not seen.stats.repeated_chunks or _repeats_itself(seen):
        return ""
    return f"{seen.stats.repeated_chunks:,} chunks occur twice in the same sequence, which teaches copying instead of reading"


def _fewer_sequences(seen: Seen) -> str:
    asked = seen.stats.yields.asked
    if not isinstance(asked, int) or seen.stats.sequences >= asked:
        return ""
    too_short = " or compose.min_meta_chunks" if seen.stats.layout == Layout.EXTENDED else ""
    lower = f"add documents, or lower compose.target_tokens{too_short}"
    cure = LONGER if _mostly_too_long(seen) else lower
    return (
        f"{seen.stats.sequences:,} sequences were made, but {asked:,} were requested: the corpus has no more of this length; "
        f"{cure}"
    )


def _low_meta_share(seen: Seen) -> str:
    share = seen.stats.meta_share
    if share is None or share >= LEAST_META_SHARE:
        return ""
    return (
        f"only {share:.2%} of the tokens belong to meta-documents ({1 / share:,.0f} tokens of negatives for each): few "
        "tokens depend on distant context; raise compose.min_meta_chunks so that longer documents are extended, or lower "
        "compose.target_tokens"
        if share
        else "no token belongs to a meta-document, so nothing depends on distant context; raise compose.target_tokens"
    )


def _short_distances(seen: Seen) -> str:
    spread, tokens = seen.stats.distance_tokens, seen.stats.target_tokens
    is_extended = seen.stats.layout == Layout.EXTENDED
    if spread is None or not is_extended or spread.p10 >= LEAST_DISTANCE * tokens or _repeats_itself(seen):
        return ""
    return (
        f"one distance in ten between consecutive meta-chunks is {spread.p10:,.0f} tokens or less, "
        f"{spread.p10 / tokens:.2%} of a sequence: there the chunks of a document are hardly moved apart; raise "
        "compose.target_tokens, or compose.min_gap_tokens, which drops the documents that have no room for it"
    )


def _high_meta_share(seen: Seen) -> str:
    share = seen.stats.meta_share
    if share is None or share <= MOST_META_SHARE or _repeats_itself(seen):
        return ""
    return (
        f"{share:.0%} of the tokens belong to meta-documents: these are nearly as long as the sequence, so their "
        "chunks are hardly moved apart; raise compose.target_tokens"
    )


def _near_identical(seen: Seen) -> str:
    near = seen.stats.near_identical
    if near is None or near.share <= MOST_NEAR_IDENTICAL or _repeats_itself(seen):
        return ""
    return (
        f"{near.share:.0%} of the negatives have a cosine of {near.cosine} or more to their meta-chunk, as in tables and "
        f"forms that differ only in names and numbers: such negatives teach little; sequence {near.sequence} has {near.most:,} of "
        f"them: `nextlong peek RUN {near.sequence}`; set mine.max_similarity, or filter such pages out of the corpus"
    )


def _unrelated(seen: Seen) -> str:
    similarity, random = seen.stats.similarity, seen.stats.random_similarity
    if seen.stats.negatives != "top" or not similarity or not random or similarity.mean > random.mean:
        return ""
    return (
        f"negatives are not more similar to their meta-chunk (mean cosine {similarity.mean:.2f}) than random pairs of chunks are "
        f"to each other ({random.mean:.2f}), so a model ignores them easily; add documents on the same topics, lower "
        "compose.target_tokens, or choose another encoder"
    )


def _one_source(seen: Seen) -> str:
    negatives = seen.stats.negatives_by_source
    if not negatives or len(seen.stats.tokens_by_source | negatives) < 2:
        return ""
    meta_tokens = {source: tokens - negatives.get(source, 0) for source, tokens in seen.stats.tokens_by_source.items()}
    source, tokens = max(negatives.items(), key=lambda item: item[1])
    share = tokens / sum(negatives.values())
    of_meta_tokens = meta_tokens.get(source, 0) / max(1, sum(meta_tokens.values()))
    if share < SOURCE_SHARE or share < SOURCE_LIFT * of_meta_tokens:
        return ""
    named = {each.path: public_name(each.path) for each in seen.run.recipe.ingest.sources}.get(source, source)
    return (
        f"{share:.0%} of the negatives' tokens come from {named}, but {of_meta_tokens:.0%} of the meta-documents' tokens: "
        "its style tells a model which text to skip; give the source a smaller ingest.sources weight or max_documents, or "
        "cap reuse with compose.max_uses"
    )


def _stand_in_tokenizer(seen: Seen) -> str:
    return stand_in_tokenizer(seen.run.recipe, seen.stats.target_tokens)


def stand_in_tokenizer(recipe: Recipe, tokens: int) -> str:
    """Return the warning about sequences of this many tokens of a tokenizer trained on the corpus, "" if there is none."""
    if recipe.tokenizer.train is None or tokens < STAND_IN_TOKENS:
        return ""
    return (
        f"the tokenizer is a stand-in trained on this corpus (tokenizer.train={recipe.tokenizer.train:,}), not compatible "
        f"with any pretrained model, and sequences of {tokens:,} tokens are rarely for a model from scratch; set "
        "tokenizer.source to your model's tokenizer.json: embeddings and search results are reused"
    )


def _lossy_tokenizer(seen: Seen) -> str:
    loss = lossy_tokenizer(seen.run.steps["tokenizer"].result(TokenizerResult).lost_share)
    return f"the tokenizer {loss}" if loss else ""


def _ordinary_eos(seen: Seen) -> str:
    ordinary = seen.run.steps["tokenizer"].result(TokenizerResult).ordinary
    if not ordinary:
        return ""
    config = seen.run.recipe.tokenizer
    named = " and ".join(f"tokenizer.{key}={getattr(config, key)!r}" for key in ordinary)
    return (
        f"{named}: an ordinary token of this vocabulary, which a model cannot tell from text; name a special "
        "token, as the model's tokenizer_config.json does"
    )


def _no_eos(seen: Seen) -> str:
    config = seen.run.recipe.tokenizer
    if config.source is None or config.eos is not None:
        return ""
    ends = _ends(seen.run)
    if ends.eos is None:
        return ""
    return (
        f"no sequence ends with an end-of-text token (tokenizer.eos is null), so a model trained on these data never learns to "
        f"stop; the tokenizer has {ends.eos} (according to {ends.eos_said_by}): set tokenizer.eos"
    )


def _ends(run: Run) -> Ends:
    """Return the special tokens that the files of the run's tokenizer name."""
    tokenizer = read_tokenizer(run.steps["tokenizer"].file(".tokenizer.json"))
    return find_ends(tokenizer, local_path(run.recipe.tokenizer.source or "").parent)


def _small_tokens(seen: Seen) -> str:
    if (
        seen.stats.chars_per_token or 0
    ) >= LEAST_BYTES_PER_TOKEN:  # a character is a byte at least, so that no text is read
        return ""
    held = bytes_per_token(seen.run)
    if held >= LEAST_BYTES_PER_TOKEN:
        return ""
    return (
        f"a token holds {held:.2f} bytes of text on average: the tokenizer encodes most of these texts byte by byte, so that a "
        "sequence holds little text; check that it is your model's tokenizer and supports this language"
    )


def _heavy_reuse(seen: Seen) -> str:
    reuse = seen.stats.reuse
    if reuse.mean is None or reuse.overused_share is None or _repeats_itself(seen):
        return ""
    if reuse.mean <= MOST_USES and reuse.overused_share <= MOST_OVERUSED:
        return ""
    return heavy_reuse(
        f"{reuse.mean:.1f} times on average and up to {reuse.max:,} ({reuse.overused_share:.0%} of all uses go to chunks used "
        "more than 16 times)",
        seen.run.recipe,
        most=reuse.max or 0,
    )


def heavy_reuse(uses: str, recipe: Recipe, *, most: float) -> str:
    """Return the warning about chunks that are used so often; `most` is how often one of them is."""
    is_extended = method_of(recipe).layout == Layout.EXTENDED
    cure = ", make fewer sequences, or cap it with compose.max_uses" if is_extended else " or make fewer sequences"
    effect = "is memorized" if most >= MEMORIZED_USES else "is learned better than the rest, and later uses teach less"
    return f"a chunk is used {uses}: text that is repeated so often {effect}; add documents{cure}"


def _small_corpus(seen: Seen) -> str:
    spread, documents = seen.stats.documents_per_sequence, seen.stats.yields.documents
    if spread is None or not seen.stats.scores:  # nothing was chosen by similarity
        return ""
    return small_corpus(spread.mean, documents)


def small_corpus(in_sequence: float, documents: float) -> str:
    """Return the warning about sequences that use so many of the corpus's documents, "" if there is none."""
    if in_sequence <= MOST_OF_CORPUS * documents:
        return ""
    return (
        f"a sequence takes chunks from {in_sequence:,.0f} of the corpus's {documents:,.0f} documents, "
        f"{round(in_sequence) / round(documents):.0%}: with so few to choose from, the lowest-ranked negatives are "
        "unrelated to the meta-chunk; add documents, or lower compose.target_tokens"
    )


def _missing_ids(seen: Seen) -> str:
    ingested = seen.run.steps["ingest"].results(IngestResult)
    without = sum(part.without_id for part in ingested)
    if not without:
        return ""
    columns = ", ".join(dict.fromkeys(source.id for source in seen.run.recipe.ingest.sources if source.names_ids))
    return (
        f"{without:,} of {sum(part.documents for part in ingested):,} ingested documents have no value in the id column of "
        f"ingest.sources ({columns}): spans name them by file and line, which another copy of the files may not have; "
        "give them ids, or set another id column"
    )


def _unmet_exclusions(seen: Seen) -> str:
    unmet, entries = met_none(seen.run.steps["ingest"])
    if not unmet:
        return ""
    return (
        f"{unmet:,} of {counted(entries, 'entry')} of ingest.exclude name no document, so what was to be excluded may "
        "be in the data; correct their source or id as the corpus has them, or delete the lines"
    )


def _same_ids(seen: Seen) -> str:
    if "filter_report" not in seen.run.steps:
        return ""
    result = seen.run.steps["filter_report"].result(LeftOutResult)
    if not result.same_ids:
        return ""
    source, name, one, other = result.same_id_example
    stay = sum(part.documents for part in seen.run.steps["chunk"].results(ChunkResult))
    return (
        f"{result.same_ids:,} of {stay:,} documents have the id of an earlier one of their source, so spans do not tell which of "
        f"them a token comes from; in source {source}, {name!r} is the id of “{one} …” and of “{other} …”; make ids unique, or "
        "name another column as ingest.sources[].id"
    )


def _many_dropped(seen: Seen) -> str:
    yields = seen.stats.yields
    lost_drafts, composed = sum(yields.dropped.values()), yields.drafts - yields.untried
    if lost_drafts <= MOST_DROPPED * composed:
        return ""
    why = ", ".join(f"{count:,} {reason}" for reason, count in yields.dropped.items())
    return (
        f"{lost_drafts:,} of {composed:,} drafts were dropped ({why}): the rest is a biased sample of the corpus; "
        + (LONGER if _mostly_too_long(seen) else "add documents, or lower compose.target_tokens")
    )


def _much_cut_off(seen: Seen) -> str:
    cut = seen.stats.cut_off
    if cut is None or cut.share <= MOST_CUT_OFF:
        return ""
    return (
        f"{cut.tokens:,} of the {cut.of_tokens:,} tokens of the documents in the sequences ({cut.share:.0%}) are cut off at the "
        f"sequences' ends: of long documents hardly more than the beginning is seen; {LONGER}"
    )


def _mostly_too_long(seen: Seen) -> bool:
    dropped = seen.stats.yields.dropped
    longer = dropped.get(DropReason.TOO_LONG, 0) + dropped.get(DropReason.TOO_LITTLE_ROOM, 0)
    return 2 * longer > sum(dropped.values())


def _many_near_duplicates(seen: Seen) -> str:
    left_out, documents = seen.stats.near_duplicate_documents, seen.stats.yields.documents
    if not left_out or left_out <= MOST_NEAR_DUPLICATES * documents:
        return ""
    return (
        f"{left_out:,} of the corpus's {documents:,} documents were filtered out as near-duplicates: the corpus is full of "
        "copies, or of pages that differ little; set ingest.dedup: minhash to see which, or raise the method's max_similarity"
    )


def _no_keywords(seen: Seen) -> str:
    without = {
        source: of for source, of in (seen.stats.keywords or {}).items() if of.share_without > MOST_WITHOUT_KEYWORDS
    }
    if not without:
        return ""
    names = {each.path: public_name(each.path) for each in seen.run.recipe.ingest.sources}
    told = ", ".join(
        f"{of.documents - of.with_keywords:,} of {of.documents:,} of {names.get(source, source)} ({of.share_without:.0%})"
        for source, of in without.items()
    )
    return (
        f"documents without a keyword are in no sequence: {told}; lower quest.min_keyword_score or min_keyword_chars, or set "
        "quest.queries to a model that makes queries for such texts"
    )


def _hardly_in_parts(seen: Seen) -> str:
    split = seen.stats.in_parts
    if split is None or split.share >= LEAST_IN_PARTS:
        return ""
    return (
        f"{split.in_parts:,} of the {split.documents:,} documents in the sequences ({split.share:.1%}) are split into more than "
        "one part, so the data are nearly those of compose.method=standard: a document is split at its chunks, and most have one; "
        "lower chunk.max_chars, or use longer documents"
    )


def _repeats_itself(seen: Seen) -> bool:
    return seen.stats.repeat_meta_chunks  # by design, an ablation's control


CHECKS: Final[Mapping[str, Callable[[Seen], str]]] = {
    "own-document-negatives": _own_document,
    "repeated-chunks": _repeated_chunks,
    "fewer-sequences": _fewer_sequences,
    "many-dropped": _many_dropped,
    "much-cut-off": _much_cut_off,
    "many-near-duplicates": _many_near_duplicates,
    "no-keywords": _no_keywords,
    "hardly-in-parts": _hardly_in_parts,
    "low-meta-share": _low_meta_share,
    "short-distances": _short_distances,
    "high-meta-share": _high_meta_share,
    "near-identical-negatives": _near_identical,
    "unrelated-negatives": _unrelated,
    "one-source": _one_source,
    "heavy-reuse": _heavy_reuse,
    "small-corpus": _small_corpus,
    "stand-in-tokenizer": _stand_in_tokenizer,
    "lossy-tokenizer": _lossy_tokenizer,
    "no-eos": _no_eos,
    "ordinary-eos": _ordinary_eos,
    "small-tokens": _small_tokens,
    "missing-ids": _missing_ids,
    "same-ids": _same_ids,
    "unmet-exclusions": _unmet_exclusions,
}


MOST_IN_TRAIN: Final = 0.05  # of the chunks of validation


def of_rows(name: str, split: SplitResult, *, room: int) -> tuple[Warned, ...]:
    """Return the warnings about the rows of a split, which hold `room` tokens each."""
    messages = (("empty-rows", _empty_rows(name, split, room)), ("read-in-train", _read_in_train(name, split)))
    return tuple(Warned(called, message) for called, message in messages if message)


def _empty_rows(name: str, split: SplitResult, room: int) -> str:
    filled = fill(split.tokens, rows=split.rows, room=room)
    if filled >= LEAST_FILL:
        return ""
    empty = split.rows * room - split.tokens
    return (
        f"{empty:,} tokens in the rows of {name} are padding ({percent(filled)} are filled), which wastes training compute; "
        "make export.pack a multiple of the sequence length, or make more sequences"
    )


def _read_in_train(name: str, split: SplitResult) -> str:
    if split.chunks_in_train <= MOST_IN_TRAIN * split.chunks:
        return ""
    return (
        f"{split.chunks_in_train:,} of the {split.chunks:,} chunks of {name} are also in train: its loss will be lower than on "
        "unseen texts; set export.shared_chunks: leave-out, which removes their sequences from train, or hold out documents "
        "of your own"
    )
