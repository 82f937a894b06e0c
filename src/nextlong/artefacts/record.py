"""Record: which folders make up a run's data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from nextlong.artefacts.finished import sequences_per_part
from nextlong.engine import store
from nextlong.engine.step import Finished
from nextlong.recipe import Recipe

RUN_FILE = "run.json"
RECIPE_FILE = "recipe.yaml"
VARIANTS_FOLDER = "variants"  # of records like RUN_FILE, one a variant of a sweep


def run_dir_of(recipe: Recipe) -> Path:
    """Return where the recipe's run lives."""
    return Path(recipe.run_dir).expanduser()


def record_of(recipe: Recipe, done: Finished) -> dict[str, Any]:
    """Return which folders make up the recipe's data set, as `nextlong.open` reads it."""
    return {
        "steps": {name: step.folder.name for name, step in done.items()},
        "sequences_per_part": sequences_per_part(recipe, done["compose"]),
        "recipe": recipe.model_dump(mode="json"),
    }


def write_record(recipe: Recipe, done: Finished, run_dir: Path) -> None:
    """Write down which folders make up the data set that was asked for last."""
    with store.explained(run_dir):
        store.write_json(run_dir / RUN_FILE, record_of(recipe, done))
