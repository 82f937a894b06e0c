"""The command `nextlong view`: a run as local pages."""

from __future__ import annotations

import argparse
import json
from importlib.util import find_spec
from pathlib import Path

import nextlong
from nextlong.cli.asked import add_json
from nextlong.errors import NextlongError
from nextlong.report import tables
from nextlong.report.tables import PipeConsole as Console


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    view = commands.add_parser(
        "view", help="look through a run in a browser: its sequences, documents, what was left out"
    )
    view.add_argument("run", type=Path, metavar="RUN", help="a run directory, or one of its variants: RUN@NAME")
    view.add_argument("--port", type=int, default=0, metavar="N", help="of 127.0.0.1 (default: any that is free)")
    add_json(view, about="print the address as JSON")
    view.set_defaults(command=_view)


def _view(asked: argparse.Namespace) -> None:
    for package in ("starlette", "uvicorn"):
        if find_spec(package) is None:
            raise NextlongError(
                f"{package}, which serves the pages, is not installed; say: pip install 'nextlong[view]'"
            )
    from nextlong.view.server import serve

    console = Console()

    def tell(address: str) -> None:
        if asked.json:
            print(json.dumps({"address": address, "run": str(asked.run)}, ensure_ascii=False), flush=True)
            return
        tables.say(f"{address} shows {asked.run}, to this machine only; Ctrl-C ends it", console)

    try:
        serve(nextlong.open(asked.run), port=asked.port, when_ready=tell)
    except KeyboardInterrupt:
        return
