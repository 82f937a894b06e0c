"""Sequences: one sequence of each run as a strip, about the same document where the runs have one in common.

In:  runs. Out: what the template draws: the document as it was, what each method made of it, and a map of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from nextlong.picture import pieces, shared_words, strip
from nextlong.picture.strip import StripTexts
from nextlong.report.page import chunk_map, words
from nextlong.report.page.chunk_map import ChunkMap
from nextlong.runs import find, measures
from nextlong.runs.run import Run, Span
from nextlong.runs.run import Sequence as OneSequence
from nextlong.text import counted

_TEXT_CHARS = 1_200_000  # of all sequences of a page together
_FEWEST_CHARS = 160  # shorter texts say nothing: then none is shown
_MOST_PIECES = 20_000  # of a sequence that is drawn
SAMPLED_TEXTS = 400  # chunks of the corpus that tell rare words from common ones


@dataclass(frozen=True)
class Drawn:
    """One sequence: a heading, a sentence, its legend and its strip; `document` names what it is about."""

    heading: str
    caption: str
    legend: Markup
    strip: Markup
    document: str


@dataclass(frozen=True)
class Shown:
    """The section: the document before, the sequences after, a map of the first run's chunks."""

    is_common: bool
    before: Markup
    before_caption: str
    after: tuple[Drawn, ...]
    map: ChunkMap | None
    first: str  # which chunk is shown first


@dataclass(frozen=True)
class _Chosen:
    place: int  # of its run
    name: str
    run: Run
    number: int
    sequence: OneSequence
    lead: int  # its document, by doc_id


def shown(runs: Sequence[Run], names: Sequence[str]) -> Shown | None:
    """Return what to show of each run; None where no run has a sequence that can be drawn."""
    common = find.common_document(runs)
    chosen = []
    for place, (name, run) in enumerate(zip(names, runs, strict=True)):
        if not len(run):
            continue
        number = common[1].get(place, 0) if common else 0
        sequence = run.sequence(number)
        lead = common[0] if common and place in common[1] else pieces.lead_document(sequence.spans)
        if len(sequence.spans) <= _MOST_PIECES:
            chosen.append(_Chosen(place, name, run, number, sequence, lead))
    if not chosen:
        return None
    scale = pieces.scale([score for one in chosen for score in pieces.scored(one.sequence.spans)])
    limit = _TEXT_CHARS // sum(len(one.sequence.spans) for one in chosen)
    is_common = len({one.lead for one in chosen}) == 1
    before, caption = _before(chosen[0]) if is_common else (Markup(), "")
    after = tuple(_after(one, scale, limit, alone=len(runs) == 1) for one in chosen)
    spans = chosen[0].sequence.spans
    drawn_map = chunk_map.draw(chosen[0].run, spans, lead=chosen[0].lead)
    has_negatives = any(span.role == "negative" for span in spans)
    return Shown(
        is_common, before, caption, after, drawn_map, pieces.EXAMPLE if len(runs) == 1 and has_negatives else ""
    )


def _before(one: _Chosen) -> tuple[Markup, str]:
    """Return the document as it was, its chunks side by side, to the scale of the sequence; and its caption."""
    meta_spans = {span.chunk_id: span for span in one.sequence.spans if span.doc_id == one.lead}
    end = 0
    placed: list[Span] = []
    for _, span in sorted(meta_spans.items()):
        placed.append(replace(span, token_start=end, token_end=end + pieces.length(span)))
        end = placed[-1].token_end
    if not placed:
        return Markup(), ""
    caption = f"{placed[0].source_id}: {counted(len(placed), 'chunk')}, {end:,} tokens"
    label = f"The document before: {caption}"
    tokens = len(one.sequence.input_ids)
    return strip.bar(placed, tokens=tokens, lead=one.lead, scale=(0, 1), label=label, short=True), caption


def _after(one: _Chosen, scale: tuple[float, float], limit: int, *, alone: bool) -> Drawn:
    spans, tokens = one.sequence.spans, len(one.sequence.input_ids)
    drawn = strip.explorer(
        spans,
        tokens=tokens,
        lead=one.lead,
        scale=scale,
        name=f"sequence-{one.place}",
        label=f"Sequence {one.number} of {one.name}",
        texts=_texts(one.run, one.sequence, limit),
        opens="at once" if alone else "when chosen",
    )
    heading = f"After: one sequence of exactly {tokens:,} tokens" if alone else one.name
    document = next((span.source_id for span in spans if span.doc_id == one.lead), "")
    legend = strip.legend(spans, lead=one.lead, scale=scale)
    return Drawn(heading, words.sequence(spans, lead=one.lead, tokens=tokens), legend, drawn, document)


def _texts(run: Run, sequence: OneSequence, limit: int) -> StripTexts | None:
    """Return texts of at most `limit` characters each; None where that would be too little to read."""
    if limit < _FEWEST_CHARS:
        return None
    texts = [text if len(text) <= limit else f"{text[:limit]}…" for text in sequence.texts]
    known = shared_words.frequencies(run.corpus.texts(measures.sample_chunks(run, SAMPLED_TEXTS)).tolist())
    shared = [
        shared_words.shared(text, texts[other], known) if other >= 0 else []
        for text, other in zip(texts, pieces.partners(sequence.spans), strict=True)
    ]
    return StripTexts(texts=texts, words=shared)
