"""The commands `nextlong list` and `nextlong gc`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from nextlong.artifacts import record
from nextlong.artifacts.record import word
from nextlong.cli.common import console, first_few, print_json, say
from nextlong.engine import store
from nextlong.errors import NextlongError
from nextlong.report import tables
from nextlong.runs import variants
from nextlong.runs.variants import Listed, list_variants
from nextlong.text import counted

_MB = 1_000_000
_SHOWN_NAMES = 5


def _run_dir(named: Path) -> Path:
    """Return the run directory. Raises NextlongError for RUN@NAME: both commands are about all variants."""
    run_dir = named.expanduser()
    head, at, _ = str(run_dir).rpartition("@")
    if at and not run_dir.exists() and Path(head).is_dir():
        raise NextlongError(f"{run_dir} is one variant; name its run directory: {head}")
    return run_dir


def list_command(args: argparse.Namespace) -> None:
    """List the variants of a run directory."""
    run_dir = _run_dir(args.run)
    listed = list_variants(run_dir)
    if args.json:
        print_json([asdict(one) for one in listed])
        return
    _show(listed, console())
    own = next((one.name for one in listed if one.is_current), None)
    if own is None:
        lines = [f"{run_dir} opens none of these variants; run the recipe again, or name one: {run_dir}@NAME"]
    else:
        others = f"; open the others as {run_dir}@NAME" if len(listed) > 1 else ""
        lines = [f"{run_dir} opens {own}, the recipe's own settings{others}"]
    lines += filter(None, [record.unfinished_steps(run_dir)])
    if waste := variants.find_waste(run_dir, variants.choose(run_dir)[0]):
        size = _size(sum(one.bytes for one in waste))
        lines.append(f"{size} more belong to no variant; nextlong gc {run_dir} removes them after confirmation")
    for line in lines:
        say(line)


def _show(listed: Sequence[Listed], shown: Console) -> None:
    """Print a block for each variant; its name stands alone, because any name may be as long as a line."""
    for one in listed:
        made = f"{one.sequences:,}" + ("" if one.tokens_each is None else f" of {one.tokens_each:,} tokens")
        fewer = f", fewer than the requested {one.asked:,}: {one.why_fewer}" if one.why_fewer else ""
        seconds = max(0, int((datetime.now(UTC) - datetime.fromisoformat(one.made)).total_seconds()))
        units = ((seconds // length, unit) for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)))
        age, unit = next(((count, unit) for count, unit in units if count >= 2), (seconds, "s"))
        rows = [
            ("sequences", made + fewer),
            ("differs in", ", ".join(f"{key}={word(value)}" for key, value in one.differs.items())),
            ("rows", ", ".join(dict.fromkeys(name.removesuffix("-validation") for name in one.exports))),
            ("size", f"{_size(one.bytes)}, of which {_size(one.alone_bytes)} are not shared"),
            ("made", f"{age} {unit} ago"),
        ]
        tables.show_pairs(one.name, [(name, value) for name, value in rows if value], shown)


def _size(count: int) -> str:
    return f"{count / _MB:,.1f} MB" if count >= _MB / 10 else f"{count / 1000:,.0f} kB"


def gc_command(args: argparse.Namespace) -> None:
    """Delete what no variant of a run directory needs, after confirmation."""
    path = _run_dir(args.run)
    variants.choose(path, keep=args.keep, drop=args.drop)  # before the lock, which would make the folder
    with store.locked(path):
        kept, dropped = variants.choose(path, keep=args.keep, drop=args.drop)
        waste, pages = variants.find_waste(path, kept, dropped), variants.find_pages(path, dropped)
        if args.json:
            if args.yes:
                variants.remove(path, dropped, waste)
            folders = [{"path": str(one.path), "bytes": one.bytes, "why": one.why} for one in [*waste, *pages]]
            names = {"kept": [one.name for one in kept], "dropped": [one.name for one in dropped]}
            print_json({**names, "folders": folders, "removed": args.yes})
            return
        if not waste and not dropped:
            say(f"{path}: nothing to clean up")
            return
        table = tables.table()
        table.add_column("folder or page" if pages else "folder", overflow="fold")
        table.add_column("size", justify="right", no_wrap=True)
        table.add_column("what it is", overflow="fold")
        for one in [*waste, *pages]:
            table.add_row(tables.cell(str(one.path)), _size(one.bytes), tables.cell(one.why))
        tables.show(table, console())
        line = f"{_size(sum(one.bytes for one in waste))} in {counted(len(waste), 'folder')}"
        if pages:
            line += f", {counted(len(pages), 'page')}"
        if dropped:
            shown = first_few([variant.name for variant in dropped], most=_SHOWN_NAMES)
            line += f", and the variant{'s' if len(dropped) > 1 else ''} {shown}"
        say(f"{line}; kept: {first_few([variant.name for variant in kept], most=_SHOWN_NAMES)}")
        if not args.yes:
            if not sys.stdin.isatty():
                which = (("--keep", args.keep), ("--drop", args.drop))
                given = [word for option, names in which if names for word in (option, *names)]
                command = shlex.join(["nextlong", "gc", str(path), *given, "--yes"])
                raise NextlongError(
                    f"nothing was removed, because there is no terminal to ask for confirmation; run {command}"
                )
            with suppress(EOFError):
                args.yes = input("remove this? [y/N] ").strip().lower() in ("y", "yes")
        if args.yes:
            variants.remove(path, dropped, waste)
    say("removed" if args.yes else "nothing was removed")
