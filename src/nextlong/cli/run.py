"""Run, from the command line: carry out a recipe and say what it made."""

from __future__ import annotations

from typing import Literal

from rich.console import Console

from nextlong.engine.progress import reporter_for
from nextlong.recipe import Recipe
from nextlong.report import summary
from nextlong.runs.export import run


def run_and_tell(recipe: Recipe, console: Console, *, changed_inputs: Literal["refuse", "accept"] = "refuse") -> None:
    """Carry out a recipe with progress on the console, then print what it made and where."""
    written = run(recipe, reporter=reporter_for(console), changed_inputs=changed_inputs)
    summary.tell(summary.lines(recipe, written.done), console)
    (made,) = written.runs
    if others := made.other_states():
        summary.tell([("state", f"{made.state.name}, beside {', '.join(others)} (nextlong list {made.path})")], console)
