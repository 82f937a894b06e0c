"""The commands `nextlong list` and `nextlong gc`: what a run directory holds, and what of it can go."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Literal

from rich.console import Console

from nextlong.artefacts.names import word
from nextlong.artefacts.record import Variant
from nextlong.engine import shared, store
from nextlong.errors import NextlongError
from nextlong.plain_data import Json
from nextlong.plural import counted
from nextlong.report import tables
from nextlong.report.tables import PipeConsole
from nextlong.runs import gc
from nextlong.runs.listed import Listed, bytes_of, list_variants

_MB = 1_000_000
_SHOWN_NAMES = 5


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add both commands to the parser."""
    listing = commands.add_parser(
        "list", help="the variants of a run directory: what tells them apart, and what they hold"
    )
    listing.add_argument("run", type=Path, metavar="RUN", help="a run directory, or a store that several share")
    listing.add_argument("--json", action="store_true", help="everything, for tools")
    listing.set_defaults(command=_list)

    cleaning = commands.add_parser("gc", help="remove what no variant of a run directory needs, after showing it")
    cleaning.add_argument("run", type=Path, metavar="RUN", help="a run directory, or a store that several share")
    which = cleaning.add_mutually_exclusive_group()
    which.add_argument("--keep", nargs="+", default=[], metavar="NAME", help="drop all variants but these")
    which.add_argument("--drop", nargs="+", default=[], metavar="NAME", help="drop these variants")
    cleaning.add_argument(
        "--forget",
        type=Path,
        action="append",
        default=[],
        metavar="RUN",
        help="of a store: a run directory that used it and is gone for good; again: another",
    )
    cleaning.add_argument("--yes", action="store_true", help="remove without asking")
    cleaning.add_argument("--json", action="store_true", help="print JSON; without --yes nothing is removed")
    cleaning.set_defaults(command=_gc)


def _run_dir(named: Path) -> Path:
    """Return the run directory. Raises NextlongError for RUN@NAME: both commands are about all variants."""
    run_dir = named.expanduser()
    head, at, variant = str(run_dir).rpartition("@")
    if at and not run_dir.exists() and Path(head).is_dir():
        raise NextlongError(
            f"{run_dir} is one variant; name the run directory: {head} (its variant {variant} is one of those there)"
        )
    return run_dir


def _list(asked: argparse.Namespace) -> None:
    run_dir = _run_dir(asked.run)
    if shared.is_store(run_dir):
        _list_store(run_dir, form="json" if asked.json else "table")
        return
    listed = list_variants(run_dir)
    if asked.json:
        print(json.dumps([asdict(one) for one in listed], indent=1, ensure_ascii=False))
        return
    console = PipeConsole()
    _show(listed, console)
    lines = [_opened_by(run_dir, listed)]
    lines += _shared_with(run_dir)
    if waste := gc.find_waste(run_dir, gc.choose(run_dir)[0]):
        size = _size(sum(one.bytes for one in waste))
        lines.append(f"{size} beside them belong to no variant; nextlong gc {run_dir} removes that, after showing it")
    for line in lines:
        tables.say(line, console)


def _opened_by(run_dir: Path, listed: Sequence[Listed]) -> str:
    """Say which variant `RUN` opens, and how the others are opened."""
    own = next((one.name for one in listed if one.is_current), None)
    if own is None:
        return f"{run_dir} opens none of these variants; run the recipe again, or name one: {run_dir}@NAME"
    others = f"; open the others as {run_dir}@NAME" if len(listed) > 1 else ""
    return f"{run_dir} opens {own}, the recipe's own settings{others}"


