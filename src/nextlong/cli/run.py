"""The commands that execute recipes: plan, run, with the options of array jobs, and sweep.

Array jobs share the tasks of one step among many processes:

nextlong run my.yaml --before embed                    # once: the inputs of embed
nextlong run my.yaml --only-step embed --tasks 3/64    # in each of 64 jobs: every 64th task, from the third on
nextlong run my.yaml                                   # once: checks what they wrote, and resumes
"""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from nextlong.cli.common import Commands, add_json, add_set, check_folder_of, console, print_json, reporter, write
from nextlong.errors import NextlongError

if TYPE_CHECKING:
    from nextlong.recipe import Recipe
    from nextlong.runs.run import Run

_STDOUT = Path("-")


def add(commands: Commands) -> None:
    """Add plan and run to the parser."""
    plan = commands.add_parser("plan", help="Show the steps of a recipe, and their time, disk space and memory")
    plan.add_argument("recipe", type=Path, nargs="?", metavar="RECIPE", help="a recipe (YAML)")
    add_set(plan)
    add_json(plan)
    plan.add_argument("--preset", metavar="NAME", help="plan a preset of the package, as for init")
    plan.add_argument("--workers", type=_count, metavar="N", help="also estimate for N worker processes per node")
    plan.add_argument("--nodes", type=_count, default=1, metavar="N", help="also estimate for N machines like this one")
    plan.add_argument("--gpus", type=_count, default=0, metavar="M", help="also estimate for M GPUs per node")
    plan.add_argument(
        "--gpu-tflops", type=_amount, metavar="X", help="throughput of a GPU on a transformer (default: 120)"
    )
    plan.add_argument("--chunks", type=_amount, metavar="N", help="estimate for a corpus of N chunks, such as 1e8")
    plan.set_defaults(command=_plan)

    run = commands.add_parser("run", help="Run or resume a recipe")
    run.add_argument("recipe", type=Path, metavar="RECIPE", help="a recipe (YAML)")
    add_set(run)
    add_json(run)
    run.add_argument("--name", help="name of the variant, which RUN@NAME opens (the recipe's `name`)")
    run.add_argument(
        "--accept-changed-inputs", action="store_true", help="accept input files that changed, and read them again"
    )
    run.add_argument("--before", metavar="STEP", help="run the steps that a step needs, and stop")
    run.add_argument("--only-step", metavar="STEP", help="run only tasks of this step, in parallel with other jobs")
    run.add_argument("--tasks", metavar="K/N", help="with --only-step: every Nth task, from the Kth on (default: 1/1)")
    run.set_defaults(command=_run)


def add_sweep(commands: Commands) -> None:
    """Add sweep to the parser."""
    sweep = commands.add_parser("sweep", help="Run a recipe over a grid of values; shared steps run once")
    sweep.add_argument("recipe", type=Path, metavar="RECIPE", help="a recipe (YAML)")
    add_set(sweep)
    sweep.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=V1,V2,…",
        help="e.g. chunk.max_chars=512,1024,2048; repeat it to run every combination",
    )
    sweep.add_argument("--csv", type=Path, metavar="FILE", help="write one row per variant")
    sweep.add_argument(
        "--json", type=Path, nargs="?", const=_STDOUT, metavar="FILE", help="write JSON to FILE, or print it"
    )
    sweep.set_defaults(command=_sweep)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(text)


