"""The commands on finished runs, and `doctor`, which looks at the installation.

On runs: list, gc, peek, stats, compare, report, view and verify.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, replace
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
from nextlong.text import Json, counted

if TYPE_CHECKING:
    from rich.console import Console

    from nextlong.artifacts.variant_records import Variant
    from nextlong.runs.run import Run
    from nextlong.runs.run import Sequence as RunSequence
    from nextlong.runs.variants import Listed, Waste
    from nextlong.verify.outcome import CheckOutcome

_NAMED_VARIANTS = 5


def matching(named: Path) -> list[str]:
    """Return the runs of a name.

    The name itself, or for `RUN@PATTERN` with * or ? the matching variants.
    """
    head, _, pattern = str(named).rpartition("@")
    if not head or not set("*?") & set(pattern):
        return [str(named)]
    run_dir = Path(head).expanduser()
    known = variant_records.names(run_dir)
    names = [name for name in known if fnmatchcase(name, pattern)]
    if not known and not run_dir.is_dir():
        raise NextlongError(
            where=named, problem=f"{head} does not exist", fix="name a run directory"
        )
    if not names:
        raise NextlongError(
            where=named,
            problem="no variant matches",
            fix=f"{head} has: {', '.join(known) or 'none'}",
        )
    return [f"{head}@{name}" for name in names]


def _runs_matching(names: Sequence[Path]) -> list[Run]:
    """Open the runs of several names."""
    runs = []
    for named in names:
        runs += [nextlong.open(run) for run in matching(named)]
    return runs


def peek(args: argparse.Namespace) -> None:
    """List the sequences of a run, or show one."""
    run = nextlong.open(args.run)
    if args.number is None:
        _peek_run(args, run)
        return
    if not 0 <= args.number < len(run):
        raise NextlongError(
            where=f"sequence {args.number}",
            problem="it does not exist",
            fix=f"{args.run} has {len(run)}, counted from 0",
        )
    _peek_sequence(args, run.sequence(args.number))


def _peek_run(args: argparse.Namespace, run: Run) -> None:
    from nextlong.report import peek as shows

    if args.text or args.svg:
        raise NextlongError(
            where="--text and --svg",
            problem="they need the number of a sequence",
            fix=f"nextlong peek {args.run} 0 --text",
        )
    if args.first < 0:
        raise NextlongError(
            where=f"--first {args.first}",
            problem="it is negative",
            fix="give the number of sequences to list, or 0 for all",
        )
    present(
        args,
        partial(shows.sequences_of, run, first=args.first),
        partial(shows.show_run, run, first=args.first),
    )


def _peek_sequence(args: argparse.Namespace, sequence: RunSequence) -> None:
    from nextlong.report import peek as shows

    if args.svg:
        _draw(sequence, args.svg)
    elif args.text and not args.json:
        shown = console()
        is_paged = shown.is_terminal and sys.stdin.isatty()
        # A pager that is `less` then shows the colours.
        os.environ.setdefault("LESS", "-R")
        with shown.pager(styles=True) if is_paged else nullcontext():
            shows.show_text(sequence, shown)
    else:
        present(
            args,
            partial(shows.sequence_of, args.number, sequence),
            partial(shows.show_sequence, sequence),
        )


def _draw(sequence: RunSequence, path: Path) -> None:
    """Draw a sequence, before and after, as .svg or .png."""
    from nextlong.picture import before_after

    suffix = path.suffix.lower()
    if suffix not in (".svg", ".png"):
        raise NextlongError(
            where=f"--svg {path}",
            problem="it has no known picture suffix",
            fix="use .svg or .png",
        )
    draw = before_after.png if suffix == ".png" else before_after.svg
    picture = draw(sequence.spans, tokens=len(sequence.input_ids), name=sequence.id)
    write(path, picture)
    tables.say(f"wrote {path}", console())


def stats(args: argparse.Namespace) -> None:
    from nextlong.report import compare as page
    from nextlong.runs.statistics.measure import measure

    run = nextlong.open(args.run)
    measured = measure(run)
    if args.dependence is not None:
        # It imports torch.
        from nextlong.runs.statistics.dependence import measure_dependence

        # As the recipe's own scorer: its precision and device.
        named = {"model": args.dependence, "revision": None}
        found = measure_dependence(run, run.recipe.scorer.model_copy(update=named))
        measured = replace(measured, dependence=found)
        show_card = partial(page.show_card, measured, "dependence")
        present(args, asdict(found), show_card)
        return
    show = page.show_one if args.all else page.show_screen
    present(args, measured.as_json, partial(show, measured))


def compare(args: argparse.Namespace) -> None:
    from nextlong.report import compare as page
    from nextlong.runs.statistics.measure import measure

    opened = _runs_matching(args.runs)
    if args.svg:
        write(args.svg, page.svg(opened))
        tables.say(f"wrote {args.svg}", console())
        return
    measured = [measure(run) for run in opened]
    if args.csv:
        rows = [page.row(stats_of_run) for stats_of_run in measured]
        print(page.csv_text(rows), end="")
    else:
        plain = [stats_of_run.as_json() for stats_of_run in measured]
        present(args, plain, partial(page.show, measured))


def report(args: argparse.Namespace) -> None:
    from nextlong.report.page import write as write_page

    if args.output is not None:
        check_folder_of(args.output)
    runs = _runs_matching(args.runs)
    # The page is complete before anything is written, so that an error keeps the old
    # one.
    path = args.output or write_page.place_of(runs)
    page = write_page.page(runs)
    try:
        store.write_file(path, page)
    except OSError as error:
        raise NextlongError(
            where=path,
            problem=f"it cannot be written: {error.strerror}",
            fix="choose another path with -o",
        ) from None
    outcome = {
        "page": str(path),
        "bytes": path.stat().st_size,
        "runs": [str(run) for run in runs],
    }
    present(args, outcome, f"wrote {path}")


def view(args: argparse.Namespace) -> None:
    check_installed("view", "starlette", "uvicorn", extra="view")
    run = nextlong.open(args.run)
    if args.export:
        from nextlong.view.export import export

        sequences, pages = export(run, args.export, first=args.first)
        outcome = {"folder": str(args.export), "sequences": sequences, "pages": pages}
        part = "all" if sequences == len(run) else f"the first {sequences:,} of"
        wrote = (
            f"wrote {part} {len(run):,} sequences on {pages:,} pages; open "
            f"{args.export / 'index.html'}"
        )
        present(args, outcome, wrote)
        return
    import webbrowser

    from nextlong.view.server import serve

    def when_ready(address: str) -> None:
        if args.json:
            outcome = {"address": address, "run": str(args.run)}
            print(json.dumps(outcome, ensure_ascii=False), flush=True)
            return
        tables.say(
            f"serving {args.run} at {address} (this machine only); press Ctrl-C to "
            "stop",
            console(),
        )
        if console().is_terminal and not args.no_browser:
            webbrowser.open(address)

    with suppress(KeyboardInterrupt):
        serve(run, port=args.port, when_ready=when_ready)


def verify(args: argparse.Namespace) -> int:
    """Verify a run or a delivered export; return 1 if a check fails."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    from nextlong.verify.outcome import as_json, passed, show

    if args.sample != "all" and not args.sample.isdecimal():
        raise NextlongError(
            where=f"--sample {args.sample}",
            problem="it is neither a whole number nor the word all",
            fix="give a number such as 100, or all",
        )
    if args.workers is not None and args.workers < 1:
        raise NextlongError(
            where=f"--workers {args.workers}",
            problem="it is below 1",
            fix="give the number of processes",
        )
    # On a terminal the check that runs is shown, and for how long.
    progress = console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(
        *columns, console=progress, transient=True, disable=not progress.is_terminal
    ) as bar:
        task = bar.add_task("verify")

        def starting(check: str) -> None:
            bar.reset(task, description=f"checking {check}")

        outcomes = _verified(args, starting)
    if args.json:
        print(as_json(outcomes, args.run))
    else:
        show(outcomes, args.run, console())
    return int(not passed(outcomes))


