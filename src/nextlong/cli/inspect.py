"""The commands that look at finished runs: peek, stats, compare, report, view and verify; doctor looks at the installation."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from fnmatch import fnmatchcase
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import nextlong
from nextlong.cli.common import (
    RUN_HELP,
    RUNS_HELP,
    Commands,
    add_json,
    check_folder_of,
    console,
    print_json,
    say,
    write,
)
from nextlong.errors import NextlongError

if TYPE_CHECKING:
    from rich.console import Console

_FAILED = 1


def add(commands: Commands) -> None:
    """Add the commands to the parser."""
    peek = commands.add_parser("peek", help="List the sequences of a run, or show one")
    peek.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    peek.add_argument("number", type=int, nargs="?", help="the sequence to show, counted from 0")
    peek.add_argument("--first", type=int, default=100, metavar="N", help="sequences to list, 0 for all (default: 100)")
    peek.add_argument("--text", action="store_true", help="print the text of the sequence")
    peek.add_argument("--svg", type=Path, metavar="FILE", help="draw the sequence, before and after, as .svg or .png")
    add_json(peek, about="print JSON: the list, or one sequence with its spans and texts")
    peek.set_defaults(command=_peek)

    stats = commands.add_parser("stats", help="Print the statistics of a run, with data-quality warnings")
    stats.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    add_json(stats)
    stats.set_defaults(command=_stats)

    compare = commands.add_parser("compare", help="Compare runs and variants side by side")
    compare.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUNS_HELP)
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print JSON")
    form.add_argument("--csv", action="store_true", help="print CSV, one row per run")
    form.add_argument("--svg", type=Path, metavar="FILE", help="draw one document as each of the runs lays it out")
    compare.set_defaults(command=_compare)

    report = commands.add_parser("report", help="Write an HTML report of one or more runs")
    report.add_argument("runs", type=Path, nargs="+", metavar="RUN", help=RUNS_HELP)
    report.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="file to write (default: RUN/report.html; report.html in the working directory for several run directories)",
    )
    add_json(report, about="print JSON: the path of the report; stats --json prints the statistics")
    report.set_defaults(command=_report)

    view = commands.add_parser("view", help="Browse the sequences and documents of a run, search and mark them")
    view.add_argument("run", type=Path, metavar="RUN", help=RUN_HELP)
    view.add_argument("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: any free port)")
    view.add_argument("--no-browser", action="store_true", help="do not open the address in a browser")
    view.add_argument(
        "--export", type=Path, metavar="FOLDER", help="write a static copy for any web host, and serve nothing"
    )
    view.add_argument(
        "--first", type=int, default=100, metavar="N", help="sequences of the static copy; 0: all (default: 100)"
    )
    add_json(view, about="print the address as JSON")
    view.set_defaults(command=_view)


def add_checks(commands: Commands) -> None:
    """Add `verify` and `doctor` to the parser."""
    verify = commands.add_parser(
        "verify", help="Verify a run or a delivered export with an independent implementation; exit code 1 on a breach"
    )
    verify.add_argument(
        "run",
        metavar="RUN-or-FOLDER",
        help="a run, or the destination of `export --into`: a folder, or a URL such as s3://bucket/prefix",
    )
    verify.add_argument(
        "--run", dest="made_by", type=Path, metavar="RUN", help="for a folder: the run that its rows must come from"
    )
    verify.add_argument(
        "--sample",
        default="100",
        metavar="N",
        help="number of meta-chunks to search again and of vectors to encode again (default: 100); all: every one, and every "
        "chunk with the reference tokenizer, of which large runs are otherwise sampled",
    )
    verify.add_argument("--seed", type=int, default=0, help="seed of the sample (default: 0)")
    verify.add_argument(
        "--workers", type=int, metavar="N", help="processes that check in parallel (default: one per processor)"
    )
    add_json(verify)
    verify.set_defaults(command=_verify)

    doctor = commands.add_parser("doctor", help="Show installed packages and hardware, and list missing dependencies")
    add_json(doctor)
    doctor.set_defaults(command=_doctor)


def matching(named: Path) -> Iterator[str]:
    """Yield the runs that a name means: itself, or for `RUN@PATTERN` with * or ? the variants that match."""
    head, _, pattern = str(named).rpartition("@")
    if not head or not set("*?") & set(pattern):
        yield str(named)
        return
    from nextlong.artifacts import record

    known = record.variant_names(Path(head).expanduser())
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not names:
        raise NextlongError(f"{named}: no variant matches; {head} has: {', '.join(known) or 'none'}")
    yield from (f"{head}@{name}" for name in names)


def _peek(args: argparse.Namespace) -> None:
    from nextlong.report import as_json, peek

    run = nextlong.open(args.run)
    shown = console()
    if args.number is None:
        if args.text or args.svg:
            raise NextlongError(f"--text and --svg need the number of a sequence: nextlong peek {args.run} 0 --text")
        if args.first < 0:
            raise NextlongError(f"--first {args.first} is negative; give how many to list, 0 for all")
        if args.json:
            print_json(as_json.sequences_of(run, first=args.first))
        else:
            peek.show_run(run, shown, first=args.first)
        return
    if not 0 <= args.number < len(run):
        raise NextlongError(f"sequence {args.number} does not exist: {args.run} has {len(run)}, counted from 0")
    if args.svg and args.svg.suffix.lower() not in (".svg", ".png"):
        raise NextlongError(f"--svg {args.svg} is not the name of a picture; let it end in .svg or .png")
    sequence = run.sequence(args.number)
    if args.svg:
        from nextlong.picture import before_after

        draw = before_after.png if args.svg.suffix.lower() == ".png" else before_after.svg
        write(args.svg, draw(sequence.spans, tokens=len(sequence.input_ids), name=sequence.id))
        say(f"wrote {args.svg}")
    elif args.json:
        print_json(as_json.sequence_of(args.number, sequence))
    elif args.text:
        with _paged(shown):
            peek.show_text(sequence, shown)
    else:
        peek.show_sequence(sequence, shown)


@contextmanager
def _paged(shown: Console) -> Iterator[None]:
    """Show what is printed in the user's pager, with colours if it is less; without a terminal only print it."""
    if not (shown.is_terminal and sys.stdin.isatty()):
        yield
        return
    os.environ.setdefault("LESS", "-R")
    with shown.pager(styles=True):
        yield


