"""Document pages: documents that were searched for, one of them, the same one in every variant; and what was left out."""

from __future__ import annotations

from xml.etree.ElementTree import Element

from nextlong.picture import pieces, strip
from nextlong.picture.elements import document, element
from nextlong.plural import counted
from nextlong.report.page import words
from nextlong.view import documents, left_out, listing, pages
from nextlong.view.documents import Place, Wanted
from nextlong.view.pages import url
from nextlong.view.variants import OpenVariant, Variants

_ROWS, _SECONDS = 25, 0.06
_SHOWN_CHUNKS = 200


def listed(variants: Variants, name: str, wanted: Wanted, *, first: Place, is_part: bool) -> str:
    """Return the documents that fit, from `first` on."""
    variant = variants.get(name)
    result = documents.search(variant.run.corpus, wanted, first=first, most=_ROWS, seconds=_SECONDS)
    rows = [_row(name, document) for document in result.documents]
    below = _below(name, wanted, result)
    if is_part:
        return pages.part(rows, below)
    search = pages.form(
        url(name, "documents"),
        pages.field("Text holds", "text", wanted.text, type="search"),
        pages.field("Name holds", "name", wanted.name, type="search"),
        pages.choice("Source", "source", wanted.source, variant.sources),
    )
    table = pages.table(
        "rows", ("document", "source", "text"), rows, caption="Documents, in the order in which they were read"
    )
    return pages.page(variants, name, "documents", "Documents", search, table, below)


def _row(name: str, document: documents.Document) -> Element:
    before, there, behind = document.around
    text = element("span", before, *([element("mark", there)] if there else []), behind, class_="around")
    link = element(
        "a", element("bdi", document.source_id or str(document.doc_id)), href=url(name, "document", document.doc_id)
    )
    return pages.row(link, element("bdi", document.source), text)


def _below(name: str, wanted: Wanted, result: documents.MatchingDocuments) -> Element:
    if result.go_on is None:
        return pages.more(None, "The whole corpus was looked at.", into="rows")
    after = ".".join(map(str, result.go_on))
    link = url(name, "documents", text=wanted.text, name=wanted.name, source=wanted.source, after=after)
    is_searching = len(result.documents) < _ROWS
    return pages.more(link, f"{result.share:.0%} of the corpus looked at.", into="rows", is_searching=is_searching)


def one(variants: Variants, name: str, doc_id: int) -> str:
    """Return the page of a document. Raises IndexError if there is none."""
    document = documents.read(variants.get(name).run.corpus, doc_id)
    if document is None:
        raise IndexError(f"there is no document {doc_id}")
    shown = [
        element("section", element("h2", f"Chunk {place + 1} of {len(document.texts):,}"), _text(text), class_="chunk")
        for place, text in enumerate(document.texts[:_SHOWN_CHUNKS])
    ]
    if len(document.texts) > _SHOWN_CHUNKS:
        shown.append(element("p", f"The first {_SHOWN_CHUNKS} chunks are shown."))
    if not document.texts:
        shown = [element("p", "None of its text is in the data: the document, or all of its chunks, were left out.")]
    links = [
        element("li", element("a", "Sequences that take text from it", href=url(name, "sequences", document=doc_id)))
    ]
    if len(variants.names) > 1:
        links.append(
            element(
                "li", element("a", "It in every variant, side by side", href=url(name, "document", doc_id, "beside"))
            )
        )
    described: dict[str, str | Element] = {
        "source": element("bdi", document.source),
        "chunks": f"{len(document.texts):,}",
    }
    described["characters"] = f"{sum(map(len, document.texts)):,}"
    described |= {key: element("bdi", str(value)) for key, value in document.kept.items()}
    facts = pages.facts(described)
    return pages.page(
        variants, name, "documents", document.source_id or f"Document {doc_id}", facts, element("ul", *links), *shown
    )


def _text(text: str) -> Element:
    return element("p", text, class_="text")


def beside(variants: Variants, name: str, doc_id: int) -> str:
    """Return the page that shows what each variant made of a document; `view.js` fetches the variants one after the other."""
    document = documents.read(variants.get(name).run.corpus, doc_id)
    if document is None:
        raise IndexError(f"there is no document {doc_id}")
    introduction = (
        "A sequence of each variant that is about this document: extended ones have it as their meta-document, "
        "others contain it."
    )
    waiting = [_waiting(variant, name, doc_id, after=0) for variant in variants.names]
    return pages.page(
        variants, name, "documents", f"{document.source_id}, by each variant", element("p", introduction), *waiting
    )


