"""Run, from the command line: carry out a recipe, say what it made, and leave a page of it."""

from __future__ import annotations

import json
import shlex
from typing import Literal

from rich.console import Console

from nextlong.artefacts import record
from nextlong.artefacts.names import LONG_NAME
from nextlong.engine.progress import reporter_for
from nextlong.recipe import Recipe
from nextlong.report import as_json, summary, tables
from nextlong.report.page import at_end
from nextlong.runs.export import run
from nextlong.runs.opened import Run


def run_and_tell(
    recipe: Recipe,
    console: Console,
    *,
    changed_inputs: Literal["refuse", "accept"] = "refuse",
    form: Literal["text", "json"] = "text",
) -> None:
    """Carry out a recipe, then print what it made and where; as JSON, progress goes to standard error."""
    progress = console if form == "text" else Console(stderr=True)
    before = record.current(record.run_dir_of(recipe))
    written = run(recipe, reporter=reporter_for(progress), changed_inputs=changed_inputs)
    (made,) = written.runs
    if form == "json":
        at_end.leave([made])
        print(json.dumps(as_json.run_of(written), indent=1, ensure_ascii=False))
        return
    facts = [
        *summary.lines(recipe, written.done, folder=written.folder),
        ("look", f"nextlong peek {shlex.quote(str(made))}"),
    ]
    tables.show_facts(facts, console)
    tables.show_facts([("report", at_end.leave([made]))], console, beside=facts)
    if variant := _variant(recipe, made, before):
        tables.show_facts([("variant", variant)], console, beside=facts)


def _variant(recipe: Recipe, made: Run, before: str | None) -> str:
    """Say what a variant is called, what opens it, and what `RUN` opens; "" for a recipe's own settings as they were."""
    name, run_dir = made.variant.name, made.path
    if recipe.overridden:
        own = record.current(run_dir)
        kept = f"{run_dir} still opens {own}" if own else f"{run_dir} opens nothing until the recipe runs without --set"
        hint = "" if recipe.name or len(name) <= LONG_NAME else "; --name NAME gives it a shorter name"
        return f"{name}, opened as {made.variant.named}, because of --set; {kept}{hint}"
    if before not in (None, name):
        return (
            f"{name}, which {run_dir} opens from now on, because the recipe has changed; {run_dir}@{before} opens what it "
            "was before"
        )
    others = made.other_variants()
    return f"{name}, beside {', '.join(others)} (nextlong list {run_dir})" if others else ""
