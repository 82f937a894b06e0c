"""The commands that look at finished runs: peek, stats, compare, report, view and verify; doctor looks at the installation."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path

import nextlong
from nextlong.cli.common import check_folder_of, check_installed, console, print_json, say, write
from nextlong.errors import NextlongError

_FAILED = 1


def matching(named: Path) -> Iterator[str]:
    """Yield the runs that a name means: itself, or for `RUN@PATTERN` with * or ? the variants that match."""
    head, _, pattern = str(named).rpartition("@")
    if not head or not set("*?") & set(pattern):
        yield str(named)
        return
    from nextlong.artifacts import record

    run_dir = Path(head).expanduser()
    known = record.variant_names(run_dir)
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not known and not run_dir.is_dir():
        raise NextlongError(f"{named}: {head} does not exist; name a run directory")
    if not names:
        raise NextlongError(f"{named}: no variant matches; {head} has: {', '.join(known) or 'none'}")
    yield from (f"{head}@{name}" for name in names)


def peek(args: argparse.Namespace) -> None:
    """List the sequences of a run, or show one."""
    from nextlong.report import as_json
    from nextlong.report import peek as shows

    run, shown = nextlong.open(args.run), console()
    if args.number is None:
        if args.text or args.svg:
            raise NextlongError(f"--text and --svg need the number of a sequence: nextlong peek {args.run} 0 --text")
        if args.first < 0:
            raise NextlongError(f"--first {args.first} is negative; give how many to list, 0 for all")
        if args.json:
            print_json(as_json.sequences_of(run, first=args.first))
        else:
            shows.show_run(run, shown, first=args.first)
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
        is_paged = shown.is_terminal and sys.stdin.isatty()
        os.environ.setdefault("LESS", "-R")  # a pager that is less then shows the colours
        with shown.pager(styles=True) if is_paged else nullcontext():
            shows.show_text(sequence, shown)
    else:
        shows.show_sequence(sequence, shown)


def stats(args: argparse.Namespace) -> None:
    """Print the statistics of a run."""
    from nextlong.report import stats_page
    from nextlong.runs import stats as runs_stats

    measured = runs_stats.measure(nextlong.open(args.run))
    if args.json:
        print_json(measured.as_json())
    else:
        stats_page.show(measured, console())


def compare(args: argparse.Namespace) -> None:
    """Compare runs side by side."""
    from nextlong.report import compare as page
    from nextlong.runs import stats as runs_stats

    opened = [nextlong.open(run) for named in args.runs for run in matching(named)]
    if args.svg:
        write(args.svg, page.svg(opened))
        say(f"wrote {args.svg}")
        return
    measured = [runs_stats.measure(run) for run in opened]
    if args.json:
        print_json([one.as_json() for one in measured])
    elif args.csv:
        print(page.csv_text([page.row(one) for one in measured]), end="")
    else:
        page.show(measured, console())


def report(args: argparse.Namespace) -> None:
    """Write an HTML report."""
    from nextlong.engine import store
    from nextlong.report.page import write as write_page

    if args.output is not None:
        check_folder_of(args.output)
    runs = [nextlong.open(run) for named in args.runs for run in matching(named)]
    # The page is made before anything is written: a mistake leaves the old one.
    path = args.output or write_page.place_of(runs)
    page = write_page.page(runs)
    try:
        store.write_file(path, page)
    except OSError as error:
        raise NextlongError(f"{path} cannot be written: {error.strerror}; choose another path with -o") from None
    if args.json:
        print_json({"page": str(path), "bytes": path.stat().st_size, "runs": [str(run) for run in runs]})
    else:
        say(f"wrote {path}")


def view(args: argparse.Namespace) -> None:
    """Serve the viewer of a run, or write a static copy."""
    check_installed("view", "starlette", "uvicorn", extra="view")
    run = nextlong.open(args.run)
    if args.export:
        from nextlong.view.pages import export

        sequences, pages = export(run, args.export, first=args.first)
        if args.json:
            print_json({"folder": str(args.export), "sequences": sequences, "pages": pages})
        else:
            of_all = "all" if sequences == len(run) else f"the first {sequences:,} of"
            say(f"wrote {of_all} {len(run):,} sequences on {pages:,} pages; open {args.export / 'index.html'}")
        return
    import webbrowser

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


def verify(args: argparse.Namespace) -> int:
    """Verify a run or a delivered export; return 1 if it breaks a promise."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from nextlong.engine.executor import usable_cpus
    from nextlong.reading.files import reach
    from nextlong.verify import checks, files
    from nextlong.verify.corpus import EVERYTHING
    from nextlong.verify.outcome import as_json, passed, show

    if args.sample != "all" and not args.sample.isdecimal():
        raise NextlongError(f"--sample {args.sample} is neither a whole number nor all; give 0 or more")
    if args.workers is not None and args.workers < 1:
        raise NextlongError(f"--workers {args.workers} is not a number of processes; give 1 or more")
    sample, progress = EVERYTHING if args.sample == "all" else int(args.sample), console(stderr=True)
    # On a terminal the check that runs is shown, and for how long.
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=progress, transient=True, disable=not progress.is_terminal) as bar:
        task = bar.add_task("verify")

        def starting(check: str) -> None:
            bar.reset(task, description=f"checking {check}")

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


def doctor(args: argparse.Namespace) -> int:
    """Show installed packages and hardware."""
    from nextlong.report import installation

    examined = installation.examine()
    if args.json:
        print_json(examined)
    else:
        installation.show(examined, console())
    return 0 if examined["is_whole"] else _FAILED
