"""Tables: scores as the paper lays them out, with their spread over seeds, and the paper's numbers beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from nextlong.evaluate.lengths import short
from nextlong.evaluate.report.tables import Cell, Table
from nextlong.replicate import published
from nextlong.replicate.carry_out import Replicated
from nextlong.replicate.collect import Column, Row, difference, is_decided, measured_columns, rows, spread
from nextlong.replicate.data import HELD_OUT_NEGATIVES
from nextlong.replicate.presets import preset_of
from nextlong.replicate.recipe import Experiment

_TITLES: Final = {
    "methods": "Methods",
    "granularity": "Granularity, chunk.max_chars",
    "position": "Position of the meta-chunk",
    "negatives": "Choice of negatives",
}
_BY_LENGTH: Final = ("key_values", "copying", "needle", "json_kv", "ruler")


def all_tables(done: Replicated) -> Iterator[Table]:
    """Yield the tables of every experiment."""
    for experiment in done.recipe.experiments:
        measured = rows(done, experiment)
        title = _TITLES[experiment]
        yield _scores(done, experiment, measured)
        yield from _differences(done, experiment, measured)
        yield from _by_length(done, title, measured)
        yield from _by_distance(title, measured)
        yield _data(done, title, measured)


def _table(title: str, about: str, columns: Sequence[str], cells: Sequence[tuple[str, tuple[Cell, ...]]]) -> Table:
    return Table(title, about, tuple(columns), tuple(cells), rows_are="parts")  # no bold: a lead may be noise


def _scores(done: Replicated, experiment: Experiment, measured: Sequence[Row]) -> Table:
    columns = measured_columns(measured)
    cells = [(row.name, tuple(spread(row.values(column.key)) for column in columns)) for row in measured]
    lengths = ", ".join(map(short, done.recipe.measure.lengths))
    about = (
        f"Mean ± standard deviation over {_seeds(measured)}; means over {lengths} tokens. Value chosen: percent, chance 12.5. "
        "Copying: nats a token that an earlier copy saves. Gain: nats a token that the earlier meta-chunks save on held-out "
        "documents; loss: of those meta-chunks, nats a token. Needle, JSON KV, RULER: percent, 0 without an answer. Thirds: "
        "share of the last token's attention."
    )
    if preset := preset_of(done.recipe):
        about += f" These numbers can show {preset.shows} They cannot show {preset.cannot}"
    if experiment not in published.TABLES:
        about += f" The {published.SOURCES[experiment]}."
    return _table(f"{_TITLES[experiment]}: scores", about, [column.title for column in columns], cells)


def _ours(done: Replicated, experiment: Experiment, measured: Sequence[Row]) -> Row | None:
    """Return the row of nextlong as it comes; None if it is not compared."""
    best = done.recipe.usual_value(experiment)
    return next((row for row in measured if row.arm is not None and row.arm.value == best), None)


def _differences(done: Replicated, experiment: Experiment, measured: Sequence[Row]) -> Iterator[Table]:
    """Yield the paper's claim: nextlong as it comes, minus each other, here and there."""
    title, ours = _TITLES[experiment], _ours(done, experiment, measured)
    theirs = published.TABLES.get(experiment, {})
    if ours is None:
        return
    best = ours.arm.value if ours.arm else None
    columns = [column for column in measured_columns(measured) if column.better]
    said = ("Avg.", "Recall", "RULER")
    places = [published.COLUMNS.index(name) for name in said] if theirs else []
    cells = []
    for row in measured:
        if row is ours:
            continue
        here = [difference(ours.values(column.key), row.values(column.key)) for column in columns]
        there = theirs.get(str(row.arm.value)) if row.arm else (published.PRETRAINED if theirs else None)
        beside = [None if there is None else theirs[str(best)][place] - there[place] for place in places]
        cells.append((f"{ours.name} − {row.name}", (*here, *beside)))
    titles = [f"{column.title} ({'+' if column.better == 'higher' else '−'} is better)" for column in columns]
    about = f"Mean difference between models of the same seed ± its standard error, over {_seeds(measured)}."
    if theirs:
        about += f" Last columns: the paper's, percent points of Llama-3-8B at 128K ({published.SOURCES[experiment]})."
    yield _table(
        f"{title}: {ours.name} against the others",
        about,
        [*titles, *(f"Paper: {name}" for name in said if theirs)],
        cells,
    )
    if theirs:
        listed = [("not extended", published.PRETRAINED), *theirs.items()]
        yield _table(
            f"{title}: the paper's numbers",
            f"{published.SOURCES[experiment]}: not measured here.",
            published.COLUMNS,
            listed,
        )


