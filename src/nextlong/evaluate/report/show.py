"""Show: tables on the console, or as HTML, Markdown, LaTeX and JSON, with their figures."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, Literal

from markupsafe import Markup
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate.report import figures as drawn
from nextlong.evaluate.report.tables import Cell, MeanStd, ScoreTable, all_tables, mixed_protocols
from nextlong.evaluate.results import ModelResults, Score, read_results
from nextlong.picture import html
from nextlong.report import tables as console_tables
from nextlong.text import Json

_SUFFIXES: Final = (".html", ".md", ".tex", ".json")


def tables(results: Sequence[ModelResults], console: Console) -> None:
    """Print every table."""
    for table in all_tables(results):
        console_tables.show_title(table.title, console)
        rows = [[name, *map(text_of, cells)] for name, cells in table.rows]
        console_tables.show_in_blocks(["", *table.columns], rows, console, names=1)
        console_tables.say(f"{table.about}\n", console, style="dim")


def as_json(results: Sequence[ModelResults]) -> list[Json]:
    """Return every finished task as a plain dictionary."""
    return [
        {"model": one.name, "task": result.task, "length": result.length, "score": result.score}
        | {name: result.values.get(name) for name in ("interval", "n", "refused")}
        for one in results
        for result in one.finished
    ]


def report(
    folders: Sequence[Path],
    *,
    outputs: Sequence[Path],
    figures: Path | None,
    console: Console,
    protocols: Literal["same", "mixed"] = "same",
) -> list[ModelResults]:
    """Write the tables of some results to files by their suffix, and the figures into a folder; return the results.

    Raises EvaluateError for results that were measured with another n, seed, data or prompt format, unless `protocols` is mixed.
    """
    if not folders:
        raise EvaluateError("report: no results are named; run nextlong evaluate report RESULTS… -o table.html")
    for output in outputs:
        if output.suffix not in _SUFFIXES:
            raise EvaluateError(f"--output {output}: end it in {', '.join(_SUFFIXES)}, which choose the format")
        if not output.parent.is_dir():
            raise EvaluateError(
                f"--output {output}: {output.parent} is not a folder; create it, or choose another place"
            )
    results = [read_results(folder) for folder in folders]
    names = [one.name for one in results]
    if duplicate := next((name for name in names if names.count(name) > 1), None):
        raise EvaluateError(
            f"two results have the label {duplicate!r}; evaluate one of them again with another --label (finished tasks are reused)"
        )
    if protocols == "same" and (mixed := mixed_protocols(results)):
        more = f" (and {len(mixed) - 1} more)" if mixed[1:] else ""
        raise EvaluateError(
            f"{mixed[0]}{more}; evaluate them in the same way, or give --mixed, which compares them and marks none as best"
        )
    all_of_them = list(all_tables(results))
    if not all_of_them:
        raise EvaluateError(
            f"{folders[0]} holds no finished task; run nextlong evaluate MODEL --out {folders[0]} again"
        )
    made = list(drawn.all_figures(results)) if figures or any(output.suffix == ".html" for output in outputs) else []
    for output in outputs:
        if output.suffix == ".html":
            page = _as_html(all_of_them, made)
        elif output.suffix == ".json":
            page = json.dumps(as_json(results), indent=1, ensure_ascii=False) + "\n"
        else:
            page = as_markdown(all_of_them) if output.suffix == ".md" else _as_latex(all_of_them)
        store.write_text(output, page)
        console_tables.say(f"wrote {output}", console)
    if figures is not None:
        with store.explained(figures):
            figures.mkdir(parents=True, exist_ok=True)
            for figure in made:
                store.write_text(figures / f"{figure.name}.svg", figure.svg + "\n")
                temporary = figures / f".{figure.name}.png.tmp"
                temporary.write_bytes(figure.png)
                temporary.replace(figures / f"{figure.name}.png")
        console_tables.say(f"wrote {len(made)} figures as SVG and PNG to {figures}", console)
    return results


def text_of(cell: Cell) -> str:
    """Return a number with two digits, a score with its interval, a mean with its spread, a word as it is, or a dash."""
    if isinstance(cell, MeanStd):
        return _number(cell.mean) if cell.deviation is None else f"{_number(cell.mean)} ± {_number(cell.deviation)}"
    if isinstance(cell, Score):
        if cell.interval is None:
            return f"{cell.value:.2f}"
        low, high = cell.interval
        digits = 2 if 0 < high - low < 1 else 1
        return f"{cell.value:.2f} [{low:.{digits}f}, {high:.{digits}f}]"
    if cell is None or isinstance(cell, str):
        return cell or "–"
    return f"{cell:.2f}"


def _number(value: float) -> str:
    digits = 2 if abs(value) >= 1 else 3
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no "-0.000"


def _cells(table: ScoreTable, row: int, plain: Callable[[str], str], bold: str) -> list[str]:
    """Return the cells of a row; `bold` is the format of those that are best."""
    texts = [plain(text_of(cell)) for cell in table.rows[row][1]]
    return [bold.format(text) if table.is_best(row, column) else text for column, text in enumerate(texts)]


def as_markdown(tables: Sequence[ScoreTable], *, lead: Sequence[str] = ()) -> str:
    """Return tables as Markdown, below the paragraphs `lead`."""
    parts = list(lead)
    for table in tables:
        head = f"| | {' | '.join(table.columns)} |\n{'|---' * (len(table.columns) + 1)}|"
        lines = [
            f"| {name} | {' | '.join(_cells(table, row, str, '**{}**'))} |" for row, (name, _) in enumerate(table.rows)
        ]
        parts.append("\n".join([f"## {table.title}\n\n{table.about}\n\n{head}", *lines]))
    return "\n\n".join(parts) + "\n"


def _as_latex(tables: Sequence[ScoreTable]) -> str:
    """Return tables as LaTeX, in the paper's form; needs no package."""
    parts = []
    for table in tables:
        head = " & ".join(f"\\textbf{{{_latex(column)}}}" for column in ("Model", *table.columns))
        lines = [
            "\\begin{table*}[t]\n\\centering\n\\footnotesize",
            f"\\caption{{{_latex(table.title)}. {_latex(table.about)}}}",
            f"\\begin{{tabular}}{{l{'c' * len(table.columns)}}}\n\\hline\n{head}\\\\\n\\hline",
        ]
        for row, (name, _) in enumerate(table.rows):
            lines.append(" & ".join((_latex(name), *_cells(table, row, _latex, "\\textbf{{{}}}"))) + " \\\\")
        parts.append("\n".join([*lines, "\\hline\n\\end{tabular}\n\\end{table*}"]))
    return "\n\n".join(parts) + "\n"


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "–": "--", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"±": r"$\pm$", "−": "$-$"}
    return "".join(special.get(one, f"\\{one}" if one in "&%$#_{}" else one) for one in text)


def _as_html(tables: Sequence[ScoreTable], figures: Sequence[drawn.Figure]) -> str:
    """Return one page of tables, then figures. It loads nothing from elsewhere."""
    drawings = [(figure.title, Markup(figure.svg)) for figure in figures]
    return html.render("evaluate/report/page.html", tables=tables, text_of=text_of, figures=drawings)
