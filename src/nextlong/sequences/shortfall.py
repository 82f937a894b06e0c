"""Explain after a run why a corpus gave fewer sequences, and whether to try again.

In:  the counts of finished steps.
Out: messages, errors with the fix, and the next attempt.

What is known before a run is in `nextlong.checks`.
"""

from __future__ import annotations

from collections import Counter
from typing import Final, NamedTuple

import numpy as np

from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import (
    ChunkResult,
    ComposeResult,
    DraftResult,
    ReferencedChunksResult,
    chunks_of,
)
from nextlong.engine.step import Artifacts
from nextlong.errors import CorpusError
from nextlong.plugins import METHODS
from nextlong.recipe import Recipe
from nextlong.recipe.keys import NEGATIVES, Compose, draws
from nextlong.retrieval.sample import DrawResult
from nextlong.schemas import DropReason, Layout
from nextlong.text import counted

MOST_DROPPED: Final = 0.5  # share of the documents that can be extended
LONGER: Final = (
    "raise compose.target_tokens, or split the documents into shorter ones first"
)
_EXAMPLES = 3  # dropped documents shown for each reason
# A share of the documents whose candidates ran out that is not worth another search.
_FEW: Final = 0.001
# Give up after this many documents without a sequence: with 95 % confidence, at most
# one in 30 of the others would give one.
_HOPELESS = 100
# The same if most candidates are near-duplicates: at most one in seven would.
_HOPELESS_COPIES = 20
_KEEP_ONE: Final = (
    "set ingest.dedup: minhash to keep one of each (pip install 'nextlong[dedup]')"
)


def is_extended(compose: Compose) -> bool:
    """Return whether the method extends meta-documents with negatives."""
    method = METHODS.load(compose.method, object)
    return getattr(method, "layout", None) == Layout.EXTENDED


def has_gaps(compose: Compose) -> bool:
    """Return whether each gap between meta-chunks must contain negatives.

    The paper's Algorithm 1 does not require it.
    """
    return is_extended(compose) and compose.fit == "exact"


def uses_a_chunk_once(compose: Compose) -> bool:
    """Return whether a sequence uses a chunk at most once."""
    repeats_meta_chunks = NEGATIVES[compose.negatives].origin == "meta-chunk"
    return not (is_extended(compose) and repeats_meta_chunks)


class Attempt:
    """The counts of one attempt, from documents to sequences."""

    def __init__(self, done: Artifacts) -> None:
        # The counts of eligible and of sampled documents.
        draw_step = "meta_documents" if "meta_documents" in done else "documents"
        self.draw = done[draw_step].result(DrawResult)
        self.drafted = done["draft"].results(DraftResult)
        self.composed = done["compose"].results(ComposeResult)
        self.referenced = done["referenced_chunks"].result(ReferencedChunksResult)
        # Including spare ones.
        self.sequences = sum(part.sequences for part in self.composed)
        self.parts: list[DrawResult | DraftResult | ComposeResult] = [
            self.draw,
            *self.drafted,
            *self.composed,
        ]
        # Sampled documents that have a draft, or none for a known reason.
        self.drafted_or_dropped = sum(self.draw.dropped.values())
        for part in self.drafted:
            self.drafted_or_dropped += part.drafts + sum(part.dropped.values())
        # Drafts by reason; a counter leaves out reasons that did not occur.
        dropped = Counter[str]()
        for counts in (part.dropped for part in self.parts):
            dropped += Counter(counts)
        self.dropped = dict(dropped)
        # Whether most of the dropped documents have candidates that are mostly
        # near-duplicates.
        copies = self.dropped.get(DropReason.NEAR_DUPLICATES, 0)
        self.is_mostly_copies = 2 * copies > sum(self.dropped.values())

    @property
    def drafts(self) -> int:
        return sum(part.drafts for part in self.drafted)

    @property
    def starved(self) -> int:
        """Documents whose neighbours ran out before their draft was full."""
        return sum(part.starved for part in self.drafted)

    @property
    def ran_out(self) -> int:
        """Documents that were dropped because their candidates ran out."""
        return self.dropped.get(DropReason.TOO_FEW_CANDIDATES, 0)


class Retry(NamedTuple):
    """Another attempt: the reason, its number, and candidates per meta-chunk."""

    why: str
    attempt: int
    candidates: int | None


