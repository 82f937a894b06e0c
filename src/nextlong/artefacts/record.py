"""Record: which variants a run directory holds, and what each is made of.

In:  a run directory. Out: `variants/NAME.json`, one a variant: its recipe, the folders of its steps, how many sequences; and
`run.json`, which names the variant that `RUN` opens: that of the recipe's own settings, never one made with --set.
A variant is what one recipe made there; the same recipe again is the same variant. Its record is written first and `run.json`
after it, so that a kill leaves a directory whose `RUN` opens a finished variant: the new one, or the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

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


def existing(run_dir: Path) -> list[Variant]:
    """Return the variants as `variants` does. Raises RunError where there are none."""
    if there := variants(run_dir):
        return there
    what = "holds no finished run" if run_dir.is_dir() else "is not a folder"
    raise RunError(f"{run_dir} {what}; `nextlong run RECIPE` makes one (its run_dir is what to open)")


def variant_names(run_dir: Path) -> list[str]:
    """Return the names of the variants of a run directory, the oldest first."""
    return [variant.name for variant in variants(run_dir)]


def current(run_dir: Path) -> str | None:
    """Return the name of the variant that `RUN` opens; None where the recipe's own settings have not finished."""
    path = run_dir / RUN_FILE
    if not path.exists():
        return None
    plain = store.read_json(path)
    if not isinstance(plain, dict) or not isinstance(plain.get("variant"), str):
        raise RunError(f"{path} is not the record of a run; name the run_dir of a recipe, or run its recipe again")
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
    own = current(run_dir)
    known = [variant.name for variant in existing(run_dir)]
    if name is None and own is None:
        raise RunError(
            f"{run_dir} opens none of these variants; run the recipe again, or name one: "
            + ", ".join(f"{run_dir}@{variant}" for variant in known)
        )
    path = _path(run_dir, str(name or own))
    if not path.is_file():
        raise RunError(
            f"{run_dir} has no variant {name or own!r}; it has: {', '.join(known)} (`nextlong list {run_dir}`)"
        )
    return _read(path)


def _path(run_dir: Path, name: str) -> Path:
    return run_dir / VARIANTS_FOLDER / f"{name}.json"


def _read(path: Path) -> Variant:
    plain = store.read_json(path)
    keys = {"recipe": dict, "steps": dict, "sequences_per_part": list, "made": str}
    if not isinstance(plain, dict) or any(not isinstance(plain.get(key), kind) for key, kind in keys.items()):
        raise RunError(f"{path} is not the record of a variant; delete this file and run its recipe again")
    return Variant(path.stem, path, *(plain[key] for key in keys))


def write(recipe: Recipe, done: Finished, run_dir: Path, *, name: str) -> Variant:
    """Record a finished variant; what was exported of the same sequences before stays known.

    `RUN` opens it from now on if it has the recipe's own settings, and stays what it was if it has overrides.
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
    if not recipe.overridden:
        with store.explained(run_dir):
            store.write_json(run_dir / RUN_FILE, {"variant": variant.name})
            store.write_text(run_dir / RECIPE_FILE, yaml.safe_dump(variant.recipe, sort_keys=False, width=120))
    return variant


def remove(variant: Variant) -> None:
    """Forget a variant; one that `RUN` opens leaves `RUN` undefined until the recipe runs again."""
    if current(variant.run_dir) == variant.name:
        for name in (RUN_FILE, RECIPE_FILE):
            store.remove_file(variant.run_dir / name)
    store.remove_file(variant.record)


def add_steps(variant: Variant, written: Mapping[str, str]) -> None:
    """Add the folders of exports, by step name, to a variant's record; a validation split of other rows is forgotten."""
    plain = store.read_json(variant.record)
    for name in written:
        plain["steps"].pop(f"{name}-validation", None)
    plain["steps"] |= written
    with store.explained(variant.record):
        store.write_json(variant.record, plain)
