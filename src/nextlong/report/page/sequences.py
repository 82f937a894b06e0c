"""Sequences: one sequence of each run as a strip, of the same document where they have one in common.

In:  runs. Out: a section: the document as it was, and what each method made of it; the texts of its chunks, as long as
the page may be.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from nextlong.picture import pieces, shared_words, strip
from nextlong.picture.elements import element
from nextlong.picture.strip import Held
from nextlong.report.page import parts, words
from nextlong.runs import find
from nextlong.runs.opened import Run, Span
from nextlong.runs.opened import Sequence as OneSequence

_TEXT_CHARS = 1_800_000  # of all sequences of a page together
_FEWEST_CHARS = 160  # shorter texts say nothing: then none is shown
_COMMON_SAMPLE = 48
_MOST_PIECES = 20_000  # of a sequence that is drawn


@dataclass(frozen=True)
class _Chosen:
    letter: str
    run: Run
    number: int
    sequence: OneSequence
    lead: int  # its document, by doc_id


def shown(runs: Sequence[Run]) -> Iterator[Element]:
    """Yield the section; nothing where no run has a sequence that can be drawn."""
    chosen = [one for one in _choose(runs) if len(one.sequence.spans) <= _MOST_PIECES]
    if not chosen:
        return
    scale = pieces.scale([score for one in chosen for score in pieces.scored(one.sequence.spans)])
    limit = _TEXT_CHARS // sum(len(one.sequence.spans) for one in chosen)
    children: list[Element] = [element("p", words.HOW_TO_EXPLORE)]
    leads = {one.lead for one in chosen}
    if len(leads) == 1 and (before := _before(chosen[0])) is not None:
        children.append(before)
    for one in chosen:
        children += _after(one, scale, limit, alone=len(runs) == 1)
    several = "One document, as each made it into a sequence" if len(leads) == 1 else "One sequence of each"
    yield parts.section("sequence", "One sequence, before and after" if len(runs) == 1 else several, *children)


def _choose(runs: Sequence[Run]) -> Iterator[_Chosen]:
    common = find.common_document(runs)
    for place, (letter, run) in enumerate(zip(parts.letters(len(runs)), runs, strict=True)):
        if not len(run):
            continue
        number = common[1].get(place, 0) if common else 0
        sequence = run.sequence(number)
        lead = common[0] if common and place in common[1] else pieces.lead_document(sequence.spans)
        yield _Chosen(letter, run, number, sequence, lead)


def _before(one: _Chosen) -> Element | None:
    """Return the document as it was: its chunks side by side, to the scale of the sequence."""
    meta_spans = {span.chunk_id: span for span in one.sequence.spans if span.doc_id == one.lead}
    at, placed = 0, []
    for _, span in sorted(meta_spans.items()):
        placed.append(_moved(span, at))
        at += pieces.length(span)
    if not placed:
        return None
    tokens = len(one.sequence.input_ids)
    caption = f"{placed[0].source_id}: {words.chunks(len(placed))}, {at:,} tokens."
    bar = strip.bar(placed, tokens=tokens, lead=one.lead, scale=(0, 1), label=f"The document before: {caption}")
    bar.set("class", "strip flat short")
    heading = element("h3", "Before: one short document")
    return element("figure", heading, element("figcaption", element("bdi", caption)), bar)


def _moved(span: Span, start: int) -> Span:
    columns = {name: getattr(span, name) for name in span.__dataclass_fields__}
    return Span(**columns | {"token_start": start, "token_end": start + pieces.length(span)})


def _after(one: _Chosen, scale: tuple[float, float], limit: int, *, alone: bool) -> Iterator[Element]:
    spans, tokens = one.sequence.spans, len(one.sequence.input_ids)
    method = one.run.recipe.compose.method
    heading = f"After: one sequence of exactly {tokens:,} tokens" if alone else f"{one.letter}: {method}"
    label = f"Sequence {one.number}, by {method}"
    held = _held(one.sequence, limit)
    drawn = strip.explorer(
        spans,
        tokens=tokens,
        lead=one.lead,
        scale=scale,
        name=f"sequence-{one.letter.replace(' ', '-')}",
        label=label,
        held=held,
        opens="at once" if alone else "when chosen",
    )
    caption = element("figcaption", words.sequence(spans, lead=one.lead, tokens=tokens))
    yield element("figure", element("h3", heading), caption, _legend(one, scale), drawn)


def _legend(one: _Chosen, scale: tuple[float, float]) -> Element:
    return strip.legend(one.sequence.spans, lead=one.lead, scale=scale)


def _held(sequence: OneSequence, limit: int) -> Held | None:
    """Return texts of at most `limit` characters each; None where that would be too little to read."""
    if limit < _FEWEST_CHARS:
        return None
    whole = sequence.texts
    texts = [text[:limit] for text in whole]
    chunks = [place for place, span in enumerate(sequence.spans) if span.role in pieces.CHUNK_ROLES]
    common = shared_words.common_words(texts[place] for place in shared_words.sample(chunks, _COMMON_SAMPLE))
    beside = pieces.partners(sequence.spans)
    shared = [
        shared_words.shared(text, texts[other], common) if other >= 0 else []
        for text, other in zip(texts, beside, strict=True)
    ]
    return Held(texts=texts, words=shared, shortened_to=limit if any(len(text) > limit for text in whole) else 0)
