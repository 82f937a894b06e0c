"""Explain after a run why a corpus gave fewer sequences, and whether to try again.

In:  the counts of finished steps. Out: messages, errors with the fix, and the next attempt.
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
# Give up after this many documents without a sequence: with 95 % confidence, at most one in 30 of the others would give
# one. If most candidates are near-duplicates, give up after 20, when at most one in seven would.
_HOPELESS, _HOPELESS_COPIES = 100, 20


def is_extended(compose: Compose) -> bool:
    """Return whether the method extends meta-documents with negatives."""
    return (
        getattr(METHODS.load(compose.method, object), "layout", None) == Layout.EXTENDED
    )


def has_gaps(compose: Compose) -> bool:
    """Return whether each gap between meta-chunks must contain negatives; the paper's Algorithm 1 does not require it."""
    return is_extended(compose) and compose.fit == "exact"


def uses_a_chunk_once(compose: Compose) -> bool:
    """Return whether a sequence uses a chunk at most once."""
    return not (
        is_extended(compose) and NEGATIVES[compose.negatives].origin == "meta-chunk"
    )


class Attempt:
    """The counts of one attempt, from documents to sequences."""

    def __init__(self, done: Artifacts) -> None:
        # The counts of eligible and of sampled documents.
        self.draw = done[
            "meta_documents" if "meta_documents" in done else "documents"
        ].result(DrawResult)
        self.drafted, self.composed = (
            done["draft"].results(DraftResult),
            done["compose"].results(ComposeResult),
        )
        self.referenced = done["referenced_chunks"].result(ReferencedChunksResult)
        self.sequences = sum(
            part.sequences for part in self.composed
        )  # including spare ones
        self.parts: list[DrawResult | DraftResult | ComposeResult] = [
            self.draw,
            *self.drafted,
            *self.composed,
        ]
        # Sampled documents that have a draft, or none for a known reason.
        self.drafted_or_dropped = sum(self.draw.dropped.values())
        for part in self.drafted:
            self.drafted_or_dropped += part.drafts + sum(part.dropped.values())
        # Drafts by reason; adding counters leaves out reasons that did not occur.
        self.dropped = dict(
            sum((Counter(part.dropped) for part in self.parts), Counter[str]())
        )
        # Most of the dropped documents have candidates that are mostly near-duplicates.
        of_copies = self.dropped.get(DropReason.NEAR_DUPLICATES, 0)
        self.is_mostly_copies = 2 * of_copies > sum(self.dropped.values())


class Retry(NamedTuple):
    """Another attempt: the reason, its number, and the candidates of each meta-chunk."""

    why: str
    attempt: int
    candidates: int | None


def another_attempt(
    compose: Compose, done: Artifacts, *, attempt: int, candidates: int | None
) -> Retry | None:
    """Return what to try next if there are too few sequences; None if no attempt can help.

    `candidates`: of each meta-chunk, if there may be more of them than the recipe's.
    """
    made, requested = Attempt(done), compose.sequences
    drawn, eligible, composed, dropped = (
        made.draw.drawn,
        made.draw.eligible,
        made.sequences,
        made.dropped,
    )
    ran_out = dropped.get(DropReason.TOO_FEW_CANDIDATES, 0)
    documents = composed + sum(dropped.values())
    chunks = sum(shard.chunks for shard in chunks_of(done).results(ChunkResult))
    more_candidates = None
    if candidates is not None and candidates < chunks and ran_out > _FEW * documents:
        more_candidates = 2 * candidates
    drafts, starved = (
        sum(part.drafts for part in made.drafted),
        sum(part.starved for part in made.drafted),
    )
    may_give_more = (
        drawn < eligible
        or ("meta_documents" in done and made.drafted_or_dropped < drawn)
        or made.referenced.drafts < drafts
        or any(part.limited or part.starved for part in made.drafted)
        or more_candidates is not None
    )
    # Without another attempt, documents whose neighbours ran out would be missing, which biases the data.
    is_enough = not starved
    if requested == "all":
        is_enough &= more_candidates is None
    else:
        is_enough &= composed >= requested
    hopeless = _HOPELESS_COPIES if made.is_mostly_copies else _HOPELESS
    lost = sum(dropped.values())
    if more_candidates is not None:
        lost -= ran_out
    is_hopeless = not composed and lost >= hopeless
    if not may_give_more or is_enough or is_hopeless:
        return None
    reasons = "".join(
        f"; {count:,} dropped: {reason}" for reason, count in dropped.items()
    )
    reasons += f"; {starved:,} ran out of neighbours" if starved else ""
    more = min(draws(compose, attempt + 1) or eligible, eligible)
    if more_candidates is not None:
        next_step = f"searching for {more_candidates:,} candidates of each meta-chunk"
    elif starved:
        next_step = "looking further for neighbours"
    elif more > drawn:
        next_step = f"sampling {more:,} of {eligible:,}"
    else:
        next_step = "drafting more of the sampled documents"
    shown = (
        f"{composed:,}"
        if requested == "all"
        else f"{min(composed, requested):,} of {requested:,}"
    )
    tried = counted(documents + starved, "document")
    return Retry(
        why=f"compose: {shown} sequences from {tried}{reasons}; {next_step}",
        attempt=attempt if more_candidates is not None else attempt + 1,
        candidates=more_candidates or candidates,
    )