def _verified(
    args: argparse.Namespace, starting: Callable[[str], None]
) -> list[CheckOutcome]:
    """Return the outcomes of all checks; `starting` is called with each one's name."""
    from nextlong.engine.executor import usable_cpus
    from nextlong.reading.files import reach
    from nextlong.verify import checks, files
    from nextlong.verify.corpus import EVERYTHING

    path = Path(args.run)
    if "://" in args.run or files.is_delivered(path):
        fs, root = reach(args.run, where=repr(args.run), error=NextlongError)
        return list(files.verify_delivered(fs, root, args.made_by, starting=starting))
    if args.made_by is not None:
        problem = f"{args.run} is not the folder of a delivered export"
        if not path.exists():
            problem = f"{args.run} does not exist"
        raise NextlongError(
            where=f"--run {args.made_by}",
            problem=problem,
            fix="remove --run, or give the folder that `nextlong export --into` filled",
        )
    outcomes = checks.verify(
        path,
        sample=EVERYTHING if args.sample == "all" else int(args.sample),
        seed=args.seed,
        workers=args.workers or usable_cpus(),
        starting=starting,
    )
    return list(outcomes)


def doctor(args: argparse.Namespace) -> int:
    from nextlong.report import installation

    examined = installation.examine()
    present(args, examined, partial(installation.show, examined))
    return int(not examined["is_whole"])


