"""Tables: results as rows, with the models side by side, as text, Markdown or LaTeX; and the paper's columns (§4.1, Tables 1, 2).

A cell that was not measured is a dash; a score is followed by its bootstrap 95 % interval, a row by its number of questions. A
score is bold if it is greater than every other of its column and differs from each significantly (`results.is_better`).

The paper's average is the mean of HELMET's five categories and RULER, each the mean over its tasks, over the lengths 8K to 128K; it
gives the 62.58 and 65.76 of the paper from its own columns. Two columns exist in two protocols, which are never mixed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal

from nextlong.evaluate.probe import Probe
from nextlong.evaluate.registry import all_tasks, registered
from nextlong.evaluate.results import (
    ModelResults,
    Result,
    Score,
    differences,
    is_better,
    of_answers,
)
from nextlong.evaluate.task import Task, short
from nextlong.text import Json

CATEGORIES: Final = ("Recall", "RAG", "ICL", "Re-rank", "LongQA", "RULER")
_LENGTHS: Final = (8192, 16_384, 32_768, 65_536, 131_072)
_OTHER_PROTOCOL: Final = {"ICL": "ICL 2024", "RULER": "HELMET-RULER"}
_HELMET: Final = (
    "Recall",
    "RAG",
    "ICL",
    "Cite",
    "Re-rank",
    "LongQA",
    "Summ",
)  # all of it, in the order of its tables
# Tasks that are scored by a metric, by a judge of the user's, or by HELMET's own.
_SEVERAL_WAYS: Final = (
    "narrativeqa",
    "infbench_sum",
    "multi_lexsum",
    "alce_asqa",
    "alce_qampari",
)
_Cell = float | Score | str | None


@dataclass(frozen=True)
class ScoreTable:
    """A title, a description, and named columns and rows of numbers."""

    title: str
    about: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, tuple[_Cell, ...]], ...]
    rows_are: Literal["rivals", "parts"] = "rivals"

    def all_rows(
        self, plain: Callable[[str], str] = str, bold: str = "{}"
    ) -> list[list[str]]:
        """Return names and cells as text; `bold` is the format of scores significantly above all others of their column."""
        rows = []
        for number, (name, cells) in enumerate(self.rows):
            others = [
                row for place, (_, row) in enumerate(self.rows) if place != number
            ]
            shown = [plain(name), *(plain(_text_of(cell)) for cell in cells)]
            for column, cell in enumerate(cells if self.rows_are == "rivals" else ()):
                rivals = [
                    other for row in others if isinstance(other := row[column], Score)
                ]
                if isinstance(cell, Score) and is_better(cell, rivals):
                    shown[column + 1] = bold.format(shown[column + 1])
            rows.append(shown)
        return rows


def tasks_of(category: str) -> list[Task]:
    return [task for task in all_tasks().values() if task.category == category]


def _mean(scores: Sequence[Score | None]) -> Score | None:
    """Return the mean of scores; None if one is missing, or if there are no scores."""
    known = [score for score in scores if score is not None]
    return Score.mean(known) if known and len(known) == len(scores) else None


def mean_score(
    results: ModelResults, tasks: Sequence[Task], length: int
) -> Score | None:
    return _mean([results.score(task.name, length) for task in tasks])


def shared_tasks(results: Sequence[ModelResults], category: str) -> list[Task]:
    """Return the tasks of a category that were measured wherever any of them was, by every model, and scored in one way."""
    names = {task.name for task in tasks_of(category)}
    # Means over different tasks would compare nothing: a task counts only where all models have it, scored alike.
    measured = [
        (one, result.length)
        for one in results
        for result in one.finished
        if result.task in names
    ]

    def is_shared(name: str) -> bool:
        is_one_way = (
            len({way for one in results for way in one.scored_by(name)}) == 1
            or name not in _SEVERAL_WAYS
        )
        return is_one_way and all(
            one.score(name, length) is not None for one, length in measured
        )

    return [task for task in tasks_of(category) if measured and is_shared(task.name)]


def title_of(category: str, tasks: Sequence[Task]) -> str:
    """Return the category's name, with how many of its tasks were measured where it is not all."""
    total = len(tasks_of(category))
    return (
        category
        if len(tasks) == total
        else f"{category}, {len(tasks)} of {total} tasks"
    )


def lengths_of(results: Sequence[ModelResults]) -> list[int]:
    """Return every length that was measured, ascending."""
    return sorted(
        {
            result.length
            for one in results
            for result in one.finished
            if result.length is not None
        }
    )


def mixed_protocols(results: Sequence[ModelResults]) -> list[str]:
    """Describe where models were measured in different ways: task, length, and the differences."""
    seen: dict[tuple[str, int | None], tuple[str, Result]] = {}
    found = []
    for one in results:
        for result in one.finished:
            # Every model is compared with the first that has the same task and length.
            name, first = seen.setdefault(
                (result.task, result.length), (one.name, result)
            )
            if several := differences(first.protocol, result.protocol):
                what = f"{result.task} at {short(result.length)}"
                found.append(f"{what}: {name} and {one.name} have {', '.join(several)}")
    return found


