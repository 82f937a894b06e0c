"""Command line: demo · init · plan · run · export · peek · verify · stats · compare · sweep.

Every mistake of the user ends with one message that names the place, the value and the cure, and exit code 2.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

import nextlong
from nextlong.cli import evaluate as cli_evaluate
from nextlong.cli import export as cli_export
from nextlong.cli import share
from nextlong.cli import verify as cli_verify
from nextlong.cli.run import run_and_tell
from nextlong.engine.interrupts import Terminated, sigterm_raises
from nextlong.errors import NextlongError
from nextlong.recipe import Recipe
from nextlong.report.tables import PipeConsole as Console

_USER_MISTAKE, _INTERRUPTED, _TERMINATED = 2, 130, 143


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    asked = _parser().parse_args(arguments)
    error_console = Console(stderr=True, highlight=False, soft_wrap=True)
    code: int | None = None
    try:
        with sigterm_raises():
            code = asked.command(asked)
            sys.stdout.flush()
    except NextlongError as error:
        error_console.print("[bold red]error:[/] ", end="")
        error_console.print(str(error), markup=False)
        return _USER_MISTAKE
    except KeyboardInterrupt as stop:
        is_terminated = isinstance(stop, Terminated)
        error_console.print("" if is_terminated else "\n", end="")  # behind the terminal's ^C
        error_console.print("stopped; what is finished is kept, the same command goes on from there", markup=False)
        return _TERMINATED if is_terminated else _INTERRUPTED
    except BrokenPipeError:  # the reader, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return code or 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="nextlong", description="Short documents in, token-exact long sequences out (NExtLong, arXiv 2501.12766)."
    )
    parser.add_argument("--version", action="version", version=f"nextlong {nextlong.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)

    demo = commands.add_parser("demo", help="make long sequences from the documentation inside your Python")
    demo.add_argument(
        "--dir", type=Path, default=Path("nextlong-demo"), help="where to put it (default: nextlong-demo)"
    )
    demo.set_defaults(command=_demo)

    init = commands.add_parser("init", help="write a commented recipe")
    init.add_argument("recipe", type=Path)
    init.add_argument(
        "sources",
        nargs="*",
        metavar="FILE",
        help="what to read: files, folders, globs, URLs (default: what lies beside)",
    )
    init.add_argument("--force", action="store_true", help="overwrite the file if it is there")
    init.add_argument(
        "--preset", metavar="NAME", help="copy a recipe of the package: quickstart, paper-64k, paper-128k or paper-512k"
    )
    init.set_defaults(command=_init)

    for name, command, meaning in (
        ("plan", _plan, "what would run, what is done, and what it will take"),
        ("run", _run, "carry out a recipe; again: go on, or do nothing"),
    ):
        sub = commands.add_parser(name, help=meaning)
        _add_recipe(sub)
        sub.set_defaults(command=command)
        if name == "run":
            sub.add_argument(
                "--accept-changed-inputs", action="store_true", help="read input files anew that have changed since"
            )
            share.add(sub)

    peek = commands.add_parser("peek", help="look at the sequences of a run")
    peek.add_argument("run", type=Path)
    peek.add_argument("number", type=int, nargs="?", help="one sequence, counted from 0")
    peek.add_argument(
        "--first", type=int, default=100, metavar="N", help="list so many sequences, 0 for all (default: 100)"
    )
    peek.add_argument("--text", action="store_true", help="print its text")
    peek.add_argument("--svg", type=Path, metavar="FILE", help="draw it, before and after")
    peek.set_defaults(command=_peek)
    _add_reports(commands)

    cli_export.add(commands)
    cli_evaluate.add(commands)

    cli_verify.add(commands)
    return parser


def _add_recipe(sub: argparse.ArgumentParser) -> None:
    sub.add_argument("recipe", type=Path)
    sub.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="e.g. compose.target_tokens=65536",
    )


def _add_reports(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    stats = commands.add_parser("stats", help="what is in a data set, in numbers")
    stats.add_argument("run", type=Path, help="a run directory, or a variant of a sweep: RUN/variants/NAME.json")
    stats.add_argument("--json", action="store_true", help="everything, for tools")
    stats.set_defaults(command=_stats)

    compare = commands.add_parser("compare", help="data sets side by side")
    compare.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="as for stats; RUN/variants/*.json: all of a sweep"
    )
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, for tools")
    form.add_argument("--csv", action="store_true", help="one row a data set")
    compare.set_defaults(command=_compare)

    sweep = commands.add_parser("sweep", help="run a recipe over a grid of values, sharing every common step")
    _add_recipe(sweep)
    sweep.add_argument(
        "--over",
        action="append",
        required=True,
        metavar="KEY=V1,V2,…",
        help="e.g. chunk.max_chars=512,1024,2048; again for another key: every combination is run",
    )
    sweep.add_argument("--csv", type=Path, metavar="FILE", help="write one row a variant")
    sweep.add_argument("--json", type=Path, metavar="FILE", help="write everything, for tools")
    sweep.set_defaults(command=_sweep)


def _demo(asked: argparse.Namespace) -> None:
    from nextlong.cli import demo

    demo.run_demo(asked.dir, Console())


def _init(asked: argparse.Namespace) -> None:
    from nextlong.cli import starter
    from nextlong.recipe import template

    if asked.recipe.exists() and not asked.force:
        raise NextlongError(f"{asked.recipe} exists; choose another name, or say --force to overwrite it")
    if asked.preset is None:
        commands = f"`nextlong plan {asked.recipe}` says what it will take, `nextlong run {asked.recipe}` does it."
        heading = f"A recipe of nextlong. {commands}\nA path that is not absolute counts from the folder that these are called in."
        text = template.commented(starter.starter(asked.recipe, asked.sources), heading=heading)
    elif asked.sources:
        raise NextlongError("--preset has sources of its own; leave out the files, and change ingest.sources")
    else:
        text = template.preset(asked.preset)
    _write(asked.recipe, text)
    look = "look at ingest.sources and tokenizer"
    if asked.preset is None and not starter.finds(asked.recipe, asked.sources):
        look = "found no documents beside it: put the path of yours into ingest.sources"
    told = f"wrote {asked.recipe}; {look}, then: nextlong run {asked.recipe}"
    Console().print(told, highlight=False, soft_wrap=True)


def _write(path: Path, text: str) -> None:
    _check_folder_of(path)
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise NextlongError(f"{path} cannot be written: {error.strerror}; choose another place") from None


def _check_folder_of(path: Path) -> None:
    if not path.parent.is_dir():
        raise NextlongError(f"{path} cannot be written: {path.parent} is no folder; create it, or choose another place")


def _plan(asked: argparse.Namespace) -> None:
    from nextlong.report.plan import page

    page.show(Recipe.load(asked.recipe, overrides=asked.overrides), Console())


def _run(asked: argparse.Namespace) -> None:
    recipe = Recipe.load(asked.recipe, overrides=asked.overrides)
    if share.is_asked(asked):
        share.run(recipe, asked, Console())
        return
    run_and_tell(recipe, Console(), changed_inputs="accept" if asked.accept_changed_inputs else "refuse")


def _peek(asked: argparse.Namespace) -> None:
    from nextlong.methods.base import described, method_of
    from nextlong.report import peek, picture
    from nextlong.schemas import Layout

    run = nextlong.open(asked.run)
    console = Console()
    if asked.number is None:
        if asked.text or asked.svg:
            raise NextlongError(f"--text and --svg need to know which sequence: nextlong peek {asked.run} 0 --text")
        if asked.first < 0:
            raise NextlongError(f"--first {asked.first} is negative; give how many to list, 0 for all")
        peek.show_run(run, console, first=asked.first)
        return
    if not 0 <= asked.number < len(run):
        raise NextlongError(f"sequence {asked.number} does not exist: {asked.run} holds {len(run)}, counted from 0")
    if asked.svg:
        if method_of(run.recipe).layout != Layout.EXTENDED:
            raise NextlongError(f"--svg draws a meta-document among its negatives; {described(run.recipe)} has none")
        _write(asked.svg, picture.svg(run.sequence(asked.number)))
        console.print(f"wrote {asked.svg}", highlight=False, soft_wrap=True)
        return
    show = peek.show_text if asked.text else peek.show_sequence
    show(run.sequence(asked.number), console)


def _stats(asked: argparse.Namespace) -> None:
    from nextlong.report import stats_page
    from nextlong.runs import stats

    measured = stats.measure(nextlong.open(asked.run))
    if asked.json:
        print(json.dumps(measured.as_json(), indent=1, ensure_ascii=False))
    else:
        stats_page.show(measured, Console())


def _compare(asked: argparse.Namespace) -> None:
    from nextlong.report import compare
    from nextlong.runs import stats

    measured = [stats.measure(nextlong.open(run)) for run in asked.runs]
    if asked.json:
        print(json.dumps([one.as_json() for one in measured], indent=1, ensure_ascii=False))
    elif asked.csv:
        print(compare.csv_text([compare.row(one) for one in measured]), end="")
    else:
        compare.show(measured, Console())


def _sweep(asked: argparse.Namespace) -> None:
    from nextlong.engine.progress import reporter_for
    from nextlong.report import compare, sweep
    from nextlong.runs import export as runs_export

    axes = [sweep.parse_axis(over) for over in asked.over]
    found = sweep.variants(asked.recipe, axes, overrides=asked.overrides)
    for path in filter(None, (asked.csv, asked.json)):
        _check_folder_of(path)  # now, not when hours of work are done
    progress = Console(stderr=True)
    ran = sweep.run_variants(found, reporter=reporter_for(progress), when_done=runs_export.complete)
    outcomes = []
    for number, outcome in enumerate(ran, start=1):
        progress.print(f"{number} of {len(found)} variants: {outcome.variant.name}", markup=False, highlight=False)
        outcomes.append(outcome)
    sweep.show(outcomes, Console())
    if asked.csv:
        _write(asked.csv, compare.csv_text(sweep.rows(outcomes)))
    if asked.json:
        _write(asked.json, json.dumps(sweep.json_of(outcomes), indent=1, ensure_ascii=False) + "\n")
    failed = sum(outcome.stats is None for outcome in outcomes)
    if failed:
        raise NextlongError(f"{failed} of {len(outcomes)} variants failed; the table says why")


if __name__ == "__main__":
    sys.exit(main())
