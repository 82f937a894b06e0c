"""Tables: results as rows, and rows as HTML, Markdown or LaTeX.

A cell that was not measured is a dash; a score is followed by its bootstrap 95 % interval, a row by its number of questions. Bold
is a score that is greater than every other of its column and differs from each significantly (`statistics.is_better`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Final, Literal, NamedTuple

import numpy as np

from nextlong.evaluate.lengths import short
from nextlong.evaluate.probes.short import TASKS as SHORT_TASKS
from nextlong.evaluate.report import paper
from nextlong.evaluate.results import Result, Results
from nextlong.evaluate.statistics import Score, differences, is_better
from nextlong.evaluate.task import Task, all_tasks


class Spread(NamedTuple):
    """A mean over repeated trainings, and how far they lie apart: the standard deviation, or an error; nothing of a single one."""

    mean: float
    deviation: float | None


Cell = float | Spread | Score | str | None
_COPYING: Final = ("with_copy_nats", "without_copy_nats")


@dataclass(frozen=True)
class Table:
    """A title, what it shows, named columns and rows of numbers, each behind its name."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[Cell, ...]], ...]
    rows_are: Literal["rivals", "parts"] = "rivals"

    def is_best(self, row: int, column: int) -> bool:
        """Say whether a score is significantly greater than every other of its column."""
        cell = self.rows[row][1][column]
        if self.rows_are != "rivals" or not isinstance(cell, Score):
            return False
        others = [cells[column] for number, (_, cells) in enumerate(self.rows) if number != row]
        return is_better(cell, [other for other in others if isinstance(other, Score)])


def _with_counts(table: Table) -> Table:
    """Return a table of scores with a last column: how many questions each score of the row is the mean of."""
    if not any(isinstance(cell, Score) for _, cells in table.rows for cell in cells):
        return table
    rows = tuple((name, (*cells, _count(cells))) for name, cells in table.rows)
    about = f"{table.about} In brackets: bootstrap 95 % intervals over questions."
    if table.rows_are == "rivals" and len(rows) > 1:
        about += " Bold: better than every other row, p < 0.05 in paired permutation tests; not corrected for columns."
    return replace(table, about=about, columns=(*table.columns, "n"), rows=rows)


def _count(cells: Sequence[Cell]) -> str:
    """Return the number of questions of a row's scores, and how many of them were refused and count as 0."""
    scores = [cell for cell in cells if isinstance(cell, Score)]
    if not scores:
        return ""
    least, most = min(score.n for score in scores), max(score.n for score in scores)
    refused = max(score.refused for score in scores)
    return (f"{most:,}" if least == most else f"{least:,}–{most:,}") + (f", {refused:,} refused = 0" if refused else "")


def mixed_protocols(results: Sequence[Results]) -> list[str]:
    """Return in words where models were measured in different ways: their tasks, lengths, and what differs."""
    seen: dict[tuple[str, int | None], tuple[str, Result]] = {}
    found = []
    for one in results:
        for result in one.finished:
            name, first = seen.setdefault((result.task, result.length), (one.name, result))
            if several := differences(first.protocol, result.protocol):
                found.append(
                    f"{result.task} at {short(result.length)}: {name} and {one.name} have {', '.join(several)}"
                )
    return found


def all_tables(results: Sequence[Results]) -> Iterator[Table]:
    """Yield every table that there are results for."""
    mixed = mixed_protocols(results)
    for table in (
        _main(results),
        _whole_helmet(results),
        *_by_category(results),
        *_by_task(results),
        *_splits(results),
        _short(results),
        _attention(results),
        _copying(results),
        _dependency(results),
    ):
        if any(cell is not None for _, cells in table.rows for cell in cells):
            counted = _with_counts(table)
            are_compared = mixed and table.rows_are == "rivals" and len(table.rows) > 1
            more = f" Mixed protocols, so nothing of these is bold: {'; '.join(mixed)}." if are_compared else ""
            yield replace(counted, about=counted.about + more)


