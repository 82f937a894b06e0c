"""Sweep: run one recipe over a grid of values in one run directory.

Each grid point is a variant (`RUN@NAME`); one with the recipe's own settings is the
variant that `RUN` opens. All variants are validated before any runs. Shared steps are
cached, so an interrupted sweep resumes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console

from nextlong import pipeline
from nextlong.artifacts.variant_names import name_for, word
from nextlong.engine import store
from nextlong.engine.progress import Reporter
from nextlong.engine.runner import find_done
from nextlong.errors import NextlongError, RecipeError
from nextlong.reading.files import InputFile
from nextlong.reading.listing import input_files, recognise_inputs
from nextlong.recipe import Recipe
from nextlong.report import compare, tables
from nextlong.runs.export import make
from nextlong.runs.run import Run
from nextlong.runs.statistics.measure import measure
from nextlong.runs.statistics.stats import Stats
from nextlong.sequences.shortfall import why_fewer
from nextlong.text import Json


class GridPoint(NamedTuple):
    """One point of the grid: its name, its settings by key, and its recipe."""

    name: str
    settings: Json
    recipe: Recipe


@dataclass(frozen=True)
class Outcome:
    """The result of a variant: its statistics or its error.

    `new_core_seconds` is the time of all workers on new steps.
    """

    variant: GridPoint
    new_core_seconds: float
    stats: Stats | None = None
    error: str = ""
    why_fewer: str = ""


def variants(
    path: Path, over: Sequence[str], *, overrides: Sequence[str] = ()
) -> list[GridPoint]:
    """Return every combination of `over`, the last key changing fastest.

    Each of `over` is KEY=V1,V2,… with values in YAML. Raises RecipeError naming all
    that are no recipes.
    """
    axes: dict[str, list[Any]] = {}
    for axis in over:
        key, values = _axis(axis)
        if key in axes:
            raise RecipeError(
                where=f"--over {key}",
                problem="it is given twice",
                fix="give all its values in one --over",
            )
        axes[key] = values
    # The recipe without the sweep first, so that a mistake in the file itself is told
    # once.
    _check_sweepable(Recipe.load(path, overrides=overrides), axes)
    points, mistakes = _points(path, axes, overrides)
    if mistakes:
        raise RecipeError(
            where="--over",
            problem="\n".join(["these variants are not valid recipes", *mistakes]),
            fix="nothing was run; correct --over",
        )
    first_of: dict[str, GridPoint] = {}
    for point in points:
        identity = json.dumps(point.recipe.identity(), sort_keys=True)
        first = first_of.setdefault(identity, point)
        if first is not point:
            raise RecipeError(
                where="--over",
                problem=(
                    f"{_asked(first.settings)} and {_asked(point.settings)} are the "
                    "same variant"
                ),
                fix="give each value once",
            )
    return points


def _axis(axis: str) -> tuple[str, list[Any]]:
    """Return the key and the values of one --over."""
    key, equals, raw = axis.partition("=")
    try:
        values = yaml.safe_load(f"[{raw}]")
    except (yaml.YAMLError, ValueError):
        raise RecipeError(
            where=f"--over {axis!r}",
            problem=f"{raw!r} is not a list of YAML values",
            fix="quote values that contain a comma",
        ) from None
    if not key or not equals or not values:
        raise RecipeError(
            where=f"--over {axis!r}",
            problem="it is not KEY=V1,V2,…",
            fix="write --over chunk.max_chars=512,1024,2048",
        )
    # Values need not be hashable.
    for index, value in enumerate(values):
        if value in values[:index]:
            raise RecipeError(
                where=f"--over {axis!r}",
                problem=f"the value {value!r} is given twice",
                fix="give each value once",
            )
    return key, values


def _check_sweepable(recipe: Recipe, axes: Collection[str]) -> None:
    """Raise RecipeError for settings that the variants of a sweep cannot share."""
    if "run_dir" in axes:
        raise RecipeError(
            where="--over run_dir",
            problem="the variants of a sweep share one run directory",
            fix="sweep another key",
        )
    if recipe.name is not None:
        raise RecipeError(
            where="name",
            value=recipe.name,
            problem="cannot be set, because a sweep names its variants itself",
            fix="set name to null",
        )
    if recipe.export.push is not None:
        raise RecipeError(
            where="export.push",
            problem="the variants of a sweep would overwrite each other's files",
            fix="set it to null",
        )


def _points(
    path: Path, axes: Mapping[str, Sequence[Any]], overrides: Sequence[str]
) -> tuple[list[GridPoint], list[str]]:
    """Return the points of the grid, and the messages of those that are no recipes."""
    points: list[GridPoint] = []
    mistakes = []
    for combination in itertools.product(*axes.values()):
        settings = dict(zip(axes, combination, strict=True))
        assignments = [
            f"{key}={json.dumps(value, default=str)}" for key, value in settings.items()
        ]
        try:
            recipe = Recipe.load(path, overrides=[*overrides, *assignments])
        except RecipeError as error:
            mistakes.append(f"{_asked(settings)}: {error}")
            continue
        taken = [point.name for point in points]
        name = name_for(recipe, recipe.run_path, taken=taken)
        named = recipe.model_copy(update={"name": name})
        points.append(GridPoint(name, settings, named))
    return points, mistakes


def _asked(settings: Json) -> str:
    return " ".join(f"--over {key}={word(value)}" for key, value in settings.items())


def show_ahead(variants: Sequence[GridPoint], console: Console) -> None:
    """Print which variants will run, and which cannot.

    Of each variant: how many of its steps are done, or shared with one before it.
    """
    tell = partial(tables.say, console=console)
    table = tables.table()
    table.add_column("variant", overflow="fold")
    for heading in ("steps", "done", "shared", "to do"):
        table.add_column(heading, justify="right", no_wrap=True)
    # Hashing files may take long, and most variants read the same.
    files: dict[tuple[Any, Path], list[list[InputFile]]] = {}
    seen: set[str] = set()  # fingerprints
    failing = []
    for name, _, recipe in variants:
        key = (recipe.ingest, recipe.run_path)
        try:
            if key not in files:
                files[key] = _recognised(recipe, tell)
            sized = pipeline.sized(recipe, files[key])
            # Building all steps finds what a run would refuse before its first one.
            steps = pipeline.route(sized, files[key])
        except NextlongError as error:
            failing.append(f"{name} will fail: {error}")
            table.add_row(tables.cell(name), *"––––")
            continue
        left = [step for step in steps if find_done(step, recipe.run_path) is None]
        new = {step.fingerprint for step in left} - seen
        seen |= new
        done = len(steps) - len(left)
        shared = len(left) - len(new)
        counts = [str(count) for count in (len(steps), done, shared, len(new))]
        table.add_row(tables.cell(name), *counts)
    tables.show(table, console)
    for line in failing:
        tell(line)


def _recognised(recipe: Recipe, tell: Callable[[str], None]) -> list[list[InputFile]]:
    """Return the input files as the run directory knows them."""
    found = input_files(recipe.ingest)
    sources = recipe.ingest.sources
    return recognise_inputs(
        sources,
        found,
        recipe.run_path,
        tell=tell,
    )


def run_variants(
    variants: Sequence[GridPoint], *, reporter: Reporter | None = None
) -> Iterator[Outcome]:
    """Run one variant after the other and yield the outcome of each.

    A NextlongError ends only its own variant.
    """
    for variant in variants:
        run_dir = variant.recipe.run_path
        before = set(run_dir.glob(f"*/{store.MANIFEST}"))
        stats = None
        error = ""
        causes = ""
        try:
            make(variant.recipe, reporter=reporter)
            run = Run(f"{run_dir}@{variant.name}")
            stats = measure(run)
            causes = "; ".join(why_fewer(run.recipe.compose, run.steps))
        except NextlongError as failure:
            error = str(failure)
        # Shared steps were there before, so only new ones count for this variant.
        new = set(run_dir.glob(f"*/{store.MANIFEST}")) - before
        seconds = []
        for path in new:
            seconds += [part["seconds"] for part in store.read_json(path)["parts"]]
        yield Outcome(
            variant=variant,
            new_core_seconds=round(math.fsum(seconds), 3),
            stats=stats,
            error=error,
            why_fewer=causes,
        )


def notes(outcomes: Sequence[Outcome]) -> list[str]:
    """Return what the table of `compare` does not tell.

    These are failures, and variants with too few sequences.
    """
    lines = []
    for outcome in outcomes:
        name = outcome.variant.name
        requested = outcome.variant.recipe.compose.sequences
        if outcome.stats is None:
            lines.append(f"{name}: {outcome.error}")
        elif isinstance(requested, int) and outcome.stats.sequences < requested:
            sequences = outcome.stats.sequences
            made = f"{sequences:,} of {requested:,} sequences"
            lines.append(f"{name}: {made} ({outcome.why_fewer})")
    return lines


def rows(outcomes: Sequence[Outcome]) -> list[Json]:
    """Return all outcomes as flat rows of the same keys.

    They have the name, settings, seconds, error, and every number of `compare`.
    """
    filled = []
    keys: dict[str, None] = {}
    for outcome in outcomes:
        row: Json = {"variant": outcome.variant.name}
        for key, value in outcome.variant.settings.items():
            row[key] = word(value)
        row |= {"new_core_seconds": outcome.new_core_seconds, "error": outcome.error}
        if outcome.stats is not None:
            row |= compare.row(outcome.stats)
        filled.append(row)
        keys |= dict.fromkeys(row)
    complete = []
    for row in filled:
        complete.append({key: row.get(key) for key in keys})
    return complete


def json_of(outcomes: Sequence[Outcome]) -> list[Json]:
    """Return all outcomes for tools.

    They have the name, settings, seconds, error, and the whole statistics or None.
    """
    return [
        {
            "variant": outcome.variant.name,
            "settings": outcome.variant.settings,
            "new_core_seconds": outcome.new_core_seconds,
            "error": outcome.error or None,
            "stats": outcome.stats.as_json() if outcome.stats else None,
        }
        for outcome in outcomes
    ]
