"""Report: one page in three forms, `OUT/report.html`, `.md`, `.tex`, and `OUT/figures/` as SVG and PNG.

Written anew each time, from the files of finished stages alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console

import nextlong
from nextlong.engine import store
from nextlong.evaluate.report import show
from nextlong.evaluate.report.draw import Figure
from nextlong.evaluate.report.tables import Table, as_html, as_latex, as_markdown
from nextlong.plain_data import Json
from nextlong.replicate import figures, published, tables
from nextlong.replicate.carry_out import RECIPE, Replicated
from nextlong.replicate.presets import preset_of
from nextlong.report.tables import say

_TITLE = "NExtLong, the paper in small"


def as_json(done: Replicated) -> Json:
    """Return where the page is and what it says, as plain dictionaries and lists."""
    page, figures_at = str(done.out / "report.html"), str(done.out / "figures")
    return {"report": page, "figures": figures_at, "verdicts": list(tables.verdicts(done))}


def write(done: Replicated, console: Console) -> None:
    """Write the page and its figures, and say where they are and what they say."""
    lead, tables_of, made = list(_lead(done)), list(tables.all_tables(done)), list(figures.all_figures(done))
    with store.explained(done.out):
        show.write_figures(made, done.out / "figures")
        store.write_text(done.out / "report.md", _markdown(lead, tables_of, made))
        store.write_text(done.out / "report.tex", as_latex(tables_of, lead=lead))
        drawn = [(figure.title, figure.svg) for figure in made]
        store.write_text(done.out / "report.html", as_html(tables_of, drawn, title=_TITLE, lead=lead))
    for line in tables.verdicts(done):
        say(line, console)
    say(f"report: {done.out / 'report.html'} (.md, .tex), {len(made)} figures in {done.out / 'figures'}", console)


def _lead(done: Replicated) -> Iterator[str]:
    """Yield what this is, what it can and cannot show, and what the numbers say."""
    recipe = done.recipe
    base, *_ = done.models
    preset = preset_of(recipe)
    documents = done.documents.record["documents"]
    seeds = ", ".join(map(str, recipe.seeds))
    yield (
        f"A replication of arXiv 2501.12766 by nextlong {nextlong.__version__}"
        f"{f', preset {recipe.preset}' if preset else ''}; the recipe is {RECIPE}. "
        f"Corpus: {documents['train']:,} documents to train on, {documents['held-out']:,} held out, from "
        f"{', '.join(source.label for source in recipe.corpus.sources)}. "
        f"Models: Llama, {recipe.model.layers} layers of width {recipe.model.hidden_size}, "
        f"pretrained on {base.stage.record['tokens']:,} tokens in rows of {recipe.pretrain.tokens:,}, extended by "
        f"{recipe.extend.trained_tokens:,} in rows of {recipe.extend.tokens:,} (RoPE base {recipe.extend.rope_base:,.0f}). "
        f"Seeds {seeds}: of weights and of the order of rows; the sequences are drawn once, so the spread "
        "holds nothing of their draw."
    )
    if preset:
        yield f"It can show {preset.shows}"
        yield f"It cannot show {preset.cannot}"
    else:
        yield "It was made from a recipe without a preset; what models of this size can show is for its author to say."
    yield from tables.verdicts(done)
    yield published.ATTENTION


def _markdown(lead: Sequence[str], tables_of: Sequence[Table], made: Sequence[Figure]) -> str:
    shown = "\n\n".join(f"![{figure.title}](figures/{figure.name}.svg)" for figure in made)
    return f"# {_TITLE}\n\n{as_markdown(tables_of, lead=lead)}\n{shown}\n"