def another_attempt(
    compose: Compose,
    done: Artifacts,
    *,
    attempt: int,
    candidates: int | None,
) -> Retry | None:
    """Return what to try next if there are too few sequences.

    None if no attempt can help. `candidates`: of each meta-chunk, if there may be more
    of them than the recipe's.
    """
    last = Attempt(done)
    more_candidates = _more_candidates(last, done, candidates)
    may_give_more = more_candidates is not None or _may_give_more(last, done)
    if not may_give_more or _is_enough(compose, last, more_candidates):
        return None
    max_lost = _HOPELESS_COPIES if last.is_mostly_copies else _HOPELESS
    lost = sum(last.dropped.values())
    if more_candidates is not None:
        lost -= last.ran_out
    if not last.sequences and lost >= max_lost:
        return None

    return Retry(
        why=(
            f"{_progress(compose, last)}; "
            f"{_next_step(compose, last, attempt, more_candidates)}"
        ),
        attempt=attempt if more_candidates is not None else attempt + 1,
        candidates=more_candidates or candidates,
    )


def _next_step(
    compose: Compose,
    last: Attempt,
    attempt: int,
    more_candidates: int | None,
) -> str:
    """Return in words what the attempt after `attempt` does."""
    if more_candidates is not None:
        return f"searching for {more_candidates:,} candidates of each meta-chunk"
    if last.starved:
        return "looking further for neighbours"
    eligible = last.draw.eligible
    more = min(draws(compose, attempt + 1) or eligible, eligible)
    if more > last.draw.drawn:
        return f"sampling {more:,} of {eligible:,}"
    return "drafting more of the sampled documents"


def _more_candidates(
    last: Attempt,
    done: Artifacts,
    candidates: int | None,
) -> int | None:
    """Return twice the candidates if so many are worth another search, or None."""
    if candidates is None:
        return None
    chunks = sum(shard.chunks for shard in chunks_of(done).results(ChunkResult))
    documents = last.sequences + sum(last.dropped.values())
    is_worth_it = last.ran_out > _FEW * documents
    return 2 * candidates if candidates < chunks and is_worth_it else None


def _may_give_more(last: Attempt, done: Artifacts) -> bool:
    """Return whether another attempt with as many candidates has more to draft."""
    is_sampled = last.draw.drawn < last.draw.eligible
    is_undrafted = last.drafted_or_dropped < last.draw.drawn
    return (
        is_sampled
        or ("meta_documents" in done and is_undrafted)
        or last.referenced.drafts < last.drafts
        or any(part.limited or part.starved for part in last.drafted)
    )


def _is_enough(compose: Compose, last: Attempt, more_candidates: int | None) -> bool:
    """Return whether the sequences are as many as requested, and no document starved.

    Without another attempt, documents whose neighbours ran out would be missing, which
    biases the data.
    """
    if last.starved:
        return False
    if compose.sequences == "all":
        return more_candidates is None
    return last.sequences >= compose.sequences


def _progress(compose: Compose, last: Attempt) -> str:
    """Return how many sequences an attempt gave, and why some documents gave none."""
    sequences = f"{last.sequences:,}"
    if compose.sequences != "all":
        kept = min(last.sequences, compose.sequences)
        sequences = f"{kept:,} of {compose.sequences:,}"
    documents = last.sequences + sum(last.dropped.values()) + last.starved
    parts = [f"compose: {sequences} sequences from {counted(documents, 'document')}"]
    parts += [f"{count:,} dropped: {reason}" for reason, count in last.dropped.items()]
    if last.starved:
        parts.append(f"{last.starved:,} ran out of neighbours")
    return "; ".join(parts)


def dropped_examples(done: Artifacts) -> dict[str, tuple[str, ...]]:
    """Return examples of dropped documents by reason, with their chunks and tokens."""
    by_reason: dict[str, list[tuple[int, int, int]]] = {}
    for part in Attempt(done).parts:
        for reason, part_examples in part.dropped_examples.items():
            by_reason.setdefault(reason, []).extend(part_examples)
    corpus = corpus_files.corpus(done)
    described = {}
    for reason, examples in by_reason.items():
        first_chunks = [first_chunk for first_chunk, _, _ in examples[:_EXAMPLES]]
        if not first_chunks:
            continue
        ids = corpus_files.documents_of(np.array(first_chunks, np.int64), corpus.chunks)
        names = corpus_files.source_ids(ids, corpus.documents).tolist()
        described[reason] = tuple(
            f"{name} ({describe_length(chunks, tokens)})"
            for name, (_, chunks, tokens) in zip(names, examples, strict=False)
        )
    return described


