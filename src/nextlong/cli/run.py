"""The commands that execute recipes: plan, run and sweep, and export of what they made.

`run` has the options of array jobs.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nextlong.cli.common import check_folder_of, console, present, reporter, write
from nextlong.errors import NextlongError
from nextlong.export.mixture import EVERYTHING, MIXTURES, Mixture
from nextlong.recipe import Recipe
from nextlong.text import counted

_STDOUT = Path("-")  # --json without a file

if TYPE_CHECKING:
    from nextlong.runs.run import Run


def plan(args: Namespace) -> None:
    from nextlong.recipe.text import preset_path
    from nextlong.report.plan import page
    from nextlong.report.plan.scenario import GPU_TFLOP_PER_S, Scenario
    from nextlong.retrieval.encoders.base import import_preloaded

    if (args.recipe is None) == (args.preset is None):
        raise NextlongError(
            where="plan",
            problem="it needs either a recipe or a preset",
            fix="nextlong plan RECIPE, or --preset paper-128k",
        )
    path = args.recipe or preset_path(args.preset)
    recipe = Recipe.load(path, overrides=args.overrides)
    import_preloaded(recipe.encoder)
    scenario = Scenario(
        args.workers,
        args.nodes,
        args.gpus,
        args.chunks,
        args.gpu_tflops or GPU_TFLOP_PER_S,
        # Of this process so far, which has imported what a run imports.
        time.process_time(),
    )
    planned = partial(page.plan, recipe, scenario, tell=partial(print, file=sys.stderr))
    present(
        args,
        lambda: planned().as_json(),
        lambda shown: page.show(recipe, shown, scenario),
    )


def run(args: Namespace) -> None:
    from nextlong.engine.executor import held_back

    _check_job(args)
    recipe = Recipe.load(args.recipe, overrides=args.overrides)
    if args.before:
        _run_before(recipe, args)
        return
    if args.only_step:
        _run_share(recipe, args)
        return
    from nextlong.engine import local
    from nextlong.retrieval.encoders.base import preloaded

    # Python may report a Ctrl-C during an import as an unhandled exception.
    with held_back():
        # Started even if no step has to run: workers import while this process still
        # has half a second of imports to do.
        if recipe.executor == "local":
            local.start_server(preloaded(recipe.encoder))
        import nextlong.runs.export  # noqa: F401

    run_recipe(recipe, args, changed_inputs=args.changed_inputs or "refuse")


def refresh(args: Namespace) -> None:
    """Make the next round of a run by another checkpoint, as a variant of it."""
    import nextlong
    from nextlong.runs.rounds import next_round

    run_of = nextlong.open(args.run)
    run_recipe(next_round(run_of, args.model, overrides=args.overrides), args)


def _check_job(args: Namespace) -> None:
    """Refuse options of array jobs that do not go together."""
    if args.tasks and not args.only_step:
        raise NextlongError(
            where=f"--tasks {args.tasks}",
            problem="it selects tasks of one step, and no step is given",
            fix="add --only-step STEP, such as embed",
        )
    if args.before and args.only_step:
        raise NextlongError(
            where="--before and --only-step",
            problem="they cannot be combined",
            fix="run --before first, then --only-step in each job",
        )
    if args.only_step and args.changed_inputs:
        raise NextlongError(
            where="--accept-changed-inputs",
            problem="it has no effect with --only-step",
            fix="add it to the --before job",
        )


def _run_before(recipe: Recipe, args: Namespace) -> None:
    """Run all steps that a step depends on: the first job of an array."""
    from nextlong import pipeline

    with pipeline.session(
        recipe,
        reporter=reporter(args),
        changed_inputs=args.changed_inputs or "refuse",
    ) as opened:
        needed = opened.run_before(args.before)
    outcome = {"step": args.before, "needed": needed}
    present(args, outcome, f"done: all inputs of {args.before}")


def _run_share(recipe: Recipe, args: Namespace) -> None:
    """Run the tasks of a step that this job of an array has."""
    from nextlong import pipeline

    step = args.only_step
    given = args.tasks or "1/1"
    match = re.fullmatch(r"(\d+)/(\d+)", given)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise NextlongError(
            where=f"--tasks {given}",
            problem="it is not K/N with 1 ≤ K ≤ N",
            fix="for the third of 64 jobs use --tasks 3/64",
        )
    job = (int(match[1]), int(match[2]))
    progress = reporter(args, lines="steps")
    with pipeline.session(recipe, reporter=progress, mode="together") as opened:
        ran, total = opened.run_share(step, job=job)
    message = f"{step} is already done; `nextlong run` resumes"
    if total > 0:
        message = (
            f"{step}: ran {ran:,} of {counted(total, 'task')}; `nextlong run` resumes "
            "once all jobs are done"
        )
    present(args, {"step": step, "ran": ran, "tasks": total}, message)


def run_recipe(
    recipe: Recipe,
    args: Namespace,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
) -> None:
    """Run or resume a recipe, print what it wrote and where, and leave a report.

    With `--json`, progress goes to standard error.
    """
    from nextlong.artifacts import variant_names, variant_records
    from nextlong.report import summary, tables
    from nextlong.report.page import write as write_page
    from nextlong.runs.export import run

    shown = console(stderr=args.json)
    run_dir = recipe.run_path
    opened_before = variant_records.opened(run_dir)
    name = variant_names.name_for(recipe, run_dir)
    if not recipe.overridden and opened_before not in (None, name):
        message = (
            f"{run_dir} opens the variant {opened_before} until this run has finished, "
            f"and {name} from then on"
        )
        tables.say(message, console(stderr=True))
    written = run(recipe, reporter=reporter(args), changed_inputs=changed_inputs)
    (finished,) = written.runs
    if args.json:
        write_page.leave(finished)
        present(args, summary.run_of(written))
        return
    named = shlex.quote(str(finished))
    commands = [
        ("inspect", f"nextlong peek {named}"),
        ("verify", f"nextlong verify {named}"),
    ]
    facts = [*summary.lines(written, named=str(finished)), *commands]
    tables.show_facts(facts, shown)
    report = write_page.leave(finished)
    tables.show_facts([("report", report)], shown, beside=facts)
    variant = _variant(recipe, finished, opened_before)
    if variant:
        tables.show_facts([("variant", variant)], shown, beside=facts)


def _variant(recipe: Recipe, finished: Run, opened_before: str | None) -> str:
    """Return the name of a variant, how to open it, and what `RUN` opens.

    "" for the only variant of the recipe's settings.
    """
    from nextlong.artifacts import variant_names, variant_records

    name = finished.variant.name
    run_dir = finished.path
    if recipe.overridden:
        opened_now = variant_records.opened(run_dir)
        if opened_now is None:
            opens = f"{run_dir} opens no variant until the recipe runs without --set"
        elif opened_now == name:
            opens = f"{run_dir} opens it too, as long as it is the only variant"
        else:
            opens = f"{run_dir} still opens {opened_now}"
        hint = ""
        if not recipe.name and len(name) > variant_names.LONG_NAME:
            hint = "; --set name=NAME gives it a shorter name"
        opened_as = finished.variant.named
        return f"{name}, opened as {opened_as}, because of --set; {opens}{hint}"
    others = finished.other_variants()
    # Another process may have removed the one that was opened before.
    if opened_before in others:
        return (
            f"{name}, which {run_dir} now opens; {run_dir}@{opened_before} opens the "
            "previous variant"
        )
    if others:
        return f"{name}, beside {', '.join(others)} (nextlong list {run_dir})"
    return ""


def sweep(args: Namespace) -> None:
    """Run a recipe over a grid of values, and show the variants side by side."""
    from nextlong.report import compare, tables
    from nextlong.report import sweep as grid

    variants = grid.variants(args.recipe, args.over, overrides=args.overrides)
    # The folders are checked now, and not after hours of work.
    for path in (args.csv, args.json):
        if path not in (None, _STDOUT):
            check_folder_of(path)
    # Standard output is for the table, or for JSON.
    progress = console(stderr=True)
    grid.show_ahead(variants, progress)
    ran = grid.run_variants(variants, reporter=reporter(args, stderr=True))
    outcomes = []
    for number, variant in enumerate(variants, start=1):
        tables.say(f"{number} of {len(variants)} variants: {variant.name}", progress)
        outcomes.append(next(ran))
    measured = [outcome.stats for outcome in outcomes if outcome.stats is not None]
    if args.json == _STDOUT:
        present(args, grid.json_of(outcomes))
    else:
        if measured:
            compare.show(measured, console())
        for note in grid.notes(outcomes):
            tables.say(note, console())
        if args.json is not None:
            text = json.dumps(grid.json_of(outcomes), indent=1, ensure_ascii=False)
            write(args.json, f"{text}\n")
    if args.csv:
        write(args.csv, compare.csv_text(grid.rows(outcomes)))
    if measured:
        runs = shlex.join(one.run for one in measured)
        commands = [
            ("in a browser", f"nextlong report {runs}"),
            ("compare again", f"nextlong compare {runs}"),
        ]
        tables.show_facts(commands, progress)
    failed = len(outcomes) - len(measured)
    if failed > 0:
        raise NextlongError(
            where="sweep",
            problem=f"{failed} of {len(outcomes)} variants failed",
            fix="their lines say why",
        )


def export(args: Namespace) -> None:
    from nextlong.report import summary, tables
    from nextlong.runs import export as runs_export

    if args.into == "":
        raise NextlongError(
            where="--into",
            problem="it is empty",
            fix="give a folder or a URL, or remove it",
        )
    mixture = _mixture(args)
    overrides = list(args.overrides)
    if args.into:
        overrides.append(f"export.push={json.dumps(args.into)}")
    written = runs_export.export(
        args.runs,
        formats=args.to,
        overrides=overrides,
        mixture=mixture,
        stale="replace" if args.replace else "refuse",
        short_tokens=args.short_tokens,
        reporter=reporter(args),
    )
    present(
        args,
        partial(summary.export_of, written),
        partial(tables.show_facts, summary.exported(written)),
    )


def _mixture(args: Namespace) -> Mixture:
    """Return the mixture that the options of `export` describe.

    A preset is changed by the other options.
    """
    words = ",".join(args.mix)
    given = {
        key: getattr(args, key)
        for key in ("by", "components", "temperature", "repeat", "order")
        if getattr(args, key) is not None
    }
    if args.by and not args.mix and args.temperature is None:
        raise NextlongError(
            where=f"--by {args.by}",
            problem="it needs proportions",
            fix="add --mix 1,2 or remove --by",
        )
    if words in MIXTURES:
        return replace(MIXTURES[words], **given)
    named = [word.rpartition("=") for word in args.mix]
    try:
        weights = tuple(float(weight) for _, _, weight in named)
    except ValueError:
        raise NextlongError(
            where=f"--mix {words}",
            problem="not all proportions are numbers",
            fix="write them as numbers, such as 1,2, or name one of "
            f"{', '.join(MIXTURES)}",
        ) from None
    names = tuple(name for name, _, _ in named if name)
    return replace(EVERYTHING, weights=weights, names=names, **given)
