"""Warnings: what a plan says before a run that cannot end well, or would end sooner another way."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

from nextlong.engine.memory import memory_bytes
from nextlong.recipe import Recipe
from nextlong.recipe.amounts import Amounts
from nextlong.recipe.search import EXACT
from nextlong.report.plan.costs import Total
from nextlong.report.plan.sample import Measured
from nextlong.search import choose
from nextlong.search.index import index_kind
from nextlong.search.index_estimates import load_of
from nextlong.tokens.enough import too_short, uses_a_chunk_once


def lines(
    recipe: Recipe, amounts: Amounts, measured: Measured, total: Total, run_dir: Path, *, is_here: bool
) -> list[str]:
    """Return the warnings of a plan, none if there is nothing to warn of; `is_here`: it is for this machine."""
    said = [_too_long(recipe, amounts, measured), _index(recipe, amounts)]
    if is_here:
        said += [_disk(total, run_dir), _memory(recipe, total)]
    return [line for line in said if line]


def _too_long(recipe: Recipe, amounts: Amounts, measured: Measured) -> str:
    """Say so where all documents together are shorter than one sequence; an estimate, as everything here."""
    tokens, asked = amounts.kept_chars / measured.tokenizing.chars_per_token, recipe.compose.target_tokens
    if tokens >= asked or not uses_a_chunk_once(recipe):
        return ""
    return too_short(recipe, tokens)


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
    load = load_of(replace(amounts, index=EXACT), has_gpu=choose.has_gpu(recipe.search))
    index, _ = choose.choose(load)
    if not index_kind(index).is_built:
        return ""
    exact_s, approximate_s = choose.seconds(load)
    return (
        f"an approximate index would pay: search.index=exact takes about {exact_s / 3600:,.1f} hours of one core, {index} about "
        f"{approximate_s / 3600:,.1f} to build and search; say --set search.index=auto"
    )
