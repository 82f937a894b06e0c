"""Compose, as a step: drafts and tokens → sequences; and what to say where they are too few."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from nextlong import schemas
from nextlong.artefacts import lookup
from nextlong.artefacts.finished import chunks_of, corpus, sequences_per_part, special_ids, token_store
from nextlong.compose.compose import Rules, compose_block, compose_capped
from nextlong.compose.cut import Texts
from nextlong.engine.estimate import Estimate, one
from nextlong.engine.step import Config, Finished, Step, Task
from nextlong.errors import CorpusError
from nextlong.methods.base import method_of
from nextlong.plural import counted
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import MIN_GAP_CHUNKS, blocks, draws
from nextlong.recipe.negatives import NEGATIVES
from nextlong.results import (
    ChunkResult,
    ComposeResult,
    DraftResult,
    DrawResult,
    NamedChunksResult,
    TokenizerResult,
)
from nextlong.schemas import DropReason, Layout
from nextlong.similarity.steps import shingle_store

_EXAMPLES = 3  # of documents that became no sequence, by reason
_HOPELESS_COPIES = 20  # … where most candidates repeat the document or each other: one in seven, with as much certainty
_HOPELESS = 100  # documents that gave no sequence: of the rest hardly one in thirty would, with 95 in 100 certainty


def compose_step(
    recipe: Recipe,
    ingest: Step,
    chunk: Step,
    tokenizer: Step,
    named: Step,
    tokens: Step,
    *,
    draft: Step,
    near_copy_steps: Sequence[Step],
) -> Step:
    """DRAFTS and token counts → SEQUENCES; by `near_copy_steps`, where there are any, the cut negatives are judged."""
    compose = recipe.compose
    config: Config = {
        "method": compose.method,
        "target_tokens": recipe.sequence_tokens,
        "fit": compose.fit,
        "min_gap_tokens": compose.min_gap_tokens if has_gaps(recipe) else None,
        "position": compose.position,
        "reuse": "free" if NEGATIVES[compose.negatives].repeat_meta_chunk else "never",
        "seed": recipe.compose_seed,
    }
    max_uses = compose.max_uses if method_of(recipe).layout == Layout.EXTENDED else None

    def tasks(done: Finished) -> list[Task]:
        special = special_ids(done)
        known: Config = config | {"min_gap_tokens": least_gap_tokens(recipe, done)}
        rules = Rules(
            joint_tokens=len(special.joint), bos_tokens=len(special.bos), eos_tokens=len(special.eos), **known
        )
        threshold = recipe.mine.near_copies_for(compose.negatives)
        near_copies = None
        if near_copy_steps and threshold is not None and compose.fit == "exact":
            near_copies = (shingle_store(done), done["weights"].file(".weights.npy"), threshold)
        drafts, takes = done["draft"].files(".drafts.arrow"), done["named_chunks"].result(NamedChunksResult).take
        common: dict[str, Any] = {
            "tokens": token_store(done),
            "texts": Texts(
                corpus=corpus(done),
                token_chars=done["tokenizer"].file(".tokenchars.npy"),
                tokenizer=done["tokenizer"].file(".tokenizer.json"),
                near_copies=near_copies,
            ),
            "rules": rules,
        }
        if max_uses is not None:
            return [partial(compose_capped, drafts=drafts, take=takes, max_uses=max_uses, **common)]
        return [
            partial(compose_block, drafts=path, take=take, **common) for path, take in zip(drafts, takes, strict=True)
        ]

    config_and_cap = config | {"max_uses": max_uses}
    estimate = Estimate(
        work=lambda amounts: amounts.drafted_chunks,
        seconds=1e-5,
        disk=lambda amounts: amounts.drafted_chunks,
        bytes=30,
        # Where chunks may be used so often and no more, one sequence waits for those before it.
        tasks=one if max_uses is not None else lambda amounts: blocks(amounts.drafts, amounts.queries),
    )
    inputs = (ingest, chunk, tokenizer, draft, named, tokens, *near_copy_steps)
    return Step("compose", 5, config_and_cap, inputs, tasks, ComposeResult, estimate=estimate)


def has_gaps(recipe: Recipe) -> bool:
    """Say whether each gap between two meta-chunks is to hold negatives; the paper's Algorithm 1 promises nothing."""
    return method_of(recipe).layout == Layout.EXTENDED and recipe.compose.fit == "exact"


