"""Compose, as a step: drafts and tokens → sequences; and what to say where they are too few."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

from nextlong.artefacts.finished import chunks_of, special_ids, token_store
from nextlong.compose.compose import Rules, compose_block, compose_capped
from nextlong.engine.step import Finished, Step, Task
from nextlong.errors import CorpusError
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import draws
from nextlong.schemas import TOO_LONG


def compose_step(recipe: Recipe, chunk: Step, tokenizer: Step, draft: Step, named: Step, tokens: Step) -> Step:
    """DRAFTS and token counts → SEQUENCES."""
    compose = recipe.compose
    config: dict[str, Any] = {
        "method": compose.method,
        "target_tokens": recipe.sequence_tokens,
        "fit": compose.fit,
        "position": compose.position,
        "reuse": "free" if compose.negatives == "self-repeat" else "never",
        "seed": recipe.compose_seed,
    }
    max_uses = compose.max_uses if compose.method == "nextlong" else None

    def tasks(done: Finished) -> list[Task]:
        special = special_ids(done)
        rules = Rules(
            joint_tokens=len(special.joint), bos_tokens=len(special.bos), eos_tokens=len(special.eos), **config
        )
        drafts, (counts,) = done["draft"].files(".drafts.arrow"), done["refer"].counts
        common: dict[str, Any] = {
            "tokens": token_store(done),
            "chunks": chunks_of(done).files(".chunks.arrow"),
            "rules": rules,
        }
        if max_uses is not None:
            return [partial(compose_capped, drafts=drafts, take=counts["take"], max_uses=max_uses, **common)]
        return [
            partial(compose_block, drafts=path, take=take, **common)
            for path, take in zip(drafts, counts["take"], strict=True)
        ]

    config_and_cap = config | {"max_uses": max_uses}
    return Step("compose", 3, config_and_cap, (chunk, tokenizer, draft, named, tokens), tasks)


def too_few(recipe: Recipe, done: Finished, *, attempt: int) -> str:
    """Say that an attempt gave too few sequences, why, and what the next one does."""
    (counts,) = done["metas"].counts
    drawn, eligible = counts["drawn"], counts["eligible"]
    lost = dropped(done)
    composed = done["compose"].total("sequences")
    told = "".join(f"; {count:,} dropped: {reason}" for reason, count in lost.items())
    more = min(draws(recipe, attempt + 1) or eligible, eligible)
    goes_on = f"drawing {more:,} of {eligible:,}" if more > drawn else "trying more of those drawn"
    return (
        f"compose: {composed:,} of {recipe.compose.sequences:,} sequences from {composed + sum(lost.values()):,} "
        f"documents{told}; {goes_on}"
    )


def dropped(done: Finished) -> dict[str, int]:
    """Return how many drafts became no sequence, by reason."""
    return dict(sum((Counter(done[name].total_by_reason("dropped")) for name in ("draft", "compose")), Counter[str]()))


def refuse_nothing(recipe: Recipe, done: Finished) -> None:
    """Raise CorpusError, with the reasons and the cure, if the recipe gave no sequence at all."""
    compose = done["compose"]
    if compose.total("sequences"):
        return
    reasons = dropped(done)
    told = "; ".join(f"{count:,} dropped: {reason}" for reason, count in reasons.items())
    asked = f"compose.target_tokens={recipe.compose.target_tokens:,}"
    if set(reasons) == {TOO_LONG}:
        raise CorpusError(
            f"{asked} holds none of the documents beside any negative ({told}); raise it, or add shorter documents"
        )
    longest = max((counts["longest_dropped_tokens"] for counts in compose.counts), default=0)
    raise CorpusError(
        f"{asked} but the longest sequence that this corpus gives is {longest:,} tokens ({told}); add documents or "
        f"lower it{_or_allow_copies(recipe)}"
    )


def _or_allow_copies(recipe: Recipe) -> str:
    threshold = recipe.mine.screened(recipe.compose.negatives) if recipe.compose.method == "nextlong" else None
    return "" if threshold is None else f", or raise mine.near_copies={threshold:g} (null keeps them all)"
