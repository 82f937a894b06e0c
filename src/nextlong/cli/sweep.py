"""The command `nextlong sweep`: a recipe over a grid of values."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nextlong.cli.asked import add_recipe, check_folder_of, print_json, write
from nextlong.errors import NextlongError
from nextlong.report import tables
from nextlong.report.tables import PipeConsole as Console

_PRINTED = Path("-")


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    sweep = commands.add_parser("sweep", help="run a recipe over a grid of values, sharing every common step")
    add_recipe(sweep)
    sweep.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=V1,V2,…",
        help="e.g. chunk.max_chars=512,1024,2048; again for another key: every combination is run",
    )
    sweep.add_argument("--csv", type=Path, metavar="FILE", help="write one row a variant")
    sweep.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=_PRINTED,
        metavar="FILE",
        help="write everything, for tools; without FILE: print it",
    )
    sweep.set_defaults(command=_sweep)


def _sweep(asked: argparse.Namespace) -> None:
    from nextlong.engine.progress import reporter_for
    from nextlong.report import compare, sweep
    from nextlong.report.page import at_end
    from nextlong.runs import export as runs_export
    from nextlong.runs.opened import Run

    axes = [sweep.parse_axis(over) for over in asked.over]
    variants = sweep.variants(asked.recipe, axes, overrides=asked.overrides)
    is_printed = asked.json == _PRINTED
    for path in filter(None, (asked.csv, None if is_printed else asked.json)):
        check_folder_of(path)  # now, not when hours of work are done
    progress = Console(stderr=True)
    sweep.show_ahead(variants, progress)
    ran = sweep.run_variants(variants, reporter=reporter_for(progress), when_done=runs_export.complete)
    outcomes = []
    for number, variant in enumerate(variants, start=1):
        tables.say(f"{number} of {len(variants)} variants: {variant.name}", progress)
        outcomes.append(next(ran))
    if is_printed:
        print_json(sweep.json_of(outcomes))
    else:
        sweep.show(outcomes, Console())
    if asked.csv:
        write(asked.csv, compare.csv_text(sweep.rows(outcomes)))
    if asked.json and not is_printed:
        write(asked.json, json.dumps(sweep.json_of(outcomes), indent=1, ensure_ascii=False) + "\n")
    if made := [Run(outcome.stats.run) for outcome in outcomes if outcome.stats]:
        tables.say(f"report: {at_end.leave(made)}", progress)
    failed = sum(outcome.stats is None for outcome in outcomes)
    if failed:
        raise NextlongError(f"{failed} of {len(outcomes)} variants failed; the table says why")
