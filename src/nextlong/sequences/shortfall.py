"""Shortfall: whether a corpus can give the sequences that are asked for, before a run; why it gave fewer, after one.

Before: only heads of files are read where these hold plenty of text. The text of a small corpus is read whole, and a sample of
it tokenized, or all of it where the sample leaves a doubt.
After: the counts of finished steps → messages, errors that name the cure, and whether another attempt helps.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from typing import Final, Literal

import numpy as np

from nextlong.artifacts import lookup
from nextlong.artifacts.finished import corpus, sequences_per_part
from nextlong.artifacts.results import ChunkResult, ComposeResult, DraftResult, ReferencedChunksResult
from nextlong.corpus.chunk import chunk_text
from nextlong.corpus.look import Look, kept_shares, look_at
from nextlong.engine.step import Artifacts
from nextlong.errors import CorpusError
from nextlong.plugins import METHODS
from nextlong.reading.files import SourceFiles
from nextlong.reading.formats import estimate_text_bytes
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import draws
from nextlong.recipe.keys import NEGATIVES, Compose
from nextlong.retrieval.sample import DrawResult
from nextlong.schemas import DropReason, Layout
from nextlong.sequences.tokenizer import load_tokenizer, train_bpe
from nextlong.text import counted

MOST_DROPPED: Final = 0.5  # of the documents that may be extended
LONGER: Final = "raise compose.target_tokens, or cut the documents into shorter ones first"  # the cure
_PLENTY_BYTES_PER_TOKEN: Final = 16  # no language takes as many, so a look would find nothing
_MOST_BYTES_PER_CHAR: Final = 4  # of UTF-8
_SAMPLE_TEXTS, _SAMPLE_CHARS = 512, 2048  # how many documents are tokenized, and how much of each
_TRAINED_ENTRIES: Final = 4096  # of a tokenizer that is yet to be trained; the real one makes fewer tokens
_MARGIN: Final = 1.25  # from which on the estimate of a sample is believed that there is enough
_EXACT_MARGIN: Final = 1.01  # for caps and weights, which choose documents that are a bit longer or shorter
_TRAINED_MARGIN: Final = 1.1  # by which it may be short where the tokenizer is yet to be trained
_EXAMPLES = 3  # of documents that became no sequence, by reason
_HOPELESS_COPIES = 20  # … where most candidates repeat the document or each other: one in seven, with as much certainty
_HOPELESS = 100  # documents that gave no sequence: of the rest hardly one in thirty would, with 95 in 100 certainty


def check_enough(recipe: Recipe, files: SourceFiles) -> None:
    """Raise CorpusError if all documents together are shorter than one sequence."""
    asked = recipe.sequence_tokens
    text_bytes = sum(
        min(estimate_text_bytes(source_files, source), _MOST_BYTES_PER_CHAR * (source.max_chars or math.inf))
        for source_files, source in zip(files, recipe.ingest.sources, strict=True)
    )
    if text_bytes > _PLENTY_BYTES_PER_TOKEN * asked or not uses_a_chunk_once(recipe.compose):
        return
    looks = [look for look in look_at(recipe.ingest, files) if look.documents]
    if not looks or not all(look.is_whole for look in looks) or count_tokens(recipe, looks) >= _MARGIN * asked:
        return
    tokens = count_tokens(recipe, looks, of="all")
    if tokens * (_EXACT_MARGIN if recipe.tokenizer.train is None else _TRAINED_MARGIN) < asked:
        raise CorpusError(too_short(recipe.compose, tokens))


def is_extended(compose: Compose) -> bool:
    """Say whether the method extends meta-documents by negatives."""
    return getattr(METHODS.load(compose.method, object), "layout", None) == Layout.EXTENDED


def has_gaps(compose: Compose) -> bool:
    """Say whether each gap between two meta-chunks must hold negatives; the paper's Algorithm 1 does not ask for it."""
    return is_extended(compose) and compose.fit == "exact"


def uses_a_chunk_once(compose: Compose) -> bool:
    """Say whether a chunk is used at most once in a sequence."""
    return not (is_extended(compose) and NEGATIVES[compose.negatives].repeat_meta_chunk)


