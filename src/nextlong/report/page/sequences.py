"""Sequences: one sequence of each run as a strip, about the same document where the runs have one in common.

In:  runs. Out: what the template draws: the document as it was, what each method made of it, and a map of the corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from markupsafe import Markup

from nextlong.picture import pieces, strip
from nextlong.picture.strip import StripTexts
from nextlong.report.page import chunk_map, words
from nextlong.runs import measures
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as OneSequence
from nextlong.schemas import Span
from nextlong.text import counted

_TEXT_CHARS = 1_200_000  # of all sequences of a page together
_FEWEST_CHARS = 160  # shorter texts say nothing: then none is shown
_MOST_PIECES = 20_000  # of a sequence that is drawn
SAMPLED_TEXTS = 400  # chunks of the corpus that tell rare words from common ones


def shown(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any] | None:
    """Return what `page.html` shows of each run; None where no run has a sequence that can be drawn.

    The document `before`, with its caption; the sequences `after`, each with heading, caption, legend, strip and the document
    that it is about; a `map` of the first run's chunks; a note on which chunk is shown `first`.
    """
    common = measures.common_document(runs)
    chosen = []  # number of the run, its name, number of the sequence, sequence, its document by doc_id
    for place, (name, run) in enumerate(zip(names, runs, strict=True)):
        if not len(run):
            continue
        number = common[1].get(place, 0) if common else 0
        sequence = run.sequence(number)
        lead = common[0] if common and place in common[1] else pieces.lead_document(sequence.spans)
        if len(sequence.spans) <= _MOST_PIECES:
            chosen.append((place, name, number, sequence, lead))
    if not chosen:
        return None
    scale = pieces.scale([score for *_, sequence, _ in chosen for score in pieces.scored(sequence.spans)])
    limit = _TEXT_CHARS // sum(len(sequence.spans) for *_, sequence, _ in chosen)
    is_common, is_alone = len({lead for *_, lead in chosen}) == 1, len(runs) == 1
    after = []
    for place, name, number, sequence, lead in chosen:
        spans, tokens = sequence.spans, len(sequence.input_ids)
        drawn = strip.explorer(
            spans,
            tokens=tokens,
            lead=lead,
            scale=scale,
            name=f"sequence-{place}",
            label=f"Sequence {number} of {name}",
            texts=_texts(runs[place], sequence, limit),
            opens="at once" if is_alone else "when chosen",
        )
        heading = f"After: one sequence of exactly {tokens:,} tokens" if is_alone else name
        document = next((span.source_id for span in spans if span.doc_id == lead), "")
        legend = strip.legend(spans, lead=lead, scale=scale)
        told = {"heading": heading, "caption": words.sequence(spans, lead=lead, tokens=tokens), "document": document}
        after.append(told | {"legend": legend, "strip": drawn})
    place, _, _, sequence, lead = chosen[0]
    before, caption = _before(sequence, lead) if is_common else (Markup(), "")
    has_negatives = any(span.role == "negative" for span in sequence.spans)
    return {
        "is_common": is_common,
        "before": before,
        "before_caption": caption,
        "after": after,
        "map": chunk_map.draw(runs[place], sequence.spans, lead=lead),
        "first": pieces.EXAMPLE if is_alone and has_negatives else "",
    }


def _before(sequence: OneSequence, lead: int) -> tuple[Markup, str]:
    """Return the document as it was, its chunks side by side, to the scale of the sequence; and its caption."""
    end = 0
    placed: list[Span] = []
    for span in pieces.chunks_of(sequence.spans, lead):
        placed.append(replace(span, token_start=end, token_end=end + span.length))
        end = placed[-1].token_end
    if not placed:
        return Markup(), ""
    caption = f"{placed[0].source_id}: {counted(len(placed), 'chunk')}, {end:,} tokens"
    tokens, label = len(sequence.input_ids), f"The document before: {caption}"
    return strip.bar(placed, tokens=tokens, lead=lead, scale=(0, 1), label=label, short=True), caption


def _texts(run: Run, sequence: OneSequence, limit: int) -> StripTexts | None:
    """Return texts of at most `limit` characters each; None where that would be too little to read."""
    if limit < _FEWEST_CHARS:
        return None
    texts = [text if len(text) <= limit else f"{text[:limit]}…" for text in sequence.texts]
    known = pieces.frequencies(run.corpus.texts(measures.sample_chunks(run, SAMPLED_TEXTS)).tolist())
    shared = [
        pieces.shared_words(text, texts[other], known) if other >= 0 else []
        for text, other in zip(texts, pieces.partners(sequence.spans), strict=True)
    ]
    return StripTexts(texts=texts, words=shared)