def _main(results: Sequence[Results]) -> Table:
    rows = []
    categories = paper.columns_of(results)
    for one in results:
        columns = {category: paper.mean_over(one, category, paper.LENGTHS) for category in categories}
        rows.append((one.name, (paper.average(columns), *columns.values())))
    about = "Mean over 8K, 16K, 32K, 64K and 128K; the average is over the six columns (paper, Tables 1 and 2)."
    ways = {one.name: " and ".join(sorted(one.scored_by("narrativeqa"))) for one in results}
    if any(ways.values()):
        about += f" NarrativeQA is scored by {'; '.join(f'{way} ({name})' for name, way in ways.items() if way)}."
    return Table("HELMET and RULER", about, ("Avg.", *categories), tuple(rows))


def _whole_helmet(results: Sequence[Results]) -> Table:
    """Return HELMET's seven categories, a row a model and length; no row unless Cite or Summ were measured."""
    rows = []
    for length in paper.lengths_of(results):
        for one in results:
            cells = [paper.category_score(one, category, length) for category in paper.HELMET]
            if any(cell for cell, category in zip(cells, paper.HELMET, strict=True) if category in ("Cite", "Summ")):
                rows.append((f"{one.name}, {short(length)}", (paper.mean(cells), *cells)))
    about = "Percent; the average is HELMET's, over its seven categories. Ways to score LongQA, Cite and Summ: by task, below."
    return _unranked(Table("HELMET, all seven categories", about, ("Avg.", *paper.HELMET), tuple(rows)))


def _by_category(results: Sequence[Results]) -> Iterator[Table]:
    lengths = paper.lengths_of(results)
    for category in dict.fromkeys((*paper.CATEGORIES, *(task.category for task in all_tasks().values()))):
        tasks = paper.shared_tasks(results, category)
        rows = tuple(
            (one.name, tuple(paper.category_score(one, category, length, tasks) for length in lengths))
            for one in results
        )
        yield Table(
            f"{paper.title_of(category, tasks)}, by length",
            "Mean over the tasks, percent.",
            tuple(map(short, lengths)),
            rows,
        )


def _by_task(results: Sequence[Results]) -> Iterator[Table]:
    lengths = paper.lengths_of(results)
    for one in results:
        for suite in dict.fromkeys(task.suite for task in all_tasks().values()):
            tasks = [task for task in all_tasks().values() if task.suite == suite]
            rows = tuple(
                (_named(one, task), tuple(one.score(task.name, length) for length in lengths)) for task in tasks
            )
            rows = tuple(row for row in rows if any(cell is not None for cell in row[1]))
            yield _unranked(Table(f"{one.name}: suite {suite}, by task", "Percent.", tuple(map(short, lengths)), rows))


def _named(one: Results, task: Task) -> str:
    """Return a task's name; where there are several ways to score it, with the one that was taken."""
    ways = sorted(one.scored_by(task.name)) if task.name in paper.SEVERAL_WAYS else []
    return f"{task.name} ({' and '.join(ways)})" if ways else task.name


def _unranked(table: Table) -> Table:
    return replace(table, rows_are="parts")


def _splits(results: Sequence[Results]) -> Iterator[Table]:
    for task in all_tasks().values():
        parts = [(one.name, part) for one in results for part in one.finished if part.task == task.name and task.splits]
        rows = tuple((f"{name}, {short(part.length)}", (part.measured, *_split(task, part))) for name, part in parts)
        by = " and ".join(dict.fromkeys(detail for _, detail, _ in task.splits))
        yield Table(
            f"{task.name} by {by}",
            f"{task.metric}, percent. {task.about}",
            ("Overall", *(one[0] for one in task.splits)),
            rows,
        )


def _split(task: Task, result: Result) -> Iterator[Cell]:
    answered = [sample for sample in result.values["samples"] if not sample.get("refused")]
    for _, key, wanted in task.splits:
        scores = [sample["scores"][task.metric] for sample in answered if sample["details"][key] == wanted]
        of_split = (f"{task.name} {key}={wanted}", result.length)
        yield Score.of_outcomes(of_split, 100 * np.array(scores), result.protocol) if scores else None


