"""Write: finished runs as one HTML page that opens from disk, side by side.

In:  runs. Out: the page as text: what was made, from what; one sequence to walk through; a picture, its numbers and how to
read it for each quality of the data. Nothing comes from a network, every text of the corpus is escaped, and the one script
is named by its hash in the page's policy. Every number is one of `nextlong stats --json`.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any
from xml.etree.ElementTree import Element

import nextlong
from nextlong.artefacts.pages import VARIANTS_META
from nextlong.errors import NextlongError
from nextlong.picture import strip
from nextlong.picture.elements import document, element, svg_element
from nextlong.report import summary
from nextlong.report.page import examples, numbers, parts, pictures, sequences, words
from nextlong.report.page.numbers import Plain, Row
from nextlong.runs import stats
from nextlong.runs.opened import Run


def page(runs: Sequence[Run]) -> str:
    """Return the page of some runs. Raises NextlongError for more than the colours tell apart, or without matplotlib."""
    if len(runs) > pictures.MAX_RUNS:
        raise NextlongError(
            f"report shows {pictures.MAX_RUNS} runs side by side, not {len(runs)}; name fewer, or say nextlong compare"
        )
    named = [(letter, stats.measure(run)) for letter, run in zip(parts.letters(len(runs)), runs, strict=True)]
    plain = [stats.as_json() for _, stats in named]
    sections = [
        *_made(runs, plain),
        *sequences.shown(runs),
        _settings(plain),
        *_qualities(runs, named, plain),
        *_costs(named, plain),
        _glossary(plain),
    ]
    title = f"{plain[0]['sequences']:,} long sequences" if len(runs) == 1 else f"{len(runs)} data sets side by side"
    return document(_html(title, sections, runs))


def identity(runs: Sequence[Run]) -> str:
    """Return what names the very data that a page shows, and the version that drew it."""
    made = [
        [run.variant.name, {name: done.manifest["fingerprint"] for name, done in run.steps.items()}] for run in runs
    ]
    text = json.dumps([nextlong.__version__, made, [run.sequences_per_part for run in runs]])
    return hashlib.sha256(text.encode()).hexdigest()


def _html(title: str, sections: Sequence[Element], runs: Sequence[Run]) -> Element:
    style = resources.files(__package__).joinpath("style.css").read_text("utf-8") + strip.asset("strip.css")
    script = strip.asset("strip.js")
    hashes = f"style-src {_digest(style)}; script-src {_digest(script)}"
    policy = f"default-src 'none'; {hashes}; base-uri 'none'; form-action 'none'"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="nextlong-data", content=identity(runs)),
        element("meta", name=VARIANTS_META, content=" ".join(run.variant.name for run in runs)),
        element("title", f"{title} · nextlong report"),
        element("style", style),
    )
    links = [element("li", element("a", _heading(section), href=f"#{section.get('id')}")) for section in sections]
    contents = element("details", element("summary", "On this page"), element("ul", *links))
    navigation = element("nav", contents, aria_label="On this page")
    header = element("header", element("h1", title), navigation)
    footer = element("footer", element("p", f"Made by nextlong {nextlong.__version__}."))
    body = element("body", header, element("main", *sections), footer, element("script", script))
    return element("html", head, body, lang="en")


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _heading(section: Element) -> str:
    return section.findtext("h2") or ""


def _made(runs: Sequence[Run], plain: Plain) -> Iterator[Element]:
    letters = parts.letters(len(runs))
    paragraphs: list[Element] = []
    for opening in dict.fromkeys(map(words.opening, plain)):
        of = [letter for letter, of_run in zip(letters, plain, strict=True) if words.opening(of_run) == opening]
        paragraphs.append(element("p", *(() if len(runs) == 1 else (element("b", f"{', '.join(of)}: "),)), opening))
    for letter, run, of_run in zip(letters, runs, plain, strict=True):
        paragraphs += _one_made(letter, run, of_run, plain, is_alone=len(runs) == 1)
    yield parts.section("made", "What was made, and whether to train on it", *paragraphs)


def _settings(plain: Plain) -> Element:
    heading = "What was asked for, and what came of it"
    table = parts.table(
        "Settings of the recipe, and amounts", numbers.settings(plain), parts.letters(len(plain)), class_="settings"
    )
    return parts.section("settings", heading, parts.wide(table, "Settings of the recipe"))


def _one_made(letter: str, run: Run, of_run: Mapping[str, Any], plain: Plain, *, is_alone: bool) -> Iterator[Element]:
    """Yield what was made of what, the few numbers to look at first, and what speaks against training on it."""
    sources = [source.name or source.path for source in run.recipe.ingest.sources]
    yield element("h3", *(() if is_alone else (f"{letter}: ",)), element("bdi", of_run["run"]))
    yield element("p", f"{words.made(of_run)} Read from: ", element("bdi", ", ".join(sources)), ".")
    if is_alone:
        yield _tiles(plain)
    verdict = words.warnings(of_run)
    for one in words.verdict(of_run):
        yield element("p", one, class_="note warning" if verdict else "note", role="note")
    items = [
        element("li", element("bdi", f"{name}: {value}"))
        for name, value in summary.lines(run.recipe, run.steps, folder=run.data)
    ]
    yield element("details", element("summary", "What the run said when it ended"), element("ul", *items))


def _tiles(plain: Plain) -> Element:
    tiles = [
        element("div", element("dt", row.name), element("dd", parts.number(row.cells[0])))
        for row in numbers.first(plain)
    ]
    return element("dl", *tiles, class_="tiles")


def _qualities(runs: Sequence[Run], named: pictures.Named, plain: Plain) -> Iterator[Element]:
    compared = "; ".join(dict.fromkeys(map(words.similarity_to, plain)))
    source_names = pictures.source_names(named)
    is_extended = words.is_extended(plain)
    part = "chunk" if is_extended else "part"
    apart = f"How far apart the {part}s of a document stand now"
    wanted: list[tuple[str, str, Callable[[pictures.Named], str | None], list[Row], str]] = [
        ("yield", "What became of the drafts", pictures.outcome, numbers.yields(plain), "From documents to sequences"),
        (
            "rank",
            "Cosine by rank",
            pictures.similarity_by_rank,
            numbers.by_rank(plain),
            f"Mean cosine of {compared}",
        ),
        (
            "similarity",
            "How similar the look-alikes are" if is_extended else "How similar the documents are",
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
            f"Tokens between a {part} of a document and its next",
        ),
        (
            "reuse",
            "How often a chunk is used",
            pictures.reuse,
            numbers.reuse(plain),
            f"Over all sequences{', meta-chunks not counted' * is_extended}",
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
            "documents",
            "How long the documents are",
            pictures.document_chars,
            [
                *numbers.spread(plain, "document_chars", "{:,.0f}"),
                *numbers.bins(plain, "document_chars_histogram", of="characters"),
            ],
            "Characters of a document of the corpus",
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
            more = {"reuse": _hubs(named, plain), "near": examples.near_copies(runs)}.get(name, ())
            read = words.reading(name, plain)
            yield _quality(name, heading, *more, svg=drawn(named), rows=rows, caption=caption, read=read)


def _hubs(named: pictures.Named, plain: Plain) -> Iterator[Element]:
    for (letter, _), of_run in zip(named, plain, strict=True):
        if rows := numbers.hubs(of_run):
            caption = f"Chunks of {letter} that are used most" if len(named) > 1 else "Chunks that are used most"
            yield parts.wide(parts.table(caption, rows, ["times"]), caption)


def _quality(
    name: str, heading: str, *tables: Element, svg: str | None, rows: Sequence[Row], caption: str, read: str
) -> Element:
    """Return a picture, how to read it, its numbers, and further tables below."""
    table = parts.wide(parts.table(caption, rows, parts.letters(len(rows[0].cells))), caption)
    if svg is None:
        return parts.section(name, heading, element("p", read), table, *tables)
    drawing = svg_element(svg, name=name)
    drawing.set("role", "img")
    drawing.set("aria-label", f"{heading}; its numbers stand in the table")
    figure = element("figure", drawing, element("figcaption", read))
    return parts.section(name, heading, element("div", figure, table, class_="beside"), *tables)


def _costs(named: pictures.Named, plain: Plain) -> Iterator[Element]:
    for name, heading, caption, key, form, unit, label in (
        ("time", "Time by step", "Seconds that each step took", "seconds", "{:,.1f} s", 1.0, "seconds"),
        ("memory", "Memory by step", "Megabytes of the largest task", "peak_bytes", "{:,.0f} MB", 1e-6, "megabytes"),
        ("bytes", "Disk by step", "Megabytes that each step wrote", "bytes", "{:,.1f} MB", 1e-6, "megabytes"),
    ):
        rows = numbers.costs(plain, key, form, unit)
        if rows:
            svg, read = pictures.costs(named, key, unit=unit, label=label), words.reading(name, plain)
            yield _quality(name, heading, svg=svg, rows=rows, caption=caption, read=read)


def _glossary(plain: Plain) -> Element:
    meanings = words.glossary(plain)
    terms = [part for term, meaning in meanings.items() for part in (element("dt", term), element("dd", meaning))]
    return parts.section("glossary", "The words of this page", element("dl", *terms))
