"""Warnings: what a plan says before a run that cannot end well, or would end sooner another way."""

from __future__ import annotations

import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

from nextlong.corpus.ingest import allowing
from nextlong.engine.estimate import Amounts
from nextlong.engine.memory import memory_bytes
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe
from nextlong.recipe.keys import EXACT
from nextlong.report.plan.cluster import Asked
from nextlong.report.plan.costs import Total
from nextlong.report.plan.sample import Measured
from nextlong.retrieval.indexes import costs
from nextlong.retrieval.indexes.base import is_built
from nextlong.retrieval.indexes.costs import load_of
from nextlong.retrieval.sample import none_long_enough
from nextlong.runs import warnings
from nextlong.runs.warnings import Warned
from nextlong.schemas import Layout
from nextlong.sequences.corpus_size import too_long, too_short, uses_a_chunk_once


def lines(
    recipe: Recipe, amounts: Amounts, measured: Measured, total: Total, run_dir: Path, *, asked: Asked
) -> list[str]:
    """Return the warnings of a plan, none if there is nothing to warn of."""
    is_checked = asked.chunks is None and measured.corpus.is_whole  # as a run does, before this
    not_enough = "" if is_checked else _not_enough(recipe, amounts, measured)
    said = [rejects(recipe, measured), none_extended(recipe, measured), not_enough, _index(recipe, amounts)]
    if not asked.is_elsewhere:
        said += [_disk(total, run_dir), _memory(recipe, total)]
    foreseen = [] if not_enough else of_the_data(recipe, amounts, chars_per_token=measured.tokenizing.chars_per_token)
    corpus = measured.corpus
    if longer := too_long(
        recipe, corpus.too_long + corpus.too_little_room, corpus.eligible, of="documents that may be extended"
    ):
        foreseen.insert(0, Warned("many-dropped", longer))
    return [*(line for line in said if line), *map(str, foreseen)]


def of_the_data(recipe: Recipe, amounts: Amounts, *, chars_per_token: float) -> list[Warned]:
    """Return what the run will say against its data, as far as it follows from the size of the corpus.

    As if every chunk served as often as any other: a real run takes from somewhat fewer documents, and some chunks more often.
    """
    messages = {"stand-in-tokenizer": warnings.stand_in_tokenizer(recipe, recipe.compose.target_tokens)}
    if uses_a_chunk_once(recipe):
        chunks = recipe.compose.target_tokens * chars_per_token / max(1.0, amounts.chunk_chars)
        if method_of(recipe).scores:
            in_sequence = _different(amounts.kept_documents, chunks)
            messages["small-corpus"] = warnings.small_corpus(in_sequence, amounts.kept_documents)
        uses = amounts.sequences * chunks
        mean = uses / max(1.0, _different(amounts.chunks, uses))
        if mean > warnings.MOST_USES and recipe.compose.max_uses is None:
            messages["heavy-reuse"] = warnings.heavy_reuse(f"about {mean:,.1f} times on average", recipe)
    return [Warned(name, message) for name, message in messages.items() if message]


def _different(among: float, drawn: float) -> float:
    """Return how many different ones there are of so many that are drawn, with replacement."""
    return among * -math.expm1(-drawn / max(1.0, among))


def _not_enough(recipe: Recipe, amounts: Amounts, measured: Measured) -> str:
    """Say so where all documents together are shorter than one sequence; an estimate, as everything here."""
    tokens, asked = amounts.kept_chars / measured.tokenizing.chars_per_token, recipe.compose.target_tokens
    if tokens >= asked or not uses_a_chunk_once(recipe):
        return ""
    return too_short(recipe, tokens)


def none_extended(recipe: Recipe, measured: Measured) -> str:
    """Say so where no document that was seen has the chunks that the method extends it by, which would stop the run."""
    if method_of(recipe).layout != Layout.EXTENDED or measured.corpus.eligible:
        return ""
    if measured.corpus.is_whole:
        return none_long_enough(recipe, f"{measured.corpus.kept_documents:,.0f} documents")
    return f"the run is likely to stop: {none_long_enough(recipe, f'{len(measured.texts):,} documents of a sample')}"


def rejects(recipe: Recipe, measured: Measured) -> str:
    """Say so where the share of records that are no documents will end the run, as far as a sample tells."""
    count = sum(measured.rejects.values())
    share = count / max(1.0, count + measured.corpus.documents)
    if share <= recipe.ingest.max_reject_share:
        return ""
    kinds = ", ".join(sorted(measured.rejects, key=lambda kind: (-measured.rejects[kind], kind))[:3])
    return (
        f"ingest would stop the run: about {share:.2%} of the records cannot be used ({kinds}), more than "
        f"ingest.max_reject_share={recipe.ingest.max_reject_share:g} allows; correct the files, or add {allowing(share)}"
    )


def _disk(total: Total, run_dir: Path) -> str:
    there = next(path for path in (run_dir.absolute(), *run_dir.absolute().parents) if path.exists())
    free = shutil.disk_usage(there).free
    if total.disk_bytes <= free:
        return ""
    return (
        f"this does not fit the disk: about {total.disk_bytes / 1e9:,.1f} GB are to be written to {run_dir}, where "
        f"{free / 1e9:,.1f} GB are free; give run_dir a folder on another disk, or free space"
    )


def _memory(recipe: Recipe, total: Total) -> str:
    memory = memory_bytes()
    if total.memory_bytes <= memory:
        return ""
    cure = "use fewer workers (--set workers=1), or a larger machine"
    if recipe.workers == 1 or (os.cpu_count() or 1) == 1:
        cure = "use a larger machine"
    return (
        f"this does not fit the memory: about {total.memory_bytes / 1e9:,.1f} GB are needed at once, and this machine has "
        f"{memory / 1e9:,.1f} GB; {cure}"
    )


def _index(recipe: Recipe, amounts: Amounts) -> str:
    """Say what an approximate index would take where the recipe asks for exact search and it takes long."""
    if recipe.search.index != EXACT or not amounts.queries:
        return ""
    load = load_of(replace(amounts, index=EXACT), has_gpu=costs.has_gpu(recipe.search))
    index, _ = costs.choose(load)
    if not is_built(index):
        return ""
    exact_s, approximate_s = costs.seconds(load)
    return (
        f"an approximate index would pay: search.index=exact takes about {exact_s / 3600:,.1f} hours of one core, {index} about "
        f"{approximate_s / 3600:,.1f} to build and search; say --set search.index=auto"
    )
