"""Report: scores as the paper lays them out, with their spread over seeds and the paper's numbers beside them.

One page in three forms, `OUT/report.html`, `.md`, `.tex`, and `OUT/figures/` as SVG and PNG (figures.py). Written anew each time,
from the files of finished stages alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from rich.console import Console

import nextlong
from nextlong.engine import store
from nextlong.evaluate.report import show
from nextlong.evaluate.report.show import as_html, as_latex, as_markdown
from nextlong.evaluate.report.tables import Cell, Table
from nextlong.evaluate.task import short
from nextlong.replicate import figures, scores
from nextlong.replicate.data import HELD_OUT_NEGATIVES
from nextlong.replicate.recipe import Experiment, preset_of
from nextlong.replicate.run import RECIPE, Replicated
from nextlong.replicate.scores import ScoreRow, difference, measured_columns, score_rows, spread
from nextlong.report.tables import say
from nextlong.text import Json

_TITLE: Final = "NExtLong, small-scale replication"
_TITLES: Final = {
    "methods": "Methods",
    "granularity": "Granularity, chunk.max_chars",
    "position": "Position of the meta-chunk",
    "negatives": "Choice of negatives",
}
_PAPER_SHOWN: Final = ("Avg.", "Recall", "RULER")


def as_json(done: Replicated) -> Json:
    """Return the paths of the report and its conclusions, as plain data."""
    page, folder = str(done.out / "report.html"), str(done.out / "figures")
    return {"report": page, "figures": folder, "verdicts": list(verdicts(done))}


def write(done: Replicated, console: Console) -> None:
    """Write the report and its figures, and print the conclusions and the paths."""
    lead, tables, made = list(_lead(done)), list(all_tables(done)), list(figures.all_figures(done))
    with store.explained(done.out):
        show.write_figures(made, done.out / "figures")
        shown = "\n\n".join(f"![{figure.title}](figures/{figure.name}.svg)" for figure in made)
        store.write_text(done.out / "report.md", f"# {_TITLE}\n\n{as_markdown(tables, lead=lead)}\n{shown}\n")
        store.write_text(done.out / "report.tex", as_latex(tables, lead=lead))
        drawn = [(figure.title, figure.svg) for figure in made]
        store.write_text(done.out / "report.html", as_html(tables, drawn, title=_TITLE, lead=lead))
    for line in verdicts(done):
        say(line, console)
    say(f"report: {done.out / 'report.html'} (.md, .tex), {len(made)} figures in {done.out / 'figures'}", console)


def _lead(done: Replicated) -> Iterator[str]:
    """Yield the setup, what it can and cannot show, and the conclusions."""
    recipe, preset = done.recipe, preset_of(done.recipe)
    documents = done.documents.record["documents"]
    named = f", preset {recipe.preset}" if preset else ""
    sources = ", ".join(source.label for source in recipe.corpus.sources)
    yield (
        f"A replication of arXiv 2501.12766 by nextlong {nextlong.__version__}{named}; the recipe is {RECIPE}. "
        f"Corpus: {documents['train']:,} documents to train on, {documents['held-out']:,} held out, from {sources}. "
        f"Models: Llama, {recipe.model.layers} layers of width {recipe.model.hidden_size}, "
        f"pretrained on {done.models[0].stage.record['tokens']:,} tokens in rows of {recipe.pretrain.tokens:,}, extended by "
        f"{recipe.extend.trained_tokens:,} in rows of {recipe.extend.tokens:,} (RoPE base {recipe.extend.rope_base:,.0f}). "
        f"Seeds {', '.join(map(str, recipe.seeds))}: of weights and of the order of rows; the sequences are sampled once, so the "
        "spread does not include their sampling."
    )
    if preset:
        yield f"It can show {preset.shows}"
        yield f"It cannot show {preset.cannot}"
    else:
        yield "The recipe has no preset, so nothing is stated here about what models of this size can show."
    yield from verdicts(done)
    yield scores.PAPER_ATTENTION


def all_tables(done: Replicated) -> Iterator[Table]:
    """Yield the tables of every experiment."""
    for experiment in done.recipe.experiments:
        rows, title = score_rows(done, experiment), _TITLES[experiment]
        yield _scores(done, experiment, rows)
        yield from _differences(done, experiment, rows)
        yield from _by_length(done, title, rows)
        for side in HELD_OUT_NEGATIVES:
            bins = scores.distance_bins(rows, side)
            cells = [(row.name, tuple(spread(row.gains(side, part)) for part in bins)) for row in rows]
            about = (
                f"Held-out documents as NExtLong extends them, compose.negatives={side}: nats per token that the earlier "
                "meta-chunks save, by the tokens to the nearest of them. Models extended on NExtLong's data know the form of "
                "these sequences; the others do not."
            )
            columns = [f"{low:,} to {high:,}" for low, high in bins]
            yield _table(f"{title}: gain by distance, {side} negatives", about, columns, cells)
        yield _data(done, title, rows)


def _table(title: str, about: str, columns: Sequence[str], cells: Sequence[tuple[str, tuple[Cell, ...]]]) -> Table:
    return Table(title, about, tuple(columns), tuple(cells), rows_are="parts")  # no bold: a lead may be noise


def _scores(done: Replicated, experiment: Experiment, rows: Sequence[ScoreRow]) -> Table:
    columns = measured_columns(rows)
    cells = [(row.name, tuple(spread(row.values(column.key)) for column in columns)) for row in rows]
    lengths = ", ".join(map(short, done.recipe.measure.lengths))
    about = (
        f"Mean ± standard deviation over {_seeds(rows)}; means over {lengths} tokens. Value chosen: percent, chance 12.5. "
        "Copying: nats per token that an earlier copy saves. Gain: nats per token that the earlier meta-chunks save on held-out "
        "documents; loss: of those meta-chunks, nats per token. Needle, JSON KV, RULER: percent, 0 without an answer. Thirds: "
        "share of the last token's attention."
    )
    if preset := preset_of(done.recipe):
        about += f" These numbers can show {preset.shows} They cannot show {preset.cannot}"
    if experiment not in scores.PAPER_TABLES:
        about += f" The {scores.PAPER_SOURCES[experiment]}."
    return _table(f"{_TITLES[experiment]}: scores", about, [column.title for column in columns], cells)


def _default_row(done: Replicated, experiment: Experiment, rows: Sequence[ScoreRow]) -> ScoreRow | None:
    """Return the row of nextlong with its default settings; None if it is not compared."""
    default = done.recipe.usual_value(experiment)
    return next((row for row in rows if row.arm is not None and row.arm.value == default), None)


def _differences(done: Replicated, experiment: Experiment, rows: Sequence[ScoreRow]) -> Iterator[Table]:
    """Yield the paper's claim: nextlong with its default settings, minus each other, here and in the paper."""
    title, ours = _TITLES[experiment], _default_row(done, experiment, rows)
    paper, source = scores.PAPER_TABLES.get(experiment, {}), scores.PAPER_SOURCES[experiment]
    if ours is None or ours.arm is None:
        return
    columns = [column for column in measured_columns(rows) if column.better]
    places = [scores.PAPER_COLUMNS.index(name) for name in _PAPER_SHOWN] if paper else []
    cells = []
    for row in rows:
        if row is ours:
            continue
        here = [difference(ours.values(column.key), row.values(column.key)) for column in columns]
        theirs = paper.get(str(row.arm.value)) if row.arm else (scores.PAPER_PRETRAINED if paper else None)
        gaps = [None if theirs is None else paper[str(ours.arm.value)][place] - theirs[place] for place in places]
        cells.append((f"{ours.name} − {row.name}", (*here, *gaps)))
    titles = [f"{column.title} ({'+' if column.better == 'higher' else '−'} is better)" for column in columns]
    about = f"Mean difference between models of the same seed ± its standard error, over {_seeds(rows)}."
    if paper:
        titles += [f"Paper: {name}" for name in _PAPER_SHOWN]
        about += f" Last columns: the paper's, percent points of Llama-3-8B at 128K ({source})."
    yield _table(f"{title}: {ours.name} against the others", about, titles, cells)
    if paper:
        published = [("not extended", scores.PAPER_PRETRAINED), *paper.items()]
        yield _table(f"{title}: the paper's numbers", f"{source}: not measured here.", scores.PAPER_COLUMNS, published)