def _waiting(variant: str, name: str, doc_id: int, *, after: int) -> Element:
    link = element("a", "Search", href=url(name, "document", doc_id, "beside", variant, after=after))
    looked = f"{counted(after, 'sequence')} looked at. " if after else ""
    below = element("p", looked, link, class_="more", role="status", data_searching="yes", data_into="self")
    return element("section", element("h2", element("bdi", variant)), below, class_="beside-variant")


def beside_one(variants: Variants, name: str, doc_id: int, of: str, *, after: int) -> str:
    """Return what one variant made of a document, or where to search on for it."""
    variant = variants.get(of)
    if _documents(variant) != _documents(variants.get(name)):
        return _alone(of, element("p", "This variant was made from other documents."))
    result = variant.listing.find(listing.Wanted(about=doc_id), first=after, most=1, seconds=_SECONDS)
    if result.numbers:
        return _alone(of, *_drawn(variant, of, result.numbers[0], doc_id))
    if result.go_on is not None:
        return _alone(of, _waiting(of, name, doc_id, after=result.go_on)[-1])
    return _alone(of, element("p", "No sequence of this variant is about it."))


def _alone(of: str, *children: Element) -> str:
    return document(
        element("html", element("body", element("section", element("h2", element("bdi", of)), *children)), lang="en")
    )


def _documents(variant: OpenVariant) -> str:
    fingerprint: str = variant.run.steps["ingest"].manifest["fingerprint"]
    return fingerprint


def _drawn(variant: OpenVariant, name: str, number: int, doc_id: int) -> list[Element]:
    sequence = variant.sequence(number)
    spans, tokens = sequence.spans, len(sequence.input_ids)
    scale = pieces.scale(pieces.scored(spans))
    label = f"Sequence {number} of {name}"
    return [
        element("p", words.sequence(spans, lead=doc_id, tokens=tokens)),
        strip.bar(spans, tokens=tokens, lead=doc_id, scale=scale, label=label),
        strip.legend(spans, lead=doc_id, scale=scale),
        element("p", element("a", f"Sequence {number:,}", href=url(name, "sequence", number))),
    ]


def left(variants: Variants, name: str, key: str, *, first: int, is_part: bool) -> str:
    """Return what was left out: the reasons, and what is remembered of one of them."""
    kinds = left_out.kinds(variants.get(name).run)
    chosen = next((kind for kind in kinds if kind.key == key), None)
    entries, go_on = chosen.page(first, _ROWS) if chosen else ([], None)
    rows = [_entry(name, entry) for entry in entries]
    link = None if go_on is None else url(name, "left-out", reason=key, after=go_on)
    end = (
        "That is all that the run remembers of them: some examples of each task."
        if chosen and chosen.is_sampled
        else "That is all."
    )
    below = pages.more(link, "" if link else end, into="rows")
    if is_part:
        return pages.part(rows, below)
    reasons = [_reason(name, kind, is_chosen=kind is chosen) for kind in kinds]
    children = [element("p", "What is in no sequence, and why. Choose a reason to see examples.")]
    if not reasons:
        children = [element("p", "Nothing was left out.")]
    else:
        heads = ("how many", "what", "why")
        children.append(pages.table("reasons", heads, reasons, caption="Reasons, in the order of the route"))
    if chosen:
        children += [element("h2", f"{chosen.count:,} {chosen.what}: {chosen.reason}"), _entries(rows), below]
    return pages.page(variants, name, "left-out", "Left out", *children)


def _entries(rows: list[Element]) -> Element:
    return pages.table("rows", ("document", "more"), rows, caption="Examples")


def _reason(name: str, kind: left_out.Kind, *, is_chosen: bool) -> Element:
    link = element("a", kind.reason, href=url(name, "left-out", reason=kind.key))
    if is_chosen:
        link.set("aria-current", "true")
    return pages.row(f"{kind.count:,}", kind.what, link)


def _entry(name: str, entry: left_out.Entry) -> Element:
    named = element("bdi", entry.name)
    first = named if entry.doc_id is None else element("a", named, href=url(name, "document", entry.doc_id))
    if entry.beside is None:
        return pages.row(first, element("bdi", entry.detail))
    return pages.row(first, element("a", element("bdi", entry.detail), href=url(name, "document", entry.beside)))
