"""The command `nextlong export`: its options, and what they ask of `runs_export.export`."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from nextlong.errors import NextlongError
from nextlong.recipe.export import FORMATS
from nextlong.report import tables
from nextlong.report.tables import PipeConsole as Console


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    export = commands.add_parser("export", help="write finished runs in other formats, packed, split, mixed")
    export.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="as for stats; several are mixed; after the first also files of short documents",
    )
    export.add_argument(
        "--to",
        type=_words,
        default=[],
        metavar="FORMAT,…",
        help=f"{', '.join(FORMATS.built_in)}, or another package's (default: the recipe's)",
    )
    export.add_argument(
        "--set", dest="overrides", action="append", default=[], metavar="KEY=VALUE", help="e.g. export.pack=524288"
    )
    export.add_argument(
        "--mix", type=_words, default=[], metavar="W,W,…", help="proportions of several runs, e.g. 1,2 (default: all)"
    )
    export.add_argument("--by", choices=("sequences", "tokens"), help="what --mix counts (default: sequences)")
    export.add_argument(
        "--short-tokens",
        type=int,
        metavar="N",
        help="tokens of a row of short documents (default: 8192, at most the run's)",
    )
    export.add_argument("--into", metavar="DIR-or-URL", help="put the files there too (export.push)")
    export.add_argument(
        "--replace", action="store_true", help="delete what another push put there and this one does not"
    )
    export.add_argument("--json", action="store_true", help="print JSON")
    export.set_defaults(command=_export)


def _words(listed: str) -> list[str]:
    return [word.strip() for word in listed.split(",")]


def _export(asked: argparse.Namespace) -> None:
    from nextlong.engine.progress import reporter_for
    from nextlong.report import as_json, summary
    from nextlong.runs import export as runs_export

    if asked.into == "":
        raise NextlongError("--into '' names no place; give a folder or a URL, or leave it out")
    if asked.by and not asked.mix:
        raise NextlongError(
            f"--by {asked.by} without --mix: there are no proportions to count; say --mix 1,2 or leave it out"
        )
    console = Console(stderr=asked.json)
    written = runs_export.export(
        asked.runs,
        formats=asked.to,
        overrides=[*asked.overrides, *([f"export.push={json.dumps(asked.into)}"] if asked.into else [])],
        mix=[_proportion(word) for word in asked.mix],
        by=asked.by or "sequences",
        stale="replace" if asked.replace else "refuse",
        short_tokens=asked.short_tokens,
        reporter=reporter_for(console),
    )
    if asked.json:
        print(json.dumps(as_json.export_of(written), indent=1, ensure_ascii=False))
        return
    tables.show_facts(
        summary.exported(written.recipe, written.done, folder=written.folder, longest=written.longest), console
    )


def _proportion(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise NextlongError(f"--mix: {word!r} is not a number; write the proportions as 1,2") from None