def _by_length(done: Replicated, title: str, measured: Sequence[Row]) -> Iterator[Table]:
    lengths = sorted(done.recipe.measure.lengths)
    for column in measured_columns(measured):
        if column.key in _BY_LENGTH:
            cells = [
                (row.name, tuple(spread(row.values_at(column.key, length)) for length in lengths)) for row in measured
            ]
            yield _table(
                f"{title}: {column.title} by length", f"{column.unit}.".capitalize(), list(map(short, lengths)), cells
            )


def _by_distance(title: str, measured: Sequence[Row]) -> Iterator[Table]:
    for side in HELD_OUT_NEGATIVES:
        parts = sorted({part for row in measured for scores in row.seeds for part in scores.gains[side]})
        cells = [(row.name, tuple(spread(row.gains(side, part)) for part in parts)) for row in measured]
        about = (
            f"Held-out documents as NExtLong extends them, compose.negatives={side}: what the earlier "
            "meta-chunks save, nats a token, by "
            "the tokens to the nearest of them. Models extended on NExtLong's data know the form of these "
            "sequences; the others do not."
        )
        columns = [f"{low:,} to {high:,}" for low, high in parts]
        yield _table(f"{title}: gain by distance, {side} negatives", about, columns, cells)


def _data(done: Replicated, title: str, measured: Sequence[Row]) -> Table:
    columns = ("Sequences", "Read, times", "Cosine of negatives", "Documents", "Chars a token")
    cells = []
    for row in measured:
        if row.arm is not None:
            stats = row.arm.stats
            count = stats.sequences
            epochs = done.recipe.extend.trained_tokens / (count * done.recipe.extend.tokens)
            cosine = stats.similarity.p50 if stats.similarity else None
            cells.append(
                (row.name, (f"{count:,}", epochs, cosine, f"{stats.distinct_documents:,}", stats.chars_per_token))
            )
    about = (
        f"Every model is extended by {done.recipe.extend.trained_tokens:,} tokens, "
        f"{done.recipe.extend.steps:,} steps; a method that "
        "gives fewer sequences has them read more often. Cosine: median over the negatives, or the documents behind the first."
    )
    return _table(f"{title}: data", about, columns, cells)


def _seeds(measured: Sequence[Row]) -> str:
    count = len(measured[0].seeds)
    return f"{count} seeds" if count > 1 else "one seed, so there is no spread"


def verdicts(done: Replicated) -> Iterator[str]:
    """Yield what the numbers of each experiment say of nextlong as it comes, in words, whatever that is."""
    for experiment in done.recipe.experiments:
        measured = rows(done, experiment)
        ours = _ours(done, experiment, measured)
        if ours is not None:
            yield (
                f"{_TITLES[experiment]}: "
                f"{_verdict(ours, [row for row in measured if row not in (ours, measured[0])], measured_columns(measured))}"
            )


def _verdict(ours: Row, others: Sequence[Row], columns: Sequence[Column]) -> str:
    decided: dict[str, list[str]] = {"ahead of": [], "behind": []}
    count = undecided = 0
    for column in (one for one in columns if one.better):
        for row in others:
            count += 1
            gap = difference(ours.values(column.key), row.values(column.key))
            if gap is None or not is_decided(gap, seeds=len(ours.seeds)):
                undecided += 1
                continue
            is_ahead = (gap.mean > 0) == (column.better == "higher")
            decided["ahead of" if is_ahead else "behind"].append(f"{row.name} ({column.title})")
    parts = [f"{ours.name} is {where} {', '.join(names)}" for where, names in decided.items() if names]
    parts.append(
        f"{undecided} of {count} comparisons show no difference beyond chance (paired t-test over seeds, 95 %; of {count}, about "
        f"{count / 20:.0f} would show one by chance alone)"
    )
    return "; ".join(parts) + "."
