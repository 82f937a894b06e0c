"""Pages: the viewer's pages, from templates that escape every text.

In:  the variants of a run directory, opened on first use, and a request's query. Out: HTML pages.
`export` writes a static copy for any web host: `index.html` (the list), a page for each sequence with its texts, their
meta-documents, and what was filtered out. There, the page's own script sorts and filters lists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache, partial
from itertools import islice
from math import isfinite
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import numpy as np

from nextlong import schemas
from nextlong.artifacts import corpus_files, variant_records
from nextlong.engine import store
from nextlong.errors import NextlongError
from nextlong.methods.base import method_of
from nextlong.picture import html, pieces, strip
from nextlong.report.page.sequences import sampled_words
from nextlong.runs.card import card_numbers
from nextlong.runs.run import Run
from nextlong.runs.statistics.measure import read
from nextlong.text import Json, counted
from nextlong.view import documents, filtered, sequences
from nextlong.view.documents import EVERY, Mark, Place, Query

_ROWS: Final = 25
_SECONDS: Final = 0.06  # that one answer searches
_CHUNK_ROWS: Final = 25
_SHOWN_CHUNKS: Final = 200
_HELD_ROWS: Final = 1_000
_HELD_SEQUENCES: Final = 8
_MOST_SHARDS: Final = 40  # whose sources a form offers
_COLUMNS: Final = {
    "document": "meta-document",
    "source": "source",
    "preview": "text",
    "chunks": "chunks",
    "documents": "documents",
    "cosine": "mean cosine",
    "share": "tokens from the meta-document",
}
_FORMS: Final = {
    "cosine": "{:.3f}",
    "share": "{:.1%}",
    "chunks": "{:,.0f}",
    "documents": "{:,.0f}",
}


class _OpenVariant:
    """One variant, opened; the last few sequences that were looked at stay in memory."""

    def __init__(self, run: Run) -> None:
        self.run, self.index = run, sequences.SequenceIndex(run)
        self.rows: dict[
            tuple[int, int, str], Json
        ] = {}  # of lists: by sequence, chunk that is shown, and search text
        self.sequence = lru_cache(maxsize=_HELD_SEQUENCES)(
            run.sequence
        )  # raises IndexError

    @cached_property
    def sources(self) -> list[str]:
        """The sources that a form offers: those of the first documents of some shards."""
        return documents.sources(self.run.corpus, most=_MOST_SHARDS)

    @cached_property
    def frequencies(self) -> pieces.Frequencies:
        """How many chunks of a sample of the corpus hold each word."""
        return sampled_words(self.run)

    def pair(self, number: int, place: int) -> Json:
        """Return the text of a piece, that of its partner, and the words that they share. Raises IndexError."""
        one = self.sequence(number)
        if not 0 <= place < len(one.spans):
            raise IndexError(f"piece {place} of {len(one.spans)}")
        partner = pieces.partners(one.spans)[place]
        if partner < 0:
            return {"text": one.texts_of([place])[0], "partner": None, "words": []}
        text, beside = one.texts_of([place, partner])
        return {
            "text": text,
            "partner": beside,
            "words": pieces.shared_words(text, beside, self.frequencies),
        }


class Variants:
    """The variants of a run directory by name."""

    def __init__(self, run: Run) -> None:
        self.first, self.run_dir = run.variant.name, run.path
        self._open = {self.first: _OpenVariant(run)}

    @property
    def names(self) -> list[str]:
        """All of them, the oldest first."""
        return variant_records.names(self.run_dir)

    def get(self, name: str) -> _OpenVariant:
        """Return a variant, opened on first use. Raises RunError for an unknown name."""
        if name not in self._open:
            self._open[name] = _OpenVariant(Run(f"{self.run_dir}@{name}"))
        return self._open[name]


@dataclass(frozen=True)
class View:
    """A variant as it is shown: by the local viewer, or in a static copy, which holds only some pages (`held`)."""

    variants: Variants
    name: str
    held: frozenset[str] | None = None

    @property
    def variant(self) -> _OpenVariant:
        """The variant, opened."""
        return self.variants.get(self.name)

    def url(self, variant: str, *parts: str | int, **query: Any) -> str:
        """Return a link; what is None or empty is not in its query. "" where a static copy has no such page."""
        if self.held is not None:
            name = "-".join(map(str, parts)) + ".html"
            return name if name in self.held else ""
        path = "/".join(quote(str(part), safe="") for part in (variant, *parts))
        given = {
            name: value for name, value in query.items() if value not in (None, "", ())
        }
        return f"/{path}" + (f"?{urlencode(given, doseq=True)}" if given else "")

    def page(self, template: str, title: str, **values: Any) -> str:
        """Return a page, filled in."""
        is_static = self.held is not None
        return html.render(
            f"view/{template}.html",
            is_static=is_static,
            url=self.url,
            variant=self.name,
            variants=self.variants.names,
            run_dir=str(self.variants.run_dir),
            title=title,
            style=style() if is_static else "",
            script=html.script() + html.asset(__package__, "view.js")
            if is_static
            else "",
            **values,
        )


def style() -> str:
    """Return the style sheet of the viewer."""
    return html.style() + html.asset(__package__, "view.css")


def sequence_list(
    view: View,
    query: Query,
    *,
    sort: str,
    first: int,
    columns: Sequence[str],
    most: int = _ROWS,
) -> str:
    """Return the list of sequences that match, from match number `first` on."""
    variant = view.variant
    found = variant.index.find(
        query, sort=sort, first=first, most=most, seconds=_SECONDS
    )
    if (
        query == EVERY and not sort
    ):  # a plain list reads a little for the histograms, so that its page is quick
        variant.index.find(query, sort="cosine", most=0, seconds=_SECONDS)
    histograms, in_histograms = variant.index.histograms(query)
    shown = [column for column in _COLUMNS if column in columns] or list(_COLUMNS)
    state = asdict(query) | {
        "sort": sort,
        "columns": shown if len(shown) < len(_COLUMNS) else (),
    }
    total = len(variant.run)
    # A sequence that extends no document is listed by its first one.
    lead = (
        _COLUMNS["document"]
        if method_of(variant.run.recipe).layout == schemas.Layout.EXTENDED
        else "first document"
    )
    names = {**_COLUMNS, "document": lead, "share": f"tokens from the {lead}"}
    return view.page(
        "sequences",
        "Sequences",
        query=query,
        matches_all=query == EVERY,
        sort=sort,
        first=first,
        rows=_sequence_rows(variant, found.numbers, query),
        found=found,
        total=total,
        counted=in_histograms,
        columns=[(column, names[column]) for column in shown],
        all_columns=names,
        histograms=histograms,
        forms=_FORMS,
        sources=variant.sources,
        link=partial(view.url, view.name, "sequences", **state),
        sorts={
            column: f"-{column}" if sort == column else column
            for column in sequences.SORTS
        },
        page_size=most,
        introduction=f"{counted(total, 'sequence')} of exactly {variant.run.recipe.sequence_tokens:,} tokens",
        method=variant.run.recipe.compose.method,
    )


def _sequence_rows(
    variant: _OpenVariant, numbers: Sequence[int], query: Query
) -> list[dict[str, Any]]:
    """Return the rows of a list of sequences; most rows of a continued search were made before, so they are kept."""
    # `rows` is keyed by sequence, chunk and search text, because each of these changes the preview.
    if len(variant.rows) > _HELD_ROWS:
        variant.rows.clear()
    for number in numbers:
        variant.index.know(number)
    keys = [
        (number, variant.index.chunk_with_text(query, number), query.text)
        for number in numbers
    ]
    if new := [key for key in keys if key not in variant.rows]:
        leads = variant.index.leads[[number for number, _, _ in new]]
        columns = corpus_files.document_columns(
            leads, variant.run.corpus.documents, ("source_id", "source")
        )
        texts = variant.run.corpus.texts(
            np.array([chunk for _, chunk, _ in new], np.int64)
        )
        for key, doc_id, name, source, text in zip(
            new, leads.tolist(), *columns, texts, strict=True
        ):
            values = dict(
                zip(
                    sequences.SORTS,
                    variant.index.values[:, key[0]].tolist(),
                    strict=True,
                )
            )
            cells = {
                name: _FORMS[name].format(value) if isfinite(value) else "–"
                for name, value in values.items()
            }
            row = {
                "number": key[0],
                "doc_id": doc_id,
                "document": name,
                "source": source,
                "values": values,
            }
            variant.rows[key] = row | {
                "cells": cells,
                "preview": documents.snippet(text, query.text),
            }
    return [variant.rows[key] for key in keys]


def sequence(view: View, number: int, *, first: int = 0, chosen: Query = EVERY) -> str:
    """Return the page of a sequence; its chunks are listed from place `first` on, those that are `chosen`. Raises IndexError."""
    variant, spans = view.variant, view.variant.sequence(number).spans
    lead = pieces.lead_document(spans)
    source, name = _names(variant, lead)
    chunks = [
        (place, span)
        for place, span in enumerate(spans)
        if span.role in pieces.CHUNK_ROLES
    ]
    fitting = [(place, span) for place, span in chunks if _fits(span, chosen)]
    shown = [(place, span) for place, span in fitting if place >= first]
    most = len(shown) if view.held is not None else _CHUNK_ROWS
    return view.page(
        "sequence",
        f"Sequence {number:,}: {name}",
        number=number,
        total=len(variant.run),
        lead=lead,
        drawn=_explorer(view, variant, number, lead=lead),
        chosen=chosen,
        example=pieces.EXAMPLE
        if any(span.role == "negative" for span in spans)
        else "",
        roles=list(dict.fromkeys(span.role for _, span in chunks)),
        rows=shown[:most],
        cosine=lambda span: (
            f"{span.score:.3f}" if span.role != "meta" and isfinite(span.score) else "–"
        ),
        fitting=len(fitting),
        following=shown[most][0] if len(shown) > most else None,
        mark=_mark_of(view, Mark(source, name, sequence=f"{view.name}/{number}")),
    )


def _explorer(
    view: View, variant: _OpenVariant, number: int, *, lead: int, beside: str = ""
) -> Json:
    """Return a sequence as `picture.strip` draws it, with its texts in a static copy; `beside` names it among several."""
    one = variant.sequence(number)
    texts: Json = {
        "url": f"/{quote(beside or view.name, safe='')}/sequence/{number}/pairs/{{place}}"
    }
    if view.held is not None:
        words = pieces.shared_with_partners(one.spans, one.texts, variant.frequencies)
        texts = {"texts": one.texts, "words": words}
    name, label = (
        f"sequence-{beside}" if beside else "sequence",
        f"Sequence {number}{f' of {beside}' * bool(beside)}",
    )
    scale = pieces.scale(pieces.scored(one.spans))
    return strip.explorer(
        one.spans, lead=lead, scale=scale, name=name, label=label, texts=texts
    )


def _fits(span: schemas.Span, chosen: Query) -> bool:
    return (
        chosen.role in ("", span.role)
        and chosen.name.casefold() in span.source_id.casefold()
        and (chosen.least is None or span.score >= chosen.least)
        and (chosen.most is None or span.score <= chosen.most)
    )


def _names(variant: _OpenVariant, doc_id: int) -> list[str]:
    """Return the source of a document and its own id."""
    columns = corpus_files.document_columns(
        np.array([doc_id]), variant.run.corpus.documents, ("source", "source_id")
    )
    return [str(column[0]) for column in columns]


def _mark_of(view: View, mark: Mark) -> tuple[Mark, bool]:
    """Return a mark, with its note if it was set, and whether it was."""
    held = next(
        (
            one
            for one in documents.read_marks(view.variants.run_dir)
            if replace(one, note="") == mark
        ),
        None,
    )
    return held or mark, held is not None


def document_list(view: View, query: Query, *, first: Place) -> str:
    """Return the documents that match, from `first` on."""
    variant = view.variant
    result = documents.search(
        variant.run.corpus, query, first=first, most=_ROWS, seconds=_SECONDS
    )
    after = "" if result.next is None else ".".join(map(str, result.next))
    return view.page(
        "documents",
        "Documents",
        query=query,
        result=result,
        sources=variant.sources,
        next=after and view.url(view.name, "documents", **asdict(query), after=after),
        is_searching=bool(after) and len(result.documents) < _ROWS,
    )


def document(view: View, doc_id: int) -> str:
    """Return the page of a document. Raises IndexError if it does not exist."""
    known = documents.read(view.variant.run.corpus, doc_id)
    if known is None:
        raise IndexError(f"document {doc_id} does not exist")
    return view.page(
        "document",
        known["source_id"] or f"Document {doc_id}",
        doc_id=doc_id,
        document=known,
        shown=known["texts"][:_SHOWN_CHUNKS],
        characters=sum(map(len, known["texts"])),
        mark=_mark_of(view, Mark(known["source"], known["source_id"])),
        source_mark=_mark_of(view, Mark(known["source"])),
    )


def compare(view: View, other: str, *, doc_id: int | None) -> str:
    """Return two variants side by side: their numbers, and the sequences that they made from one document."""
    name, variants = view.name, view.variants
    other = other or next((one for one in variants.names if one != name), name)
    pair = [(name, variants.get(name)), (other, variants.get(other))]
    if doc_id is None and len(pair[0][1].run):
        doc_id = pieces.lead_document(pair[0][1].sequence(0).spans)
    # A number of a document means the same in both only where both read the same documents.
    share_documents = (
        len({of.run.steps["ingest"].manifest["fingerprint"] for _, of in pair}) == 1
    )
    sides: list[dict[str, Any]] = []
    for label, of in pair if share_documents else pair[:1]:
        side: dict[str, Any] = {
            "name": label,
            "is_searching": False,
            "number": None,
            "url": "",
        }
        sides.append(side)
        if doc_id is None:
            continue
        # The variant's sequence about the document, as far as the variant has been searched.
        found = of.index.find(Query(about=doc_id), most=1, seconds=_SECONDS)
        side |= {
            "is_searching": not found.numbers and not found.is_complete,
            "read": found.read,
        }
        for number in found.numbers:
            side |= {"number": number, "url": view.url(label, "sequence", number)}
            side |= _explorer(view, of, number, lead=doc_id, beside=label)
    numbers = [
        card_numbers(known) if (known := read(of.run.steps)) else {} for _, of in pair
    ]
    return view.page(
        "compare",
        f"{name} and {other}",
        other=other,
        doc_id=doc_id,
        share_documents=share_documents,
        document=_names(pair[0][1], doc_id)[1] if doc_id is not None else "",
        sides=sides,
        numbers=[
            (key, [of.get(key, "–") for of in numbers])
            for key in dict.fromkeys(key for of in numbers for key in of)
        ],
        is_searching=any(side["is_searching"] for side in sides),
    )


def filtered_out(view: View, key: str, *, first: int) -> str:
    """Return what was filtered out: the reasons, and the recorded examples of one of them."""
    kinds = filtered.kinds(view.variant.run)
    chosen = next((kind for kind in kinds if kind.key == key), None)
    entries = list(islice(chosen.entries(), first, first + _ROWS + 1)) if chosen else []
    more = (
        view.url(view.name, "filtered", reason=key, after=first + _ROWS)
        if len(entries) > _ROWS
        else ""
    )
    return view.page(
        "filtered",
        "Filtered out",
        kinds=kinds,
        chosen=chosen,
        entries=entries[:_ROWS],
        next=more,
    )


def marked(view: View) -> str:
    """Return the page of marks."""
    marks, path = (
        documents.read_marks(view.variants.run_dir),
        view.variants.run_dir / documents.MARKS_FILE,
    )
    return view.page("marks", "Marked as bad", marks=marks, path=str(path))


def problem(view: View, message: str, *, title: str) -> str:
    """Return the page of an error, with links back to the lists."""
    known = view.name if view.name in view.variants.names else view.variants.first
    return replace(view, name=known).page("error", title, message=message)


def export(run: Run, folder: Path, *, first: int) -> tuple[int, int]:
    """Write a static copy of the `first` sequences (0: all); return how many sequences and pages. Raises NextlongError."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise NextlongError(
            f"--export {folder} is not an empty folder; choose another one"
        )
    variants = Variants(run)
    count = min(first, len(run)) if first else len(run)
    leads = {
        pieces.lead_document(run.sequence(number).spans) for number in range(count)
    } - {schemas.NO_CHUNK}
    names = [f"sequence-{number}.html" for number in range(count)] + [
        f"document-{lead}.html" for lead in sorted(leads)
    ]
    view = View(
        variants, variants.first, frozenset({"sequences.html", "filtered.html", *names})
    )
    with store.explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        shown = sequence_list(view, EVERY, sort="", first=0, columns=(), most=count)
        store.write_file(folder / "sequences.html", shown)
        store.write_file(folder / "filtered.html", filtered_out(view, "", first=0))
        for number in range(count):
            store.write_file(folder / f"sequence-{number}.html", sequence(view, number))
        for lead in leads:
            store.write_file(folder / f"document-{lead}.html", document(view, lead))
        store.write_file(
            folder / "index.html", shown
        )  # last: a copy without it is not complete
    return count, len(names) + 3
