"""Record: which variants a run directory holds, and what each is made of.

In:  a run directory. Out: `variants/NAME.json`, one a variant: its recipe, the folders of its steps, how many sequences; and
`run.json`, which names the variant that the directory stands for where none is named.
A variant is what one recipe made there; the same recipe again is the same variant. Its record is written first and `run.json`
after it, so that a kill leaves a directory that stands for a finished variant: the new one, or the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

import yaml

from nextlong.artefacts.finished import sequences_per_part
from nextlong.engine import store
from nextlong.engine.step import Finished
from nextlong.errors import RunError
from nextlong.plain_data import Json
from nextlong.recipe import Recipe

RUN_FILE: Final = "run.json"
RECIPE_FILE: Final = "recipe.yaml"
VARIANTS_FOLDER: Final = "variants"

Stands = Literal["for-this", "as-before"]


@dataclass(frozen=True)
class Variant:
    """One variant of a run directory, as its record has it; `steps` are folders by step name, `made` is a UTC time."""

    name: str
    record: Path
    recipe: Json
    steps: dict[str, str]
    sequences_per_part: list[int]
    made: str

    @property
    def run_dir(self) -> Path:
        """The run directory."""
        return self.record.parent.parent

    @property
    def named(self) -> str:
        """What opens it: `RUN@NAME`."""
        return f"{self.run_dir}@{self.name}"

    @property
    def sequences(self) -> int:
        """How many sequences it has."""
        return sum(self.sequences_per_part)


def run_dir_of(recipe: Recipe) -> Path:
    """Return where the recipe's run lives."""
    return Path(recipe.run_dir).expanduser()


def store_of(recipe: Recipe) -> Path | None:
    """Return where the recipe's run keeps the steps that it shares with others; None: in its own directory."""
    return None if recipe.store is None else Path(recipe.store).expanduser()


def variants(run_dir: Path) -> list[Variant]:
    """Return the variants of a run directory, the oldest first. Raises RunError for a record that is damaged."""
    recorded = [_read(path) for path in sorted((run_dir / VARIANTS_FOLDER).glob("*.json")) if path.name[0] != "."]
    return sorted(recorded, key=lambda variant: (variant.made, variant.name))


def variant_names(run_dir: Path) -> list[str]:
    """Return the names of the variants of a run directory, the oldest first."""
    return [variant.name for variant in variants(run_dir)]


def current(run_dir: Path) -> str | None:
    """Return the name of the variant that the directory stands for; None where nothing has finished in it."""
    path = run_dir / RUN_FILE
    if not path.exists():
        return None
    plain = store.read_json(path)
    if isinstance(plain, dict) and "recipe" in plain and "variant" not in plain:
        raise RunError(
            f"{path} was written by an earlier version of nextlong, whose runs have no variants; run its recipe again "
            f"(nextlong run {run_dir / RECIPE_FILE}): what has not changed is kept"
        )
    if not isinstance(plain, dict) or not isinstance(plain.get("variant"), str):
        raise RunError(f"{path} is not the record of a run; name the run_dir of a recipe")
    return str(plain["variant"])


def split_name(named: str | Path) -> tuple[Path, str | None]:
    """Return the run directory and the variant that `RUN` or `RUN@NAME` names."""
    path = Path(named).expanduser()
    head, at, name = str(path).rpartition("@")
    run_dir = Path(head)
    if not (at and head and name) or "/" in name or (path.exists() and not _path(run_dir, name).is_file()):
        return path, None
    return run_dir, name


def find(named: str | Path) -> Variant:
    """Return the variant that `RUN` or `RUN@NAME` names. Raises RunError, naming those there are."""
    run_dir, name = split_name(named)
    stands_for = current(run_dir)
    if stands_for is None:
        there = "holds no finished run" if run_dir.is_dir() else "is not a folder"
        raise RunError(f"{run_dir} {there}; `nextlong run RECIPE` makes one (its run_dir is what to open)")
    path = _path(run_dir, name or stands_for)
    if not path.is_file():
        known = ", ".join(variant.name for variant in variants(run_dir)) or "none"
        raise RunError(f"{run_dir} has no variant {name or stands_for!r}; it has: {known} (`nextlong list {run_dir}`)")
    return _read(path)


def _path(run_dir: Path, name: str) -> Path:
    return run_dir / VARIANTS_FOLDER / f"{name}.json"


def _read(path: Path) -> Variant:
    plain = store.read_json(path)
    keys = {"recipe": dict, "steps": dict, "sequences_per_part": list, "made": str}
    if not isinstance(plain, dict) or any(not isinstance(plain.get(key), kind) for key, kind in keys.items()):
        raise RunError(f"{path} is not the record of a variant; delete this file and run its recipe again")
    return Variant(path.stem, path, *(plain[key] for key in keys))


def write(recipe: Recipe, done: Finished, run_dir: Path, *, name: str, stands: Stands = "for-this") -> Variant:
    """Record a finished variant; what was exported of the same sequences before stays known.

    `stands`: "for-this" lets the directory stand for this variant from now on, "as-before" only where it stands for none.
    """
    path = _path(run_dir, name)
    with store.explained(path):
        path.parent.mkdir(exist_ok=True)
        made = datetime.now(UTC).isoformat()
        steps = {name: step.folder.name for name, step in done.items()}
        if path.exists():
            before = _read(path)
            if before.steps.get("compose") == steps["compose"]:
                made, steps = before.made, before.steps | steps
        record = {
            "made": made,
            "steps": steps,
            "sequences_per_part": sequences_per_part(recipe, done["compose"]),
            "recipe": recipe.model_dump(mode="json"),
        }
        store.write_json(path, record)
    variant = _read(path)
    if stands == "for-this" or not (run_dir / RUN_FILE).exists():
        stand_for(variant)
    return variant


def stand_for(variant: Variant) -> None:
    """Let the run directory stand for a variant from now on, and hold its recipe as YAML."""
    with store.explained(variant.run_dir):
        store.write_json(variant.run_dir / RUN_FILE, {"variant": variant.name})
        store.write_text(variant.run_dir / RECIPE_FILE, yaml.safe_dump(variant.recipe, sort_keys=False, width=120))


def add_steps(variant: Variant, written: Mapping[str, str]) -> None:
    """Add the folders of exports, by step name, to a variant's record; a validation split of other rows is forgotten."""
    plain = store.read_json(variant.record)
    for name in written:
        plain["steps"].pop(f"{name}-validation", None)
    plain["steps"] |= written
    with store.explained(variant.record):
        store.write_json(variant.record, plain)