def _list_store(path: Path, *, form: Literal["json", "table"]) -> None:
    steps = gc.list_store(path)
    if form == "json":
        print(json.dumps([asdict(one) for one in steps], indent=1, ensure_ascii=False))
        return
    console = PipeConsole()
    table = tables.table()
    for heading in ("step", "size", "used by"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for one in steps:
        table.add_row(tables.cell(one.name), _size(one.bytes), tables.cell(", ".join(one.run_dirs) or "–"))
    tables.show(table, console)
    unused = [one for one in steps if not one.run_dirs]
    if unused:
        size = _size(sum(one.bytes for one in unused))
        removable = f"{size} belong to no run directory; nextlong gc {path} removes that, after showing it"
        tables.say(removable, console)


def _shared_with(run_dir: Path) -> list[str]:
    """Say in which stores steps of a run directory lie, and who else uses these."""
    lines = []
    stores = dict.fromkeys(link.resolve().parent for link in shared.links(run_dir) if link.exists())
    for path in stores:
        stored = [link for link in shared.links(run_dir) if link.resolve().parent == path]
        others = [str(user) for user in shared.users(path) if user != run_dir.absolute()]
        size = _size(sum(bytes_of(link) for link in stored))
        more = f", shared with {', '.join(others)}" if others else ""
        lines.append(f"{size} of this in {counted(len(stored), 'step')} lie in the store {path}{more}")
    return lines


def _show(listed: Sequence[Listed], console: Console) -> None:
    """Print a block for each variant; its name stands alone, because any name may be as long as a line."""
    for one in listed:
        made = f"{one.sequences:,}" + ("" if one.tokens_each is None else f" of {one.tokens_each:,} tokens")
        fewer = f", fewer than the {one.asked:,} asked for: {one.why_fewer}" if one.why_fewer else ""
        rows = [
            ("sequences", made + fewer),
            ("differs in", ", ".join(f"{key}={word(value)}" for key, value in one.differs.items())),
            ("rows", ", ".join(dict.fromkeys(name.removesuffix("-validation") for name in one.exports))),
            ("size", f"{_size(one.bytes)}, of which {_size(one.alone_bytes)} are only its own"),
            ("made", f"{_age(datetime.now(UTC) - datetime.fromisoformat(one.made))} ago"),
        ]
        tables.show_pairs(one.name, [(name, value) for name, value in rows if value], console)


def _size(count: int) -> str:
    return f"{count / _MB:,.1f} MB" if count >= _MB / 10 else f"{count / 1000:,.0f} kB"


def _age(since: timedelta) -> str:
    seconds = max(0, int(since.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def _gc_store(path: Path, asked: argparse.Namespace) -> None:
    if asked.keep or asked.drop:
        raise NextlongError(
            f"{path} is a store, which has no variants; name a run directory, or leave out --keep and --drop"
        )
    console = PipeConsole()
    with store.locked(path):
        gc.check_users(path, forget=asked.forget)
        waste = gc.find_unshared(path)
        if asked.json:
            if asked.yes:
                gc.remove_unshared(path, waste, forget=asked.forget)
            print(json.dumps(_as_json([], [], waste, removed=asked.yes), indent=1, ensure_ascii=False))
            return
        if not waste:
            gc.remove_unshared(path, (), forget=asked.forget)
            line = f"{path}: there is nothing that no run directory needs"
            tables.say(line, console)
            return
        _show_waste(waste, console)
        if not (asked.yes or _agrees(path, *_options(asked))):
            console.print("nothing was removed")
            return
        gc.remove_unshared(path, waste, forget=asked.forget)
    console.print("removed")


def _gc(asked: argparse.Namespace) -> None:
    run_dir = _run_dir(asked.run)
    if shared.is_store(run_dir):
        _gc_store(run_dir, asked)
        return
    if asked.forget:
        raise NextlongError(f"--forget is for a store that several share, which {run_dir} is not; leave it out")
    gc.choose(run_dir, keep=asked.keep, drop=asked.drop)  # before the lock, which would make the folder
    console = PipeConsole()
    with store.locked(run_dir):
        kept, dropped = gc.choose(run_dir, keep=asked.keep, drop=asked.drop)
        waste, pages = gc.find_waste(run_dir, kept, dropped), gc.find_pages(run_dir, dropped)
        if asked.json:
            if asked.yes:
                gc.remove(run_dir, dropped, waste)
            print(
                json.dumps(_as_json(kept, dropped, [*waste, *pages], removed=asked.yes), indent=1, ensure_ascii=False)
            )
            return
        if not waste and not dropped:
            tables.say(f"{run_dir}: there is nothing that no variant needs", console)
            return
        _show_waste([*waste, *pages], console)
        line = f"{_size(sum(one.bytes for one in waste))} in {counted(len(waste), 'folder')}"
        if pages:
            line += f", {counted(len(pages), 'page')}"
        if dropped:
            line += (
                f", and the variant{'s' if len(dropped) > 1 else ''} {_first([variant.name for variant in dropped])}"
            )
        line += f"; what stays: {_first([variant.name for variant in kept])}"
        tables.say(line, console)
        if not (asked.yes or _agrees(run_dir, *_options(asked))):
            console.print("nothing was removed")
            return
        gc.remove(run_dir, dropped, waste)
    console.print("removed")


def _first(names: Sequence[str]) -> str:
    more = len(names) - _SHOWN_NAMES
    return ", ".join(names) if more < 2 else f"{', '.join(names[:_SHOWN_NAMES])} and {more} more"


def _as_json(kept: Sequence[Variant], dropped: Sequence[Variant], waste: Sequence[gc.Waste], *, removed: bool) -> Json:
    return {
        "kept": [variant.name for variant in kept],
        "dropped": [variant.name for variant in dropped],
        "folders": [{"path": str(one.path), "bytes": one.bytes, "why": one.why} for one in waste],
        "removed": removed,
    }


def _show_waste(waste: Sequence[gc.Waste], console: Console) -> None:
    table = tables.table()
    table.add_column(
        "folder or page" if any(one.path.suffix == ".html" for one in waste) else "folder", overflow="fold"
    )
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for one in waste:
        table.add_row(tables.cell(str(one.path)), _size(one.bytes), tables.cell(one.why))
    tables.show(table, console)


def _options(asked: argparse.Namespace) -> list[str]:
    """Return what was asked to go or to stay, as it was asked."""
    variants = [("--keep", asked.keep), ("--drop", asked.drop)]
    forgotten = [option for run in asked.forget for option in ("--forget", str(run))]
    return [*forgotten, *(option for name, names in variants if names for option in (name, *names))]


def _agrees(run_dir: Path, *options: str) -> bool:
    if not sys.stdin.isatty():
        command = shlex.join(["nextlong", "gc", str(run_dir), *options, "--yes"])
        raise NextlongError(f"nothing was removed: there is no terminal to ask; say {command}")
    try:
        return input("remove this? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