def all_tables(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    """Yield every table that there are results for; scores get a last column with the number of questions of each row."""
    mixed = mixed_protocols(results)
    for table in (
        *_of_the_paper(results),
        *_by_category(results),
        *(_by_part(results, task) for task in all_tasks().values() if task.splits),
        *(
            _of_probe(results, probe)
            for probe in registered().values()
            if isinstance(probe, Probe)
        ),
    ):
        cells_of_all = [cell for _, cells in table.rows for cell in cells]
        if all(cell is None for cell in cells_of_all):
            continue
        are_compared, about = (
            table.rows_are == "rivals" and len(table.rows) > 1,
            table.about,
        )
        columns, rows = table.columns, list(table.rows)
        if any(isinstance(cell, Score) for cell in cells_of_all):
            columns = (*columns, "n")
            for number, (name, cells) in enumerate(rows):
                scores = [cell for cell in cells if isinstance(cell, Score)]
                # The fewest and the most questions of a score in the row; one number if they are equal.
                counts = sorted({score.n for score in scores})
                count = "–".join(
                    f"{one:,}" for one in dict.fromkeys((*counts[:1], *counts[-1:]))
                )
                refused = max((score.refused for score in scores), default=0)
                rows[number] = (
                    name,
                    (*cells, f"{count}, {refused:,} refused = 0" if refused else count),
                )
            about += " In brackets: bootstrap 95 % intervals over questions."
            if are_compared:
                about += " Bold: better than every other row, p < 0.05 in paired permutation tests; not corrected for columns."
        if mixed and are_compared:
            about += f" Mixed protocols, so no score is bold: {'; '.join(mixed)}."
        yield replace(table, about=about, columns=columns, rows=tuple(rows))


def _of_the_paper(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    """Yield the paper's table, and one of HELMET's seven categories where Cite or Summ were measured."""
    measured = {
        task.category
        for task in all_tasks().values()
        if any(one.of(task.name) for one in results)
    }
    # A column has the other protocol where only that was measured, by any model.
    others = {
        name: other
        for name, other in _OTHER_PROTOCOL.items()
        if other in measured and name not in measured
    }
    categories = [others.get(name, name) for name in CATEGORIES]
    rows = []
    for one in results:
        # Each cell is a mean over lengths of means over tasks, as in Tables 1 and 2; one missing part leaves a dash.
        scores = [
            _mean([mean_score(one, tasks_of(name), length) for length in _LENGTHS])
            for name in categories
        ]
        rows.append((one.name, (_mean(scores), *scores)))
    about = "Mean over 8K, 16K, 32K, 64K and 128K; the average is over the six columns (paper, Tables 1 and 2)."
    ways = {
        one.name: " and ".join(sorted(one.scored_by("narrativeqa"))) for one in results
    }
    if any(ways.values()):
        about += f" NarrativeQA is scored by {'; '.join(f'{way} ({name})' for name, way in ways.items() if way)}."
    yield ScoreTable("HELMET and RULER", about, ("Avg.", *categories), tuple(rows))
    rows = []
    for length in lengths_of(results):
        for one in results:
            helmet = {
                category: mean_score(one, tasks_of(category), length)
                for category in _HELMET
            }
            # The other five categories alone are in the table above, and in those by length.
            if helmet["Cite"] or helmet["Summ"]:
                rows.append(
                    (
                        f"{one.name}, {short(length)}",
                        (_mean(list(helmet.values())), *helmet.values()),
                    )
                )
    about = "Percent; the average is HELMET's, over its seven categories. How LongQA, Cite and Summ are scored: by task, below."
    yield ScoreTable(
        "HELMET, all seven categories", about, ("Avg.", *_HELMET), tuple(rows), "parts"
    )


def _by_category(results: Sequence[ModelResults]) -> Iterator[ScoreTable]:
    lengths = lengths_of(results)
    columns = tuple(map(short, lengths))
    for category in dict.fromkeys(
        (*CATEGORIES, *(task.category for task in all_tasks().values()))
    ):
        tasks = shared_tasks(results, category)
        rows = tuple(
            (one.name, tuple(mean_score(one, tasks, length) for length in lengths))
            for one in results
        )
        yield ScoreTable(
            f"{title_of(category, tasks)}, by length",
            "Mean over the tasks, percent.",
            columns,
            rows,
        )
    for one in results:
        suites: dict[str, list[tuple[str, tuple[_Cell, ...]]]] = {}
        for task in all_tasks().values():
            scores = tuple(one.score(task.name, length) for length in lengths)
            ways = (
                sorted(one.scored_by(task.name)) if task.name in _SEVERAL_WAYS else []
            )
            name = f"{task.name} ({' and '.join(ways)})" if ways else task.name
            suites.setdefault(task.suite, []).extend(
                [(name, scores)] if any(scores) else []
            )
        for suite, named in suites.items():
            yield ScoreTable(
                f"{one.name}: suite {suite}, by task",
                "Percent.",
                columns,
                tuple(named),
                "parts",
            )


def _by_part(results: Sequence[ModelResults], task: Task) -> ScoreTable:
    rows: list[tuple[str, tuple[_Cell, ...]]] = []
    for one, result in (
        (model, found) for model in results for found in model.of(task.name)
    ):
        cells: list[_Cell] = [result.measured]
        for _, detail, value in task.splits:
            # The score over the samples whose detail has a value, refused ones included.
            samples = [
                line
                for line in result.values["samples"]
                if line.get("details", {}).get(detail) == value
            ]
            key, refused = (
                f"{task.name} {detail}={value}",
                sum(bool(line.get("refused")) for line in samples),
            )
            kept = {
                "task": key,
                "metric": task.metric,
                "samples": samples,
                "n": len(samples),
                "refused": refused,
            }
            part = Result(result.path, {**result.values, **kept})
            cells.append(
                Score(float(part.outcomes[0].mean()), ((1.0, part),))
                if samples
                else None
            )
        rows.append((f"{one.name}, {short(result.length)}", tuple(cells)))
    details = " and ".join(dict.fromkeys(detail for _, detail, _ in task.splits))
    about = f"{task.metric}, percent; refused questions count as 0 in every column. {task.about}"
    columns = ("Overall", *(heading for heading, _, _ in task.splits))
    return ScoreTable(f"{task.name} by {details}", about, columns, tuple(rows))


def _of_probe(results: Sequence[ModelResults], probe: Probe) -> ScoreTable:
    def cell(result: Result, scores: Json, key: str) -> _Cell:
        """Return a score: with its questions where they are known, or with the interval that the probe states."""
        value, task = scores.get(key), key.removesuffix(" acc")
        if key == probe.metric and scores is result.values["scores"]:
            return result.measured
        if answers := result.values.get("answers", {}).get(task):
            return of_answers({task: answers})
        if key == probe.metric and "interval" in scores:
            low, high = scores["interval"]
            return f"{value:.3f} [{low:.3f}, {high:.3f}]"
        return str(value) if isinstance(value, int) else value

    rows: list[tuple[str, tuple[_Cell, ...]]] = []
    for one, result in (
        (model, found) for model in results for found in model.of(probe.name)
    ):
        length = None if result.length is None else short(result.length)
        for part, scores in probe.rows(result.values):
            name = ", ".join(filter(None, (one.name, length, part)))
            rows.append(
                (
                    name,
                    tuple(cell(result, scores, key) for key in probe.columns.values()),
                )
            )
    rows_are: Literal["rivals", "parts"] = (
        "rivals" if probe.lengths is None else "parts"
    )
    return ScoreTable(
        probe.category, probe.about, tuple(probe.columns), tuple(rows), rows_are
    )


def _text_of(cell: _Cell) -> str:
    """Return a number with two digits, a score with its interval, a word as it is, or a dash."""
    if isinstance(cell, Score):
        if cell.interval is None:
            return f"{cell.value:.2f}"
        low, high = cell.interval
        digits = 2 if 0 < high - low < 1 else 1
        return f"{cell.value:.2f} [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{cell:.2f}" if isinstance(cell, float | int) else cell or "–"


def as_markdown(tables: Sequence[ScoreTable], *, level: int = 2) -> str:
    """Return tables as Markdown, their titles as headings of a level."""
    parts = []
    for table in tables:
        head = (
            f"| | {' | '.join(table.columns)} |\n{'|---' * (len(table.columns) + 1)}|"
        )
        lines = [f"| {' | '.join(row)} |" for row in table.all_rows(bold="**{}**")]
        parts.append(
            "\n".join(
                [f"{'#' * level} {table.title}\n\n{table.about}\n\n{head}", *lines]
            )
        )
    return "\n\n".join(parts) + "\n"


def as_latex(tables: Sequence[ScoreTable]) -> str:
    """Return tables as LaTeX, in the paper's form; needs no package."""
    # Characters that LaTeX reads as commands, and signs that its text fonts lack.
    special = {
        "\\": r"\textbackslash{}",
        "–": "--",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
    }
    special |= {"±": r"$\pm$", "−": "$-$", **{one: f"\\{one}" for one in "&%$#_{}"}}
    escapes = str.maketrans(special)

    def plain(text: str) -> str:
        return text.translate(escapes)

    parts = []
    for table in tables:
        head = " & ".join(
            f"\\textbf{{{plain(column)}}}" for column in ("Model", *table.columns)
        )
        lines = [
            "\\begin{table*}[t]\n\\centering\n\\footnotesize",
            f"\\caption{{{plain(table.title)}. {plain(table.about)}}}",
            f"\\begin{{tabular}}{{l{'c' * len(table.columns)}}}\n\\hline\n{head}\\\\\n\\hline",
        ]
        lines += [
            " & ".join(row) + " \\\\" for row in table.all_rows(plain, "\\textbf{{{}}}")
        ]
        parts.append("\n".join([*lines, "\\hline\n\\end{tabular}\n\\end{table*}"]))
    return "\n\n".join(parts) + "\n"
