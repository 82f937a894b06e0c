"""Variant records: the variants of a run directory, and what each consists of.

In:  a recipe and its finished steps. Out: `variants/NAME.json` with the recipe, the step
folders and the number of sequences, and `NAME.yaml`, the recipe to run again. `run.json`
names the variant that `RUN` opens: that of the recipe's own settings, not one made with
--set, unless it is the only one. It is written last, so that after a kill `RUN` opens a
finished variant, the new or the previous one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from nextlong.artifacts.results import sequences_per_part
from nextlong.engine import store
from nextlong.engine.step import Artifacts
from nextlong.errors import RecipeError, RunError
from nextlong.recipe import Recipe
from nextlong.recipe.paths import from_run, to_folder
from nextlong.recipe.text import as_yaml
from nextlong.text import Json, counted, did_you_mean

_RUN_FILE: Final = "run.json"


_VARIANTS_FOLDER: Final = "variants"


INPUTS: Final = "inputs.json"  # the files that runs in a directory have read


# In a run directory whose variants and steps were all removed, and at the root of a disk.
_OWN_NAMES: Final = frozenset({_VARIANTS_FOLDER, _RUN_FILE, "lost+found"})


_STEP_FOLDERS: Final = "[0-9][0-9]-*"


@dataclass(frozen=True)
class Variant:
    """A recorded variant of a run directory; `steps` maps step names to folders, `made` is a UTC time.

    Relative paths in `recipe` start from `folder`, the working directory in which it was made.
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
        """The recipe with paths that start from the run directory, wherever that is now."""
        return seen_from_run(self.recipe, Path(self.folder), self.run_dir)

    @property
    def run_dir(self) -> Path:
        return self.record.parent.parent

    @property
    def named(self) -> str:
        """The name that opens it: `RUN@NAME`."""
        return f"{self.run_dir}@{self.name}"

    @property
    def recipe_file(self) -> Path:
        """Its recipe file for `nextlong run`, without a `name`, because changed settings are another variant."""
        return self.record.with_suffix(".yaml")

    @property
    def sequences(self) -> int:
        return sum(self.sequences_per_part)


def variants(run_dir: Path) -> list[Variant]:
    """Return the variants of a run directory, oldest first. Raises RunError for a damaged record."""
    return sorted(
        map(_read, run_dir.glob(f"{_VARIANTS_FOLDER}/[!.]*.json")),
        key=attrgetter("made", "name"),
    )


def existing(run_dir: Path) -> list[Variant]:
    """Return the variants, oldest first. Raises RunError, with the fix, if there are none."""
    if found := variants(run_dir):
        return found
    if any(run_dir.glob(_STEP_FOLDERS)):
        raise RunError(f"{run_dir} holds no finished run: {unfinished_steps(run_dir)}")
    fix = f"name the run_dir of a finished recipe{did_you_mean(run_dir, accepts=_holds_run)}"
    if run_dir.is_file():
        raise RunError(
            f"{run_dir} is a file, not a run directory; name the run_dir of the recipe"
        )
    if not run_dir.exists():
        raise RunError(f"{run_dir} does not exist; {fix}")
    below = ", ".join(
        str(path) for path in sorted(run_dir.iterdir()) if _holds_run(path)
    )
    raise RunError(
        f"{run_dir} holds no finished run; {f'name one of its subfolders: {below}' if below else fix}"
    )


def _holds_run(path: Path) -> bool:
    return any(path.glob(f"{_VARIANTS_FOLDER}/[!.]*.json")) or any(
        path.glob(_STEP_FOLDERS)
    )


def unfinished_steps(run_dir: Path) -> str:
    """Describe where a run stopped and how to resume it; "" if no task of an unfinished step had finished."""
    folders = sorted(path for path in run_dir.glob(_STEP_FOLDERS) if path.is_dir())
    unfinished = [
        folder for folder in folders if not (folder / store.MANIFEST).exists()
    ]
    tasks = {
        folder.name.split("-")[1]: len(list(folder.glob(".part-*.json")))
        for folder in unfinished
    }
    begun = [
        f"{name} ({counted(count, 'task')} done)"
        for name, count in tasks.items()
        if count
    ]
    resume = "`nextlong run RECIPE` resumes it"
    if begun:
        return f"stopped in {', '.join(begun)}; {resume}"
    if variants(run_dir):
        return ""  # the folders of a failed attempt hold no results
    where = " and ".join(tasks) or f"the step after {folders[-1].name.split('-')[1]}"
    return f"stopped in {where}, with {counted(len(folders) - len(tasks), 'step')} finished; {resume}"


def variant_names(run_dir: Path) -> list[str]:
    return [variant.name for variant in variants(run_dir)]


def current(run_dir: Path) -> str | None:
    """Return the name of the variant of the recipe's own settings; None if these have not finished."""
    path = run_dir / _RUN_FILE
    if not path.exists():
        return None
    match store.read_json(path):
        case {"variant": str(name)}:
            return name
    raise RunError(
        f"{path} is not the record of a run; name the run_dir of a recipe, or run its recipe again"
    )


def opened(run_dir: Path) -> str | None:
    """Return the name of the variant that `RUN` opens: the current one, or the only one; None if there are several."""
    if (name := current(run_dir)) is not None:
        return name
    names = variant_names(run_dir)
    return names[0] if len(names) == 1 else None