def _short(results: Sequence[Results]) -> Table:
    rows = []
    for one in results:
        short_text = next((result for result in one.finished if result.task == "short"), None)
        answers = short_text.values["answers"] if short_text else {}
        scores = [
            Score.of_outcomes((task, None), 100 * np.array([*answers[task]], float), {}) if task in answers else None
            for task in SHORT_TASKS
        ]
        rows.append((one.name, (paper.mean(scores), *scores)))
    columns = ("Avg.", *SHORT_TASKS.values())
    return Table("Short text", "lm-eval, zero-shot, acc, percent (paper, Table 4).", columns, tuple(rows))


def _attention(results: Sequence[Results]) -> Table:
    names = ("last_third_context", "first_third_whole", "last_third_whole", "first_third_whole_without_sink")
    rows = [
        (
            f"{one.name}, {short(result.length)}",
            (result.measured, *(result.values["scores"].get(name) for name in names)),
        )
        for one in results
        for result in one.finished
        if result.task == "attention"
    ]
    columns = ("First third", "Last third", "First, prompt", "Last, prompt", "First, prompt, no sink")
    about = "Share of the last token's attention, percent, mean over layers and heads (paper, §5.1 and App. B.4)."
    return _unranked(Table("Attention", about, columns, tuple(rows)))


def _copying(results: Sequence[Results]) -> Table:
    rows = []
    for one in results:
        result_of = {(result.task, result.length): result for result in one.finished}
        for length in paper.lengths_of([one]):
            copying, choice = result_of.get(("copying", length)), result_of.get(("key_values", length))
            cells: tuple[Cell, ...] = (
                copying.measured if copying else None,
                *(copying.values["scores"].get(name) if copying else None for name in _COPYING),
                choice.measured if choice else None,
                choice.values["scores"].get("chance") if choice else None,
            )
            if copying or choice:
                rows.append((f"{one.name}, {short(length)}", cells))
    columns = ("Gain", "With a copy", "Without", "Value chosen", "Chance")
    about = (
        "Nats a token that an earlier copy of a passage saves, and its loss with and without; percent of the values that are "
        "chosen right by their key."
    )
    return _unranked(Table("Copying, and values by key", about, columns, tuple(rows)))


def _dependency(results: Sequence[Results]) -> Table:
    rows = []
    for one in results:
        for dependency in (result for result in one.finished if result.task == "dependency"):
            for part in dependency.values["by_distance"]:
                name = f"{one.name}, {part['from_tokens']:,} to {part['to_tokens']:,} tokens"
                low, high = part["interval"]
                losses = (part[f"{kind}_earlier_nats"] for kind in ("with", "replaced", "without"))
                gain = f"{part['gain_nats']:.3f} [{low:.3f}, {high:.3f}]"
                rows.append((name, (*losses, gain, part["gain_over_shorter_nats"], str(part["chunks"]))))
    about = (
        "Loss of meta-chunks, nats a token, by the distance to the nearest earlier meta-chunk: behind the earlier meta-chunks, "
        "behind other text of their length, and without them. Gain: of the first over the second, with its bootstrap 95 % "
        "interval over sequences, and over the third, whose context is shorter."
    )
    columns = ("With", "Replaced", "Without", "Gain", "Gain over shorter", "n")
    return _unranked(Table("Dependence on earlier meta-chunks", about, columns, tuple(rows)))


def text_of(cell: Cell) -> str:
    """Return a number with two digits, a score with its interval, a mean with its spread, a word as it is, or a dash."""
    if isinstance(cell, Spread):
        return _number(cell.mean) if cell.deviation is None else f"{_number(cell.mean)} ± {_number(cell.deviation)}"
    if isinstance(cell, Score):
        interval = cell.interval
        if interval is None:
            return f"{cell.value:.2f}"
        digits = 2 if 0 < interval[1] - interval[0] < 1 else 1
        return f"{cell.value:.2f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"
    if cell is None or isinstance(cell, str):
        return cell or "–"
    return f"{cell:.2f}"


