"""The commands on finished runs: list, gc, peek, stats, compare, report, view and verify; doctor looks at the installation."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import nextlong
from nextlong.artifacts import variant_names, variant_records
from nextlong.cli.common import (
    check_folder_of,
    check_installed,
    console,
    first_few,
    present,
    write,
)
from nextlong.engine import store
from nextlong.errors import NextlongError
from nextlong.report import tables
from nextlong.text import counted

if TYPE_CHECKING:
    from rich.console import Console

    from nextlong.runs.variants import Listed

_NAMED_VARIANTS = 5


def matching(named: Path) -> list[str]:
    """Return the runs of a name: the name itself, or for `RUN@PATTERN` with * or ? the matching variants."""
    head, _, pattern = str(named).rpartition("@")
    if not head or not set("*?") & set(pattern):
        return [str(named)]
    run_dir = Path(head).expanduser()
    known = variant_records.variant_names(run_dir)
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not known and not run_dir.is_dir():
        raise NextlongError(f"{named}: {head} does not exist; name a run directory")
    if not names:
        raise NextlongError(
            f"{named}: no variant matches; {head} has: {', '.join(known) or 'none'}"
        )
    return [f"{head}@{name}" for name in names]


def peek(args: argparse.Namespace) -> None:
    from nextlong.report import peek as shows

    run, shown = nextlong.open(args.run), console()
    if args.number is None:
        if args.text or args.svg:
            raise NextlongError(
                f"--text and --svg need the number of a sequence: nextlong peek {args.run} 0 --text"
            )
        if args.first < 0:
            raise NextlongError(
                f"--first {args.first} is negative; give the number of sequences to list, or 0 for all"
            )
        listed = partial(shows.sequences_of, run, first=args.first)
        present(args, listed, partial(shows.show_run, run, first=args.first))
        return
    if not 0 <= args.number < len(run):
        raise NextlongError(
            f"sequence {args.number} does not exist: {args.run} has {len(run)}, counted from 0"
        )
    if args.svg and args.svg.suffix.lower() not in (".svg", ".png"):
        raise NextlongError(
            f"--svg {args.svg} has no known picture suffix; use .svg or .png"
        )
    sequence = run.sequence(args.number)
    if args.svg:
        from nextlong.picture import before_after

        draw = (
            before_after.png if args.svg.suffix.lower() == ".png" else before_after.svg
        )
        write(
            args.svg,
            draw(sequence.spans, tokens=len(sequence.input_ids), name=sequence.id),
        )
        tables.say(f"wrote {args.svg}", console())
    elif args.text and not args.json:
        is_paged = shown.is_terminal and sys.stdin.isatty()
        os.environ.setdefault(
            "LESS", "-R"
        )  # a pager that is less then shows the colours
        with shown.pager(styles=True) if is_paged else nullcontext():
            shows.show_text(sequence, shown)
    else:
        present(
            args,
            partial(shows.sequence_of, args.number, sequence),
            partial(shows.show_sequence, sequence),
        )


def stats(args: argparse.Namespace) -> None:
    from nextlong.report import compare as page
    from nextlong.runs.statistics.measure import measure

    measured = measure(nextlong.open(args.run))
    present(args, measured.as_json, partial(page.show_one, measured))


def compare(args: argparse.Namespace) -> None:
    from nextlong.report import compare as page
    from nextlong.runs.statistics.measure import measure

    opened = [nextlong.open(run) for named in args.runs for run in matching(named)]
    if args.svg:
        write(args.svg, page.svg(opened))
        tables.say(f"wrote {args.svg}", console())
        return
    measured = [measure(run) for run in opened]
    if args.csv:
        print(page.csv_text([page.row(one) for one in measured]), end="")
    else:
        present(args, [one.as_json() for one in measured], partial(page.show, measured))


def report(args: argparse.Namespace) -> None:
    from nextlong.report.page import write as write_page

    if args.output is not None:
        check_folder_of(args.output)
    runs = [nextlong.open(run) for named in args.runs for run in matching(named)]
    # The page is complete before anything is written, so that an error keeps the old one.
    path = args.output or write_page.place_of(runs)
    page = write_page.page(runs)
    try:
        store.write_file(path, page)
    except OSError as error:
        raise NextlongError(
            f"{path} cannot be written: {error.strerror}; choose another path with -o"
        ) from None
    present(
        args,
        {"page": str(path), "bytes": path.stat().st_size, "runs": list(map(str, runs))},
        f"wrote {path}",
    )


def view(args: argparse.Namespace) -> None:
    check_installed("view", "starlette", "uvicorn", extra="view")
    run = nextlong.open(args.run)
    if args.export:
        from nextlong.view.pages import export

        sequences, pages = export(run, args.export, first=args.first)
        of_all = "all" if sequences == len(run) else f"the first {sequences:,} of"
        wrote = f"wrote {of_all} {len(run):,} sequences on {pages:,} pages; open {args.export / 'index.html'}"
        present(
            args,
            {"folder": str(args.export), "sequences": sequences, "pages": pages},
            wrote,
        )
        return
    import webbrowser

    from nextlong.view.server import serve

    def when_ready(address: str) -> None:
        if args.json:
            print(
                json.dumps(
                    {"address": address, "run": str(args.run)}, ensure_ascii=False
                ),
                flush=True,
            )
            return
        tables.say(
            f"serving {args.run} at {address} (this machine only); press Ctrl-C to stop",
            console(),
        )
        if console().is_terminal and not args.no_browser:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        serve(run, port=args.port, when_ready=when_ready)


def verify(args: argparse.Namespace) -> int:
    """Verify a run or a delivered export; return 1 if a check fails."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from nextlong.engine.executor import usable_cpus
    from nextlong.reading.files import reach
    from nextlong.verify import checks, files
    from nextlong.verify.corpus import EVERYTHING
    from nextlong.verify.outcome import as_json, passed, show

    if args.sample != "all" and not args.sample.isdecimal():
        raise NextlongError(
            f"--sample {args.sample} is not a whole number of at least 0, nor all; correct it"
        )
    if args.workers is not None and args.workers < 1:
        raise NextlongError(
            f"--workers {args.workers} is below 1; give the number of processes"
        )
    sample, progress = (
        EVERYTHING if args.sample == "all" else int(args.sample),
        console(stderr=True),
    )
    # On a terminal the check that runs is shown, and for how long.
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=progress, transient=True, disable=not progress.is_terminal
    ) as bar:
        task = bar.add_task("verify")

        def starting(check: str) -> None:
            bar.reset(task, description=f"checking {check}")

        if "://" in args.run or files.is_delivered(Path(args.run)):
            fs, root = reach(args.run, where=repr(args.run), error=NextlongError)
            outcomes = list(
                files.verify_delivered(fs, root, args.made_by, starting=starting)
            )
        elif args.made_by is not None:
            which = "is not one" if Path(args.run).exists() else "does not exist"
            raise NextlongError(
                f"--run {args.made_by} needs the folder of a delivered export, but {args.run} {which}"
            )
        else:
            options = {
                "sample": sample,
                "seed": args.seed,
                "workers": args.workers or usable_cpus(),
            }
            outcomes = list(checks.verify(Path(args.run), **options, starting=starting))
    if args.json:
        print(as_json(outcomes, args.run))
    else:
        show(outcomes, args.run, console())
    return int(not passed(outcomes))


