"""Run, from the command line: carry out a recipe, say what it made, and leave a page of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
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
    if others := made.other_variants():
        variant = _variant(made.variant.name, others, made.path, is_given=recipe.name is not None)
        tables.show_facts([("variant", variant)], console, beside=facts)


def _variant(name: str, others: Sequence[str], run_dir: Path, *, is_given: bool) -> str:
    """Say what a variant is called, beside which others, and how to call it otherwise where that would help."""
    told = f"{name}, beside {', '.join(others)} (nextlong list {run_dir})"
    return told if is_given or len(name) <= LONG_NAME else f"{told}; --name NAME gives it a shorter name"