def _number(value: float) -> str:
    digits = 2 if abs(value) >= 1 else 3
    return f"{round(value, digits) + 0.0:.{digits}f}"  # no "-0.000"


def as_markdown(tables: Sequence[Table], *, lead: Sequence[str] = ()) -> str:
    """Return tables as Markdown, below the paragraphs `lead`."""
    parts = list(lead)
    for table in tables:
        lines = [
            f"## {table.title}",
            "",
            table.about,
            "",
            "| | " + " | ".join(table.columns) + " |",
            "|---" * (len(table.columns) + 1) + "|",
        ]
        for number, (name, cells) in enumerate(table.rows):
            shown = [
                f"**{text_of(cell)}**" if table.is_best(number, place) else text_of(cell)
                for place, cell in enumerate(cells)
            ]
            lines.append(f"| {name} | " + " | ".join(shown) + " |")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def as_latex(tables: Sequence[Table], *, lead: Sequence[str] = ()) -> str:
    """Return tables as LaTeX, in the paper's form, below the paragraphs `lead`; needs no package."""
    parts = [_latex(paragraph) for paragraph in lead]
    for table in tables:
        head = " & ".join(f"\\textbf{{{_latex(column)}}}" for column in ("Model", *table.columns))
        lines = [
            "\\begin{table*}[t]\n\\centering\n\\footnotesize",
            f"\\caption{{{_latex(table.title)}. {_latex(table.about)}}}",
            f"\\begin{{tabular}}{{l{'c' * len(table.columns)}}}\n\\hline\n{head}\\\\\n\\hline",
        ]
        for number, (name, cells) in enumerate(table.rows):
            shown = [
                f"\\textbf{{{_latex(text_of(cell))}}}" if table.is_best(number, place) else _latex(text_of(cell))
                for place, cell in enumerate(cells)
            ]
            lines.append(" & ".join((_latex(name), *shown)) + " \\\\")
        lines.append("\\hline\n\\end{tabular}\n\\end{table*}")
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def _latex(text: str) -> str:
    special = {"\\": r"\textbackslash{}", "–": "--", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    special |= {"±": r"$\pm$", "−": "$-$"}
    return "".join(special.get(one, f"\\{one}" if one in "&%$#_{}" else one) for one in text)


def _html_cell(table: Table, row: int, column: int) -> str:
    text = text_of(table.rows[row][1][column])
    return f"<td><b>{text}</b></td>" if table.is_best(row, column) else f"<td>{text}</td>"


def as_html(
    tables: Sequence[Table], figures: Sequence[tuple[str, str]], *, title: str = "Evaluation", lead: Sequence[str] = ()
) -> str:
    """Return one page: paragraphs, tables, then figures, each a title and its SVG. Nothing is fetched from elsewhere."""
    body = [f"<p>{escape(paragraph)}</p>" for paragraph in lead]
    for table in tables:
        head = "".join(f"<th>{escape(column)}</th>" for column in ("", *table.columns))
        rows = "".join(
            f"<tr><th>{escape(name)}</th>{''.join(_html_cell(table, number, place) for place in range(len(cells)))}</tr>\n"
            for number, (name, cells) in enumerate(table.rows)
        )
        body.append(
            f"<h2>{escape(table.title)}</h2>\n<p>{escape(table.about)}</p>\n"
            f"<div class=wide><table>\n<thead><tr>{head}</tr></thead>\n<tbody>\n{rows}</tbody>\n</table></div>"
        )
    body += [f"<figure>{svg}<figcaption>{escape(caption)}</figcaption></figure>" for caption, svg in figures]
    return _PAGE.format(title=escape(title), body="\n".join(body))


_PAGE: Final = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 62rem; padding: 0 1rem; color: #1b1f24;
background: #fff; }} .wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: .25rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #d8dde3; }}
th:first-child {{ text-align: left; font-weight: 500; }}
figure {{ margin: 2rem 0; }} figure svg {{ max-width: 100%; height: auto; }}
figcaption {{ color: #57606a; }}
</style>
</head>
<body>
<h1>{title}</h1>
{body}
</body>
</html>
"""