def _run_dir(named: Path) -> Path:
    """Return the run directory.

    Raises NextlongError for RUN@NAME: list and gc work on all variants.
    """
    run_dir, variant = variant_records.split_name(named)
    if variant is not None and run_dir.is_dir():
        raise NextlongError(
            where=named,
            problem="it is one variant, and this command works on all variants",
            fix=f"give the run directory: {run_dir}",
        )
    return named.expanduser()


def list_command(args: argparse.Namespace) -> None:
    """List the variants of a run, and which one RUN opens."""
    from nextlong.runs import variants

    run_dir = _run_dir(args.run)
    listed = variants.list_variants(run_dir)

    def show(shown: Console) -> None:
        for variant in listed:
            _show_variant(variant, shown)
        tables.say(f"{run_dir} {_opens(run_dir, listed)}", shown)
        unfinished = variant_records.unfinished_steps(run_dir)
        if unfinished:
            tables.say(f"{unfinished}; {variant_records.RESUME}", shown)
        kept, _ = variants.choose(run_dir)
        waste = variants.find_waste(run_dir, kept)
        if waste:
            size = _size(sum(folder.bytes for folder in waste))
            tables.say(
                f"{size} belong to no variant; nextlong gc {run_dir} removes them "
                "after confirmation",
                shown,
            )

    present(args, [asdict(variant) for variant in listed], show)


def _opens(run_dir: Path, listed: Sequence[Listed]) -> str:
    """Return which variant the run directory opens, and how the others are opened."""
    current = [variant.name for variant in listed if variant.is_current]
    if not current:
        return (
            "has no variant of the recipe's own settings; run the recipe, or name a "
            f"variant: {run_dir}@NAME"
        )
    name = current[0]
    which = "its only variant"
    if name == variant_records.current(run_dir):
        which = "the recipe's own settings"
    others = f"; open the others as {run_dir}@NAME" if len(listed) > 1 else ""
    return f"opens {name}, {which}{others}"


def _show_variant(variant: Listed, shown: Console) -> None:
    """Print a block for a variant.

    Its name has its own line, because it may be as long as one.
    """
    sequences = f"{variant.sequences:,}"
    if variant.tokens_each is not None:
        sequences += f" of {variant.tokens_each:,} tokens"
    if variant.why_fewer:
        asked = f"fewer than the requested {variant.asked:,}"
        sequences += f", {asked}: {variant.why_fewer}"
    differs = [
        f"{key}={variant_names.word(value)}" for key, value in variant.differs.items()
    ]
    formats = [name.removesuffix("-validation") for name in variant.exports]
    size = _size(variant.bytes)
    own_size = _size(variant.alone_bytes)
    rows = [
        ("sequences", sequences),
        ("differs in", ", ".join(differs)),
        ("rows", ", ".join(dict.fromkeys(formats))),
        ("size", f"{size}, of which {own_size} are not shared"),
        ("made", f"{_age(variant.made)} ago"),
    ]
    known = [(name, value) for name, value in rows if value]
    tables.show_pairs(variant.name, known, shown)


