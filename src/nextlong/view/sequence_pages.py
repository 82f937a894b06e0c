"""Sequence pages: the list of a variant's sequences, and one of them."""

from __future__ import annotations

from math import isfinite
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from nextlong.artefacts import lookup
from nextlong.picture import pieces, strip
from nextlong.picture.elements import element
from nextlong.picture.strip import Held
from nextlong.plural import counted
from nextlong.report.page import words
from nextlong.runs.opened import Span
from nextlong.view import pages
from nextlong.view.listing import MatchingSequences, Wanted
from nextlong.view.pages import url
from nextlong.view.variants import OpenVariant, Variants

_ROWS, _SECONDS = 25, 0.06
_SPANS = 100  # rows of the table of a sequence's chunks
_HEADS = ("sequence", "about the document", "source", "chunks", "documents", "mean cosine", "share of the document")


class ChunkFilter(NamedTuple):
    """Which chunks of a sequence are listed; what is empty or None chooses nothing."""

    role: str
    name: str  # part of the document's
    least: float | None  # cosine
    most: float | None


def listed(variants: Variants, name: str, wanted: Wanted, *, first: int, is_part: bool) -> str:
    """Return the list of sequences that fit, from number `first` on."""
    variant = variants.get(name)
    result = variant.listing.find(wanted, first=first, most=_ROWS, seconds=_SECONDS)
    rows = _rows(variant, name, result)
    below = _below(variant, name, wanted, result)
    if is_part:
        return pages.part(rows, below)
    recipe = variant.run.recipe
    introduction = f"{words.sequences_of(len(variant.run), recipe.sequence_tokens)}, method {recipe.compose.method}."
    children = [element("p", introduction), _form(variant, name, wanted), _jump(name, len(variant.run))]
    table = pages.table("rows", _HEADS, rows, caption="Sequences, in the order in which they were drawn")
    return pages.page(variants, name, "sequences", "Sequences", *children, table, below)


def _form(variant: OpenVariant, name: str, wanted: Wanted) -> Element:
    number = {"type": "number", "step": "any", "min": "-1", "max": "1"}
    document = "" if wanted.document is None else str(wanted.document)
    hidden = [element("input", type="hidden", name="document", value=document)] if document else []
    note = [element("p", f"Only sequences that take text from document {document}.", class_="note")] if document else []
    return pages.form(
        url(name, "sequences"),
        *note,
        *hidden,
        pages.field("Document's name holds", "name", wanted.name, type="search"),
        pages.choice("Source", "source", wanted.source, variant.sources),
        pages.field("Mean cosine at least", "least", _shown(wanted.least), **number),
        pages.field("Mean cosine at most", "most", _shown(wanted.most), **number),
    )


