"""Pages: the viewer's pages, from templates that escape every text.

In:  the variants of a run directory, and a request's query. Out: HTML pages, for the
local viewer or for a static copy (`export.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from math import inf, isfinite
from typing import Any, Final
from urllib.parse import quote, urlencode

import numpy as np

from nextlong import schemas
from nextlong.artifacts import corpus_files
from nextlong.picture import html, pieces, strip
from nextlong.runs.card import card_numbers
from nextlong.runs.statistics.measure import read
from nextlong.text import Json, counted
from nextlong.view import documents, filtered, sequences
from nextlong.view.documents import EVERY, Mark, Place, Query
from nextlong.view.index import SORTS
from nextlong.view.sequences import Found
from nextlong.view.variants import OpenVariant, Variants

_ROWS: Final = 25
_SECONDS: Final = 0.06  # that one answer searches
_CHUNK_ROWS: Final = 25
_SHOWN_CHUNKS: Final = 200
_KEPT_ROWS: Final = 1_000
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


@dataclass(frozen=True)
class View:
    """A variant as it is shown: by the local viewer, or in a static copy.

    A static copy has only the pages in `exported`.
    """

    variants: Variants
    name: str
    exported: frozenset[str] | None = None

    @property
    def is_static(self) -> bool:
        """Whether this is a static copy."""
        return self.exported is not None

    @property
    def variant(self) -> OpenVariant:
        """The variant, opened."""
        return self.variants.get(self.name)

    def url(self, variant: str, *parts: str | int, **query: Any) -> str:
        """Return a link; what is None or empty is not in its query.

        "" where a static copy has no such page.
        """
        if self.exported is not None:
            name = "-".join(map(str, parts)) + ".html"
            return name if name in self.exported else ""
        # A name must not lead out of its place in a link.
        path = "/".join(quote(str(part), safe="") for part in (variant, *parts))
        given = {
            name: value for name, value in query.items() if value not in (None, "", ())
        }
        return f"/{path}?{urlencode(given, doseq=True)}" if given else f"/{path}"

    def page(self, template: str, title: str, **values: Any) -> str:
        """Return a page, filled in."""
        own_style = style() if self.is_static else ""
        own_script = ""
        if self.is_static:
            own_script = html.script() + html.asset(__package__, "view.js")
        return html.render(
            f"view/{template}.html",
            is_static=self.is_static,
            url=self.url,
            variant=self.name,
            variants=self.variants.names,
            run_dir=str(self.variants.run_dir),
            title=title,
            style=own_style,
            script=own_script,
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
    limit: int | None = None,
) -> str:
    """Return the list of sequences that match, from match number `first` on."""
    variant = view.variant
    run = variant.run
    limit = _ROWS if limit is None else limit
    found = _find(
        view,
        query,
        sort=sort,
        first=first,
        limit=limit,
    )
    shown = [column for column in _COLUMNS if column in columns] or list(_COLUMNS)
    is_chosen = len(shown) < len(_COLUMNS)
    state = asdict(query) | {"sort": sort, "columns": shown if is_chosen else ()}
    # A sequence that extends no document is listed by its first one.
    lead = "first document"
    if sequences.is_extended(run):
        lead = _COLUMNS["document"]
    names = {**_COLUMNS, "document": lead, "share": f"tokens from the {lead}"}
    # A heading sorts in descending order at the second click.
    sorts = {name: f"-{name}" if sort == name else name for name in SORTS}
    tokens = f"{run.recipe.sequence_tokens:,} tokens"
    # No sequence is about a task.
    sources = [name for name in variant.sources if name != schemas.TASK_SOURCE]
    return view.page(
        "sequences",
        "Sequences",
        query=query,
        matches_all=query == EVERY,
        only_document=_document_name(variant, query.document),
        sort=sort,
        first=first,
        rows=_sequence_rows(variant, found.numbers, query),
        found=found,
        is_temporary=variant.index.is_temporary,
        total=len(run),
        columns=[(column, names[column]) for column in shown],
        all_columns=names,
        histograms=variant.search.histograms(query),
        forms=_FORMS,
        sources=sources,
        link=partial(view.url, view.name, "sequences", **state),
        sorts=sorts,
        page_size=limit,
        introduction=f"{counted(len(run), 'sequence')} of exactly {tokens}",
        method=run.recipe.compose.method,
    )


def _find(view: View, query: Query, *, sort: str, first: int, limit: int) -> Found:
    """Return the sequences of a list, and how far the index is that it needs."""
    # A static copy cannot ask again.
    seconds = inf if view.is_static else _SECONDS
    search = view.variant.search
    found = search.find(
        query,
        sort=sort,
        first=first,
        limit=limit,
        seconds=seconds,
    )
    if query == EVERY and not sort:
        # The rows of a plain list need no index, but its histograms do.
        by_cosine = search.find(query, sort="cosine", limit=0, seconds=seconds)
        found = found._replace(progress=by_cosine.progress)
    return found


def _sequence_rows(
    variant: OpenVariant, numbers: Sequence[int], query: Query
) -> list[Json]:
    """Return the rows of a list of sequences.

    Most rows of a continued search were made before, so they are kept.
    """
    if len(variant.rows) > _KEPT_ROWS:
        variant.rows.clear()
    for number in numbers:
        variant.index.know(number)
    # The sequence, the chunk that is shown and the search text change the preview.
    keys = [
        (number, variant.search.chunk_with_text(query, number), query.text)
        for number in numbers
    ]
    new = [key for key in keys if key not in variant.rows]
    if new:
        leads = variant.index.leads[[number for number, _, _ in new]]
        names, sources = corpus_files.document_columns(
            leads, variant.run.corpus.documents, ("source_id", "source")
        )
        chunks = np.array([chunk for _, chunk, _ in new], np.int64)
        texts = variant.run.corpus.texts(chunks)
        columns = zip(new, leads.tolist(), names, sources, texts, strict=True)
        for key, doc_id, name, source, text in columns:
            number = key[0]
            values = _values(variant, number)
            variant.rows[key] = {
                "number": number,
                "doc_id": doc_id,
                "document": name,
                "source": source,
                "values": values,
                "cells": {column: _cell(column, values[column]) for column in values},
                "preview": documents.snippet(text, query.text),
            }
    return [variant.rows[key] for key in keys]


def _values(variant: OpenVariant, number: int) -> dict[str, float]:
    """Return what a sequence can be sorted by."""
    column = variant.index.values[:, number].tolist()
    return dict(zip(SORTS, column, strict=True))


def _cell(column: str, value: float) -> str:
    return _FORMS[column].format(value) if isfinite(value) else "–"


def sequence(view: View, number: int, *, first: int = 0, chosen: Query = EVERY) -> str:
    """Return the page of a sequence. Raises IndexError.

    Its chunks are listed from index `first` on, those that are `chosen`.
    """
    variant = view.variant
    spans = variant.sequence(number).spans
    lead = pieces.lead_document(spans)
    source, name = _names(variant, lead)
    roles: dict[str, None] = {}
    fitting = []
    for index, span in enumerate(spans):
        if span.role in pieces.CHUNK_ROLES:
            roles[span.role] = None
            if _fits(span, chosen):
                fitting.append((index, span))
    shown = [(index, span) for index, span in fitting if index >= first]
    # A static copy has no next page.
    limit = len(shown) if view.is_static else _CHUNK_ROWS
    has_negatives = any(span.role == "negative" for span in spans)
    mark = Mark(source, name, sequence=f"{view.name}/{number}")
    return view.page(
        "sequence",
        f"Sequence {number:,}: {name}",
        number=number,
        total=len(variant.run),
        lead=lead,
        drawn=_explorer(
            view,
            variant,
            number,
            lead=lead,
        ),
        chosen=chosen,
        example=pieces.EXAMPLE if has_negatives else "",
        roles=list(roles),
        rows=shown[:limit],
        cosine=_cosine,
        fitting=len(fitting),
        following=shown[limit][0] if len(shown) > limit else None,
        mark=_mark_of(view, mark),
    )


def _cosine(span: schemas.Span) -> str:
    if span.role == "meta" or not isfinite(span.score):
        return "–"
    return f"{span.score:.3f}"


def _explorer(
    view: View, variant: OpenVariant, number: int, *, lead: int, beside: str = ""
) -> Json:
    """Return a sequence as `picture.strip` draws it, with its texts in a static copy.

    `beside` names it among several.
    """
    # The viewer's script asks for two texts when a piece is chosen; a static copy has
    # all of them in the page.
    shown = variant.sequence(number)
    address = quote(beside or view.name, safe="")
    texts: Json = {"url": f"/{address}/sequence/{number}/pairs/{{place}}"}
    if view.is_static:
        words = pieces.shared_with_partners(
            shown.spans, shown.texts, variant.frequencies
        )
        texts = {"texts": shown.texts, "words": words}
    name = "sequence"
    label = f"Sequence {number}"
    if beside:
        name = f"sequence-{beside}"
        label = f"Sequence {number} of {beside}"
    scale = pieces.scale(pieces.scored(shown.spans))
    return strip.explorer(
        shown.spans,
        lead=lead,
        scale=scale,
        name=name,
        label=label,
        texts=texts,
    )


def _fits(span: schemas.Span, chosen: Query) -> bool:
    return (
        chosen.role in ("", span.role)
        and chosen.name.casefold() in span.source_id.casefold()
        and (chosen.least is None or span.score >= chosen.least)
        and (chosen.most is None or span.score <= chosen.most)
    )


def _names(variant: OpenVariant, doc_id: int) -> list[str]:
    """Return the source of a document and its own id."""
    columns = corpus_files.document_columns(
        np.array([doc_id]), variant.run.corpus.documents, ("source", "source_id")
    )
    return [str(column[0]) for column in columns]


def _document_name(variant: OpenVariant, doc_id: int | None) -> str:
    """Return how a page names a document that an address asks for; "" for None."""
    if doc_id is None:
        return ""
    known = documents.read(variant.run.corpus, doc_id)
    return known["source_id"] if known else str(doc_id)


def _mark_of(view: View, mark: Mark) -> tuple[Mark, bool]:
    """Return a mark, with its note if it was set, and whether it was."""
    for known in documents.read_marks(view.variants.run_dir):
        if replace(known, note="") == mark:
            return known, True
    return mark, False


def document_list(view: View, query: Query, *, first: Place) -> str:
    """Return the documents that match, from `first` on."""
    variant = view.variant
    result = documents.search(
        variant.run.corpus,
        query,
        first=first,
        limit=_ROWS,
        seconds=_SECONDS,
    )
    following = ""
    if result.next is not None:
        after = ".".join(map(str, result.next))
        following = view.url(view.name, "documents", **asdict(query), after=after)
    return view.page(
        "documents",
        "Documents",
        query=query,
        matches_all=query == EVERY,
        result=result,
        sources=variant.sources,
        next=following,
        is_searching=result.next is not None and len(result.documents) < _ROWS,
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
        # A document may have a million chunks.
        shown=known["texts"][:_SHOWN_CHUNKS],
        characters=sum(map(len, known["texts"])),
        mark=_mark_of(view, Mark(known["source"], known["source_id"])),
        source_mark=_mark_of(view, Mark(known["source"])),
    )


def compare(view: View, other: str, *, doc_id: int | None) -> str:
    """Return two variants side by side.

    These are their numbers, and the sequences that they made from one document.
    """
    others = [name for name in view.variants.names if name != view.name]
    if not others:
        message = (
            "This run has one variant. To make another, run its recipe with other "
            "settings: nextlong run RECIPE --set KEY=VALUE"
        )
        return view.page("error", "Compare variants", message=message)
    other = other or others[0]
    pair = {name: view.variants.get(name) for name in (view.name, other)}
    variant = view.variant
    if doc_id is None and len(variant.run):
        doc_id = pieces.lead_document(variant.sequence(0).spans)
    # A number of a document means the same in both only where both read the same
    # documents.
    ingested = {
        compared.run.steps["ingest"].manifest["fingerprint"]
        for compared in pair.values()
    }
    share_documents = len(ingested) == 1
    compared = [view.name, other] if share_documents else [view.name]
    sides = [
        _side(
            view=view,
            name=name,
            variant=pair[name],
            doc_id=doc_id,
        )
        for name in compared
    ]
    document_name = ""
    if doc_id is not None:
        _, document_name = _names(variant, doc_id)
    return view.page(
        "compare",
        f"{view.name} and {other}",
        other=other,
        doc_id=doc_id,
        share_documents=share_documents,
        document=document_name,
        sides=sides,
        numbers=_compared_numbers([pair[view.name], pair[other]]),
        is_searching=any(side["progress"] is not None for side in sides),
    )


def _side(view: View, name: str, variant: OpenVariant, doc_id: int | None) -> Json:
    """Return a variant's sequence about a document.

    It is found once all sequences of the variant have been read.
    """
    side: Json = {"name": name, "progress": None, "number": None, "url": ""}
    if doc_id is None:
        return side
    # The page asks again if time is up before the sequences are read.
    found = variant.search.find(Query(about=doc_id), limit=1, seconds=_SECONDS)
    side["progress"] = found.progress
    for number in found.numbers:
        side |= {"number": number, "url": view.url(name, "sequence", number)}
        side |= _explorer(
            view,
            variant,
            number,
            lead=doc_id,
            beside=name,
        )
    return side


def _compared_numbers(pair: Sequence[OpenVariant]) -> list[tuple[str, list[Any]]]:
    """Return the numbers of the data cards of two variants, by what they count."""
    keys: dict[str, None] = {}
    numbers = []
    for variant in pair:
        known = read(variant.run.steps)
        of_variant = card_numbers(known) if known else {}
        numbers.append(of_variant)
        keys |= dict.fromkeys(of_variant)
    rows = []
    for key in keys:
        values = [of_variant.get(key, "–") for of_variant in numbers]
        rows.append((key, values))
    return rows


def filtered_out(view: View, key: str, *, first: int) -> str:
    """Return the reasons for which something was filtered out.

    With them are the recorded examples of one of them.
    """
    kinds = filtered.kinds(view.variant.run)
    chosen = next((kind for kind in kinds if kind.key == key), None)
    entries: list[filtered.Entry] = []
    if chosen is not None:
        # One more than is shown tells whether there is a next page.
        shown = islice(chosen.entries(), first, first + _ROWS + 1)
        entries = list(shown)
    following = ""
    if len(entries) > _ROWS:
        following = view.url(
            view.name,
            "filtered",
            reason=key,
            after=first + _ROWS,
        )
    return view.page(
        "filtered",
        "Filtered out",
        kinds=kinds,
        chosen=chosen,
        entries=entries[:_ROWS],
        next=following,
    )


def marked(view: View) -> str:
    """Return the page of marks."""
    # Marks are of the run directory, so all variants share them.
    run_dir = view.variants.run_dir
    marks = documents.read_marks(run_dir)
    # Absolute, because a relative path in a recipe starts from the recipe's folder.
    path = run_dir.absolute() / documents.MARKS_FILE
    return view.page(
        "marks",
        "Marked as bad",
        marks=marks,
        path=str(path),
    )


def problem(view: View, message: str, *, title: str) -> str:
    """Return the page of an error, with links back to the lists."""
    known = view.name if view.name in view.variants.names else view.variants.first
    return replace(view, name=known).page("error", title, message=message)
