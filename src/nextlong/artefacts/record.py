"""Record: which states a run directory holds, and what each is made of.

In:  a run directory. Out: `states/NAME.json`, one a state: its recipe, the folders of its steps, how many sequences; and
`run.json`, which names the state that the directory stands for where none is named.
A state is what one recipe made there; the same recipe again is the same state. Its record is written first and `run.json`
after it, so that a kill leaves a directory that stands for a finished state: the new one, or the one before.
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
STATES_FOLDER: Final = "states"

Stands = Literal["for-this", "as-before"]


@dataclass(frozen=True)
class State:
    """One state of a run directory, as its record has it; `steps` are folders by step name, `made` is a UTC time."""

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


def states(run_dir: Path) -> list[State]:
    """Return the states of a run directory, the oldest first. Raises RunError for a record that is damaged."""
    recorded = [_read(path) for path in sorted((run_dir / STATES_FOLDER).glob("*.json")) if path.name[0] != "."]
    return sorted(recorded, key=lambda state: (state.made, state.name))


def state_names(run_dir: Path) -> list[str]:
    """Return the names of the states of a run directory, the oldest first."""
    return [state.name for state in states(run_dir)]


def current(run_dir: Path) -> str | None:
    """Return the name of the state that the directory stands for; None where nothing has finished in it."""
    path = run_dir / RUN_FILE
    if not path.exists():
        return None
    plain = store.read_json(path)
    if isinstance(plain, dict) and "recipe" in plain and "state" not in plain:
        raise RunError(
            f"{path} was written by an earlier version of nextlong, whose runs have no states; run its recipe again "
            f"(nextlong run {run_dir / RECIPE_FILE}): what has not changed is kept"
        )
    if not isinstance(plain, dict) or not isinstance(plain.get("state"), str):
        raise RunError(f"{path} is not the record of a run; name the run_dir of a recipe")
    return str(plain["state"])


def split_name(named: str | Path) -> tuple[Path, str | None]:
    """Return the run directory and the state that `RUN` or `RUN@NAME` names."""
    path = Path(named).expanduser()
    head, at, name = str(path).rpartition("@")
    run_dir = Path(head)
    if not (at and head and name) or "/" in name or (path.exists() and not _path(run_dir, name).is_file()):
        return path, None
    return run_dir, name


def find(named: str | Path) -> State:
    """Return the state that `RUN` or `RUN@NAME` names. Raises RunError, naming those there are."""
    run_dir, name = split_name(named)
    stands_for = current(run_dir)
    if stands_for is None:
        there = "holds no finished run" if run_dir.is_dir() else "is not a folder"
        raise RunError(f"{run_dir} {there}; `nextlong run RECIPE` makes one (its run_dir is what to open)")
    path = _path(run_dir, name or stands_for)
    if not path.is_file():
        known = ", ".join(state.name for state in states(run_dir)) or "none"
        raise RunError(f"{run_dir} has no state {name or stands_for!r}; it has: {known} (`nextlong list {run_dir}`)")
    return _read(path)


def _path(run_dir: Path, name: str) -> Path:
    return run_dir / STATES_FOLDER / f"{name}.json"


def _read(path: Path) -> State:
    plain = store.read_json(path)
    keys = {"recipe": dict, "steps": dict, "sequences_per_part": list, "made": str}
    if not isinstance(plain, dict) or any(not isinstance(plain.get(key), kind) for key, kind in keys.items()):
        raise RunError(f"{path} is not the record of a state; delete this file and run its recipe again")
    return State(path.stem, path, *(plain[key] for key in keys))


def write(recipe: Recipe, done: Finished, run_dir: Path, *, name: str, stands: Stands = "for-this") -> State:
    """Record a finished state; what was exported of the same sequences before stays known.

    `stands`: "for-this" lets the directory stand for this state from now on, "as-before" only where it stands for none.
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
    state = _read(path)
    if stands == "for-this" or not (run_dir / RUN_FILE).exists():
        stand_for(state)
    return state


def stand_for(state: State) -> None:
    """Let the run directory stand for a state from now on, and hold its recipe as YAML."""
    with store.explained(state.run_dir):
        store.write_json(state.run_dir / RUN_FILE, {"state": state.name})
        store.write_text(state.run_dir / RECIPE_FILE, yaml.safe_dump(state.recipe, sort_keys=False, width=120))


def add_steps(state: State, written: Mapping[str, str]) -> None:
    """Add the folders of exports, by step name, to a state's record; a validation split of other rows is forgotten."""
    plain = store.read_json(state.record)
    for name in written:
        plain["steps"].pop(f"{name}-validation", None)
    plain["steps"] |= written
    with store.explained(state.record):
        store.write_json(state.record, plain)
