"""Warnings: what a plan says before a run that cannot end well, or would end sooner another way."""

from __future__ import annotations

import os
import shutil

from nextlong.corpus.ingest import allowing
from nextlong.engine.process import memory_bytes
from nextlong.engine.step import Amounts
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe
from nextlong.recipe.keys import EXACT
from nextlong.report.plan.costs import Total, different
from nextlong.report.plan.sample import CorpusSample
from nextlong.retrieval.indexes import costs
from nextlong.retrieval.indexes.base import is_built
from nextlong.retrieval.sample import none_long_enough
from nextlong.runs import warnings
from nextlong.runs.warnings import Warned
from nextlong.schemas import Layout
from nextlong.sequences.shortfall import LONGER, MOST_DROPPED, is_extended, too_short, uses_a_chunk_once


def none_extended(recipe: Recipe, sample: CorpusSample) -> str:
    """Return the message that no document has the chunks that the method extends it by, "" if one has."""
    if method_of(recipe).layout != Layout.EXTENDED or sample.size.eligible:
        return ""
    size, looked_at = sample.size, len(sample.looked_at)
    documents = f"{size.kept_documents:,.0f} documents" if sample.is_whole else f"{looked_at:,} documents of a sample"
    return none_long_enough(recipe, documents)


def of_the_run(recipe: Recipe, amounts: Amounts, sample: CorpusSample, here: Total | None) -> list[str]:
    """Return why the run is likely to stop, would end sooner with another index, or does not fit this machine (`here`)."""
    told = []
    count = sum(sample.rejects.values())
    share = count / max(1.0, count + sample.size.documents)
    if share > recipe.ingest.max_reject_share:
        kinds = ", ".join(sorted(sample.rejects, key=lambda kind: (-sample.rejects[kind], kind))[:3])
        told.append(
            f"ingest would stop the run: about {share:.2%} of the records cannot be used ({kinds}), more than "
            f"ingest.max_reject_share={recipe.ingest.max_reject_share:g} allows; correct the files, or "
            f"set {allowing(share)} in the recipe"
        )
    if message := none_extended(recipe, sample):
        told.append(f"the run is likely to stop: {message}")
    if recipe.search.index == EXACT and recipe.mine.shortlist is None and amounts.queries:
        has_gpu = costs.has_gpu(recipe.search)
        index, _ = costs.choose(amounts, has_gpu=has_gpu)
        exact_h, approximate_h = (seconds / 3600 for seconds in costs.seconds(amounts, has_gpu=has_gpu))
        if is_built(index):
            told.append(
                f"an approximate index would pay: search.index=exact takes about {exact_h:,.1f} hours of one core, {index} about "
                f"{approximate_h:,.1f} to build and search; say --set search.index=auto"
            )
    if here is None:
        return told
    run_dir = recipe.run_path.absolute()
    free = shutil.disk_usage(next(path for path in (run_dir, *run_dir.parents) if path.exists())).free
    if here.disk_bytes > free:
        told.append(
            f"this does not fit the disk: about {here.disk_bytes / 1e9:,.1f} GB are to be written to {recipe.run_path}, where "
            f"{free / 1e9:,.1f} GB are free; give run_dir a folder on another disk, or free space"
        )
    if here.memory_bytes > (memory := memory_bytes()):
        fewer = "" if recipe.workers == 1 or (os.cpu_count() or 1) == 1 else "fewer workers (--set workers=1), or "
        told.append(
            f"this does not fit the memory: about {here.memory_bytes / 1e9:,.1f} GB are needed at once, and this machine has "
            f"{memory / 1e9:,.1f} GB; use {fewer}a larger machine"
        )
    return told


def of_the_data(
    recipe: Recipe,
    amounts: Amounts,
    sample: CorpusSample,
    dropped: float,
    *,
    chars_per_token: float,
    documents_share: float,
) -> list[str]:
    """Return what the run will warn of, as far as it follows from the size of the corpus.

    `documents_share` is the trial's. As if every chunk served as often as any other: in a real run some serve more often.
    """
    # Exactly, as a run does before its first step.
    is_checked = sample.is_whole and amounts.chunks == sample.size.chunks
    tokens = amounts.kept_chars / chars_per_token
    if not is_checked and uses_a_chunk_once(recipe.compose) and tokens < recipe.compose.target_tokens:
        return [too_short(recipe.compose, tokens)]
    many_dropped = ""
    if is_extended(recipe.compose) and dropped > MOST_DROPPED * amounts.eligible:
        many_dropped = (
            f"about {dropped:,.0f} of the {amounts.eligible:,.0f} documents that may be extended "
            f"({dropped / amounts.eligible:.0%}) are too long for compose.target_tokens={recipe.compose.target_tokens:,} with "
            f"negatives between their chunks, so they are dropped, and the rest is a biased sample; {LONGER}"
        )
    messages = {
        "many-dropped": many_dropped,
        "stand-in-tokenizer": warnings.stand_in_tokenizer(recipe, recipe.compose.target_tokens),
    }
    if uses_a_chunk_once(recipe.compose):
        chunks = recipe.compose.target_tokens * chars_per_token / max(1.0, amounts.chunk_chars)
        if method_of(recipe).scores:
            factor = amounts.chunks / max(1.0, sample.size.chunks)  # of the corpus asked for over the one that is there
            in_sequence = documents_share * factor * sample.documents_of(chunks / max(1e-9, factor))
            messages["small-corpus"] = warnings.small_corpus(in_sequence, amounts.kept_documents)
        uses = amounts.sequences * chunks
        mean = uses / max(1.0, different(amounts.chunks, uses))
        if mean > warnings.MOST_USES and recipe.compose.max_uses is None:
            messages["heavy-reuse"] = warnings.heavy_reuse(f"about {mean:,.1f} times on average", recipe, most=mean)
    return [str(Warned(name, message)) for name, message in messages.items() if message]
