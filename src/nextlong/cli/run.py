"""Run, from the command line: carry out a recipe, say what it made, and leave a page of it."""

from __future__ import annotations

import json
from typing import Literal

from rich.console import Console

from nextlong.artefacts.names import LONG_NAME
from nextlong.engine.progress import reporter_for
from nextlong.recipe import Recipe
from nextlong.report import as_json, summary, tables
from nextlong.report.page import at_end
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
    (made,) = written.runs
    if form == "json":
        at_end.leave([made])
        print(json.dumps(as_json.run_of(written), indent=1, ensure_ascii=False))
        return
    facts = summary.lines(recipe, written.done)
    tables.show_facts(facts, console)
    tables.show_facts([("report", at_end.leave([made]))], console, beside=facts)
    if others := made.other_states():
        state = f"{made.state.name}, beside {', '.join(others)} (nextlong list {made.path})"
        if recipe.name is None and len(made.state.name) > LONG_NAME:
            state += "; run again with --name NAME to call it by a shorter one"
        tables.show_facts([("state", state)], console, beside=facts)