def _age(made: str) -> str:
    """Return how long ago a time was, in the largest unit that gives two or more."""
    elapsed = datetime.now(UTC) - datetime.fromisoformat(made)
    seconds = max(0, int(elapsed.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds // length >= 2:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _size(count: int) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 100_000 else f"{count / 1000:,.0f} kB"


def gc_command(args: argparse.Namespace) -> None:
    """Delete files that no variant needs, after confirmation."""
    from nextlong.runs import variants

    path = _run_dir(args.run)
    # A wrong name is refused before the lock, which would make the folder.
    variants.choose(path, keep=args.keep, drop=args.drop)
    with store.locked(path):
        kept, dropped = variants.choose(path, keep=args.keep, drop=args.drop)
        waste = variants.find_waste(path, kept, dropped)
        waste += variants.find_search_index(path)
        pages = variants.find_pages(path, dropped)
        if args.json:
            # With --json nothing is asked: without --yes it is a dry run.
            if args.yes:
                variants.remove(path, dropped, waste)
            plain = _waste_as_json([*waste, *pages], dropped, kept)
            present(args, {**plain, "removed": args.yes})
            return
        if not waste and not dropped:
            tables.say(f"{path}: nothing to clean up", console())
            return
        _show_waste(waste, pages)
        tables.say(_waste_line(waste, pages, dropped, kept), console())
        is_confirmed = args.yes or _confirms(args, path)
        if is_confirmed:
            variants.remove(path, dropped, waste)
    tables.say("removed" if is_confirmed else "nothing was removed", console())


def _waste_as_json(
    waste: Sequence[Waste], dropped: Sequence[Variant], kept: Sequence[Variant]
) -> Json:
    folders = [
        {"path": str(found.path), "bytes": found.bytes, "why": found.why}
        for found in waste
    ]
    return {
        "kept": [variant.name for variant in kept],
        "dropped": [variant.name for variant in dropped],
        "folders": folders,
    }


def _show_waste(waste: Sequence[Waste], pages: Sequence[Waste]) -> None:
    table = tables.table()
    table.add_column("folder or page" if pages else "folder", overflow="fold")
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for found in [*waste, *pages]:
        path = tables.cell(str(found.path))
        table.add_row(path, _size(found.bytes), tables.cell(found.why))
    tables.show(table, console())


def _waste_line(
    waste: Sequence[Waste],
    pages: Sequence[Waste],
    dropped: Sequence[Variant],
    kept: Sequence[Variant],
) -> str:
    """Return what would be removed, and which variants stay."""
    size = _size(sum(folder.bytes for folder in waste))
    line = f"{size} in {counted(len(waste), 'folder')}"
    if pages:
        line += f", {counted(len(pages), 'page')}"
    if dropped:
        noun = "variant" if len(dropped) == 1 else "variants"
        line += f", and the {noun} {_first_names(dropped)}"
    return f"{line}; kept: {_first_names(kept)}"


def _first_names(variants: Sequence[Variant]) -> str:
    names = [variant.name for variant in variants]
    return first_few(names, max_names=_NAMED_VARIANTS)


def _confirms(args: argparse.Namespace, path: Path) -> bool:
    """Ask the user whether to remove; raises NextlongError without a terminal."""
    if not sys.stdin.isatty():
        command = ["nextlong", "gc", str(path)]
        if args.keep:
            command += ["--keep", *args.keep]
        if args.drop:
            command += ["--drop", *args.drop]
        raise NextlongError(
            where=path,
            problem="nothing was removed, because confirmation needs a terminal",
            fix=f"to confirm, run {shlex.join([*command, '--yes'])}",
        )
    answer = ""
    with suppress(EOFError):
        answer = input("remove this? [y/N] ")
    return answer.strip().lower() in ("y", "yes")
