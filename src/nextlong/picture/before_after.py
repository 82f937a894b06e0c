"""Before and after: one sequence as a picture of its own, SVG or PNG; or one document in the sequences of several methods.

In:  the spans of a sequence, or of one sequence per method. Out: the original document with its chunks above the sequence that
contains them; widths are token counts on one scale. In SVG, hovering over a chunk shows its source.
"""

from __future__ import annotations

import importlib
import io
import warnings
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from typing import NamedTuple

from nextlong.errors import NextlongError
from nextlong.picture import pieces
from nextlong.picture.pieces import LIGHT, SHADES, Pieces, colour
from nextlong.text import counted

WIDTH, MARGIN = 1000, 24
_HEIGHT, _BAR = 312, 34
_BEFORE_Y, _AFTER_Y, _LEGEND_Y = 78, 196, 272
_INK = "#24292f"
_FIRST_STRIP_Y, _STRIP_HEIGHT = 118, 70  # of a comparison: one strip per method
_LONGEST_NAME = 70
_DOTS_PER_INCH, _INCH = 200, 100  # of a PNG; units of the picture in an inch


class _Box(NamedTuple):
    """A filled rectangle and its tooltip."""

    x: float
    y: float
    width: float
    height: float
    fill: str
    title: str = ""


class _Line(NamedTuple):
    """A line of text, `y` its baseline."""

    x: float
    y: float
    text: str
    size: int = 14
    is_heading: bool = False


class _Arc(NamedTuple):
    """From (left, y) to (right, y), hanging by `depth`."""

    left: float
    right: float
    y: float
    depth: float = 34


_Drawing = Iterable[
    _Box | _Line | _Arc
]  # in units of a thousandth of the picture's width


def svg(spans: Pieces, *, tokens: int, name: str) -> str:
    """Return the picture as SVG; `name` is the sequence's."""
    return _svg(
        _before_after(spans, tokens=tokens, name=name), height=_HEIGHT, name=name
    )


def comparison_svg(
    sequences: Mapping[str, Pieces], *, source_id: str, tokens: int
) -> str:
    """Return one document, and below it the sequence of each method that holds it, as SVG.

    `sequences` are the spans by the name of their method, each of `tokens` tokens.
    """
    lead_of = {
        name: next(span.doc_id for span in spans if span.source_id == source_id)
        for name, spans in sequences.items()
    }
    # The captions begin behind the longest name: some 9 units a letter.
    captions_x = MARGIN + max(
        150, 9 * min(_LONGEST_NAME, max(map(len, sequences))) + 16
    )
    chunks = max(
        (
            pieces.document_before(spans, lead_of[name])
            for name, spans in sequences.items()
        ),
        key=len,
    )
    unit = (WIDTH - 2 * MARGIN) / tokens
    shades = pieces.scale(
        [cosine for spans in sequences.values() for cosine in pieces.scored(spans)]
    )
    heading = f"One document: {pieces.short(source_id, _LONGEST_NAME)}"
    drawn: list[_Box | _Line | _Arc] = [
        _Line(MARGIN, 30, heading, size=17, is_heading=True)
    ]
    drawn += _strip(chunks, chunks[0].doc_id, 44, unit, shades)
    for number, (name, spans) in enumerate(sequences.items()):
        y = _FIRST_STRIP_Y + _STRIP_HEIGHT * number
        drawn.append(
            _Line(
                MARGIN, y, pieces.short(name, _LONGEST_NAME), size=15, is_heading=True
            )
        )
        drawn.append(_Line(captions_x, y, _after(spans, lead_of[name])))
        drawn += _strip(spans, lead_of[name], y + 10, unit, shades)
    height = _FIRST_STRIP_Y + _STRIP_HEIGHT * len(sequences) + 50
    drawn += _legend(
        [span for spans in sequences.values() for span in spans], shades, y=height - 40
    )
    return _svg(drawn, height=height, name=f"{source_id}, by {', '.join(sequences)}")


def _before_after(spans: Pieces, *, tokens: int, name: str) -> _Drawing:
    lead = pieces.lead_document(spans)
    meta_chunks = pieces.document_before(spans, lead)
    unit = (WIDTH - 2 * MARGIN) / tokens
    shades = pieces.scale(pieces.scored(spans))
    source = meta_chunks[0].source_id if meta_chunks else name
    many = f"{len(meta_chunks):,} chunks, each next to the one that it depends on"
    chunks = "1 chunk" if len(meta_chunks) == 1 else many
    yield _Line(
        MARGIN,
        30,
        f"Before: {pieces.short(source, _LONGEST_NAME)}",
        size=17,
        is_heading=True,
    )
    yield _Line(
        MARGIN,
        54,
        f"one document of {sum(chunk.length for chunk in meta_chunks):,} tokens, {chunks}",
    )
    yield from _strip(meta_chunks, lead, _BEFORE_Y, unit, shades)
    yield _Line(
        MARGIN,
        148,
        f"After: one sequence of exactly {tokens:,} tokens",
        size=17,
        is_heading=True,
    )
    yield _Line(MARGIN, 172, _after(spans, lead))
    yield from _strip(spans, lead, _AFTER_Y, unit, shades)
    for one, other in pieces.neighbours_before(spans, lead):
        left, right = (
            (span.token_start + span.token_end) / 2 * unit + MARGIN
            for span in (one, other)
        )
        yield _Arc(left, right, _AFTER_Y + _BAR + 2)
    yield from _legend(spans, shades, y=_LEGEND_Y)


