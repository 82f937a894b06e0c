"""Array jobs, from the command line: one step's tasks, shared by many processes.

nextlong run my.yaml --before embed                    # once: what embed needs
nextlong run my.yaml --only-step embed --tasks 3/64    # in each of 64 jobs: every 64th task, from the third on
nextlong run my.yaml                                   # once: confirms what they wrote, and goes on
"""

from __future__ import annotations

import argparse
import re
from typing import Literal

from rich.console import Console

from nextlong.cli.asked import print_json
from nextlong.engine.progress import reporter_for
from nextlong.errors import NextlongError
from nextlong.plural import counted
from nextlong.recipe import Recipe


def add(run: argparse.ArgumentParser) -> None:
    """Add the options of array jobs to `run`."""
    run.add_argument("--before", metavar="STEP", help="carry out what a step needs, and stop there")
    run.add_argument("--only-step", metavar="STEP", help="only tasks of this step, beside other jobs that do the same")
    run.add_argument("--tasks", metavar="K/N", help="which of them: every Nth, from the Kth on (default: 1/1)")


def is_asked(asked: argparse.Namespace) -> bool:
    """Say whether one of these options was given. Raises NextlongError for those that do not go together."""
    if asked.tasks and not asked.only_step:
        raise NextlongError(f"--tasks {asked.tasks} needs the step whose tasks are shared; add --only-step embed")
    if asked.before and asked.only_step:
        raise NextlongError(
            "--before and --only-step are two jobs; say --before first, then --only-step in each array job"
        )
    if asked.only_step and asked.accept_changed_inputs:
        raise NextlongError(
            "--accept-changed-inputs reads inputs again, which --only-step does not; say it with --before"
        )
    return bool(asked.before or asked.only_step)


def run(recipe: Recipe, asked: argparse.Namespace, console: Console) -> None:
    """Carry out what the options ask for, and say what came of it; as JSON on standard output, whatever the console is."""
    from nextlong import array_jobs

    if asked.before:
        changed: Literal["accept", "refuse"] = "accept" if asked.accept_changed_inputs else "refuse"
        needed = array_jobs.run_before(recipe, asked.before, reporter=reporter_for(console), changed_inputs=changed)
        if asked.json:
            print_json({"step": asked.before, "needed": needed})
        else:
            console.print(f"done: all that {asked.before} needs", highlight=False)
        return
    share = _share(asked.tasks or "1/1")
    ran, total = array_jobs.run_share(recipe, asked.only_step, part=share, reporter=reporter_for(console))
    if asked.json:
        print_json({"step": asked.only_step, "ran": ran, "tasks": total})
        return
    done = (
        f"{asked.only_step}: {ran:,} of {counted(total, 'task')} done here"
        if total
        else f"{asked.only_step} was done already"
    )
    console.print(f"{done}; `nextlong run` goes on once every share is there", highlight=False)


def _share(asked: str) -> tuple[int, int]:
    match = re.fullmatch(r"(\d+)/(\d+)", asked)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise NextlongError(f"--tasks {asked} is not a share; write K/N, such as 3/64: the third of 64, counted from 1")
    return int(match[1]), int(match[2])
