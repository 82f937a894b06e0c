"""Variant records: the variants of a run directory, and what each consists of.

In:  a recipe and its finished steps. Out: `variants/NAME.json` with the recipe, the
step folders and the number of sequences, and `NAME.yaml`, the recipe to run again.
`run.json` names the variant that `RUN` opens: that of the recipe's own settings, not
one made with --set, unless it is the only one. It is written last, so that after a kill
`RUN` opens a finished variant, the new or the previous one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Final

from nextlong.artifacts.results import sequences_per_part
from nextlong.engine import store
from nextlong.engine.step import Artifacts
from nextlong.errors import RunError
from nextlong.recipe import Recipe
from nextlong.recipe.paths import from_run, to_folder
from nextlong.recipe.text import as_yaml
from nextlong.text import Json, counted, similar_path

_RUN_FILE: Final = "run.json"
_VARIANTS_FOLDER: Final = "variants"
_RECORDS: Final = f"{_VARIANTS_FOLDER}/[!.]*.json"
_STEP_FOLDERS: Final = "[0-9][0-9]-*"
INPUTS: Final = "inputs.json"  # the files that runs in a directory have read
DATA: Final = "data"  # the folder of the finished rows, in a run directory
# In a run directory whose variants and steps were all removed, and at the root of a
# disk.
_OWN_NAMES: Final = frozenset({_VARIANTS_FOLDER, _RUN_FILE, "lost+found"})
RESUME: Final = "`nextlong run RECIPE` resumes it"


@dataclass(frozen=True)
class Variant:
    """A recorded variant of a run directory.

    `steps` maps step names to folders, `made` is a UTC time. Relative paths in `recipe`
    start from `folder`, the working directory in which it was made.
    """

    name: str
    record: Path
    recipe: Json
    steps: dict[str, str]
    sequences_per_part: list[int]
    made: str
    folder: str

    @property
    def settings(self) -> Json:
        """The recipe with paths from the run directory, wherever it is now."""
        return seen_from_run(self.recipe, Path(self.folder), self.run_dir)

    @property
    def run_dir(self) -> Path:
        """The run directory in which it is recorded."""
        return self.record.parent.parent

    @property
    def named(self) -> str:
        """The name that opens it: `RUN@NAME`."""
        return f"{self.run_dir}@{self.name}"

    @property
    def recipe_file(self) -> Path:
        """Its recipe file for `nextlong run`.

        Without a `name`, because changed settings are another variant.
        """
        return self.record.with_suffix(".yaml")

    @property
    def sequences(self) -> int:
        """The sequences of the data set."""
        return sum(self.sequences_per_part)


def variants(run_dir: Path) -> list[Variant]:
    """Return the variants of a run directory, oldest first.

    Raises RunError for a damaged record.
    """
    # Variants that were made at the same time are ordered by name.
    recorded = [_read(path) for path in run_dir.glob(_RECORDS)]
    return sorted(recorded, key=attrgetter("made", "name"))


def existing(run_dir: Path) -> list[Variant]:
    """Return the variants, oldest first. Raises RunError if there are none."""
    recorded = variants(run_dir)
    if recorded:
        return recorded
    if any(run_dir.glob(_STEP_FOLDERS)):
        raise RunError(
            where=run_dir,
            problem=f"it holds no finished run: {unfinished_steps(run_dir)}",
            fix=RESUME,
        )
    if run_dir.is_file():
        raise RunError(
            where=run_dir,
            problem="it is a file, not a run directory",
            fix="name the run_dir of the recipe",
        )
    fix = "name the run_dir of a finished recipe"
    similar = similar_path(run_dir, accepts=_holds_run)
    if similar is not None:
        fix += f"; did you mean {similar}?"
    if not run_dir.exists():
        raise RunError(where=run_dir, problem="it does not exist", fix=fix)
    # The folder of several run directories is easily taken for one of them.
    found = filter(_holds_run, sorted(run_dir.iterdir()))
    below = [str(path) for path in found]
    if below:
        fix = f"name one of its subfolders: {', '.join(below)}"
    raise RunError(where=run_dir, problem="it holds no finished run", fix=fix)


def _holds_run(path: Path) -> bool:
    return any(path.glob(_RECORDS)) or any(path.glob(_STEP_FOLDERS))


def unfinished_steps(run_dir: Path) -> str:
    """Describe where a run stopped.

    The text is empty if no task of an unfinished step had finished.
    """
    # Folders are numbered in the order of the route.
    folders = sorted(path for path in run_dir.glob(_STEP_FOLDERS) if path.is_dir())
    tasks_by_step = {}
    for folder in folders:
        if not (folder / store.MANIFEST).exists():
            parts = list(folder.glob(".part-*.json"))
            tasks_by_step[_step_of(folder)] = len(parts)
    begun = [
        f"{step} ({counted(count, 'task')} done)"
        for step, count in tasks_by_step.items()
        if count
    ]
    if begun:
        return f"stopped in {', '.join(begun)}"
    if variants(run_dir):
        # The folders of a failed attempt hold no results.
        return ""
    last_steps = (
        " and ".join(tasks_by_step) or f"the step after {_step_of(folders[-1])}"
    )
    finished = counted(len(folders) - len(tasks_by_step), "step")
    return f"stopped in {last_steps}, with {finished} finished"


def _step_of(folder: Path) -> str:
    return folder.name.split("-")[1]


def names(run_dir: Path) -> list[str]:
    """Return the names of the variants of a run directory, oldest first."""
    return [variant.name for variant in variants(run_dir)]


def current(run_dir: Path) -> str | None:
    """Return the name of the variant of the recipe's own settings.

    None if these have not finished.
    """
    path = run_dir / _RUN_FILE
    if not path.exists():
        return None
    match store.read_json(path):
        case {"variant": str(name)}:
            return name
    raise RunError(
        where=path,
        problem="it is not the record of a run",
        fix="name the run_dir of a recipe, or run its recipe again",
    )


def opened(run_dir: Path) -> str | None:
    """Return the name of the variant that `RUN` opens.

    It is the current one, or the only one. None if there are several.
    """
    name = current(run_dir)
    if name is not None:
        return name
    recorded = names(run_dir)
    return recorded[0] if len(recorded) == 1 else None


def split_name(named: str | Path) -> tuple[Path, str | None]:
    """Split `RUN` or `RUN@NAME` into run directory and variant name."""
    path = Path(named).expanduser()
    head, at, name = str(path).rpartition("@")
    if not (at and head and name) or "/" in name:
        return path, None
    # An at sign may belong to the name of a folder.
    run_dir = Path(head)
    if path.exists() and not _path(run_dir, name).is_file():
        return path, None
    return run_dir, name


def find(named: str | Path) -> Variant:
    """Return the variant that `RUN` or `RUN@NAME` names.

    Raises RunError that lists the existing ones.
    """
    run_dir, name = split_name(named)
    # `RUN` alone opens its own settings, or its only variant.
    own = opened(run_dir)
    by_name = {variant.name: variant for variant in existing(run_dir)}
    if name is None and own is None:
        known = ", ".join(f"{run_dir}@{variant}" for variant in by_name)
        raise RunError(
            where=run_dir,
            problem="it has no variant of the recipe's own settings",
            fix=f"run the recipe, or name a variant: {known}",
        )
    wanted = name or str(own)
    if wanted not in by_name:
        raise unknown_variant(run_dir, wanted, list(by_name))
    return by_name[wanted]


def unknown_variant(run_dir: Path, name: str, known: Sequence[str]) -> RunError:
    """Return the error for a name that no variant of a run directory has."""
    return RunError(
        where=run_dir,
        problem=f"it has no variant {name!r}",
        fix=f"name one that it has: {', '.join(known)} (`nextlong list {run_dir}`)",
    )


def _path(run_dir: Path, name: str) -> Path:
    return run_dir / _VARIANTS_FOLDER / f"{name}.json"


def _read(path: Path) -> Variant:
    record = store.read_json(path)
    match record:
        case {
            "recipe": dict(recipe),
            "steps": dict(steps),
            "sequences_per_part": list(per_part),
            "made": str(made),
        }:
            return Variant(
                name=path.stem,
                record=path,
                recipe=recipe,
                steps=steps,
                sequences_per_part=per_part,
                made=made,
                folder=str(record.get("folder", "")),
            )
    raise RunError(
        where=path,
        problem="it is not the record of a variant",
        fix="delete this file and run its recipe again",
    )


def write(recipe: Recipe, done: Artifacts, run_dir: Path, *, name: str) -> Variant:
    """Record a finished variant, keeping earlier exports of the same sequences.

    `RUN` opens this variant from now on, unless the recipe has overrides.
    """
    path = _path(run_dir, name)
    with store.explained(path):
        path.parent.mkdir(exist_ok=True)
        made = datetime.now(UTC).isoformat()
        steps = {name: step.folder.name for name, step in done.items()}
        if path.exists():
            before = _read(path)
            # Exports of the same sequences stay part of the variant, if their folders
            # were not deleted.
            if before.steps.get("compose") == steps["compose"]:
                made = before.made
                for step, folder in before.steps.items():
                    if (run_dir / folder / store.MANIFEST).is_file():
                        steps.setdefault(step, folder)
        # The recipe file beside the record has paths that start from its own folder.
        as_data = recipe.model_dump(mode="json")
        again = to_folder(as_data | {"name": None}, path.parent)
        store.write_file(path.with_suffix(".yaml"), as_yaml(again))
        requested = recipe.compose.sequences
        record = {
            "made": made,
            "steps": steps,
            "sequences_per_part": sequences_per_part(requested, done["compose"]),
            "recipe": as_data,
            "folder": str(Path.cwd()),
        }
        store.write_json(path, record)
    if not recipe.overridden:
        with store.explained(run_dir):
            store.write_json(run_dir / _RUN_FILE, {"variant": name})
    return _read(path)


def remove(variant: Variant) -> None:
    """Remove the record of a variant.

    If `RUN` opened it, `RUN` opens the only other one, if any, until the recipe runs
    again.
    """
    # The record goes last: without it, the other files would not be found again.
    if current(variant.run_dir) == variant.name:
        store.remove_file(variant.run_dir / _RUN_FILE)
    store.remove_file(variant.recipe_file)
    store.remove_file(variant.record)


def add_steps(variant: Variant, written: Mapping[str, str]) -> None:
    """Add export folders, by step name, to the record of a variant.

    Removes a validation split of other rows.
    """
    record = store.read_json(variant.record)
    for name in written:
        record["steps"].pop(f"{name}-validation", None)
    record["steps"] |= written
    with store.explained(variant.record):
        store.write_json(variant.record, record)


def seen_from_run(recipe: Json, folder: Path, run_dir: Path) -> Json:
    """Return plain data with local paths as seen from `run_dir`, its run directory.

    Relative ones start from `folder`. So a recipe has the same settings from every
    working directory, and after its files and the run directory were moved together.
    """
    match recipe:
        case {"run_dir": str(), "ingest": {"sources": list(sources), **ingest}}:
            named = [_with_name(source) for source in sources]
            data = recipe | {"ingest": {**ingest, "sources": named}}
            return from_run(data, folder, run_dir)
    return recipe


def _with_name(source: Json) -> Json:
    return {**source, "name": source.get("name") or source["path"]}


def check_folder(run_dir: Path) -> None:
    """Raise RunError if a new run directory has files or folders that no run made.

    A run would be hard to find among them.
    """
    is_run = _holds_run(run_dir) or (run_dir / INPUTS).is_file()
    if not run_dir.is_dir() or is_run:
        return
    foreign = []
    for path in run_dir.iterdir():
        is_own = path.name.startswith(".") or path.name in _OWN_NAMES
        if not is_own and not _is_empty(path):
            foreign.append(path.name)
    if foreign:
        entries = counted(len(foreign), "entry")
        raise RunError(
            where="run_dir",
            value=run_dir,
            problem=f"contains {entries} that nextlong did not write, such as "
            f"{min(foreign)!r}",
            fix="choose a new or empty folder",
        )


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
