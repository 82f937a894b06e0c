"""The command `nextlong export`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nextlong.cli.common import Commands, add_json, add_set, console, print_json, reporter, words
from nextlong.errors import NextlongError
from nextlong.plugins import FORMATS


def add(commands: Commands) -> None:
    """Add the command to the parser."""
    export = commands.add_parser("export", help="Write finished runs in other formats, packed, split or mixed")
    export.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="runs or variants to export, several as a mix; files of short documents may follow the first",
    )
    export.add_argument(
        "--to",
        type=words,
        default=[],
        metavar="FORMAT,…",
        help=f"{', '.join(FORMATS.built_in)}, or a format of another package (default: those of the recipe)",
    )
    add_set(export, example="export.pack=524288")
    export.add_argument(
        "--mix", type=words, default=[], metavar="W,W,…", help="proportions of several runs, e.g. 1,2 (default: all)"
    )
    export.add_argument("--by", choices=("sequences", "tokens"), help="unit of --mix (default: sequences)")
    export.add_argument(
        "--short-tokens",
        type=int,
        metavar="N",
        help="tokens in a row of short documents (default: 8192, at most those of the run)",
    )
    export.add_argument("--into", metavar="DIR-or-URL", help="also copy the files there (export.push)")
    export.add_argument(
        "--replace", action="store_true", help="delete files of an earlier push that this one does not write"
    )
    add_json(export)
    export.set_defaults(command=_export)


def _export(args: argparse.Namespace) -> None:
    from nextlong.report import as_json, summary, tables
    from nextlong.runs import export as runs_export

    if args.into == "":
        raise NextlongError("--into is empty; give a folder or a URL, or remove it")
    if args.by and not args.mix:
        raise NextlongError(f"--by {args.by} needs proportions; add --mix 1,2 or remove --by")
    mix = []
    for word in args.mix:
        try:
            mix.append(float(word))
        except ValueError:
            raise NextlongError(f"--mix: {word!r} is not a number; write the proportions as 1,2") from None
    shown = console(stderr=args.json)
    written = runs_export.export(
        args.runs,
        formats=args.to,
        overrides=[*args.overrides, *([f"export.push={json.dumps(args.into)}"] if args.into else [])],
        mix=mix,
        by=args.by or "sequences",
        stale="replace" if args.replace else "refuse",
        short_tokens=args.short_tokens,
        reporter=reporter(stderr=args.json),
    )
    if args.json:
        print_json(as_json.export_of(written))
        return
    facts = summary.exported(
        written.recipe,
        written.done,
        folder=written.folder,
        longest=written.longest,
        runs=[runs_export.name_of(run) for run in written.runs],
    )
    tables.show_facts(facts, shown)