def _shown(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def _jump(name: str, count: int) -> Element:
    field = pages.field(
        "Go to sequence", "number", "", type="number", min="0", max=str(max(0, count - 1)), required="required"
    )
    return element(
        "form",
        field,
        element("button", "Open", type="submit"),
        action=url(name, "sequence"),
        method="get",
        class_="jump",
    )


def _rows(variant: OpenVariant, name: str, result: MatchingSequences) -> list[Element]:
    known = [variant.listing.summary(number) for number in result.numbers]
    leads = np.array([summary.leads[place] for summary, place in known], np.int64)
    names, of = (
        lookup.document_columns(leads, variant.run.corpus.documents, ("source_id", "source"))
        if len(leads)
        else ((), ())
    )
    tokens = variant.run.recipe.sequence_tokens
    rows = []
    for number, (summary, place), source_id, source in zip(result.numbers, known, names, of, strict=True):
        cosine = summary.cosines[place]
        rows.append(
            pages.row(
                element("a", f"{number:,}", href=url(name, "sequence", number)),
                element("bdi", source_id),
                element("bdi", source),
                f"{summary.chunks[place]:,}",
                f"{summary.documents[place]:,}",
                f"{cosine:.3f}" if isfinite(cosine) else "–",
                f"{summary.own_tokens[place] / tokens:.1%}",
            )
        )
    return rows


def _below(variant: OpenVariant, name: str, wanted: Wanted, result: MatchingSequences) -> Element:
    total = len(variant.run)
    if result.go_on is None:
        return pages.more(
            None,
            f"That is all of {counted(total, 'sequence')}." if wanted.is_anything else "No more sequences fit.",
            into="rows",
        )
    asked = {key: getattr(wanted, key) for key in ("least", "most", "source", "name", "document")}
    link = url(name, "sequences", **asked, after=result.go_on)
    status = f"{result.go_on:,} of {counted(total, 'sequence')} looked at."
    return pages.more(link, status, into="rows", is_searching=not wanted.is_anything and len(result.numbers) < _ROWS)


def one(variants: Variants, name: str, number: int, *, first: int, chosen: ChunkFilter) -> str:
    """Return the page of a sequence; its chunks are listed from place `first` on, those that are `chosen`. Raises IndexError."""
    variant = variants.get(name)
    sequence = variant.sequence(number)
    spans, tokens = sequence.spans, len(sequence.input_ids)
    lead, scale = pieces.lead_document(spans), pieces.scale(pieces.scored(spans))
    held = Held(url=url(name, "sequence", number, "pairs") + "/")
    label = f"Sequence {number}"
    drawn = strip.explorer(spans, tokens=tokens, lead=lead, scale=scale, name="sequence", label=label, held=held)
    children = [
        _steps(name, number, len(variant.run)),
        element("p", words.sequence(spans, lead=lead, tokens=tokens)),
        element("h2", "What stands in it"),
        element("p", words.HOW_TO_EXPLORE, class_="soft"),
        strip.legend(spans, lead=lead, scale=scale),
        drawn,
    ]
    if len(variants.names) > 1:
        link = element("a", "The same document in the other variants", href=url(name, "document", lead, "beside"))
        children.append(element("p", link))
    children += _chunks(name, number, spans, first, chosen)
    return pages.page(variants, name, "sequences", f"Sequence {number:,}", *children)


def _steps(name: str, number: int, count: int) -> Element:
    links = []
    if number:
        links.append(element("a", "‹ the one before", href=url(name, "sequence", number - 1)))
    if number + 1 < count:
        links.append(element("a", "the next one ›", href=url(name, "sequence", number + 1)))
    return element("p", *(item for link in links for item in (link, " ")), class_="steps")


def _chunks(name: str, number: int, spans: tuple[Span, ...], first: int, chosen: ChunkFilter) -> list[Element]:
    fitting = [
        (place, span) for place, span in enumerate(spans) if span.role in pieces.CHUNK_ROLES and _fits(span, chosen)
    ]
    shown = [(place, span) for place, span in fitting if place >= first]
    roles = list(dict.fromkeys(span.role for span in spans if span.role in pieces.CHUNK_ROLES))
    rows = [_chunk_row(name, place, span) for place, span in shown[:_SPANS]]
    action = url(name, "sequence", number)
    search = pages.form(
        action,
        pages.choice("What", "role", chosen.role, roles),
        pages.field("Document's name holds", "name", chosen.name, type="search"),
        pages.field("Cosine at least", "least", _shown(chosen.least), type="number", step="any", min="-1", max="1"),
        pages.field("Cosine at most", "most", _shown(chosen.most), type="number", step="any", min="-1", max="1"),
    )
    go_on = shown[_SPANS][0] if len(shown) > _SPANS else None
    link = None if go_on is None else url(name, "sequence", number, **chosen._asdict(), after=go_on)
    status = counted(len(fitting), "chunk") + (" fit." if any(value not in ("", None) for value in chosen) else ".")
    heads = ("place", "what", "document", "tokens", "length", "cosine")
    table = pages.table("chunks", heads, rows, caption="Chunks, in the order of the sequence")
    return [element("h2", "Its chunks"), search, table, pages.more(link, status, into="chunks")]


def _fits(span: Span, chosen: ChunkFilter) -> bool:
    if chosen.role and span.role != chosen.role:
        return False
    if chosen.name and chosen.name.casefold() not in span.source_id.casefold():
        return False
    if chosen.least is not None and not span.score >= chosen.least:
        return False
    return chosen.most is None or span.score <= chosen.most


def _chunk_row(name: str, place: int, span: Span) -> Element:
    cosine = f"{span.score:.3f}" if span.role != "meta" and isfinite(span.score) else "–"
    document = element("a", element("bdi", span.source_id), href=url(name, "document", span.doc_id))
    tokens = f"{span.token_start:,}–{span.token_end:,}"
    return pages.row(f"{place:,}", span.role, document, tokens, f"{pieces.length(span):,}", cosine)