def split_name(named: str | Path) -> tuple[Path, str | None]:
    """Split `RUN` or `RUN@NAME` into run directory and variant name."""
    path = Path(named).expanduser()
    head, at, name = str(path).rpartition("@")
    run_dir = Path(head)
    if (
        not (at and head and name)
        or "/" in name
        or (path.exists() and not _path(run_dir, name).is_file())
    ):
        return path, None
    return run_dir, name


def find(named: str | Path) -> Variant:
    """Return the variant that `RUN` or `RUN@NAME` names. Raises RunError that lists the existing ones."""
    run_dir, name = split_name(named)
    own = opened(run_dir)
    known = {variant.name: variant for variant in existing(run_dir)}
    if name is None and own is None:
        cure = f"run the recipe, or name a variant: {', '.join(f'{run_dir}@{variant}' for variant in known)}"
        raise RunError(f"{run_dir} has no variant of the recipe's own settings; {cure}")
    if (found := known.get(name or str(own))) is None:
        cure = f"it has: {', '.join(known)} (`nextlong list {run_dir}`)"
        raise RunError(f"{run_dir} has no variant {name or own!r}; {cure}")
    return found


def _path(run_dir: Path, name: str) -> Path:
    return run_dir / _VARIANTS_FOLDER / f"{name}.json"


def _read(path: Path) -> Variant:
    plain = store.read_json(path)
    match plain:
        case {
            "recipe": dict(recipe),
            "steps": dict(steps),
            "sequences_per_part": list(per_part),
            "made": str(made),
        }:
            folder = str(plain.get("folder", ""))
            return Variant(path.stem, path, recipe, steps, per_part, made, folder)
    raise RunError(
        f"{path} is not the record of a variant; delete this file and run its recipe again"
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
            if before.steps.get("compose") == steps["compose"]:
                made, steps = before.made, before.steps | steps
        per_part, plain = (
            sequences_per_part(recipe.compose.sequences, done["compose"]),
            recipe.model_dump(mode="json"),
        )
        again = to_folder(plain | {"name": None}, path.parent)
        store.write_file(path.with_suffix(".yaml"), as_yaml(again))
        store.write_json(
            path,
            {
                "made": made,
                "steps": steps,
                "sequences_per_part": per_part,
                "recipe": plain,
                "folder": str(Path.cwd()),
            },
        )
    if not recipe.overridden:
        with store.explained(run_dir):
            store.write_json(run_dir / _RUN_FILE, {"variant": name})
    return _read(path)


def remove(variant: Variant) -> None:
    """Remove the record of a variant; if `RUN` opened it, `RUN` opens the only other one, if any, until the recipe runs again."""
    if current(variant.run_dir) == variant.name:
        store.remove_file(variant.run_dir / _RUN_FILE)
    store.remove_file(variant.recipe_file)
    store.remove_file(variant.record)


def add_steps(variant: Variant, written: Mapping[str, str]) -> None:
    """Add export folders, by step name, to the record of a variant; removes a validation split of other rows."""
    plain = store.read_json(variant.record)
    for name in written:
        plain["steps"].pop(f"{name}-validation", None)
    plain["steps"] |= written
    with store.explained(variant.record):
        store.write_json(variant.record, plain)


DATA: Final = "data"  # the folder of the finished rows, in a run directory


def settings_of(recipe: Mapping[str, Any]) -> Json:
    """Return the settings that distinguish variants, by dotted key, of a recipe given as plain data."""
    try:
        return dict(
            flattened(Recipe.from_dict(recipe).identity())
        )  # adds the defaults of new keys
    except (
        RecipeError
    ):  # of another version, or with an extension that is no longer installed
        return dict(flattened(recipe))


def flattened(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of nested plain data."""
    if isinstance(value, Mapping) and value:
        for inner, below in value.items():
            yield from flattened(below, f"{key}.{inner}" if key else str(inner))
    elif isinstance(value, list) and any(isinstance(below, Mapping) for below in value):
        for place, below in enumerate(value):
            yield from flattened(below, f"{key}.{place}")
    else:
        yield key, value


def seen_from_run(recipe: Json, folder: Path, run_dir: Path) -> Json:
    """Return plain data with local paths as seen from `run_dir`, its run directory; relative ones start from `folder`.

    So a recipe has the same settings from every working directory, and after its files and
    the run directory were moved together.
    """
    match recipe:
        case {"run_dir": str(), "ingest": {"sources": list(sources), **ingest}}:
            named = [_with_name(source) for source in sources]
            plain = recipe | {"ingest": {**ingest, "sources": named}}
            return from_run(plain, folder, run_dir)
    return recipe


def _with_name(source: Json) -> Json:
    return {**source, "name": source.get("name") or source["path"]}


def check_folder(run_dir: Path) -> None:
    """Raise RunError if a new run directory has files or folders that no run made, among which it would be hard to find."""
    is_run = _holds_run(run_dir) or (run_dir / INPUTS).is_file()
    if not run_dir.is_dir() or is_run:
        return
    foreign = sorted(
        path.name
        for path in run_dir.iterdir()
        if path.name[0] != "." and path.name not in _OWN_NAMES and not _is_empty(path)
    )
    if foreign:
        problem = f"has {counted(len(foreign), 'entry')} that no run made, such as {foreign[0]!r}"
        raise RunError(f"run_dir={run_dir} {problem}; choose a new or empty folder")


def _is_empty(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())