def doctor(args: argparse.Namespace) -> int:
    from nextlong.report import installation

    examined = installation.examine()
    present(args, examined, partial(installation.show, examined))
    return int(not examined["is_whole"])


def _run_dir(named: Path) -> Path:
    """Return the run directory. Raises NextlongError for RUN@NAME: list and gc work on all variants."""
    run_dir, variant = variant_records.split_name(named)
    if variant is not None and run_dir.is_dir():
        raise NextlongError(
            f"{named} is one variant; name its run directory: {run_dir}"
        )
    return named.expanduser()


def list_command(args: argparse.Namespace) -> None:
    from nextlong.runs import variants

    run_dir = _run_dir(args.run)
    listed = variants.list_variants(run_dir)

    def show(shown: Console) -> None:
        _show(listed, shown)
        own = next((one.name for one in listed if one.is_current), None)
        opens = f"has no variant of the recipe's own settings; run the recipe, or name a variant: {run_dir}@NAME"
        if own is not None:
            others = f"; open the others as {run_dir}@NAME" if len(listed) > 1 else ""
            is_own = own == variant_records.current(run_dir)
            what = "the recipe's own settings" if is_own else "its only variant"
            opens = f"opens {own}, {what}{others}"
        tables.say(f"{run_dir} {opens}", shown)
        if unfinished := variant_records.unfinished_steps(run_dir):
            tables.say(unfinished, shown)
        if waste := variants.find_waste(run_dir, variants.choose(run_dir)[0]):
            unused = f"{_size(sum(one.bytes for one in waste))} belong to no variant"
            tables.say(
                f"{unused}; nextlong gc {run_dir} removes them after confirmation",
                shown,
            )

    present(args, [asdict(one) for one in listed], show)


