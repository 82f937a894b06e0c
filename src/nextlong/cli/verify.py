"""The command `nextlong verify`: a finished run, or an export where it was put, judged from its files alone."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from nextlong.errors import NextlongError
from nextlong.report.tables import PipeConsole as Console

if TYPE_CHECKING:
    from nextlong.verify.outcome import Outcome

_BREACH = 1


def add(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the parser."""
    verify = commands.add_parser(
        "verify", help="check a finished run, or an export where it was put, from its files; exit code 1 on any breach"
    )
    verify.add_argument(
        "run",
        metavar="RUN-or-FOLDER",
        help="a run, or what `export --into` filled: a folder, or a URL such as s3://bucket/prefix",
    )
    verify.add_argument(
        "--run", dest="made_by", type=Path, metavar="RUN", help="of a folder: the run that each of its rows must be of"
    )
    verify.add_argument(
        "--sample",
        default="100",
        metavar="N",
        help="meta-chunks searched and vectors encoded again (default: 100); all: every one, and each chunk by the reference "
        "tokenizer, of which a large run's are otherwise sampled",
    )
    verify.add_argument("--seed", type=int, default=0, help="of that sample (default: 0)")
    verify.add_argument(
        "--workers", type=int, metavar="N", help="processes that check side by side (default: one a processor)"
    )
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(command=_verify)


def _verify(asked: argparse.Namespace) -> int:
    from nextlong.verify import show

    sample = _sample(asked.sample)
    if asked.workers is not None and asked.workers < 1:
        raise NextlongError(f"--workers {asked.workers} is not a number of processes; give 1 or more")
    with _progress() as starting:
        outcomes = list(_outcomes(asked, sample, starting))
    if asked.json:
        print(show.as_json(outcomes, asked.run))
    else:
        show.show(outcomes, asked.run, Console())
    return 0 if show.passed(outcomes) else _BREACH


def _sample(asked: str) -> int:
    from nextlong.verify.tokens import EVERYTHING

    if asked == "all":
        return EVERYTHING
    if not asked.isdecimal():
        raise NextlongError(f"--sample {asked} is neither a whole number from 0 on nor all")
    return int(asked)


def _outcomes(asked: argparse.Namespace, sample: int, starting: Callable[[str], None]) -> Iterator[Outcome]:
    from nextlong.inputs import file_systems
    from nextlong.verify import checks, delivered, remote
    from nextlong.verify.processes import available

    if "://" in asked.run:
        fs, root = file_systems.reach(asked.run, where=repr(asked.run), error=NextlongError)
        yield from remote.verify_remote(fs, root, asked.made_by, starting=starting)
        return
    named = Path(asked.run)
    folders = delivered.delivered_in(named)
    for folder in folders:
        for outcome in delivered.verify_delivered(folder, asked.made_by, starting=starting):
            yield replace(outcome, check=f"{folder.name}: {outcome.check}") if len(folders) > 1 else outcome
    if folders:
        return
    if asked.made_by is not None:
        raise NextlongError(
            f"{asked.run} is not a folder that an export was put into, so --run {asked.made_by} has no use here"
        )
    workers = asked.workers or available()
    yield from checks.verify(named, sample=sample, seed=asked.seed, workers=workers, starting=starting)


@contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """Show on a terminal what is being checked and for how long; nothing elsewhere, where it would only be noise."""
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("verify")
        yield lambda check: bar.reset(task, description=f"checking {check}")