def _stats(args: argparse.Namespace) -> None:
    from nextlong.report import stats_page
    from nextlong.runs import stats

    measured = stats.measure(nextlong.open(args.run))
    if args.json:
        print_json(measured.as_json())
    else:
        stats_page.show(measured, console())


def _compare(args: argparse.Namespace) -> None:
    from nextlong.report import compare
    from nextlong.runs import stats

    opened = [nextlong.open(run) for named in args.runs for run in matching(named)]
    if args.svg:
        write(args.svg, compare.svg(opened))
        say(f"wrote {args.svg}")
        return
    measured = [stats.measure(run) for run in opened]
    if args.json:
        print_json([one.as_json() for one in measured])
    elif args.csv:
        print(compare.csv_text([compare.row(one) for one in measured]), end="")
    else:
        compare.show(measured, console())


def _report(args: argparse.Namespace) -> None:
    from nextlong.engine import store
    from nextlong.report.page import write as write_page

    if args.output is not None:
        check_folder_of(args.output)
    runs = [nextlong.open(run) for named in args.runs for run in matching(named)]
    path = args.output or write_page.place_of(runs)
    page = write_page.page(runs)
    try:
        store.write_text(path, page)
    except OSError as error:
        raise NextlongError(f"{path} cannot be written: {error.strerror}; choose another path with -o") from None
    if args.json:
        print_json({"page": str(path), "bytes": path.stat().st_size, "runs": [str(run) for run in runs]})
    else:
        say(f"wrote {path}")


def _view(args: argparse.Namespace) -> None:
    import webbrowser

    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise NextlongError(
                f"view needs the package {package}, which is not installed; pip install 'nextlong[view]'"
            )
    run = nextlong.open(args.run)
    if args.export:
        from nextlong.view.pages import export

        count = export(run, args.export, first=args.first)
        if args.json:
            print(json.dumps({"folder": str(args.export), "pages": count}, ensure_ascii=False))
        else:
            say(f"wrote {count:,} pages; open {args.export / 'index.html'}")
        return
    from nextlong.view.server import serve

    def when_ready(address: str) -> None:
        if args.json:
            print(json.dumps({"address": address, "run": str(args.run)}, ensure_ascii=False), flush=True)
            return
        say(f"{address} shows {args.run}, on this machine only; press Ctrl-C to stop")
        if console().is_terminal and not args.no_browser:
            webbrowser.open(address)

    try:
        serve(run, port=args.port, when_ready=when_ready)
    except KeyboardInterrupt:
        return


def _verify(args: argparse.Namespace) -> int:
    from nextlong.engine.executor import usable_cpus
    from nextlong.reading.files import reach
    from nextlong.verify import checks, files
    from nextlong.verify.corpus import EVERYTHING
    from nextlong.verify.outcome import as_json, passed, show

    if args.sample != "all" and not args.sample.isdecimal():
        raise NextlongError(f"--sample {args.sample} is neither a whole number nor all; give 0 or more")
    if args.workers is not None and args.workers < 1:
        raise NextlongError(f"--workers {args.workers} is not a number of processes; give 1 or more")
    sample = EVERYTHING if args.sample == "all" else int(args.sample)
    with _progress() as starting:
        if "://" in args.run or files.is_delivered(Path(args.run)):
            fs, root = reach(args.run, where=repr(args.run), error=NextlongError)
            outcomes = list(files.verify_delivered(fs, root, args.made_by, starting=starting))
        elif args.made_by is not None:
            raise NextlongError(f"--run {args.made_by} needs the folder of a delivered export, which {args.run} is not")
        else:
            options = {"sample": sample, "seed": args.seed, "workers": args.workers or usable_cpus()}
            outcomes = list(checks.verify(Path(args.run), **options, starting=starting))
    if args.json:
        print(as_json(outcomes, args.run))
    else:
        show(outcomes, args.run, console())
    return 0 if passed(outcomes) else _FAILED


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal which check runs, and for how long."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    shown = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=shown, transient=True, disable=not shown.is_terminal) as bar:
        task = bar.add_task("verify")
        yield lambda check: bar.reset(task, description=f"checking {check}")


def _doctor(args: argparse.Namespace) -> int:
    from nextlong.report import installation

    examined = installation.examine()
    if args.json:
        print_json(asdict(examined))
    else:
        installation.show(examined, console())
    return 0 if examined.is_whole else _FAILED
