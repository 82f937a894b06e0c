"""Write: finished runs as one HTML page that opens from disk, side by side.

In:  runs. Out: the page as text: what was made, from what; a picture, its numbers and how to read it for each quality of
the data; no script, nothing from a network, every text of the corpus escaped. The numbers are those of `nextlong stats
--json`, and the times and bytes those of the steps' manifests.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from importlib import resources
from xml.etree.ElementTree import Element

import nextlong
from nextlong.errors import NextlongError
from nextlong.report import picture, summary
from nextlong.report.page import numbers, pictures, words
from nextlong.report.page.elements import document, element, svg_element
from nextlong.report.page.numbers import Cell, Plain, Row
from nextlong.runs import stats
from nextlong.runs.opened import Run
from nextlong.schemas import Layout

_NEXT_TO_TYPE = ("look",)  # of a summary's lines


def page(runs: Sequence[Run]) -> str:
    """Return the page of some runs. Raises NextlongError for more than the colours tell apart, or without matplotlib."""
    if len(runs) > pictures.MAX_RUNS:
        raise NextlongError(
            f"report shows {pictures.MAX_RUNS} runs side by side, not {len(runs)}; name fewer, or say nextlong compare"
        )
    named = [(letter, stats.measure(run)) for letter, run in zip(_letters(len(runs)), runs, strict=True)]
    plain = [own.as_json() for _, own in named]
    sections = [
        *_made(runs, plain),
        *_sequences(runs, plain),
        *_qualities(named, plain),
        *_costs(runs, named),
        _glossary(),
    ]
    title = f"{plain[0]['sequences']:,} long sequences" if len(runs) == 1 else f"{len(runs)} data sets side by side"
    return document(_html(title, sections))


def _html(title: str, sections: Sequence[Element]) -> Element:
    style = resources.files(__package__).joinpath("style.css").read_text("utf-8")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} · nextlong report"),
        element("style", style),
    )
    links = [element("li", element("a", _heading(own), href=f"#{own.get('id')}")) for own in sections]
    navigation = element("nav", element("ul", *links), aria_label="On this page")
    header = element("header", element("h1", title), navigation)
    footer = element("footer", element("p", f"Made by nextlong {nextlong.__version__}."))
    return element("html", head, element("body", header, element("main", *sections), footer), lang="en")


def _heading(section: Element) -> str:
    return section.findtext("h2") or ""


def _section(name: str, heading: str, *children: Element) -> Element:
    return element(
        "section", element("h2", heading, id=f"{name}-heading"), *children, id=name, aria_labelledby=f"{name}-heading"
    )


def _table(caption: str, rows: Sequence[Row], letters: Sequence[str], **attributes: str) -> Element:
    heads = [element("th", letter, scope="col") for letter in letters]
    return element(
        "table",
        element("caption", caption),
        element("thead", element("tr", element("th", "what", scope="col"), *heads)),
        element("tbody", *map(_table_row, rows)),
        **attributes,
    )


def _table_row(row: Row) -> Element:
    name = element("bdi", row.name) if row.is_foreign else row.name
    return element("tr", element("th", name, scope="row"), *map(_table_cell, row.cells))


def _table_cell(cell: Cell) -> Element:
    """Return a number that shows rounded and holds itself whole, with its place in `nextlong stats --json`."""
    if not cell.path:
        return element("td", cell.text)
    value, path = json.dumps(cell.value), json.dumps(cell.path)
    return element("td", element("data", element("bdi", cell.text), value=value, data_path=path))


def _letters(count: int) -> list[str]:
    """Return what stands for each run in pictures and at the head of columns."""
    return ["this run"] if count == 1 else list("ABCDEF"[:count])


def _made(runs: Sequence[Run], plain: Plain) -> Iterator[Element]:
    letters = _letters(len(runs))
    parts: list[Element] = []
    for opening in dict.fromkeys(map(words.opening, plain)):
        of = [letter for letter, own in zip(letters, plain, strict=True) if words.opening(own) == opening]
        parts.append(element("p", *(() if len(runs) == 1 else (element("b", f"{', '.join(of)}: "),)), opening))
    for letter, run, own in zip(letters, runs, plain, strict=True):
        told = summary.lines(run.recipe, run.steps)
        items = [element("li", element("bdi", f"{name}: {value}")) for name, value in told if name not in _NEXT_TO_TYPE]
        sources = [source.name or source.path for source in run.recipe.ingest.sources]
        named = () if len(runs) == 1 else (f"{letter}: ",)
        parts += [
            element("h3", *named, element("bdi", own["run"])),
            element("p", f"{words.made(own)} Read from: ", element("bdi", ", ".join(sources)), "."),
            *(element("p", warning, class_="note", role="note") for warning in words.verdict(own)),
            element("details", element("summary", "What the run said when it ended"), element("ul", *items)),
        ]
    table = _table("What was asked for, and what came of it", numbers.settings(plain), letters, class_="settings")
    yield _section("made", "What was made, from what", *parts, _wide(table, "What was asked for"))


def _wide(child: Element, label: str) -> Element:
    """Return something that may be wider than the page, which the keyboard scrolls too."""
    return element("div", child, class_="wide", tabindex="0", role="region", aria_label=label)


def _sequences(runs: Sequence[Run], plain: Plain) -> Iterator[Element]:
    figures = []
    for letter, run, own in zip(_letters(len(runs)), runs, plain, strict=True):
        if own["layout"] != Layout.EXTENDED or not len(run):
            continue
        svg = svg_element(picture.svg_on_page(run.sequence(0)), name=f"sequence-{letter}")
        label = "The first sequence" if len(runs) == 1 else f"The first sequence of {letter}"
        caption = (
            f"{label}. Above, its document as it was; below, the same chunks in the sequence, with arcs between those that "
            "used to be neighbours."
        )
        figures.append(element("figure", _wide(svg, label), element("figcaption", caption)))
    if figures:
        yield _section("sequence", "One sequence, before and after", *figures)


def _qualities(named: pictures.Named, plain: Plain) -> Iterator[Element]:
    compared = "; ".join(dict.fromkeys(map(words.similarity_to, plain)))
    source_names = pictures.source_names(named)
    apart = "How far apart the pieces of a document stand now"
    wanted: list[tuple[str, str, Callable[[pictures.Named], str | None], list[Row], str]] = [
        ("yield", "What became of the drafts", pictures.outcome, numbers.yields(plain), "From documents to sequences"),
        (
            "rank",
            "Similarity by place",
            pictures.similarity_by_rank,
            numbers.by_rank(plain),
            f"Mean cosine of {compared}",
        ),
        (
            "similarity",
            "How similar the look-alikes are",
            pictures.similarity,
            [*numbers.spread(plain, "similarity", "{:.4f}"), *numbers.bins(plain, "similarity_histogram", of="")],
            f"Cosine of {compared}",
        ),
        (
            "distance",
            apart,
            pictures.distances,
            [
                *numbers.spread(plain, "distance_tokens", "{:,.0f}"),
                *numbers.bins(plain, "distance_histogram", of="tokens"),
            ],
            "Tokens between a piece of a document and its next",
        ),
        (
            "reuse",
            "How often a chunk is used",
            pictures.reuse,
            numbers.reuse(plain),
            "Over all sequences, meta-chunks not counted",
        ),
        (
            "chunks",
            "How long the chunks are",
            pictures.chunk_tokens,
            [
                *numbers.spread(plain, "chunk_tokens", "{:,.0f}"),
                *numbers.bins(plain, "chunk_tokens_histogram", of="tokens"),
            ],
            "Tokens of a chunk as it stands in a sequence",
        ),
        (
            "sources",
            "Where the tokens come from",
            pictures.sources,
            numbers.sources(plain, source_names),
            "Tokens by source",
        ),
        ("roles", "What the tokens are", pictures.roles, numbers.roles(plain), "Tokens by what they are there for"),
        (
            "chars",
            "How much text a token holds",
            pictures.chars_per_token,
            [
                numbers.row("characters per token", plain, ("chars_per_token",), "{:.3f}"),
                *numbers.spread(plain, "documents_per_sequence", "{:,.1f}", of="documents in a sequence: "),
            ],
            "Characters per token; documents that a sequence takes chunks from",
        ),
        ("near", "What was left out because it repeats", pictures.near_copies, numbers.left_out(plain), "Left out"),
        ("leaks", "What must not be there", lambda _: None, numbers.leaks(plain), "Must be 0"),
    ]
    for name, heading, drawn, rows, caption in wanted:
        if rows and any(cell.path for row in rows for cell in row.cells):
            tables = _hubs(named, plain) if name == "reuse" else ()
            yield _quality(name, heading, *tables, svg=drawn(named), rows=rows, caption=caption)


def _hubs(named: pictures.Named, plain: Plain) -> Iterator[Element]:
    for (letter, _), own in zip(named, plain, strict=True):
        if rows := numbers.hubs(own):
            caption = f"Chunks of {letter} that are used most" if len(named) > 1 else "Chunks that are used most"
            yield _wide(_table(caption, rows, ["times"]), caption)


def _quality(name: str, heading: str, *tables: Element, svg: str | None, rows: Sequence[Row], caption: str) -> Element:
    """Return a picture, how to read it, its numbers, and further tables below."""
    table = _wide(_table(caption, rows, _letters(len(rows[0].cells))), caption)
    if svg is None:
        return _section(name, heading, element("p", words.READ[name]), table, *tables)
    drawing = svg_element(svg, name=name)
    drawing.set("role", "img")
    drawing.set("aria-label", f"{heading}; its numbers stand in the table")
    figure = element("figure", drawing, element("figcaption", words.READ[name]))
    return _section(name, heading, element("div", figure, table, class_="beside"), *tables)


def _costs(runs: Sequence[Run], named: pictures.Named) -> Iterator[Element]:
    for name, heading, caption, key, form, unit in (
        ("time", "Time by step", "Seconds that each step took", "seconds", "{:,.1f} s", 1.0),
        ("bytes", "Disk by step", "Megabytes that each step wrote", "bytes", "{:,.1f} MB", 1e-6),
    ):
        values = [{step: done.manifest[key] * unit for step, done in run.steps.items()} for run in runs]
        steps = dict.fromkeys(step for own in values for step in own)
        rows = [
            Row(step, tuple(Cell(form.format(own[step]) if step in own else "–") for own in values)) for step in steps
        ]
        total = Row("all", tuple(Cell(form.format(sum(own.values()))) for own in values))
        svg = pictures.costs(named, values, label="seconds" if key == "seconds" else "megabytes")
        yield _quality(name, heading, svg=svg, rows=[*rows, total], caption=caption)


def _glossary() -> Element:
    terms = [part for term, told in words.GLOSSARY.items() for part in (element("dt", term), element("dd", told))]
    return _section("glossary", "The words of this page", element("dl", *terms))
