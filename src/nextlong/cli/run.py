"""Run, from the command line: carry out a recipe, say what it made, and leave a page of it."""

from __future__ import annotations

from typing import Literal

from rich.console import Console

from nextlong.engine.progress import reporter_for
from nextlong.recipe import Recipe
from nextlong.report import summary
from nextlong.report.page import at_end
from nextlong.runs.export import run


def run_and_tell(recipe: Recipe, console: Console, *, changed_inputs: Literal["refuse", "accept"] = "refuse") -> None:
    """Carry out a recipe with progress on the console, then print what it made and where, the page among it."""
    written = run(recipe, reporter=reporter_for(console), changed_inputs=changed_inputs)
    told = summary.lines(recipe, written.done)
    summary.tell(told, console)
    (made,) = written.runs
    summary.tell([("report", at_end.leave([made]))], console, beside=told)
    if others := made.other_states():
        summary.tell(
            [("state", f"{made.state.name}, beside {', '.join(others)} (nextlong list {made.path})")],
            console,
            beside=told,
        )