def dropped_examples(done: Artifacts) -> dict[str, tuple[str, ...]]:
    """Return examples of dropped documents by reason, with their numbers of chunks and tokens."""
    made, where = Attempt(done), corpus_files.corpus(done)
    by_reason: dict[str, list[tuple[int, int, int]]] = {}
    for part in made.parts:
        for reason, some in part.dropped_examples.items():
            by_reason.setdefault(reason, []).extend(some)
    named = {}
    for reason, examples in by_reason.items():
        if len(
            ids := np.array(
                [first_chunk for first_chunk, _, _ in examples[:_EXAMPLES]], np.int64
            )
        ):
            names = corpus_files.source_ids(
                corpus_files.documents_of(ids, where.chunks), where.documents
            ).tolist()
            named[reason] = tuple(
                f"{name} ({describe_length(chunks, tokens)})"
                for name, (_, chunks, tokens) in zip(names, examples, strict=False)
            )
    return named


def describe_length(chunks: int, tokens: int) -> str:
    """Return the length of a dropped document; 0 tokens if they were not all counted."""
    length = counted(chunks, "chunk")
    return f"{length}, {tokens:,} tokens" if tokens else length


def why_fewer(compose: Compose, done: Artifacts) -> list[str]:
    """Return the reasons for too few sequences, from the corpus to the drafts; never empty."""
    made, documents = (
        Attempt(done),
        sum(shard.documents for shard in done["chunk"].results(ChunkResult)),
    )
    if "meta_documents" in done:
        least = f"compose.min_meta_chunks={compose.min_meta_chunks} chunks or more"
        reasons = [f"{made.draw.eligible:,} of {documents:,} documents have {least}"]
        reasons += (
            [f"{made.draw.drawn:,} of them were sampled"]
            if made.draw.drawn < made.draw.eligible
            else []
        )
    else:
        reasons = [
            f"{counted(documents, 'document')} gave {sum(part.drafts for part in made.drafted):,} drafts"
        ]
        unshared = sum(part.unshared_keywords or 0 for part in made.drafted)
        if unshared:
            reasons.append(
                f"{counted(unshared, 'document')} shared no keyword with another one"
            )
    examples = dropped_examples(done)
    reasons += [
        f"{count:,} dropped: {reason}"
        + (f", such as {examples[reason][0]}" if reason in examples else "")
        for reason, count in made.dropped.items()
    ]
    if used_up := sum(part.chunks_at_max_uses for part in made.composed):
        reasons.append(
            f"{counted(used_up, 'chunk')} used compose.max_uses={compose.max_uses} times, the maximum"
        )
    return reasons


def refuse_nothing(recipe: Recipe, done: Artifacts) -> None:
    """Raise CorpusError, with the reasons and the fix, if the recipe gave no sequence at all."""
    made, compose = Attempt(done), recipe.compose
    if made.sequences:
        return
    threshold = (
        recipe.mine.near_duplicates_for(compose.negatives)
        if is_extended(compose)
        else None
    )
    or_copies = ""
    is_filtering = any(part.near_duplicates for part in made.drafted)
    if threshold is not None and (is_filtering or made.is_mostly_copies):
        or_copies = (
            f", or raise mine.near_duplicates={threshold:g} (null disables the filter)"
        )
    of_candidates = made.dropped.get(DropReason.TOO_FEW_CANDIDATES, 0)
    longest = max((part.longest_dropped_tokens for part in made.composed), default=0)
    if made.is_mostly_copies and recipe.ingest.dedup != "minhash":
        problem = "cannot be reached: most candidates for negatives repeat the document or each other, so the corpus consists "
        problem += "mostly of near-identical documents"
        cure = f"set ingest.dedup: minhash to keep one of each (pip install 'nextlong[dedup]'), or add other documents{or_copies}"
    elif made.dropped.keys() <= {DropReason.TOO_LONG, DropReason.TOO_LITTLE_ROOM}:
        problem = (
            "is too short for every document with negatives between all of its chunks"
        )
        or_lower = (
            ", or lower compose.min_gap_tokens"
            if DropReason.TOO_LITTLE_ROOM in made.dropped
            else ""
        )
        cure = f"raise it{or_lower}, or add shorter documents"
    elif 2 * of_candidates > sum(made.dropped.values()):
        problem = f"needs more than mine.candidates={recipe.mine.candidates}"
        cure = "raise mine.candidates, or set it to auto"
        filtered = sum(part.near_duplicates or 0 for part in made.drafted)
        if filtered:
            problem += (
                f" per meta-chunk: {filtered:,} candidates that repeat the document or"
                " each other were filtered out"
            )
            if recipe.ingest.dedup != "minhash":
                cure += (
                    ", or set ingest.dedup: minhash to keep one of each "
                    "(pip install 'nextlong[dedup]')"
                )
        cure += or_copies
    elif not longest:
        problem = f"and compose.min_gap_tokens={compose.min_gap_tokens} require more negatives than this corpus has"
        cure = f"add documents or lower them{or_copies}"
    else:
        problem = f"but the longest sequence from this corpus has {longest:,} tokens"
        cure = f"add documents or lower it{or_copies}"
    reasons = "; ".join(why_fewer(compose, done))
    raise CorpusError(
        f"compose.target_tokens={compose.target_tokens:,} {problem} ({reasons}); {cure}"
    )