def least_gap_tokens(recipe: Recipe, done: Finished) -> int:
    """Return `compose.min_gap_tokens`; auto: half of the tokens of a mean chunk of the corpus, by E."""
    if not has_gaps(recipe):
        return 0
    if recipe.compose.min_gap_tokens != "auto":
        return recipe.compose.min_gap_tokens
    shards = chunks_of(done).results(ChunkResult)
    chars = sum(shard.chars for shard in shards) / max(1, sum(shard.chunks for shard in shards))
    return max(1, math.ceil(MIN_GAP_CHUNKS * chars / done["tokenizer"].result(TokenizerResult).chars_per_token))


def is_enough(recipe: Recipe, done: Finished) -> bool:
    """Say whether another attempt could give no more sequences, or no fairer ones."""
    if not _may_give_more(done):
        return True
    wanted = recipe.compose.sequences
    # Those whose neighbours ran out would have stood among the others: without them the data favour what has many.
    is_fair = not any(part.starved for part in done["draft"].results(DraftResult))
    return is_fair and (wanted == "all" or sum(sequences_per_part(recipe, done["compose"])) == wanted)


def _may_give_more(done: Finished) -> bool:
    draw, drafted = draw_of(done), done["draft"].results(DraftResult)
    return (
        draw.drawn < draw.eligible
        or ("meta_documents" in done and sum(part.drafts + sum(part.dropped.values()) for part in drafted) < draw.drawn)
        or done["named_chunks"].result(NamedChunksResult).drafts < sum(part.drafts for part in drafted)
        or any(part.limited or part.starved for part in drafted)
    )


def draw_of(done: Finished) -> DrawResult:
    """Return how many documents were drawn of how many."""
    return done["meta_documents" if "meta_documents" in done else "documents"].result(DrawResult)


def composed_sequences(done: Finished) -> int:
    """Return how many sequences were composed, those to spare among them."""
    return sum(part.sequences for part in done["compose"].results(ComposeResult))


def too_few(recipe: Recipe, done: Finished, *, attempt: int) -> str:
    """Say that an attempt gave too few sequences, why, and what the next one does."""
    drawn, eligible = draw_of(done).drawn, draw_of(done).eligible
    lost = dropped(done)
    composed = composed_sequences(done)
    starved = sum(part.starved for part in done["draft"].results(DraftResult))
    reasons = "".join(f"; {count:,} dropped: {reason}" for reason, count in lost.items())
    reasons += f"; {starved:,} ran out of neighbours" if starved else ""
    more = min(draws(recipe, attempt + 1) or eligible, eligible)
    goes_on = f"drawing {more:,} of {eligible:,}" if more > drawn else "trying more of those drawn"
    asked = recipe.compose.sequences
    shown = f"{composed:,}" if asked == "all" else f"{min(composed, asked):,} of {asked:,}"
    return (
        f"compose: {shown} sequences from {counted(composed + sum(lost.values()) + starved, 'document')}{reasons}; "
        f"{'looking further for neighbours' if starved else goes_on}"
    )


def dropped(done: Finished) -> dict[str, int]:
    """Return how many drafts became no sequence, by reason."""
    reasons = Counter[str]()
    for drafted in done["draft"].results(DraftResult):
        reasons.update(drafted.dropped)
    for composed in done["compose"].results(ComposeResult):
        reasons.update(composed.dropped)
    return dict(+reasons)  # without those that never occurred


def dropped_examples(done: Finished) -> dict[str, tuple[str, ...]]:
    """Return some documents that became no sequence, by reason, each with its chunks and tokens."""
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


