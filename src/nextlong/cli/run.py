"""The commands that execute recipes: plan, run, with the options of array jobs, and sweep; and export of what they made."""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nextlong.cli.common import check_folder_of, console, present, reporter, write
from nextlong.errors import NextlongError
from nextlong.recipe import Recipe

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
            "plan needs either a recipe or a preset: nextlong plan RECIPE, or --preset paper-128k"
        )
    tflops = args.gpu_tflops or GPU_TFLOP_PER_S
    recipe = Recipe.load(
        args.recipe or preset_path(args.preset), overrides=args.overrides
    )
    import_preloaded(recipe.encoder)
    start_s = (
        time.process_time()
    )  # of this process so far, which has imported what a run imports
    scenario = Scenario(
        args.workers, args.nodes, args.gpus, args.chunks, tflops, start_s
    )
    planned = partial(page.plan, recipe, scenario, tell=partial(print, file=sys.stderr))
    present(
        args,
        lambda: planned().as_json(),
        lambda shown: page.show(recipe, shown, scenario),
    )


def run(args: Namespace) -> None:
    from nextlong.engine.executor import held_back

    if args.tasks and not args.only_step:
        cure = "add --only-step STEP, such as embed"
        raise NextlongError(
            f"--tasks {args.tasks} needs the step whose tasks it selects; {cure}"
        )
    if args.before and args.only_step:
        raise NextlongError(
            "--before and --only-step are two jobs; run --before first, then --only-step in each job"
        )
    if args.only_step and args.changed_inputs:
        raise NextlongError(
            "--accept-changed-inputs has no effect with --only-step; add it to the --before job"
        )
    name = [f"name={json.dumps(args.name)}"] if args.name else []
    recipe = Recipe.load(args.recipe, overrides=[*args.overrides, *name])
    if args.before or args.only_step:
        _run_array_job(recipe, args)
        return
    from nextlong.engine import local
    from nextlong.retrieval.encoders.base import preloaded

    with (
        held_back()
    ):  # Python may report a Ctrl-C during an import as an unhandled exception
        # Started even if no step has to run: workers import while this process still has half a second of imports to do.
        if recipe.executor == "local":
            local.start_server(preloaded(recipe.encoder))
        import nextlong.runs.export  # noqa: F401

    run_recipe(recipe, args, changed_inputs=args.changed_inputs or "refuse")


def _run_array_job(recipe: Recipe, args: Namespace) -> None:
    from nextlong import pipeline
    from nextlong.text import counted

    progress, step, given = (
        reporter(stderr=args.json),
        args.before or args.only_step,
        args.tasks or "1/1",
    )
    if args.before:
        with pipeline.session(
            recipe, reporter=progress, changed_inputs=args.changed_inputs or "refuse"
        ) as opened:
            needed = opened.run_before(step)
        outcome, message = (
            {"step": step, "needed": needed},
            f"done: all inputs of {step}",
        )
    else:
        match = re.fullmatch(r"(\d+)/(\d+)", given)
        if match is None or not 1 <= int(match[1]) <= int(match[2]):
            raise NextlongError(
                f"--tasks {given} is not K/N with 1 ≤ K ≤ N; for the third of 64 jobs use --tasks 3/64"
            )
        with pipeline.session(recipe, reporter=progress, mode="together") as opened:
            ran, total = opened.run_share(step, job=(int(match[1]), int(match[2])))
        outcome, message = (
            {"step": step, "ran": ran, "tasks": total},
            f"{step} is already done; `nextlong run` resumes",
        )
        if total:
            message = f"{step}: ran {ran:,} of {counted(total, 'task')}; `nextlong run` resumes once all jobs are done"
    present(args, outcome, message)


