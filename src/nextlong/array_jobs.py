"""Array jobs: one step's tasks, shared by processes that a scheduler starts on many machines.

First `run_before`, once; then `run_share` in every job; then `nextlong.run`, which confirms what they wrote and goes on.
"""

from __future__ import annotations

from functools import partial
from typing import Literal

from nextlong import pipeline
from nextlong.artefacts.record import run_dir_of, store_of
from nextlong.corpus.ingest import check_named_ids
from nextlong.engine import share, shared, store
from nextlong.engine.local import refuse_import_by_worker
from nextlong.engine.progress import Quiet, Reporter
from nextlong.engine.runner import run_steps
from nextlong.inputs import remembered
from nextlong.recipe import Recipe
from nextlong.tokens.enough import check_enough


def run_before(
    recipe: Recipe,
    step: str,
    *,
    reporter: Reporter | None = None,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
) -> list[str]:
    """Carry out what the step `step` needs, and not the step itself; return the names of what it needs. Raises a NextlongError."""
    refuse_import_by_worker()
    pipeline.check_beforehand(recipe)
    run_dir, reporter = run_dir_of(recipe), reporter or Quiet()
    remembered.check_apart(recipe, run_dir)
    files = remembered.input_files(recipe)
    with store.locked(run_dir), shared.opened(store_of(recipe), run_dir) as stored:
        files = remembered.recognise_inputs(recipe, files, run_dir, changed_inputs=changed_inputs, tell=reporter.tell)
        check_named_ids(recipe.ingest.sources, files)
        check_enough(recipe, files)
        remember = partial(
            remembered.remember,
            sources=recipe.ingest.sources,
            files=files,
            run_dir=run_dir,
            stored=store_of(recipe),
        )
        steps = pipeline.route(recipe, files, when_ingested=remember)
        needed = share.before(steps, step)
        with pipeline.executor_for(recipe) as executor:
            run_steps(steps, run_dir=run_dir, executor=executor, reporter=reporter, only=needed, shared=stored)
    return [one.name for one in steps if one.name in needed]


def run_share(recipe: Recipe, step: str, *, part: tuple[int, int], reporter: Reporter | None = None) -> tuple[int, int]:
    """Run the share `part` = (k, n) of the tasks of one step, beside other processes that run theirs; return how many, of how many.

    Raises RunError if a step that it needs is not done, and every other NextlongError of a run.
    """
    refuse_import_by_worker()
    pipeline.check_beforehand(recipe)
    run_dir, reporter = run_dir_of(recipe), reporter or Quiet()
    files = remembered.input_files(recipe)
    with store.locked(run_dir, mode="together"), shared.opened(store_of(recipe), run_dir) as stored:
        files = remembered.recognise_inputs(recipe, files, run_dir, tell=reporter.tell)
        with pipeline.executor_for(recipe) as executor:
            steps = pipeline.route(recipe, files)
            return share.run_share(
                steps, step, share=part, run_dir=run_dir, executor=executor, reporter=reporter, shared=stored
            )