def _after(spans: Pieces, lead: int) -> str:
    others, apart = pieces.others_and_distance(spans, lead)
    if not apart:
        return f"the unchanged document next to {counted(others, 'other document')}"
    between = f"{others:,} others"
    if negatives := sum(span.role == "negative" for span in spans):
        between = f"{counted(negatives, 'chunk')} of {counted(others, 'other document')}, the most similar ones"
    return f"the same chunks up to {apart:,} tokens apart, between {between}"


def _strip(
    spans: Pieces, lead: int, y: int, unit: float, shades: tuple[float, float]
) -> Iterator[_Box]:
    """Yield spans at their places in the sequence, or in the document before."""
    order: dict[int, int] = {}
    for span in spans:
        fill = LIGHT[
            colour(span, order.setdefault(span.doc_id, len(order)), lead, shades)
        ]
        cosine = f", cosine {span.score:.3f}" if pieces.scored([span]) else ""
        title = f"{span.role}: {span.source_id or span.role}, {span.length:,} tokens{cosine}"
        x = MARGIN + span.token_start * unit
        # A hairline separates the boxes, and the thinnest remain visible.
        width = span.length * unit
        yield _Box(x, y, max(0.3, width - (0.6 if width > 2 else 0)), _BAR, fill, title)


def _legend(
    spans: Pieces, shades: tuple[float, float], *, y: int
) -> Iterator[_Box | _Line]:
    yield _Box(MARGIN, y, 14, 14, LIGHT["own"])
    yield _Line(MARGIN + 22, y + 12, "the document")
    x = MARGIN + 150
    roles = {span.role for span in spans if pieces.scored([span])}
    if roles:
        for number in range(SHADES):
            yield _Box(x + 10 * number, y, 10, 14, LIGHT[f"shade{number}"])
        what = {"negative": "hard negatives", "document": "similar documents"}
        named = " and ".join(words for role, words in what.items() if role in roles)
        yield _Line(
            x + 8 + 10 * SHADES,
            y + 12,
            f"{named}, cosine {shades[0]:.2f} to {shades[1]:.2f}",
        )
        x += 560
    # Documents without a cosine alternate between two greys; a sequence of meta-chunks and negatives has none.
    is_plain = any(
        span.role == "document" and span.score != span.score for span in spans
    )
    if is_plain and len({span.doc_id for span in spans if span.doc_id >= 0}) > 1:
        for number in range(2):
            yield _Box(x + 10 * number, y, 10, 14, LIGHT[f"plain{number}"])
        yield _Line(x + 28, y + 12, "other documents")


def _svg(drawn: _Drawing, *, height: int, name: str) -> str:
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(pieces.clean(name))}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for part in drawn:
        if isinstance(part, _Box):
            place = f'x="{part.x:.2f}" y="{part.y}" width="{part.width:.2f}" height="{part.height}" fill="{part.fill}"'
            title = f"<title>{escape(pieces.clean(part.title))}</title>"
            lines.append(
                f"<rect {place}>{title}</rect>" if part.title else f"<rect {place}/>"
            )
        elif isinstance(part, _Arc):
            middle = f"{(part.left + part.right) / 2:.1f} {part.y + part.depth}"
            curve = f"M{part.left:.1f} {part.y} Q{middle} {part.right:.1f} {part.y}"
            lines.append(
                f'<path d="{curve}" fill="none" stroke="{LIGHT["own"]}" stroke-width="1.6"/>'
            )
        else:
            weight = 600 if part.is_heading else 400
            style = f'font-size="{part.size}" font-weight="{weight}" font-family="system-ui, sans-serif" fill="{_INK}"'
            lines.append(
                f'<text x="{part.x}" y="{part.y}" {style}>{escape(part.text)}</text>'
            )
    return "\n".join([*lines, "</svg>"]) + "\n"


def png(spans: Pieces, *, tokens: int, name: str) -> bytes:
    """Return the picture as PNG, 2,000 dots wide. Raises NextlongError without matplotlib."""
    parts = ("matplotlib", "matplotlib.figure", "matplotlib.patches", "matplotlib.path")
    try:
        matplotlib, figures, patches, paths = map(importlib.import_module, parts)
    except ImportError:
        cure = "pip install 'nextlong[png]', or draw SVG"
        raise NextlongError(
            f"drawing PNG needs matplotlib, which is not installed; {cure}"
        ) from None
    with matplotlib.rc_context({"text.parse_math": False}), warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", message=r"Glyph .* missing from font", category=UserWarning
        )
        figure = figures.Figure(
            figsize=(WIDTH / _INCH, _HEIGHT / _INCH),
            dpi=_DOTS_PER_INCH,
            facecolor="white",
        )
        axes = figure.add_axes((0, 0, 1, 1))
        axes.set(xlim=(0, WIDTH), ylim=(_HEIGHT, 0))
        axes.axis("off")
        for part in _before_after(spans, tokens=tokens, name=name):
            if isinstance(part, _Box):
                axes.add_patch(
                    patches.Rectangle(
                        (part.x, part.y), part.width, part.height, facecolor=part.fill
                    )
                )
            elif isinstance(part, _Arc):
                middle = ((part.left + part.right) / 2, part.y + part.depth)
                # 1 moves to a point; 3, twice, is a quadratic curve: its control point and its end.
                curve = paths.Path(
                    [(part.left, part.y), middle, (part.right, part.y)], [1, 3, 3]
                )
                axes.add_patch(
                    patches.PathPatch(
                        curve,
                        fill=False,
                        edgecolor=LIGHT["own"],
                        linewidth=1.6 * 72 / _INCH,
                    )
                )
            else:
                weight = "bold" if part.is_heading else "normal"
                axes.text(
                    part.x,
                    part.y,
                    part.text,
                    fontsize=part.size * 72 / _INCH,
                    fontweight=weight,
                    color=_INK,
                )
        file = io.BytesIO()
        figure.savefig(file, format="png")
    return file.getvalue()