def describe_length(chunks: int, tokens: int) -> str:
    """Return the length of a dropped document; 0 tokens: not all were counted."""
    length = counted(chunks, "chunk")
    return f"{length}, {tokens:,} tokens" if tokens else length


def why_fewer(compose: Compose, done: Artifacts) -> list[str]:
    """Return the reasons for too few sequences, from the corpus to the drafts.

    There is always one.
    """
    last = Attempt(done)
    documents = sum(shard.documents for shard in done["chunk"].results(ChunkResult))
    if "meta_documents" in done:
        eligible = f"{last.draw.eligible:,} of {documents:,} documents"
        length = f"compose.min_meta_chunks={compose.min_meta_chunks} chunks or more"
        reasons = [f"{eligible} have {length}"]
        if last.draw.drawn < last.draw.eligible:
            reasons.append(f"{last.draw.drawn:,} of them were sampled")
    else:
        reasons = [f"{counted(documents, 'document')} gave {last.drafts:,} drafts"]
        unshared = sum(part.unshared_keywords or 0 for part in last.drafted)
        if unshared:
            some = counted(unshared, "document")
            reasons.append(f"{some} shared no keyword with another one")
    examples = dropped_examples(done)
    for reason, count in last.dropped.items():
        example = f", such as {examples[reason][0]}" if reason in examples else ""
        reasons.append(f"{count:,} dropped: {reason}{example}")
    used_up = sum(part.chunks_at_max_uses for part in last.composed)
    if used_up:
        uses = f"compose.max_uses={compose.max_uses} times, the maximum"
        reasons.append(f"{counted(used_up, 'chunk')} used {uses}")
    return reasons


def refuse_nothing(recipe: Recipe, done: Artifacts) -> None:
    """Raise CorpusError, with reasons and the fix, if the recipe gave no sequence."""
    last = Attempt(done)
    if last.sequences:
        return
    problem, fix = _problem_and_fix(recipe, last)
    reasons = "; ".join(why_fewer(recipe.compose, done))
    raise CorpusError(
        where="compose.target_tokens",
        value=f"{recipe.compose.target_tokens:,}",
        problem=f"{problem} ({reasons})",
        fix=fix,
    )


def _problem_and_fix(recipe: Recipe, last: Attempt) -> tuple[str, str]:
    """Return why an attempt gave no sequence, as a predicate, and what helps."""
    compose = recipe.compose
    has_duplicates = recipe.ingest.dedup != "minhash"
    or_copies = _or_keep_copies(recipe, last)
    longest = max((part.longest_dropped_tokens for part in last.composed), default=0)
    if last.is_mostly_copies and has_duplicates:
        return (
            "cannot be reached: most candidates for negatives repeat the document or "
            "each other, so the corpus consists mostly of near-identical documents",
            f"{_KEEP_ONE}, or add other documents{or_copies}",
        )
    if last.dropped.keys() <= {DropReason.TOO_LONG, DropReason.TOO_LITTLE_ROOM}:
        or_lower = ""
        if DropReason.TOO_LITTLE_ROOM in last.dropped:
            or_lower = ", or lower compose.min_gap_tokens"
        return (
            "is too short for every document with negatives between all of its chunks",
            f"raise it{or_lower}, or add shorter documents",
        )
    if 2 * last.ran_out > sum(last.dropped.values()):
        problem = f"needs more than mine.candidates={recipe.mine.candidates}"
        fix = "raise mine.candidates, or set it to auto"
        filtered = sum(part.near_duplicates or 0 for part in last.drafted)
        if filtered:
            problem += (
                f" per meta-chunk: {filtered:,} candidates that repeat the document or"
                " each other were filtered out"
            )
            if has_duplicates:
                fix += f", or {_KEEP_ONE}"
        return problem, fix + or_copies
    if not longest:
        return (
            f"and compose.min_gap_tokens={compose.min_gap_tokens} require more "
            "negatives than this corpus has",
            f"add documents or lower them{or_copies}",
        )
    return (
        f"but the longest sequence from this corpus has {longest:,} tokens",
        f"add documents or lower it{or_copies}",
    )


def _or_keep_copies(recipe: Recipe, last: Attempt) -> str:
    """Return the advice to keep more near-duplicates; "" if none are filtered out."""
    if not is_extended(recipe.compose):
        return ""
    threshold = recipe.mine.near_duplicates_for(recipe.compose.negatives)
    is_filtering = any(part.near_duplicates for part in last.drafted)
    if threshold is None or not (is_filtering or last.is_mostly_copies):
        return ""
    return f", or raise mine.near_duplicates={threshold:g} (null disables the filter)"
