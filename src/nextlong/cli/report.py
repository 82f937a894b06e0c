"""The command `nextlong report`: runs as a page."""

from __future__ import annotations

import argparse
from pathlib import Path

import nextlong
from nextlong.cli.asked import add_json, check_folder_of, print_json
from nextlong.cli.reports import matching
from nextlong.engine import store
from nextlong.errors import NextlongError
from nextlong.report import tables
from nextlong.report.tables import PipeConsole as Console


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    report = commands.add_parser("report", help="data sets as one HTML page, in pictures, numbers and plain words")
    report.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="as for stats; RUN@*: all its variants, or those that match"
    )
    report.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="(default: RUN/report.html, where the run left its own; of several run directories: report.html here)",
    )
    add_json(report, about="print JSON of what was written where; stats --json has its numbers")
    report.set_defaults(command=_report)


def _report(asked: argparse.Namespace) -> None:
    from nextlong.report.page import at_end, write

    if asked.output is not None:
        check_folder_of(asked.output)
    runs = [nextlong.open(run) for named in asked.runs for run in matching(named)]
    path = asked.output or at_end.place_of(runs)
    page = write.page(runs)
    try:
        store.write_text(path, page)
    except OSError as error:
        raise NextlongError(f"{path} cannot be written: {error.strerror}; choose another place with -o") from None
    if asked.json:
        print_json({"page": str(path), "bytes": path.stat().st_size, "runs": [str(run) for run in runs]})
        return
    tables.say(f"wrote {path}", Console())
