"""Exports: write finished runs in further formats, alone or mixed, without the corpus that they were made from.

In:  finished run directories, formats, and the recipe's `export` keys.
Out: one folder a format and split, in the first run's directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from nextlong import pipeline
from nextlong.engine import store
from nextlong.engine.progress import Reporter
from nextlong.engine.runner import run_steps
from nextlong.engine.step import Done
from nextlong.errors import RecipeError, RunError
from nextlong.opened import Run
from nextlong.recipe import Recipe
from nextlong.steps import exports
from nextlong.steps.finished import special_ids


def export(
    runs: Sequence[str | Path],
    *,
    formats: Sequence[str] = (),
    overrides: Sequence[str] = (),
    mix: Sequence[float] = (),
    by: Literal["sequences", "tokens"] = "sequences",
    reporter: Reporter | None = None,
) -> tuple[Recipe, dict[str, Done]]:
    """Write the sequences of finished runs in `formats` (default: those of the first run's recipe); return recipe and steps.

    `overrides` are `export.key=value`. Several runs are mixed in the proportions `mix`, counted in sequences or tokens;
    the files then lie in the first run's directory. What is there already is kept. In a script, call it under
    `if __name__ == "__main__":`. Raises NextlongError for every mistake that a user can mend.
    """
    opened = [Run(run) for run in runs]
    first = opened[0]
    recipe = _recipe(first, formats, overrides)
    weights = tuple(mix) or (1.0,) * len(opened)
    others = tuple(exports.Other(run.recipe, run.steps) for run in opened[1:])
    _check_mix(opened, weights)
    steps = exports.export_steps(recipe, exports.read_steps(first.steps), mix=exports.Mix(others, weights, by))
    with store.locked(first.path), pipeline.executor_for(recipe) as executor:
        done = run_steps(steps, run_dir=first.path, executor=executor, reporter=reporter, known=first.steps)
        if not others:
            _record(first, {step.name: done[step.name] for step in steps})
    return recipe, done


def _recipe(run: Run, formats: Sequence[str], overrides: Sequence[str]) -> Recipe:
    """Return the run's recipe with other exports."""
    foreign = [asked for asked in overrides if not asked.startswith("export.") and not asked.startswith("workers=")]
    if foreign:
        raise RecipeError(
            f"--set {foreign[0]} changes more than the export; say `nextlong run RECIPE --set {foreign[0]}`, which "
            "keeps every step that it does not touch"
        )
    asked = [*([f"export.formats=[{','.join(formats)}]"] if formats else []), *overrides]
    return Recipe.from_dict(run.recipe.model_dump(mode="json"), overrides=asked, origin=str(run.record))


def _check_mix(runs: Sequence[Run], weights: Sequence[float]) -> None:
    """Raise a user's error if runs do not mix."""
    if len(weights) != len(runs):
        raise RecipeError(f"the mix has {len(weights)} proportions for {len(runs)} runs; give one for each")
    first = runs[0]
    for run in runs[1:]:
        for what, own, other in (
            ("tokenizer", _tokenizer_hash(first), _tokenizer_hash(run)),
            ("special tokens", _special(first), _special(run)),
        ):
            if own != other:
                raise RunError(
                    f"{first.path} and {run.path} have another {what}, so their token ids do not mix; run one of them "
                    "again with the other's `tokenizer`, which keeps its vectors and candidates"
                )


def _tokenizer_hash(run: Run) -> str:
    step = run.steps["tokenizer"]
    name = step.file(".tokenizer.json").name
    (found,) = (part["files"][name]["xxh3"] for part in step.manifest["parts"] if name in part["files"])
    return str(found)


def _special(run: Run) -> tuple[tuple[int, ...], tuple[int, ...]]:
    special = special_ids(run.steps)
    return special.bos, special.eos


def _record(run: Run, written: dict[str, Done]) -> None:
    """Add what was written to the run's record, so that `nextlong.open` finds it."""
    record: dict[str, Any] = store.read_json(run.record)
    record["steps"] |= {name: step.folder.name for name, step in written.items()}
    with store.explained(run.record):
        store.write_json(run.record, record)
