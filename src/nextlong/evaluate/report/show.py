"""Show: tables on the console, or with their figures in files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate.report import figures as drawn
from nextlong.evaluate.report.draw import Figure
from nextlong.evaluate.report.tables import Table, all_tables, as_html, as_latex, as_markdown, mixed_protocols, text_of
from nextlong.evaluate.results import Results, read_results
from nextlong.plain_data import Json
from nextlong.report import tables as look

_SUFFIXES = (".html", ".md", ".tex", ".json")


def tables(results: Sequence[Results], console: Console) -> None:
    """Print every table."""
    for table in all_tables(results):
        look.show_title(table.title, console)
        rows = [[name, *map(text_of, cells)] for name, cells in table.rows]
        look.show_in_blocks(["", *table.columns], rows, console, names=1)
        look.say(f"{table.about}\n", console, style="dim")


def as_json(results: Sequence[Results]) -> list[Json]:
    """Return every finished task as a plain dictionary."""
    return [
        {
            "model": one.name,
            "task": result.task,
            "length": result.length,
            "score": result.score,
            "interval": result.values.get("interval"),
            "n": result.values.get("n"),
            "refused": result.values.get("refused"),
        }
        for one in results
        for result in one.finished
    ]


def report(
    folders: Sequence[Path],
    *,
    outputs: Sequence[Path],
    figures: Path | None,
    console: Console,
    form: Literal["text", "json"] = "text",
    protocols: Literal["same", "mixed"] = "same",
) -> list[Results]:
    """Print the tables of some results, or write them to files by their suffix, and the figures into a folder; return them.

    Raises EvaluateError for results that were measured with another n, seed, data or prompt format, unless `protocols` is mixed.
    """
    for output in outputs:
        if output.suffix not in _SUFFIXES:
            raise EvaluateError(f"--output {output}: end it in {', '.join(_SUFFIXES)}, which say how it is written")
        if not output.parent.is_dir():
            raise EvaluateError(
                f"--output {output}: {output.parent} is not a folder; create it, or choose another place"
            )
    results = [read_results(folder) for folder in folders]
    _refuse_same_names(results)
    if protocols == "same" and (mixed := mixed_protocols(results)):
        more = f" (and {len(mixed) - 1} more)" if mixed[1:] else ""
        raise EvaluateError(
            f"{mixed[0]}{more}; measure them alike, or give --mixed, which compares them and marks none as best"
        )
    all_of_them = list(all_tables(results))
    if not all_of_them:
        raise EvaluateError(
            f"{folders[0]} holds no finished task; say nextlong evaluate MODEL --out {folders[0]} again"
        )
    made = list(drawn.all_figures(results)) if figures or any(output.suffix == ".html" for output in outputs) else []
    if not outputs and figures is None and form == "text":
        tables(results, console)
    for output in outputs:
        store.write_text(output, _page(output.suffix, all_of_them, results, made))
        look.say(f"wrote {output}", console)
    if figures is not None:
        write_figures(made, figures)
        look.say(f"wrote {len(made)} figures as SVG and PNG to {figures}", console)
    return results


def _refuse_same_names(results: Sequence[Results]) -> None:
    names = [one.name for one in results]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise EvaluateError(
            f"two results are called {twice!r}; evaluate one of them again with --label NAME, which repeats no measurement"
        )


def _page(suffix: str, tables: Sequence[Table], results: Sequence[Results], made: Sequence[Figure]) -> str:
    if suffix == ".html":
        return as_html(tables, [(figure.title, figure.svg) for figure in made])
    if suffix == ".md":
        return as_markdown(tables)
    if suffix == ".tex":
        return as_latex(tables)
    return json.dumps(as_json(results), indent=1, ensure_ascii=False) + "\n"


def write_figures(made: Sequence[Figure], folder: Path) -> None:
    """Write each figure into a folder, as SVG and PNG."""
    with store.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        for figure in made:
            store.write_text(folder / f"{figure.name}.svg", figure.svg + "\n")
            temporary = folder / f".{figure.name}.png.tmp"
            temporary.write_bytes(figure.png)
            temporary.replace(folder / f"{figure.name}.png")
