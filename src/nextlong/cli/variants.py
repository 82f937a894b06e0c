"""The commands `nextlong list` and `nextlong gc`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Literal

from rich.console import Console

from nextlong.artifacts import record
from nextlong.artifacts.record import Variant, word
from nextlong.cli.common import console, first_few, print_json, say
from nextlong.engine import step_store, store
from nextlong.errors import NextlongError
from nextlong.report import tables
from nextlong.runs import variants
from nextlong.runs.variants import Listed, bytes_of, list_variants
from nextlong.text import Json, counted

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
    """List the variants of a run directory, or the steps of a store."""
    run_dir = _run_dir(args.run)
    if step_store.is_store(run_dir):
        _list_store(run_dir, form="json" if args.json else "table")
        return
    listed = list_variants(run_dir)
    if args.json:
        print_json([asdict(one) for one in listed])
        return
    _show(listed, console())
    lines = [_opened_by(run_dir, listed)]
    lines += _shared_with(run_dir)
    lines += filter(None, [record.unfinished_steps(run_dir)])
    if waste := variants.find_waste(run_dir, variants.choose(run_dir)[0]):
        size = _size(sum(one.bytes for one in waste))
        lines.append(f"{size} more belong to no variant; nextlong gc {run_dir} removes them after confirmation")
    for line in lines:
        say(line)


def _opened_by(run_dir: Path, listed: Sequence[Listed]) -> str:
    """Say which variant `RUN` opens, and how the others are opened."""
    own = next((one.name for one in listed if one.is_current), None)
    if own is None:
        return f"{run_dir} opens none of these variants; run the recipe again, or name one: {run_dir}@NAME"
    others = f"; open the others as {run_dir}@NAME" if len(listed) > 1 else ""
    return f"{run_dir} opens {own}, the recipe's own settings{others}"


def _list_store(path: Path, *, form: Literal["json", "table"]) -> None:
    steps = variants.list_store(path)
    if form == "json":
        print_json([asdict(one) for one in steps])
        return
    table = tables.table()
    for heading in ("step", "size", "used by"):
        table.add_column(heading, justify="right" if heading == "size" else "left", overflow="fold")
    for one in steps:
        table.add_row(tables.cell(one.name), _size(one.bytes), tables.cell(", ".join(one.run_dirs) or "–"))
    tables.show(table, console())
    unused = [one for one in steps if not one.run_dirs]
    if unused:
        size = _size(sum(one.bytes for one in unused))
        removable = f"{size} belong to no run directory; nextlong gc {path} removes them after confirmation"
        say(removable)


def _shared_with(run_dir: Path) -> list[str]:
    """Say in which stores steps of a run directory lie, and who else uses these."""
    lines = []
    stores = dict.fromkeys(link.resolve().parent for link in step_store.links(run_dir) if link.exists())
    for path in stores:
        stored = [link for link in step_store.links(run_dir) if link.resolve().parent == path]
        others = [str(user) for user in step_store.users(path) if user != run_dir.absolute()]
        size = _size(sum(bytes_of(link) for link in stored))
        more = f", shared with {', '.join(others)}" if others else ""
        lines.append(f"{size} of this, in {counted(len(stored), 'step')}, are in the store {path}{more}")
    return lines


def _show(listed: Sequence[Listed], shown: Console) -> None:
    """Print a block for each variant; its name stands alone, because any name may be as long as a line."""
    for one in listed:
        made = f"{one.sequences:,}" + ("" if one.tokens_each is None else f" of {one.tokens_each:,} tokens")
        fewer = f", fewer than the requested {one.asked:,}: {one.why_fewer}" if one.why_fewer else ""
        rows = [
            ("sequences", made + fewer),
            ("differs in", ", ".join(f"{key}={word(value)}" for key, value in one.differs.items())),
            ("rows", ", ".join(dict.fromkeys(name.removesuffix("-validation") for name in one.exports))),
            ("size", f"{_size(one.bytes)}, of which {_size(one.alone_bytes)} are not shared"),
            ("made", f"{_age(datetime.now(UTC) - datetime.fromisoformat(one.made))} ago"),
        ]
        tables.show_pairs(one.name, [(name, value) for name, value in rows if value], shown)


def _size(count: int) -> str:
    return f"{count / _MB:,.1f} MB" if count >= _MB / 10 else f"{count / 1000:,.0f} kB"


def _age(since: timedelta) -> str:
    seconds = max(0, int(since.total_seconds()))
    for unit, length in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


def gc_command(args: argparse.Namespace) -> None:
    """Delete what no variant of a run directory, or no run directory of a store, needs, after confirmation."""
    path = _run_dir(args.run)
    is_store = step_store.is_store(path)
    if is_store and (args.keep or args.drop):
        raise NextlongError(
            f"{path} is a store, which has no variants; name a run directory, or remove --keep and --drop"
        )
    if not is_store:
        if args.forget:
            raise NextlongError(f"--forget is for a store, which {path} is not; remove it")
        variants.choose(path, keep=args.keep, drop=args.drop)  # before the lock, which would make the folder
    with store.locked(path):
        kept: list[Variant] = []
        dropped: list[Variant] = []
        pages: list[variants.Waste] = []
        if is_store:
            variants.check_users(path, forget=args.forget)
            waste = variants.find_unshared(path)
            remove = partial(variants.remove_unshared, path, waste, forget=args.forget)
        else:
            kept, dropped = variants.choose(path, keep=args.keep, drop=args.drop)
            waste, pages = variants.find_waste(path, kept, dropped), variants.find_pages(path, dropped)
            remove = partial(variants.remove, path, dropped, waste)
        if args.json:
            if args.yes:
                remove()
            print_json(_as_json(kept, dropped, [*waste, *pages], removed=args.yes))
            return
        if not waste and not dropped:
            if is_store:
                remove()  # what it knows of the run directories that are gone
            say(f"{path}: nothing to clean up")
            return
        _show_waste([*waste, *pages])
        if not is_store:
            line = f"{_size(sum(one.bytes for one in waste))} in {counted(len(waste), 'folder')}"
            if pages:
                line += f", {counted(len(pages), 'page')}"
            if dropped:
                names = first_few([variant.name for variant in dropped], most=_SHOWN_NAMES)
                line += f", and the variant{'s' if len(dropped) > 1 else ''} {names}"
            say(f"{line}; kept: {first_few([variant.name for variant in kept], most=_SHOWN_NAMES)}")
        if not (args.yes or _agrees(path, *_options(args))):
            say("nothing was removed")
            return
        remove()
    say("removed")


def _as_json(
    kept: Sequence[Variant], dropped: Sequence[Variant], waste: Sequence[variants.Waste], *, removed: bool
) -> Json:
    return {
        "kept": [variant.name for variant in kept],
        "dropped": [variant.name for variant in dropped],
        "folders": [{"path": str(one.path), "bytes": one.bytes, "why": one.why} for one in waste],
        "removed": removed,
    }


def _show_waste(waste: Sequence[variants.Waste]) -> None:
    table = tables.table()
    table.add_column(
        "folder or page" if any(one.path.suffix == ".html" for one in waste) else "folder", overflow="fold"
    )
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("what it is", overflow="fold")
    for one in waste:
        table.add_row(tables.cell(str(one.path)), _size(one.bytes), tables.cell(one.why))
    tables.show(table, console())


def _options(args: argparse.Namespace) -> list[str]:
    """Return what was asked to go or to stay, as it was asked."""
    variants = [("--keep", args.keep), ("--drop", args.drop)]
    forgotten = [option for run in args.forget for option in ("--forget", str(run))]
    return [*forgotten, *(option for name, names in variants if names for option in (name, *names))]


def _agrees(run_dir: Path, *options: str) -> bool:
    if not sys.stdin.isatty():
        command = shlex.join(["nextlong", "gc", str(run_dir), *options, "--yes"])
        raise NextlongError(f"nothing was removed, because there is no terminal to ask for confirmation; run {command}")
    try:
        return input("remove this? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
