"""Shortfall: why a run has fewer sequences than requested, and whether another attempt helps.

In:  the counts of finished steps. Out: messages, and errors that name the cure.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from nextlong import schemas
from nextlong.artifacts import lookup
from nextlong.artifacts.finished import corpus, sequences_per_part
from nextlong.artifacts.results import (
    ChunkResult,
    ComposeResult,
    DraftResult,
    DrawResult,
    ReferencedChunksResult,
)
from nextlong.engine.step import Artifacts
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import draws
from nextlong.schemas import DropReason
from nextlong.sequences.corpus_size import is_extended
from nextlong.text import counted

_EXAMPLES = 3  # of documents that became no sequence, by reason
_HOPELESS_COPIES = 20  # … where most candidates repeat the document or each other: one in seven, with as much certainty
_HOPELESS = 100  # documents that gave no sequence: of the rest hardly one in thirty would, with 95 in 100 certainty


def is_enough(recipe: Recipe, done: Artifacts) -> bool:
    """Say whether another attempt could give no more sequences, or no fairer ones."""
    draw, drafted = draw_of(done), done["draft"].results(DraftResult)
    drafts = sum(part.drafts for part in drafted)
    may_give_more = (
        draw.drawn < draw.eligible
        or ("meta_documents" in done and drafts + sum(sum(part.dropped.values()) for part in drafted) < draw.drawn)
        or done["referenced_chunks"].result(ReferencedChunksResult).drafts < drafts
        or any(part.limited or part.starved for part in drafted)
    )
    if not may_give_more:
        return True
    wanted = recipe.compose.sequences
    # Those whose neighbours ran out would have stood among the others: without them the data favour what has many.
    is_fair = not any(part.starved for part in drafted)
    return is_fair and (wanted == "all" or sum(sequences_per_part(wanted, done["compose"])) == wanted)


def draw_of(done: Artifacts) -> DrawResult:
    """Return how many of the eligible documents were sampled."""
    return done["meta_documents" if "meta_documents" in done else "documents"].result(DrawResult)


def composed_sequences(done: Artifacts) -> int:
    """Return how many sequences were composed, spare ones included."""
    return sum(part.sequences for part in done["compose"].results(ComposeResult))


def too_few(recipe: Recipe, done: Artifacts, *, attempt: int) -> str:
    """Return the message about an attempt that gave too few sequences: why, and what the next one does."""
    drawn, eligible = draw_of(done).drawn, draw_of(done).eligible
    lost = dropped(done)
    composed = composed_sequences(done)
    starved = sum(part.starved for part in done["draft"].results(DraftResult))
    reasons = "".join(f"; {count:,} dropped: {reason}" for reason, count in lost.items())
    reasons += f"; {starved:,} ran out of neighbours" if starved else ""
    more = min(draws(recipe.compose, attempt + 1) or eligible, eligible)
    goes_on = f"sampling {more:,} of {eligible:,}" if more > drawn else "drafting more of the sampled documents"
    asked = recipe.compose.sequences
    shown = f"{composed:,}" if asked == "all" else f"{min(composed, asked):,} of {asked:,}"
    return (
        f"compose: {shown} sequences from {counted(composed + sum(lost.values()) + starved, 'document')}{reasons}; "
        f"{'looking further for neighbours' if starved else goes_on}"
    )


def dropped(done: Artifacts) -> dict[str, int]:
    """Return how many drafts were dropped, by reason."""
    reasons = Counter[str]()
    for drafted in done["draft"].results(DraftResult):
        reasons.update(drafted.dropped)
    for composed in done["compose"].results(ComposeResult):
        reasons.update(composed.dropped)
    return dict(+reasons)  # without those that never occurred


def dropped_examples(done: Artifacts) -> dict[str, tuple[str, ...]]:
    """Return examples of dropped documents by reason, each with its chunks and tokens."""
    by_reason: dict[str, list[tuple[int, int, int]]] = {}
    drafted, composed = done["draft"].results(DraftResult), done["compose"].results(ComposeResult)
    for remembered in (part.dropped_examples for parts in (drafted, composed) for part in parts):
        for reason, some in remembered.items():
            by_reason.setdefault(reason, []).extend(some)
    where = corpus(done)
    named = {}
    for reason, examples in by_reason.items():
        if not examples:
            continue
        ids = np.array([first_chunk for first_chunk, _, _ in examples[:_EXAMPLES]], np.int64)
        (doc_rows,) = lookup.chunk_columns(ids, where.chunks, ("doc_row",))
        names = lookup.source_ids(schemas.shard_of(ids) << schemas.SHARD_BITS | doc_rows, where.documents).tolist()
        named[reason] = tuple(
            f"{name} ({counted(chunks, 'chunk')}, {tokens:,} tokens)"
            for name, (_, chunks, tokens) in zip(names, examples, strict=False)
        )
    return named


def gives_nothing(done: Artifacts) -> bool:
    """Say whether enough documents were dropped, without any sequence, that sampling more is hopeless."""
    enough = _HOPELESS_COPIES if _is_mostly_copies(done) else _HOPELESS
    return not composed_sequences(done) and sum(dropped(done).values()) >= enough


def _is_mostly_copies(done: Artifacts) -> bool:
    """Say whether drafts passed over more near-duplicates than they have chunks."""
    passed_over = sum(part.near_duplicates or 0 for part in done["draft"].results(DraftResult))
    return passed_over > done["referenced_chunks"].result(ReferencedChunksResult).chunks


def why_fewer(recipe: Recipe, done: Artifacts) -> list[str]:
    """Return the reasons for few sequences, from the corpus to the drafts; never empty."""
    documents, reasons = sum(shard.documents for shard in done["chunk"].results(ChunkResult)), []
    if "meta_documents" in done:
        draw = done["meta_documents"].result(DrawResult)
        reasons.append(
            f"{draw.eligible:,} of {documents:,} documents have compose.min_meta_chunks="
            f"{recipe.compose.min_meta_chunks} chunks or more"
        )
        if draw.drawn < draw.eligible:
            reasons.append(f"{draw.drawn:,} of them were sampled")
    else:
        drafts = sum(part.drafts for part in done["draft"].results(DraftResult))
        reasons.append(f"{counted(documents, 'document')} gave {drafts:,} drafts")
    examples = dropped_examples(done)
    reasons += [
        f"{count:,} dropped: {reason}" + (f", such as {examples[reason][0]}" if reason in examples else "")
        for reason, count in dropped(done).items()
    ]
    if used_up := sum(part.chunks_at_max_uses for part in done["compose"].results(ComposeResult)):
        reasons.append(
            f"{counted(used_up, 'chunk')} used compose.max_uses={recipe.compose.max_uses} times, the maximum"
        )
    return reasons


def refuse_nothing(recipe: Recipe, done: Artifacts) -> None:
    """Raise CorpusError, with the reasons and the cure, if the recipe gave no sequence at all."""
    if composed_sequences(done):
        return
    reasons = dropped(done)
    corpus_has = "; ".join(why_fewer(recipe, done))
    asked = f"compose.target_tokens={recipe.compose.target_tokens:,}"
    if _is_mostly_copies(done) and recipe.ingest.dedup != "minhash":
        raise CorpusError(
            f"{asked} cannot be reached: most candidates for negatives repeat the document or each other, so the corpus consists "
            f"mostly of near-identical documents ({corpus_has}); set ingest.dedup: minhash to keep one of each (pip install "
            f"'nextlong[dedup]'), or add other documents{_or_allow_copies(recipe)}"
        )
    if reasons.keys() <= {DropReason.TOO_LONG, DropReason.TOO_LITTLE_ROOM}:
        or_lower = ", or lower compose.min_gap_tokens" if DropReason.TOO_LITTLE_ROOM in reasons else ""
        raise CorpusError(
            f"{asked} is too short for every document with negatives between all of its chunks ({corpus_has}); raise it{or_lower}, "
            "or add shorter documents"
        )
    composed = done["compose"].results(ComposeResult)
    longest = max((part.longest_dropped_tokens for part in composed), default=0)
    if not longest:
        raise CorpusError(
            f"{asked} and compose.min_gap_tokens={recipe.compose.min_gap_tokens} ask for more negatives than this "
            f"corpus has ({corpus_has}); add documents or lower them{_or_allow_copies(recipe)}"
        )
    raise CorpusError(
        f"{asked} but the longest sequence of this corpus is {longest:,} tokens ({corpus_has}); add documents or "
        f"lower it{_or_allow_copies(recipe)}"
    )


def _or_allow_copies(recipe: Recipe) -> str:
    if not is_extended(recipe.compose):
        return ""
    threshold = recipe.mine.near_duplicates_for(recipe.compose.negatives)
    return "" if threshold is None else f", or raise mine.near_duplicates={threshold:g} (null keeps them all)"
