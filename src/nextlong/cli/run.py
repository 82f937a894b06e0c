"""Run, from the command line: carry out a recipe and say what it made."""

from __future__ import annotations

import json
from typing import Literal

from rich.console import Console

from nextlong.engine.progress import reporter_for
from nextlong.recipe import Recipe
from nextlong.report import as_json, summary
from nextlong.runs.export import run


def run_and_tell(
    recipe: Recipe,
    console: Console,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    form: Literal["text", "json"] = "text",
) -> None:
    """Carry out a recipe, then print what it made and where; as JSON, progress goes to standard error."""
    progress = console if form == "text" else Console(stderr=True)
    written = run(recipe, reporter=reporter_for(progress), changed_inputs=changed_inputs)
    if form == "json":
        print(json.dumps(as_json.run_of(written), indent=1, ensure_ascii=False))
        return
    told = summary.lines(recipe, written.done)
    (made,) = written.runs
    if others := made.other_states():
        told.append(("state", f"{made.state.name}, beside {', '.join(others)} (nextlong list {made.path})"))
    summary.tell(told, console)