def run_recipe(
    recipe: Recipe,
    args: Namespace,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
) -> None:
    """Run or resume a recipe, print what it wrote and where, and leave a report; with `--json`, progress goes to standard error."""
    from nextlong.artifacts import variant_names, variant_records
    from nextlong.report import summary, tables
    from nextlong.report.page import write as write_page
    from nextlong.runs.export import run

    shown, run_dir = console(stderr=args.json), recipe.run_path
    before, name = (
        variant_records.opened(run_dir),
        variant_names.name_for(recipe, run_dir),
    )
    if not recipe.overridden and before not in (None, name):
        message = f"{run_dir} opens the variant {before} until this run has finished, and {name} from then on"
        tables.say(message, console(stderr=True))
    written = run(
        recipe, reporter=reporter(stderr=args.json), changed_inputs=changed_inputs
    )
    (made,) = written.runs
    if args.json:
        write_page.leave(made)
        present(args, summary.run_of(written))
        return
    facts = [*summary.lines(written, named=str(made))]
    facts.append(("inspect", f"nextlong peek {shlex.quote(str(made))}"))
    tables.show_facts(facts, shown)
    tables.show_facts([("report", write_page.leave(made))], shown, beside=facts)
    if variant := _variant(recipe, made, before):
        tables.show_facts([("variant", variant)], shown, beside=facts)


def _variant(recipe: Recipe, made: Run, before: str | None) -> str:
    """Return the name of a variant, how to open it, and what `RUN` opens; "" for the only variant of the recipe's settings."""
    from nextlong.artifacts import variant_names, variant_records

    name, run_dir = made.variant.name, made.path
    if recipe.overridden:
        opens = variant_records.opened(run_dir)
        if opens is None:
            kept = f"{run_dir} opens no variant until the recipe runs without --set"
        elif opens == name:
            kept = f"{run_dir} opens it too, as long as it is the only variant"
        else:
            kept = f"{run_dir} still opens {opens}"
        hint = (
            ""
            if recipe.name or len(name) <= variant_names.LONG_NAME
            else "; --name NAME gives it a shorter name"
        )
        return f"{name}, opened as {made.variant.named}, because of --set; {kept}{hint}"
    others = made.other_variants()
    if before in others:  # not if another process has removed it
        return f"{name}, which {run_dir} now opens; {run_dir}@{before} opens the previous variant"
    return (
        f"{name}, beside {', '.join(others)} (nextlong list {run_dir})"
        if others
        else ""
    )


def sweep(args: Namespace) -> None:
    from nextlong.report import compare, tables
    from nextlong.report import sweep as grid

    variants = grid.variants(args.recipe, args.over, overrides=args.overrides)
    for path in (args.csv, args.json):
        if path not in (None, _STDOUT):
            check_folder_of(path)  # now, and not after hours of work
    progress = console(stderr=True)
    grid.show_ahead(variants, progress)
    ran = grid.run_variants(variants, reporter=reporter(stderr=True))
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
            write(
                args.json,
                json.dumps(grid.json_of(outcomes), indent=1, ensure_ascii=False) + "\n",
            )
    if args.csv:
        write(args.csv, compare.csv_text(grid.rows(outcomes)))
    if measured:
        run_dir = variants[0].recipe.run_dir
        tables.say(
            f"side by side in a browser: nextlong report {shlex.quote(f'{run_dir}@*')}",
            progress,
        )
    if failed := len(outcomes) - len(measured):
        raise NextlongError(
            f"{failed} of {len(outcomes)} variants failed; their lines say why"
        )


def export(args: Namespace) -> None:
    from nextlong.report import summary, tables
    from nextlong.runs import export as runs_export

    if args.into == "":
        raise NextlongError("--into is empty; give a folder or a URL, or remove it")
    if args.by and not args.mix:
        raise NextlongError(
            f"--by {args.by} needs proportions; add --mix 1,2 or remove --by"
        )
    try:
        mix = [float(word) for word in args.mix]
    except ValueError:
        raise NextlongError(
            f"--mix {','.join(args.mix)}: write the proportions as numbers, such as 1,2"
        ) from None
    written = runs_export.export(
        args.runs,
        formats=args.to,
        overrides=[
            *args.overrides,
            *([f"export.push={json.dumps(args.into)}"] if args.into else []),
        ],
        mix=mix,
        by=args.by or "sequences",
        stale="replace" if args.replace else "refuse",
        short_tokens=args.short_tokens,
        reporter=reporter(stderr=args.json),
    )
    present(
        args,
        partial(summary.export_of, written),
        partial(tables.show_facts, summary.exported(written)),
    )
