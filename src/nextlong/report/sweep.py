"""Sweep: run one recipe over a grid of values in one run directory: one variant (`RUN@NAME`) per grid point.

A grid point with the recipe's own settings is the variant that `RUN` opens. All variants are validated before any runs.
Shared steps are cached, so an interrupted sweep resumes.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Iterator, Sequence
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


class _GridPoint(NamedTuple):
    """One point of the grid: its name, its settings by key, and the recipe they make."""

    name: str
    settings: Json
    recipe: Recipe


@dataclass(frozen=True)
class _Outcome:
    """The result of a variant: its statistics or its error. `new_core_seconds` is the time of all workers on new steps."""

    variant: _GridPoint
    new_core_seconds: float
    stats: Stats | None = None
    error: str = ""
    why_fewer: str = ""


def variants(
    path: Path, over: Sequence[str], *, overrides: Sequence[str] = ()
) -> list[_GridPoint]:
    """Return every combination of `over`, each KEY=V1,V2,… with values in YAML, the last key changing fastest.

    Raises RecipeError naming all that are no recipes.
    """
    axes: dict[str, list[Any]] = {}
    for axis in over:
        key, equals, raw = axis.partition("=")
        try:
            values = yaml.safe_load(f"[{raw}]")
        except (yaml.YAMLError, ValueError):
            cure = "quote values that contain a comma"
            raise RecipeError(
                f"--over {axis!r}: {raw!r} is not a list of YAML values; {cure}"
            ) from None
        if not key or not equals or not values:
            raise RecipeError(
                f"--over {axis!r} is not KEY=V1,V2,…; write --over chunk.max_chars=512,1024,2048"
            )
        if repeated := [
            value for place, value in enumerate(values) if value in values[:place]
        ]:
            raise RecipeError(
                f"--over {axis!r}: the value {repeated[0]!r} is given twice; give each value once"
            )
        if key in axes:
            raise RecipeError(
                f"--over {key} is given twice; give all its values in one --over"
            )
        axes[key] = values
    recipe = Recipe.load(
        path, overrides=overrides
    )  # so that a mistake in the file itself is reported once
    if "run_dir" in axes:
        raise RecipeError(
            "--over run_dir: the variants of a sweep share one run directory; sweep another key"
        )
    if recipe.name is not None:
        raise RecipeError(
            f"name={recipe.name}: a sweep names its variants itself; set name to null"
        )
    if recipe.export.push is not None:
        raise RecipeError(
            "export.push: the variants of a sweep would overwrite each other's files; set it to null"
        )
    checked, mistakes = [], []
    for combination in itertools.product(*axes.values()):
        settings = dict(zip(axes, combination, strict=True))
        sets = [
            f"{key}={json.dumps(value, default=str)}" for key, value in settings.items()
        ]
        try:
            recipe = Recipe.load(path, overrides=[*overrides, *sets])
        except RecipeError as error:
            mistakes.append(
                f"{' '.join(f'--over {key}={word(value)}' for key, value in settings.items())}: {error}"
            )
            continue
        name = name_for(recipe, recipe.run_path)
        checked.append(
            _GridPoint(name, settings, recipe.model_copy(update={"name": name}))
        )
    if mistakes:
        raise RecipeError("\n".join([*mistakes, "nothing was run; correct --over"]))
    names = [point.name for point in checked]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise RecipeError(
            f"two variants of --over would have the same name, {twice}; run them as two sweeps"
        )
    return checked


def show_ahead(variants: Sequence[_GridPoint], console: Console) -> None:
    """Print which variants will run, how many steps of each are done or shared with one before it, and which cannot run."""
    seen: set[str] = set()
    files: dict[
        tuple[Any, Path], list[list[InputFile]]
    ] = {}  # hashing may take long, and most variants read the same
    tell, table, failing = partial(tables.say, console=console), tables.table(), []
    table.add_column("variant", overflow="fold")
    for heading in ("steps", "done", "shared", "to do"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, _, recipe in variants:
        read, counts = (recipe.ingest, recipe.run_path), tuple("––––")
        try:
            if read not in files:
                found = input_files(recipe.ingest)
                files[read] = recognise_inputs(
                    recipe.ingest.sources, found, recipe.run_path, tell=tell
                )
            sized = pipeline.sized(recipe, files[read])
            steps = pipeline.route(sized, files[read])
            left = [step for step in steps if find_done(step, recipe.run_path) is None]
            new = {step.fingerprint for step in left} - seen
            seen |= new
            counts = tuple(
                map(
                    str,
                    (
                        len(steps),
                        len(steps) - len(left),
                        len(left) - len(new),
                        len(new),
                    ),
                )
            )
        except NextlongError as error:
            failing.append(f"{name} will fail: {error}")
        table.add_row(tables.cell(name), *counts)
    tables.show(table, console)
    for line in failing:
        tell(line)


def run_variants(
    variants: Sequence[_GridPoint], *, reporter: Reporter | None = None
) -> Iterator[_Outcome]:
    """Run one variant after the other and yield the outcome of each; a NextlongError ends only its own variant."""
    for variant in variants:
        run_dir = variant.recipe.run_path
        before = set(run_dir.glob(f"*/{store.MANIFEST}"))
        stats, error, causes = None, "", ""
        try:
            make(variant.recipe, reporter=reporter)
            made = Run(f"{run_dir}@{variant.name}")
            stats, causes = (
                measure(made),
                "; ".join(why_fewer(made.recipe.compose, made.steps)),
            )
        except NextlongError as failure:
            error = str(failure)
        new = set(run_dir.glob(f"*/{store.MANIFEST}")) - before
        seconds = math.fsum(
            part["seconds"] for path in new for part in store.read_json(path)["parts"]
        )
        yield _Outcome(variant, round(seconds, 3), stats, error, causes)


def notes(outcomes: Sequence[_Outcome]) -> list[str]:
    """Return what the table of `compare` does not tell: failures, and too few sequences."""
    lines = []
    for outcome in outcomes:
        name = outcome.variant.name
        requested = outcome.variant.recipe.compose.sequences
        if outcome.stats is None:
            lines.append(f"{name}: {outcome.error}")
        elif isinstance(requested, int) and outcome.stats.sequences < requested:
            lines.append(
                f"{name}: {outcome.stats.sequences:,} of {requested:,} sequences "
                f"({outcome.why_fewer})"
            )
    return lines


def rows(outcomes: Sequence[_Outcome]) -> list[Json]:
    """Return all outcomes as flat rows of the same keys: name, settings, seconds, error, every number of `compare`."""
    made = [
        {
            "variant": outcome.variant.name,
            **{key: word(value) for key, value in outcome.variant.settings.items()},
        }
        | {"new_core_seconds": outcome.new_core_seconds, "error": outcome.error}
        | (compare.row(outcome.stats) if outcome.stats else {})
        for outcome in outcomes
    ]
    keys = list(dict.fromkeys(key for one in made for key in one))
    return [{key: one.get(key) for key in keys} for one in made]


def json_of(outcomes: Sequence[_Outcome]) -> list[Json]:
    """Return all outcomes for tools: name, settings, seconds, error, and the whole statistics or None."""
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