def gives_nothing(done: Finished) -> bool:
    """Say whether so many documents gave no sequence at all that drawing more is hardly worth it."""
    enough = _HOPELESS_COPIES if is_mostly_copies(done) else _HOPELESS
    return not composed_sequences(done) and sum(dropped(done).values()) >= enough


def is_mostly_copies(done: Finished) -> bool:
    """Say whether drafts passed over more near-copies than all chunks that they name."""
    passed_over = sum(part.near_copies or 0 for part in done["draft"].results(DraftResult))
    return passed_over > done["named_chunks"].result(NamedChunksResult).chunks


def why_fewer(recipe: Recipe, done: Finished) -> list[str]:
    """Return what a corpus has for sequences and what became of it; never empty."""
    documents, reasons = sum(shard.documents for shard in done["chunk"].results(ChunkResult)), []
    if "meta_documents" in done:
        draw = done["meta_documents"].result(DrawResult)
        reasons.append(
            f"{draw.eligible:,} of {documents:,} documents have compose.min_meta_chunks="
            f"{recipe.compose.min_meta_chunks} chunks or more"
        )
        if draw.drawn < draw.eligible:
            reasons.append(f"{draw.drawn:,} of them were drawn")
    else:
        drafts = sum(part.drafts for part in done["draft"].results(DraftResult))
        reasons.append(f"{counted(documents, 'document')} gave {drafts:,} drafts")
    examples = dropped_examples(done)
    reasons += [
        f"{count:,} dropped: {reason}" + (f", such as {examples[reason][0]}" if reason in examples else "")
        for reason, count in dropped(done).items()
    ]
    if used_up := sum(part.chunks_at_max_uses for part in done["compose"].results(ComposeResult)):
        reasons.append(f"{counted(used_up, 'chunk')} used compose.max_uses={recipe.compose.max_uses} times and no more")
    return reasons


def refuse_nothing(recipe: Recipe, done: Finished) -> None:
    """Raise CorpusError, with the reasons and the cure, if the recipe gave no sequence at all."""
    if composed_sequences(done):
        return
    reasons = dropped(done)
    corpus_has = "; ".join(why_fewer(recipe, done))
    asked = f"compose.target_tokens={recipe.compose.target_tokens:,}"
    if is_mostly_copies(done) and recipe.ingest.dedup != "minhash":
        raise CorpusError(
            f"{asked} cannot be reached: most candidates for negatives repeat the document or each other, so the corpus consists "
            f"mostly of near-identical documents ({corpus_has}); set ingest.dedup: minhash to keep one of each (pip install "
            f"'nextlong[dedup]'), or add other documents{_or_allow_copies(recipe)}"
        )
    if reasons.keys() <= {DropReason.TOO_LONG, DropReason.TOO_LITTLE_ROOM}:
        or_lower = ", or lower compose.min_gap_tokens" if DropReason.TOO_LITTLE_ROOM in reasons else ""
        raise CorpusError(
            f"{asked} holds none of the documents with negatives between all their chunks ({corpus_has}); raise it{or_lower}, "
            "or add shorter documents"
        )
    composed = done["compose"].results(ComposeResult)
    longest = max((part.longest_dropped_tokens for part in composed), default=0)
    if not longest:
        raise CorpusError(
            f"{asked} and compose.min_gap_tokens={recipe.compose.min_gap_tokens} ask for more negatives than chunks of this "
            f"corpus have ({corpus_has}); add documents or lower them{_or_allow_copies(recipe)}"
        )
    raise CorpusError(
        f"{asked} but the longest sequence that this corpus gives is {longest:,} tokens ({corpus_has}); add documents or "
        f"lower it{_or_allow_copies(recipe)}"
    )


def _or_allow_copies(recipe: Recipe) -> str:
    if method_of(recipe).layout != Layout.EXTENDED:
        return ""
    threshold = recipe.mine.near_copies_for(recipe.compose.negatives)
    return "" if threshold is None else f", or raise mine.near_copies={threshold:g} (null keeps them all)"