def too_short(compose: Compose, tokens: float) -> str:
    """Return the message that the corpus has too few tokens for one sequence."""
    return (
        f"no sequence can be made: compose.target_tokens={compose.target_tokens:,}, but all documents together are "
        f"about {tokens:,.0f} tokens; add documents or lower it"
    )


def count_tokens(recipe: Recipe, looks: Sequence[Look], *, of: Literal["a sample", "all"] = "a sample") -> float:
    """Estimate the tokens of all documents that stay, with the separator that composing may put behind each chunk.

    Of all texts, it is no estimate but for caps and weights, and for a tokenizer that is yet to be trained.
    """
    chars = [look.scale * look.distinct_chars for look in looks]
    shares = kept_shares(looks, [look.scale * look.distinct_documents for look in looks], chars)
    every = max(1, sum(len(look.texts) for look in looks) // _SAMPLE_TEXTS)
    heads = [[text[:_SAMPLE_CHARS] for text in look.texts[::every]] for look in looks]
    if recipe.tokenizer.train is None:
        tokenizer = load_tokenizer(recipe.tokenizer)
    else:
        sample = list(itertools.chain.from_iterable(heads))
        tokenizer = train_bpe(sample, vocab_size=min(recipe.tokenizer.train, _TRAINED_ENTRIES))
    separator = len(tokenizer.encode(recipe.compose.separator, add_special_tokens=False).ids)
    options = recipe.chunk.model_dump()
    total = 0.0
    texts_of = heads if of == "a sample" else [look.texts for look in looks]
    for share, source_chars, texts in zip(shares, chars, texts_of, strict=True):
        chunks = [text[start:end] for text in texts for start, end in chunk_text(text, **options)]
        ids = sum(len(encoded.ids) for encoded in tokenizer.encode_batch(chunks, add_special_tokens=False))
        tokens_per_char = (ids + separator * len(chunks)) / max(1, sum(map(len, chunks)))
        total += share * source_chars * tokens_per_char
    return total


# after a run


class Attempt:
    """What the steps of one attempt tell of the way from documents to sequences."""

    def __init__(self, done: Artifacts) -> None:
        """Read the results of the steps."""
        # How many of the eligible documents were sampled.
        self.draw = done["meta_documents" if "meta_documents" in done else "documents"].result(DrawResult)
        self.drafted, self.composed = done["draft"].results(DraftResult), done["compose"].results(ComposeResult)
        self.referenced = done["referenced_chunks"].result(ReferencedChunksResult)
        self.sequences = sum(part.sequences for part in self.composed)  # spare ones included
        self.parts: list[DraftResult | ComposeResult] = [*self.drafted, *self.composed]
        reasons = Counter[str]()
        for part in self.parts:
            reasons.update(part.dropped)
        self.dropped = dict(+reasons)  # drafts, by reason; without those that never occurred
        # Drafts passed over more near-duplicates than they have chunks.
        self.is_mostly_copies = sum(part.near_duplicates or 0 for part in self.drafted) > self.referenced.chunks


def another_attempt(compose: Compose, done: Artifacts, *, attempt: int) -> str | None:
    """Return the message that there are too few sequences, why, and what the next attempt does; None if it could not help."""
    made, asked = Attempt(done), compose.sequences
    drawn, eligible, composed, lost = made.draw.drawn, made.draw.eligible, made.sequences, made.dropped
    drafts, starved = sum(part.drafts for part in made.drafted), sum(part.starved for part in made.drafted)
    may_give_more = (
        drawn < eligible
        or ("meta_documents" in done and drafts + sum(sum(part.dropped.values()) for part in made.drafted) < drawn)
        or made.referenced.drafts < drafts
        or any(part.limited or part.starved for part in made.drafted)
    )
    # Documents whose neighbours ran out would be among the others: without them the data favour what has many.
    is_enough = not starved and (asked == "all" or sum(sequences_per_part(asked, done["compose"])) == asked)
    hopeless = _HOPELESS_COPIES if made.is_mostly_copies else _HOPELESS
    if not may_give_more or is_enough or (not composed and sum(lost.values()) >= hopeless):
        return None
    reasons = "".join(f"; {count:,} dropped: {reason}" for reason, count in lost.items())
    reasons += f"; {starved:,} ran out of neighbours" if starved else ""
    more = min(draws(compose, attempt + 1) or eligible, eligible)
    goes_on = f"sampling {more:,} of {eligible:,}" if more > drawn else "drafting more of the sampled documents"
    shown = f"{composed:,}" if asked == "all" else f"{min(composed, asked):,} of {asked:,}"
    return (
        f"compose: {shown} sequences from {counted(composed + sum(lost.values()) + starved, 'document')}{reasons}; "
        f"{'looking further for neighbours' if starved else goes_on}"
    )


def dropped_examples(done: Artifacts) -> dict[str, tuple[str, ...]]:
    """Return examples of dropped documents by reason, each with its chunks and tokens."""
    made, where = Attempt(done), corpus(done)
    by_reason: dict[str, list[tuple[int, int, int]]] = {}
    for part in made.parts:
        for reason, some in part.dropped_examples.items():
            by_reason.setdefault(reason, []).extend(some)
    named = {}
    for reason, examples in by_reason.items():
        if len(ids := np.array([first_chunk for first_chunk, _, _ in examples[:_EXAMPLES]], np.int64)):
            names = lookup.source_ids(lookup.documents_of(ids, where.chunks), where.documents).tolist()
            named[reason] = tuple(
                f"{name} ({counted(chunks, 'chunk')}, {tokens:,} tokens)"
                for name, (_, chunks, tokens) in zip(names, examples, strict=False)
            )
    return named


def why_fewer(compose: Compose, done: Artifacts) -> list[str]:
    """Return the reasons for few sequences, from the corpus to the drafts; never empty."""
    made, documents = Attempt(done), sum(shard.documents for shard in done["chunk"].results(ChunkResult))
    if "meta_documents" in done:
        least = f"compose.min_meta_chunks={compose.min_meta_chunks} chunks or more"
        reasons = [f"{made.draw.eligible:,} of {documents:,} documents have {least}"]
        reasons += [f"{made.draw.drawn:,} of them were sampled"] if made.draw.drawn < made.draw.eligible else []
    else:
        reasons = [f"{counted(documents, 'document')} gave {sum(part.drafts for part in made.drafted):,} drafts"]
    examples = dropped_examples(done)
    reasons += [
        f"{count:,} dropped: {reason}" + (f", such as {examples[reason][0]}" if reason in examples else "")
        for reason, count in made.dropped.items()
    ]
    if used_up := sum(part.chunks_at_max_uses for part in made.composed):
        reasons.append(f"{counted(used_up, 'chunk')} used compose.max_uses={compose.max_uses} times, the maximum")
    return reasons


def refuse_nothing(recipe: Recipe, done: Artifacts) -> None:
    """Raise CorpusError, with the reasons and the cure, if the recipe gave no sequence at all."""
    made, compose = Attempt(done), recipe.compose
    if made.sequences:
        return
    threshold = recipe.mine.near_duplicates_for(compose.negatives) if is_extended(compose) else None
    or_copies = "" if threshold is None else f", or raise mine.near_duplicates={threshold:g} (null keeps them all)"
    longest = max((part.longest_dropped_tokens for part in made.composed), default=0)
    if made.is_mostly_copies and recipe.ingest.dedup != "minhash":
        problem = "cannot be reached: most candidates for negatives repeat the document or each other, so the corpus consists "
        problem += "mostly of near-identical documents"
        cure = f"set ingest.dedup: minhash to keep one of each (pip install 'nextlong[dedup]'), or add other documents{or_copies}"
    elif made.dropped.keys() <= {DropReason.TOO_LONG, DropReason.TOO_LITTLE_ROOM}:
        problem = "is too short for every document with negatives between all of its chunks"
        or_lower = ", or lower compose.min_gap_tokens" if DropReason.TOO_LITTLE_ROOM in made.dropped else ""
        cure = f"raise it{or_lower}, or add shorter documents"
    elif not longest:
        problem = f"and compose.min_gap_tokens={compose.min_gap_tokens} ask for more negatives than this corpus has"
        cure = f"add documents or lower them{or_copies}"
    else:
        problem = f"but the longest sequence of this corpus is {longest:,} tokens"
        cure = f"add documents or lower it{or_copies}"
    reasons = "; ".join(why_fewer(compose, done))
    raise CorpusError(f"compose.target_tokens={compose.target_tokens:,} {problem} ({reasons}); {cure}")
