"""Sweep: one recipe over a grid of values, in one run directory.

In:  a recipe file and, for each swept key, its values. Out: one record a variant, `RUN/variants/NAME.json`, which
`nextlong.open` reads; and a table.

Every variant is a recipe of its own, run as any other: the fingerprint of a step says which steps two variants share,
so nothing common is computed twice and a killed sweep goes on where it was. All variants are validated before any runs.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import yaml
from rich.console import Console

from nextlong import pipeline
from nextlong.artefacts.record import RECIPE_FILE, RUN_FILE, VARIANTS_FOLDER, record_of, run_dir_of
from nextlong.engine import store
from nextlong.engine.progress import Reporter
from nextlong.engine.step import Finished
from nextlong.errors import NextlongError, RecipeError
from nextlong.methods.base import described
from nextlong.recipe import Recipe
from nextlong.report import compare, tables
from nextlong.runs.opened import Run
from nextlong.runs.stats import Stats, measure

_TABLE = ("sequences", "tokens", "similarity_mean", "distance_p50", "distinct_documents")
_FAILED = {"sequences": "failed"}


class Axis(NamedTuple):
    """A key of the recipe and the values that it takes."""

    key: str
    values: tuple[Any, ...]


class Variant(NamedTuple):
    """One point of the grid: its name, its settings by key, and the recipe they make."""

    name: str
    settings: dict[str, Any]
    recipe: Recipe


@dataclass(frozen=True)
class Outcome:
    """What came of a variant: its statistics, or why there are none. `new_seconds` is the work of all workers on new steps."""

    variant: Variant
    new_seconds: float
    stats: Stats | None = None
    error: str = ""

    def row(self) -> dict[str, Any]:
        """Return the outcome as a flat row for tables: name, settings, every number of `compare`, seconds, error."""
        numbers = compare.row(self.stats) if self.stats else {}
        settings = {key: _word(value) for key, value in self.variant.settings.items()}
        row = {"variant": self.variant.name, **settings, "new_seconds": self.new_seconds, "error": self.error}
        return row | numbers


def parse_axis(asked: str) -> Axis:
    """Read `KEY=V1,V2,…`; the values are YAML. Raises RecipeError."""
    key, equals, raw = asked.partition("=")
    try:
        values = yaml.safe_load(f"[{raw}]")
    except (yaml.YAMLError, ValueError):
        raise RecipeError(f"--over {asked!r}: {raw!r} is no list of YAML values; quote what holds a comma") from None
    if not key or not equals or not values:
        raise RecipeError(f"--over {asked!r} is not KEY=V1,V2,…; write --over chunk.max_chars=512,1024,2048")
    repeated = next((value for place, value in enumerate(values) if value in values[:place]), None)
    if repeated is not None:
        raise RecipeError(f"--over {asked!r}: the value {repeated!r} stands twice; name each once")
    return Axis(key, tuple(values))


def variants(path: Path, axes: Sequence[Axis], *, overrides: Sequence[str] = ()) -> list[Variant]:
    """Return every combination, the last key changing fastest. Raises RecipeError naming all that are no recipes."""
    recipe = Recipe.load(path, overrides=overrides)  # a mistake of the file's own is told once
    _check_keys(axes)
    if recipe.export.push is not None:
        raise RecipeError("export.push: the variants of a sweep would overwrite each other there; leave it null")
    found, mistakes = [], []
    for values in itertools.product(*(axis.values for axis in axes)):
        settings = {axis.key: value for axis, value in zip(axes, values, strict=True)}
        sets = [f"{key}={json.dumps(value, default=str)}" for key, value in settings.items()]
        try:
            recipe = Recipe.load(path, overrides=[*overrides, *sets])
        except RecipeError as error:
            mistakes.append(f"{_label(settings)}: {error}")
            continue
        found.append(Variant(_file_name(settings), settings, recipe))
    if mistakes:
        raise RecipeError("\n".join([*mistakes, "nothing was run; correct --over"]))
    _check_names(found)
    return found


def _check_keys(axes: Sequence[Axis]) -> None:
    keys = [axis.key for axis in axes]
    if len(set(keys)) < len(keys):
        raise RecipeError(f"--over names a key twice ({', '.join(keys)}); give it all its values at once")
    if "run_dir" in keys:
        raise RecipeError("--over run_dir: the variants share one run directory; sweep another key")


def _check_names(found: Sequence[Variant]) -> None:
    names = [variant.name for variant in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise RecipeError(f"two variants of --over would both be recorded as {twice}.json; run them as two sweeps")


def _label(settings: dict[str, Any]) -> str:
    return " ".join(f"--over {key}={_word(value)}" for key, value in settings.items())


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _file_name(settings: dict[str, Any]) -> str:
    """Return `key=value,key=value` with the last parts of the keys where these differ, fit for a file's name."""
    lasts = [key.rpartition(".")[2] for key in settings]
    keys = lasts if len(set(lasts)) == len(lasts) else list(settings)
    pairs = [f"{key}={_word(value)}" for key, value in zip(keys, settings.values(), strict=True)]
    return re.sub(r"[^\w.+=,-]+", "-", ",".join(pairs))