def _by_length(done: Replicated, title: str, rows: Sequence[ScoreRow]) -> Iterator[Table]:
    lengths = sorted(done.recipe.measure.lengths)
    for column in measured_columns(rows):
        if column.key in scores.COLUMNS_BY_LENGTH:
            cells = [(row.name, tuple(spread(row.values_at(column.key, length)) for length in lengths)) for row in rows]
            about = f"{column.unit}.".capitalize()
            yield _table(f"{title}: {column.title} by length", about, list(map(short, lengths)), cells)


def _data(done: Replicated, title: str, rows: Sequence[ScoreRow]) -> Table:
    extend, cells = done.recipe.extend, []
    for row in rows:
        if row.arm is not None:
            stats = row.arm.stats
            epochs = extend.trained_tokens / (stats.sequences * extend.tokens)
            cosine = stats.similarity.p50 if stats.similarity else None
            documents = f"{stats.distinct_documents:,}"
            cells.append((row.name, (f"{stats.sequences:,}", epochs, cosine, documents, stats.chars_per_token)))
    about = (
        f"Every model is extended by {extend.trained_tokens:,} tokens in {extend.steps:,} steps; the sequences of a method that "
        "yields fewer are read more often. Cosine: median over the negatives, or the documents behind the first."
    )
    columns = ("Sequences", "Read, times", "Cosine of negatives", "Documents", "Chars per token")
    return _table(f"{title}: data", about, columns, cells)


def _seeds(rows: Sequence[ScoreRow]) -> str:
    count = len(rows[0].seeds)
    return f"{count} seeds" if count > 1 else "one seed, so there is no spread"


def verdicts(done: Replicated) -> Iterator[str]:
    """Yield for each experiment which differences between nextlong's default settings and the others are beyond chance."""
    for experiment in done.recipe.experiments:
        rows = score_rows(done, experiment)
        ours = _default_row(done, experiment, rows)
        if ours is None:
            continue
        decided: dict[str, list[str]] = {"ahead of": [], "behind": []}
        count = undecided = 0
        for column in (one for one in measured_columns(rows) if one.better):
            for row in rows[1:]:
                if row is ours:
                    continue
                count += 1
                gap = difference(ours.values(column.key), row.values(column.key))
                if gap is None or not scores.is_decided(gap, seeds=len(ours.seeds)):
                    undecided += 1
                    continue
                is_ahead = (gap.mean > 0) == (column.better == "higher")
                decided["ahead of" if is_ahead else "behind"].append(f"{row.name} ({column.title})")
        parts = [f"{ours.name} is {where} {', '.join(names)}" for where, names in decided.items() if names]
        parts.append(
            f"{undecided} of {count} comparisons show no difference beyond chance (paired t-test over seeds, 95 %; of {count}, "
            f"about {count / 20:.0f} would show one by chance alone)"
        )
        yield f"{_TITLES[experiment]}: {'; '.join(parts)}."