def _show(listed: Sequence[Listed], shown: Console) -> None:
    """Print a block for each variant; its name has its own line, because it may be as long as one."""
    for one in listed:
        made = f"{one.sequences:,}" + (
            "" if one.tokens_each is None else f" of {one.tokens_each:,} tokens"
        )
        fewer = (
            f", fewer than the requested {one.asked:,}: {one.why_fewer}"
            if one.why_fewer
            else ""
        )
        seconds = max(
            0,
            int((datetime.now(UTC) - datetime.fromisoformat(one.made)).total_seconds()),
        )
        units = (
            (seconds // length, unit)
            for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60))
        )
        age, unit = next(
            ((count, unit) for count, unit in units if count >= 2), (seconds, "s")
        )
        rows = [
            ("sequences", made + fewer),
            (
                "differs in",
                ", ".join(
                    f"{key}={variant_names.word(value)}"
                    for key, value in one.differs.items()
                ),
            ),
            (
                "rows",
                ", ".join(
                    dict.fromkeys(
                        name.removesuffix("-validation") for name in one.exports
                    )
                ),
            ),
            (
                "size",
                f"{_size(one.bytes)}, of which {_size(one.alone_bytes)} are not shared",
            ),
            ("made", f"{age} {unit} ago"),
        ]
        tables.show_pairs(
            one.name, [(name, value) for name, value in rows if value], shown
        )


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1000:,.0f} kB"


def gc_command(args: argparse.Namespace) -> None:
    from nextlong.runs import variants

    path = _run_dir(args.run)
    variants.choose(
        path, keep=args.keep, drop=args.drop
    )  # before the lock, which would make the folder
    with store.locked(path):
        kept, dropped = variants.choose(path, keep=args.keep, drop=args.drop)
        waste, pages = (
            variants.find_waste(path, kept, dropped),
            variants.find_pages(path, dropped),
        )
        if args.json:
            if args.yes:
                variants.remove(path, dropped, waste)
            folders = [
                {"path": str(one.path), "bytes": one.bytes, "why": one.why}
                for one in [*waste, *pages]
            ]
            names = {
                "kept": [one.name for one in kept],
                "dropped": [one.name for one in dropped],
            }
            present(args, {**names, "folders": folders, "removed": args.yes})
            return
        if not waste and not dropped:
            tables.say(f"{path}: nothing to clean up", console())
            return
        table = tables.table()
        table.add_column("folder or page" if pages else "folder", overflow="fold")
        table.add_column("size", justify="right", no_wrap=True)
        table.add_column("what it is", overflow="fold")
        for one in [*waste, *pages]:
            table.add_row(
                tables.cell(str(one.path)), _size(one.bytes), tables.cell(one.why)
            )
        tables.show(table, console())
        gone, stay = (
            first_few([one.name for one in some], max_names=_NAMED_VARIANTS)
            for some in (dropped, kept)
        )
        line = f"{_size(sum(one.bytes for one in waste))} in {counted(len(waste), 'folder')}"
        line += f", {counted(len(pages), 'page')}" if pages else ""
        line += (
            f", and the variant{'s' if len(dropped) > 1 else ''} {gone}"
            if dropped
            else ""
        )
        tables.say(f"{line}; kept: {stay}", console())
        if not args.yes:
            if not sys.stdin.isatty():
                which = (("--keep", args.keep), ("--drop", args.drop))
                given = [
                    word
                    for option, names in which
                    if names
                    for word in (option, *names)
                ]
                run = f"to confirm, run {shlex.join(['nextlong', 'gc', str(path), *given, '--yes'])}"
                raise NextlongError(
                    f"nothing was removed, because confirmation needs a terminal; {run}"
                )
            with suppress(EOFError):
                args.yes = input("remove this? [y/N] ").strip().lower() in ("y", "yes")
        if args.yes:
            variants.remove(path, dropped, waste)
    tables.say("removed" if args.yes else "nothing was removed", console())