def _amount(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (value > 0 and math.isfinite(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0, such as 1e8")
    return value


def _plan(args: argparse.Namespace) -> None:
    from nextlong.recipe import Recipe
    from nextlong.recipe.text import preset_path
    from nextlong.report.plan import page
    from nextlong.report.plan.elsewhere import GPU_TFLOP_PER_S, Asked
    from nextlong.workers import import_preloaded

    if (args.recipe is None) == (args.preset is None):
        raise NextlongError(
            "plan needs either a recipe or a preset; use nextlong plan RECIPE or nextlong plan --preset paper-128k"
        )
    cluster = Asked(
        workers=args.workers,
        nodes=args.nodes,
        gpus=args.gpus,
        chunks=args.chunks,
        gpu_tflops=args.gpu_tflops or GPU_TFLOP_PER_S,
    )
    recipe = Recipe.load(args.recipe or preset_path(args.preset), overrides=args.overrides)
    import_preloaded(recipe.encoder)
    start_s = time.process_time()  # of this process so far, which has imported what a run imports
    if args.json:
        plan = page.plan(recipe, cluster, tell=lambda line: print(line, file=sys.stderr), start_s=start_s)
        print_json(plan.as_json())
    else:
        page.show(recipe, console(), cluster, start_s=start_s)


def _run(args: argparse.Namespace) -> None:
    from nextlong.engine.process import held_back
    from nextlong.recipe import Recipe

    if args.tasks and not args.only_step:
        raise NextlongError(f"--tasks {args.tasks} needs the step whose tasks are shared; add --only-step embed")
    if args.before and args.only_step:
        raise NextlongError("--before and --only-step are two jobs; run --before first, then --only-step in each job")
    if args.only_step and args.accept_changed_inputs:
        raise NextlongError(
            "--accept-changed-inputs reads inputs again, which --only-step does not; add it to --before"
        )
    name = [f"name={json.dumps(args.name)}"] if args.name else []
    recipe = Recipe.load(args.recipe, overrides=[*args.overrides, *name])
    changed_inputs: Literal["accept", "refuse"] = "accept" if args.accept_changed_inputs else "refuse"
    if args.before or args.only_step:
        _run_array_job(recipe, args, changed_inputs)
        return
    from nextlong.engine import local
    from nextlong.workers import preloaded

    with held_back():  # Python may report a Ctrl-C that cuts an import short as one that nobody handled
        # Started even if no step has to run: workers import beside this process, which has imports of half a second left.
        if recipe.executor == "local":
            local.start_server(preloaded(recipe.encoder))
        import nextlong.runs.export  # noqa: F401

    run_recipe(recipe, form="json" if args.json else "text", changed_inputs=changed_inputs)


def _run_array_job(recipe: Recipe, args: argparse.Namespace, changed_inputs: Literal["accept", "refuse"]) -> None:
    from nextlong import pipeline
    from nextlong.text import counted

    shown = console(stderr=args.json)
    if args.before:
        needed = pipeline.run_before(
            recipe, args.before, reporter=reporter(stderr=args.json), changed_inputs=changed_inputs
        )
        if args.json:
            print_json({"step": args.before, "needed": needed})
        else:
            shown.print(f"done: all inputs of {args.before}", highlight=False)
        return
    given = args.tasks or "1/1"
    match = re.fullmatch(r"(\d+)/(\d+)", given)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise NextlongError(f"--tasks {given} is not a share; use K/N, such as 3/64: the third of 64, counted from 1")
    part = (int(match[1]), int(match[2]))
    ran, total = pipeline.run_share(recipe, args.only_step, part=part, reporter=reporter(stderr=args.json))
    if args.json:
        print_json({"step": args.only_step, "ran": ran, "tasks": total})
    elif total:
        done = f"{args.only_step}: ran {ran:,} of {counted(total, 'task')}"
        shown.print(f"{done}; `nextlong run` resumes once all jobs are done", highlight=False)
    else:
        shown.print(f"{args.only_step} is already done; `nextlong run` resumes", highlight=False)


def run_recipe(
    recipe: Recipe,
    *,
    form: Literal["text", "json"] = "text",
    changed_inputs: Literal["refuse", "accept"] = "refuse",
) -> None:
    """Run or resume a recipe, print what it wrote and where, and leave a report; with JSON, progress goes to standard error."""
    from nextlong.artifacts import record
    from nextlong.report import as_json, summary, tables
    from nextlong.report.page import write as write_page
    from nextlong.runs.export import run

    shown = console(stderr=form == "json")
    run_dir = recipe.run_path
    before, name = record.current(run_dir), record.name_for(recipe, run_dir)
    if not recipe.overridden and before not in (None, name):
        tables.say(
            f"{run_dir} opens the variant {before} until this run is finished, then {name}", console(stderr=True)
        )
    written = run(recipe, reporter=reporter(stderr=form == "json"), changed_inputs=changed_inputs)
    (made,) = written.runs
    if form == "json":
        write_page.leave([made])
        print_json(as_json.run_of(written))
        return
    facts = [
        *summary.lines(recipe, written.done, folder=written.folder, named=str(made)),
        ("look", f"nextlong peek {shlex.quote(str(made))}"),
    ]
    tables.show_facts(facts, shown)
    tables.show_facts([("report", write_page.leave([made]))], shown, beside=facts)
    if variant := _variant(recipe, made, before):
        tables.show_facts([("variant", variant)], shown, beside=facts)


def _variant(recipe: Recipe, made: Run, before: str | None) -> str:
    """Return the name of a variant, what opens it, and what `RUN` opens; "" for an only variant with the recipe's settings."""
    from nextlong.artifacts import record

    name, run_dir = made.variant.name, made.path
    if recipe.overridden:
        own = record.current(run_dir)
        kept = f"{run_dir} still opens {own}" if own else f"{run_dir} opens nothing until the recipe runs without --set"
        hint = "" if recipe.name or len(name) <= record.LONG_NAME else "; --name NAME gives it a shorter name"
        return f"{name}, opened as {made.variant.named}, because of --set; {kept}{hint}"
    others = made.other_variants()
    if before in others:  # not if another process has removed it
        return f"{name}, which {run_dir} opens from now on; {run_dir}@{before} opens what it opened before"
    return f"{name}, beside {', '.join(others)} (nextlong list {run_dir})" if others else ""


def _sweep(args: argparse.Namespace) -> None:
    from nextlong.report import compare, sweep, tables
    from nextlong.report.page import write as write_page
    from nextlong.runs import export as runs_export
    from nextlong.runs.run import Run

    axes = [sweep.parse_axis(over) for over in args.over]
    variants = sweep.variants(args.recipe, axes, overrides=args.overrides)
    for path in (args.csv, args.json):
        if path not in (None, _STDOUT):
            check_folder_of(path)  # now, and not after hours of work
    progress = console(stderr=True)
    sweep.show_ahead(variants, progress)
    ran = sweep.run_variants(variants, reporter=reporter(stderr=True), make=runs_export.make)
    outcomes = []
    for number, variant in enumerate(variants, start=1):
        tables.say(f"{number} of {len(variants)} variants: {variant.name}", progress)
        outcomes.append(next(ran))
    if args.json == _STDOUT:
        print_json(sweep.json_of(outcomes))
    else:
        sweep.show(outcomes, console())
    if args.csv:
        write(args.csv, compare.csv_text(sweep.rows(outcomes)))
    if args.json not in (None, _STDOUT):
        write(args.json, json.dumps(sweep.json_of(outcomes), indent=1, ensure_ascii=False) + "\n")
    if made := [Run(outcome.stats.run) for outcome in outcomes if outcome.stats]:
        tables.say(f"report: {write_page.leave(made)}", progress)
    failed = sum(outcome.stats is None for outcome in outcomes)
    if failed:
        raise NextlongError(f"{failed} of {len(outcomes)} variants failed; the table says why")
