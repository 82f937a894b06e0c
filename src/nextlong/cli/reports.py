"""The commands `nextlong peek`, `stats` and `compare`: what is in finished runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nextlong
from nextlong.artefacts import record
from nextlong.cli.asked import write
from nextlong.errors import NextlongError
from nextlong.report import tables
from nextlong.report.tables import PipeConsole as Console

if TYPE_CHECKING:
    from nextlong.runs.opened import Sequence


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the commands to the parser."""
    peek = commands.add_parser("peek", help="look at the sequences of a run")
    peek.add_argument("run", type=Path, metavar="RUN", help="a run directory, or one of its variants: RUN@NAME")
    peek.add_argument("number", type=int, nargs="?", help="one sequence, counted from 0")
    peek.add_argument(
        "--first", type=int, default=100, metavar="N", help="list this many sequences, 0 for all (default: 100)"
    )
    peek.add_argument("--text", action="store_true", help="print its text")
    peek.add_argument("--svg", type=Path, metavar="FILE", help="draw it, before and after; FILE ends in .svg or .png")
    peek.add_argument(
        "--json", action="store_true", help="print JSON: the list, or one sequence with its spans and texts"
    )
    peek.set_defaults(command=_peek)

    stats = commands.add_parser("stats", help="what is in a data set, in numbers")
    stats.add_argument("run", type=Path, metavar="RUN", help="a run directory, or one of its variants: RUN@NAME")
    stats.add_argument("--json", action="store_true", help="everything, for tools")
    stats.set_defaults(command=_stats)

    compare = commands.add_parser("compare", help="data sets side by side")
    compare.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="as for stats; RUN@*: all its variants, or those that match"
    )
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="everything, for tools")
    form.add_argument("--csv", action="store_true", help="one row a data set")
    compare.set_defaults(command=_compare)


def _peek(asked: argparse.Namespace) -> None:
    from nextlong.report import as_json, peek

    run = nextlong.open(asked.run)
    console = Console()
    if asked.number is None:
        if asked.text or asked.svg:
            raise NextlongError(f"--text and --svg need to know which sequence: nextlong peek {asked.run} 0 --text")
        if asked.first < 0:
            raise NextlongError(f"--first {asked.first} is negative; give how many to list, 0 for all")
        if asked.json:
            _print_json(as_json.sequences_of(run, first=asked.first))
        else:
            peek.show_run(run, console, first=asked.first)
        return
    if not 0 <= asked.number < len(run):
        raise NextlongError(f"sequence {asked.number} does not exist: {asked.run} holds {len(run)}, counted from 0")
    if asked.svg:
        if asked.svg.suffix.lower() not in (".svg", ".png"):
            raise NextlongError(
                f"--svg {asked.svg} is no name for a picture that this draws; let it end in .svg or .png"
            )
        _draw(run.sequence(asked.number), asked.svg)
        tables.say(f"wrote {asked.svg}", console)
        return
    sequence = run.sequence(asked.number)
    if asked.json:
        _print_json(as_json.sequence_of(asked.number, sequence))
    elif asked.text:
        with _paged(console):
            peek.show_text(sequence, console)
    else:
        peek.show_sequence(sequence, console)


def _print_json(plain: Any) -> None:
    print(json.dumps(plain, indent=1, ensure_ascii=False))


@contextmanager
def _paged(console: Console) -> Iterator[None]:
    """Show what is printed in the user's pager, with colours where less is it; nothing but printing where no terminal is."""
    if not (console.is_terminal and sys.stdin.isatty()):
        yield
        return
    os.environ.setdefault("LESS", "-R")
    with console.pager(styles=True):
        yield


def _draw(sequence: Sequence, path: Path) -> None:
    from nextlong.picture import before_after, png

    tokens = len(sequence.input_ids)
    if path.suffix.lower() == ".png":
        write(path, png.png(sequence.spans, tokens=tokens, name=sequence.id))
    else:
        write(path, before_after.svg(sequence.spans, tokens=tokens, name=sequence.id))


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

    measured = [stats.measure(nextlong.open(run)) for named in asked.runs for run in matching(named)]
    if asked.json:
        print(json.dumps([one.as_json() for one in measured], indent=1, ensure_ascii=False))
    elif asked.csv:
        print(compare.csv_text([compare.row(one) for one in measured]), end="")
    else:
        compare.show(measured, Console())


def matching(named: Path) -> Iterator[str]:
    """Yield what a name means: itself, or for `RUN@PATTERN` with * or ? in it the variants that match."""
    head, _, pattern = str(named).rpartition("@")
    if not head or not set("*?") & set(pattern):
        yield str(named)
        return
    known = record.variant_names(Path(head).expanduser())
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not names:
        raise NextlongError(f"{named}: no variant matches; {head} has: {', '.join(known) or 'none'}")
    yield from (f"{head}@{name}" for name in names)
