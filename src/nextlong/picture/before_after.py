"""Before and after: one sequence as a picture of its own, SVG or PNG.

In:  the spans of a sequence. Out: its document with its chunks, as it was, above the sequence in which they stand, by any
method; widths are token counts, to one scale. In SVG every chunk tells its source when pointed at, in a browser.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from nextlong.picture.elements import clean
from nextlong.picture.pieces import CHUNK_ROLES, Piece, Pieces, lead_document, length, neighbours_before, scale, scored
from nextlong.picture.strip import SHADES, shade
from nextlong.plural import counted

WIDTH, HEIGHT, MARGIN, BAR = 1000, 312, 24, 34
BEFORE_Y, AFTER_Y, _LEGEND_Y = 78, 196, 272
OWN, _BETWEEN, INK = "#e0a100", "#57606a", "#24292f"
_PLAIN = ("#b9c0c9", "#8f99a5")
_SHADES = ("#d6e6f5", "#b9d5ee", "#98c1e4", "#74abd8", "#5193c9", "#337ab6", "#1b609d", "#0b477f")
_LONGEST_NAME = 70


@dataclass(frozen=True)
class Box:
    """A filled rectangle, and what it says when pointed at."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str = ""


@dataclass(frozen=True)
class Line:
    """A line of text, `y` its baseline."""

    x: float
    y: float
    text: str
    size: int = 14
    is_heading: bool = False


@dataclass(frozen=True)
class Arc:
    """From (left, y) to (right, y), hanging by `depth`."""

    left: float
    right: float
    y: float
    depth: float = 34


def parts(pieces: Pieces, *, tokens: int, name: str) -> Iterator[Box | Line | Arc]:
    """Yield what the picture is made of, in units of a thousandth of its width."""
    lead = lead_document(pieces)
    meta_chunks = _distinct(pieces, lead)
    unit = (WIDTH - 2 * MARGIN) / tokens
    shades = scale(scored(pieces))
    source = meta_chunks[0].source_id if meta_chunks else name
    many = f"{len(meta_chunks):,} chunks, each depending on the one right before it"
    chunks = "1 chunk" if len(meta_chunks) == 1 else many
    yield Line(MARGIN, 30, f"Before: {_short(source)}", size=17, is_heading=True)
    yield Line(MARGIN, 54, f"one document of {sum(map(length, meta_chunks)):,} tokens, {chunks}")
    at = 0
    for piece in meta_chunks:
        yield _box(piece, at, BEFORE_Y, unit, OWN)
        at += length(piece)
    yield Line(MARGIN, 148, f"After: one sequence of exactly {tokens:,} tokens", size=17, is_heading=True)
    yield Line(MARGIN, 172, _after(pieces, lead))
    order: dict[int, int] = {}
    for piece in pieces:
        fill = _fill(piece, order.setdefault(piece.doc_id, len(order)), lead, shades)
        yield _box(piece, piece.token_start, AFTER_Y, unit, fill)
    for one, other in neighbours_before(pieces, lead):
        left, right = ((piece.token_start + piece.token_end) / 2 * unit + MARGIN for piece in (one, other))
        yield Arc(left, right, AFTER_Y + BAR + 2)
    yield from _legend(pieces, shades)


def _distinct(pieces: Pieces, lead: int) -> list[Piece]:
    of_document = {piece.chunk_id: piece for piece in pieces if piece.doc_id == lead}
    return [piece for _, piece in sorted(of_document.items())]


def _after(pieces: Pieces, lead: int) -> str:
    others = len({piece.doc_id for piece in pieces if piece.doc_id >= 0} - {lead})
    apart = [abs(b.token_start - a.token_end) for a, b in neighbours_before(pieces, lead)]
    if not apart:
        return f"the document as it was, beside {others:,} others"
    negatives = sum(piece.role == "negative" for piece in pieces)
    between = (
        f"{counted(negatives, 'chunk')} of {counted(others, 'other document')}, the most similar ones"
        if negatives
        else f"{others:,} others"
    )
    return f"the same chunks up to {max(apart):,} tokens apart, between {between}"


def _fill(piece: Piece, order: int, lead: int, shades: tuple[float, float]) -> str:
    if piece.role not in CHUNK_ROLES:
        return _BETWEEN
    if piece.doc_id == lead:
        return OWN
    is_scored = piece.score == piece.score  # NaN where the method has no cosines
    return _SHADES[shade(piece.score, shades)] if is_scored else _PLAIN[order % 2]


def _box(piece: Piece, start: int, y: int, unit: float, fill: str) -> Box:
    is_scored = piece.role in ("negative", "document") and piece.score == piece.score
    cosine = f", cosine {piece.score:.3f}" if is_scored else ""
    title = f"{piece.role}: {piece.source_id or piece.role}, {length(piece):,} tokens{cosine}"
    width = length(piece) * unit
    return Box(MARGIN + start * unit, y, max(0.3, width - (0.6 if width > 2 else 0)), BAR, fill, title)


def _legend(pieces: Pieces, shades: tuple[float, float]) -> Iterator[Box | Line]:
    yield Box(MARGIN, _LEGEND_Y, 14, 14, OWN)
    yield Line(MARGIN + 22, _LEGEND_Y + 12, "the document")
    if scored(pieces):
        for number, fill in enumerate(_SHADES):
            yield Box(MARGIN + 150 + 10 * number, _LEGEND_Y, 10, 14, fill)
        what = "hard negatives" if any(piece.role == "negative" for piece in pieces) else "other documents"
        label = f"{what}, cosine {shades[0]:.2f} to {shades[1]:.2f}"
        yield Line(MARGIN + 158 + 10 * SHADES, _LEGEND_Y + 12, label)
    elif len({piece.doc_id for piece in pieces}) > 1:
        for number, fill in enumerate(_PLAIN):
            yield Box(MARGIN + 150 + 10 * number, _LEGEND_Y, 10, 14, fill)
        yield Line(MARGIN + 178, _LEGEND_Y + 12, "other documents, in turn")


def _short(name: str) -> str:
    text = " ".join(clean(name).split())
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def svg(pieces: Pieces, *, tokens: int, name: str) -> str:
    """Return the picture as SVG; `name` is the sequence's."""
    opening = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">'
    ground = f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
    drawn = [_drawn(part) for part in parts(pieces, tokens=tokens, name=name)]
    return "\n".join([opening, f"<title>{escape(clean(name))}</title>", ground, *drawn, "</svg>"]) + "\n"


def _drawn(part: Box | Line | Arc) -> str:
    if isinstance(part, Box):
        place = f'x="{part.x:.2f}" y="{part.y}" width="{part.width:.2f}" height="{part.height}" fill="{part.fill}"'
        return f"<rect {place}><title>{escape(clean(part.title))}</title></rect>" if part.title else f"<rect {place}/>"
    if isinstance(part, Arc):
        curve = f"M{part.left:.1f} {part.y} Q{(part.left + part.right) / 2:.1f} {part.y + part.depth} {part.right:.1f} {part.y}"
        return f'<path d="{curve}" fill="none" stroke="{OWN}" stroke-width="1.6"/>'
    weight = 600 if part.is_heading else 400
    style = f'font-size="{part.size}" font-weight="{weight}" font-family="system-ui, sans-serif" fill="{INK}"'
    return f'<text x="{part.x}" y="{part.y}" {style}>{escape(part.text)}</text>'
