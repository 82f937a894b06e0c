"""The command `python -m experiments.replicate`: run an experiment, write its recipe or report.

It runs from a checkout, beside the package, whose commands it follows: a user's mistake
is one message and exit code 2, and a stopped experiment resumes by the same command.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from experiments.replicate.recipe import PRESETS, Replication, recipe_from
from nextlong.cli.common import check_installed, console, write
from nextlong.errors import NextlongError
from nextlong.recipe.recipe import commented_sections
from nextlong.report import tables

_EXTRA: Final = "train,evaluate"
_USER_MISTAKE: Final = 2
_INTERRUPTED: Final = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parser().parse_args(arguments)
    try:
        args.command(args)
    except NextlongError as error:
        tables.say(str(error), console(stderr=True), label="error: ")
        return _USER_MISTAKE
    except KeyboardInterrupt:
        message = "stopped; finished stages are kept, run the same command to resume"
        tables.say(message, console(stderr=True))
        return _INTERRUPTED
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m experiments.replicate",
        description="Train small models on hard and random negatives, and compare.",
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    run = commands.add_parser("run", help="run or resume an experiment")
    run.set_defaults(command=_run)
    source = run.add_mutually_exclusive_group(required=True)
    source.add_argument("recipe", nargs="?", metavar="RECIPE", help="a recipe (YAML)")
    _add_recipe_options(run, source)
    run.add_argument(
        "--dry-run",
        action="store_true",
        help="print models, tokens and runs without running",
    )

    init = commands.add_parser("init", help="write a commented recipe of a preset")
    init.set_defaults(command=_init)
    init.add_argument("path", type=Path, metavar="RECIPE", help="the file to write")
    _add_recipe_options(init, init, default="smoke")
    init.add_argument("--force", action="store_true", help="overwrite the file")

    report = commands.add_parser("report", help="write the section of results")
    report.set_defaults(command=_report)
    report.add_argument("results", type=Path, nargs="+", metavar="RESULTS")
    report.add_argument(
        "--to",
        type=Path,
        metavar="DIR",
        help="folder of the page, whose section is replaced (default: beside RESULTS)",
    )
    return parser


def _add_recipe_options(
    parser: argparse.ArgumentParser,
    source: argparse._ActionsContainer,
    *,
    default: str | None = None,
) -> None:
    source.add_argument(
        "--preset", default=default, metavar="NAME", help=", ".join(PRESETS)
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        help="output directory (default: nextlong-replicate-PRESET)",
    )
    parser.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key of the recipe, e.g. seeds=[0,1]; may be repeated",
    )


def _of_preset(args: argparse.Namespace) -> Replication:
    out = args.out or f"nextlong-replicate-{args.preset}"
    return recipe_from(args.preset, out=out, overrides=args.overrides)


def _init(args: argparse.Namespace) -> None:
    recipe = _of_preset(args)
    command = f"python -m experiments.replicate run {args.path}"
    heading = f"A replication recipe of nextlong, preset {recipe.preset}.\n"
    heading += f"`{command} --dry-run` shows its size, `{command}` runs it."
    text = commented_sections(recipe, sources={}, heading=heading)
    write(args.path, text, overwrite=args.force)
    tables.say(f"wrote {args.path}; next: {command} --dry-run", console())


def _run(args: argparse.Namespace) -> None:
    if args.preset is not None:
        recipe = _of_preset(args)
    else:
        overrides = list(args.overrides)
        if args.out:
            overrides.append(f"out={args.out}")
        recipe = Replication.load(args.recipe, overrides=overrides)
    check_installed("replicate", "torch", "transformers", "matplotlib", extra=_EXTRA)
    from experiments.replicate import run

    shown = console()
    if args.dry_run:
        tables.show_facts([*run.plan(recipe)], shown)
        return
    run.replicate(recipe, report=lambda line: tables.say(line, shown))
    _write_report([Path(recipe.out).expanduser() / f"{recipe.preset}.json"], None)


def _report(args: argparse.Namespace) -> None:
    _write_report(args.results, args.to)


def _write_report(sources: Sequence[Path], folder: Path | None) -> None:
    check_installed("replicate", "matplotlib", extra=_EXTRA)
    from experiments.replicate import results

    for source in sources:
        if not source.is_file():
            raise NextlongError(
                where=source,
                problem="it does not exist",
                fix="`python -m experiments.replicate run --preset mechanism` writes one",
            )
    written = results.write(sources, folder or sources[0].parent)
    line = f"report: {written[0]}, {len(written) - 1} files beside it"
    tables.say(line, console())


if __name__ == "__main__":
    sys.exit(main())
