"""Sequences: one sequence of each run as a strip.

In:  runs. Out: what the template draws: the document as it was, and what each method
made of it, about the same document where the runs have one in common; and a map of the
corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from markupsafe import Markup

from nextlong.picture import pieces, strip
from nextlong.picture.pieces import Frequencies
from nextlong.report.page.corpus_map import draw_map
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as OneSequence
from nextlong.runs.statistics import common
from nextlong.text import Json, counted

_TEXT_CHARS: Final = 1_200_000  # of all sequences of a page together
_MIN_CHARS: Final = 160  # of each text; if less fits on the page, no texts are shown
_MAX_PIECES: Final = 20_000  # of a sequence that is drawn
_SAMPLED_TEXTS: Final = (
    400  # chunks of the corpus that tell rare words from common ones
)


class _Chosen(NamedTuple):
    """The sequence of a run that is drawn, and the document that it is about."""

    run_index: int
    name: str
    number: int
    sequence: OneSequence
    lead: int  # doc_id


def shown(runs: Sequence[Run], names: Sequence[str]) -> dict[str, Any] | None:
    """Return the sequences for `page.html`; None if no run has one that can be drawn.

    The document `before`, with its caption; the sequences `after`, each with heading,
    caption, legend, strip and the document that it is about; a `map` of the first run's
    chunks; a note on which chunk is shown `first`.
    """
    chosen = _choose(runs, names)
    if not chosen:
        return None
    # One scale for all strips, so that a shade means the same cosine in all of them.
    scores = []
    pieces_in_all = 0
    for entry in chosen:
        scores += pieces.scored(entry.sequence.spans)
        pieces_in_all += len(entry.sequence.spans)
    scale = pieces.scale(scores)
    # All texts of the page together are limited, whatever the number of runs.
    limit = _TEXT_CHARS // pieces_in_all
    is_alone = len(runs) == 1
    after = []
    for entry in chosen:
        texts = _texts(runs[entry.run_index], entry.sequence, limit)
        after.append(
            _after(
                entry,
                texts,
                scale,
                is_alone=is_alone,
            )
        )

    first = chosen[0]
    spans = first.sequence.spans
    is_common = len({entry.lead for entry in chosen}) == 1
    before = Markup()
    caption = ""
    if is_common:
        before, caption = _before(first.sequence, first.lead)
    has_negatives = any(span.role == "negative" for span in spans)
    return {
        "is_common": is_common,
        "before": before,
        "before_caption": caption,
        "after": after,
        "map": draw_map(runs[first.run_index], spans, lead=first.lead),
        "first": pieces.EXAMPLE if is_alone and has_negatives else "",
    }


def _choose(runs: Sequence[Run], names: Sequence[str]) -> list[_Chosen]:
    """Return a sequence of each run, about a common document if there is one."""
    lead_of_all = None
    numbers: dict[int, int] = {}  # of the sequence about it, by run
    common_document = common.common_document(runs)
    if common_document is not None:
        lead_of_all, numbers = common_document
    chosen = []
    for index, (name, run) in enumerate(zip(names, runs, strict=True)):
        if not len(run):
            continue
        number = numbers.get(index, 0)
        sequence = run.sequence(number)
        lead = lead_of_all
        if lead is None or index not in numbers:
            lead = pieces.lead_document(sequence.spans)
        if len(sequence.spans) <= _MAX_PIECES:
            chosen.append(
                _Chosen(
                    run_index=index,
                    name=name,
                    number=number,
                    sequence=sequence,
                    lead=lead,
                )
            )
    return chosen


def _after(
    chosen: _Chosen,
    texts: Json | None,
    scale: tuple[float, float],
    *,
    is_alone: bool,
) -> dict[str, Any]:
    """Return a sequence as a strip with its heading and the document it is about."""
    spans = chosen.sequence.spans
    drawn = strip.explorer(
        spans,
        lead=chosen.lead,
        scale=scale,
        name=f"sequence-{chosen.run_index}",
        label=f"Sequence {chosen.number} of {chosen.name}",
        texts=texts,
        opens="at once" if is_alone else "when chosen",
    )
    heading = chosen.name
    if is_alone:
        tokens = len(chosen.sequence.input_ids)
        heading = f"After: one sequence of exactly {tokens:,} tokens"
    own = (span.source_id for span in spans if span.doc_id == chosen.lead)
    return {"heading": heading, "document": next(own, "")} | drawn


def _before(sequence: OneSequence, lead: int) -> tuple[Markup, str]:
    """Return the original document as a bar, to the scale of the sequence.

    With it comes its caption.
    """
    placed = pieces.document_before(sequence.spans, lead)
    if not placed:
        return Markup(), ""
    chunks = counted(len(placed), "chunk")
    caption = f"{placed[0].source_id}: {chunks}, {placed[-1].token_end:,} tokens"
    bar = strip.bar(
        placed,
        tokens=len(sequence.input_ids),
        lead=lead,
        scale=(0, 1),
        label=f"The document before: {caption}",
        short=True,
    )
    return bar, caption


def _texts(run: Run, sequence: OneSequence, limit: int) -> Json | None:
    """Return texts of at most `limit` characters each, with the words that they share.

    None if that is too short to read.
    """
    if limit < _MIN_CHARS:
        return None
    texts = [
        text if len(text) <= limit else f"{text[:limit]}…" for text in sequence.texts
    ]
    words = pieces.shared_with_partners(sequence.spans, texts, sampled_words(run))
    return {"texts": texts, "words": words}


def sampled_words(run: Run) -> Frequencies:
    """Return how many chunks of a sample of the corpus hold each word."""
    sampled = common.sample_chunks(run, _SAMPLED_TEXTS)
    texts = run.corpus.texts(sampled).tolist()
    return pieces.frequencies(texts)
