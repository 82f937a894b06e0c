"""Picture: one sequence before and after, as SVG.

In:  a sequence of a finished run. Out: the meta-document with its chunks, as it was, above the sequence in which its
chunks stand apart; widths are token counts, to one scale. Every chunk shows its source on hover, in a browser.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from html import escape
from itertools import pairwise

from nextlong.runs.opened import Sequence, Span

_WIDTH, _MARGIN, _BAR = 1000, 24, 34
_BEFORE_Y, _AFTER_Y, _HEIGHT = 78, 196, 312
_META, _OTHER = "#e0a100", "#c8ccd2"
_NEGATIVES = (
    "#2f6fb5",
    "#5b93cf",
    "#3f83a8",
    "#6aa7c4",
    "#38598f",
    "#7d8fc2",
)  # neighbours of different documents differ
_GROUND = f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>'
_INK = "#24292f"
_FONT = f'font-family="system-ui, sans-serif" fill="{_INK}"'


def svg_on_page(sequence: Sequence) -> str:
    """Return the picture for a page whose colours it takes: no ground of its own, and text in the page's colour."""
    return svg(sequence).replace(_GROUND, "").replace(_FONT, _FONT.replace(_INK, "currentColor"))


def svg(sequence: Sequence) -> str:
    """Return the picture of one sequence."""
    scale = (_WIDTH - 2 * _MARGIN) / len(sequence.input_ids)
    metas = [span for span in sequence.spans if span.role == "meta"]
    negatives = [span for span in sequence.spans if span.role == "negative"]
    cosines = [span.score for span in negatives] or [0.0]
    own_tokens = sum(_length(span) for span in metas)
    distance = max((b.token_start - a.token_end for a, b in pairwise(metas)), default=0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img">',
        f"<title>{escape(sequence.id)}</title>",
        _GROUND,
        _text(30, f"Before: {metas[0].source_id if metas else sequence.id}", size=17, weight="600"),
        _text(
            54,
            f"one document, {len(metas)} chunks, {own_tokens:,} tokens: each chunk depends on the one right before it",
        ),
        *_bars(_packed(metas), y=_BEFORE_Y, scale=scale),
        _text(148, f"After: one sequence of exactly {len(sequence.input_ids):,} tokens", size=17, weight="600"),
        _text(
            172,
            f"the same chunks up to {distance:,} tokens apart, between {len(negatives)} chunks of "
            f"{len({span.doc_id for span in negatives})} other documents, the most similar ones",
        ),
        *_bars([(span, span.token_start) for span in sequence.spans], y=_AFTER_Y, scale=scale),
        *_links(metas, scale=scale),
        f'<rect x="{_MARGIN}" y="272" width="14" height="14" fill="{_META}"/>',
        _text(284, "the document", x=_MARGIN + 22),
        f'<rect x="{_MARGIN + 150}" y="272" width="14" height="14" fill="{_NEGATIVES[0]}"/>',
        _text(
            284,
            f"hard negatives, cosine {min(cosines):.2f} to {max(cosines):.2f}",
            x=_MARGIN + 172,
        ),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _packed(metas: Rows[Span]) -> list[tuple[Span, int]]:
    """Return the meta-chunks one right after the other, as in their document."""
    placed, at = [], 0
    for span in metas:
        placed.append((span, at))
        at += _length(span)
    return placed


def _bars(placed: Rows[tuple[Span, int]], *, y: int, scale: float) -> list[str]:
    bars = []
    for span, start in placed:
        fill = {"meta": _META, "negative": _NEGATIVES[span.doc_id % len(_NEGATIVES)]}.get(span.role, _OTHER)
        cosine = f", cosine {span.score:.3f}" if span.role == "negative" else ""
        label = f"{span.role}: {span.source_id or span.role}, {_length(span):,} tokens{cosine}"
        width = _length(span) * scale
        bars.append(
            f'<rect x="{_MARGIN + start * scale:.2f}" y="{y}" width="{max(0.3, width - (0.6 if width > 2 else 0)):.2f}" '
            f'height="{_BAR}" fill="{fill}"><title>{escape(label)}</title></rect>'
        )
    return bars


def _links(metas: Rows[Span], *, scale: float) -> list[str]:
    """Arcs below the sequence: what used to be the next chunk, and how far away it is now."""
    y = _AFTER_Y + _BAR + 2
    arcs = []
    for before, after in pairwise(metas):
        left = _MARGIN + (before.token_start + before.token_end) / 2 * scale
        right = _MARGIN + (after.token_start + after.token_end) / 2 * scale
        curve = f"M{left:.1f} {y} Q{(left + right) / 2:.1f} {y + 34} {right:.1f} {y}"
        arcs.append(f'<path d="{curve}" fill="none" stroke="{_META}" stroke-width="1.6"/>')
    return arcs


def _text(y: int, text: str, *, x: int = _MARGIN, size: int = 14, weight: str = "400") -> str:
    return f'<text x="{x}" y="{y}" font-size="{size}" font-weight="{weight}" {_FONT}>{escape(text)}</text>'


def _length(span: Span) -> int:
    return span.token_end - span.token_start