def run_variants(
    found: Sequence[Variant],
    *,
    reporter: Reporter | None = None,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    when_done: Callable[[Recipe, Finished, pipeline.CarryOut], object] = lambda *_: None,
) -> Iterator[Outcome]:
    """Run one variant after the other and yield what came of each; a NextlongError ends its own variant alone.

    `when_done` gets the recipe and the finished steps of each, while the run directory stands for that variant.
    The run directory itself goes on to stand for the run that it stood for before, if there was one.
    """
    run_dir = run_dir_of(found[0].recipe)
    files = [run_dir / name for name in (RECIPE_FILE, RUN_FILE)]  # what the run is, in the last place
    before = {path: path.read_text(encoding="utf-8") for path in files if path.exists()}
    try:
        yield from _run_each(found, reporter, changed_inputs, when_done)
    finally:
        if len(before) == len(files):
            for path, text in before.items():
                store.write_text(path, text)


def _run_each(
    found: Sequence[Variant],
    reporter: Reporter | None,
    changed_inputs: Literal["refuse", "accept"],
    when_done: Callable[[Recipe, Finished, pipeline.CarryOut], object],
) -> Iterator[Outcome]:
    for variant in found:
        run_dir = run_dir_of(variant.recipe)
        there = _finished_folders(run_dir)
        try:
            done = pipeline.run(
                variant.recipe,
                reporter=reporter,
                changed_inputs=changed_inputs,
                when_done=partial(when_done, variant.recipe),
            )
            stats = measure(Run(_record(variant, done, run_dir)))
        except NextlongError as error:
            yield Outcome(variant, _new_seconds(run_dir, there), error=str(error))
        else:
            yield Outcome(variant, _new_seconds(run_dir, there), stats=stats)


def _record(variant: Variant, done: Finished, run_dir: Path) -> Path:
    path = run_dir / VARIANTS_FOLDER / f"{variant.name}.json"
    with store.explained(path):
        path.parent.mkdir(exist_ok=True)
        store.write_json(path, record_of(variant.recipe, done))
    return path


def _finished_folders(run_dir: Path) -> set[Path]:
    return set(run_dir.glob(f"*/{store.MANIFEST}"))


def _new_seconds(run_dir: Path, there: set[Path]) -> float:
    new = _finished_folders(run_dir) - there
    return round(math.fsum(part["seconds"] for path in new for part in store.read_json(path)["parts"]), 3)


def show(outcomes: Sequence[Outcome], console: Console) -> None:
    """Print one line a variant, a column for each swept key; above, once, what is the same in all, below why any failed."""
    rows = [outcome.row() for outcome in outcomes]
    same = compare.same_in_all(rows, _TABLE[1:])
    shown = [key for key in _TABLE if key not in same]
    keys = list(outcomes[0].variant.settings)
    lasts = [key.rpartition(".")[2] for key in keys]
    compare.show_same(same, console)
    lines = [
        [
            *(_word(value) for value in outcome.variant.settings.values()),
            *(compare.text_of(row.get(key)) if outcome.stats else _FAILED.get(key, "–") for key in shown),
            f"{outcome.new_seconds:,.1f}",
        ]
        for outcome, row in zip(outcomes, rows, strict=True)
    ]
    headings = [*(lasts if len(set(lasts)) == len(lasts) else keys), *shown, "new_seconds"]
    between = "\n" if console.is_terminal else " "
    tables.show_in_blocks([key.replace("_", between) for key in headings], lines, console, names=len(keys))
    for note in _notes(outcomes):
        console.print(note, markup=False, highlight=False, soft_wrap=True)


def _notes(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield what a line of the table has no room for: what must be said of a method, and why a variant failed."""
    recipes = [own.variant.recipe for own in outcomes]
    yield from sorted({described(recipe) for recipe in recipes} - {recipe.compose.method for recipe in recipes})
    yield from (f"{outcome.variant.name}: {outcome.error}" for outcome in outcomes if outcome.error)


def rows(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return all outcomes as rows of the same keys."""
    own = [outcome.row() for outcome in outcomes]
    keys = list(dict.fromkeys(key for row in own for key in row))
    return [{key: row.get(key) for key in keys} for row in own]


def json_of(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Return all outcomes for tools: name, settings, seconds, error, and the whole statistics or None."""
    return [
        {
            "variant": outcome.variant.name,
            "settings": outcome.variant.settings,
            "new_seconds": outcome.new_seconds,
            "error": outcome.error or None,
            "stats": outcome.stats.as_json() if outcome.stats else None,
        }
        for outcome in outcomes
    ]
