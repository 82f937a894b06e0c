"""Before and after: one sequence as a picture of its own, SVG or PNG.

In:  the spans of a sequence, or of one sequence per method. Out: the original document
with its chunks above the sequence that contains them, or one document in the sequences
of several methods; widths are token counts on one scale. In SVG, hovering over a chunk
shows its source.
"""

from __future__ import annotations

import importlib
import io
import math
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from html import escape
from typing import Any, Final, NamedTuple

from nextlong.errors import NextlongError
from nextlong.picture import pieces
from nextlong.picture.pieces import LIGHT, SHADES, Pieces, colour
from nextlong.schemas import Span
from nextlong.text import counted

# All in units of a thousandth of the picture's width.
WIDTH: Final = 1000
MARGIN: Final = 24
_HEIGHT: Final = 312
_BAR: Final = 34
_BEFORE_Y: Final = 78
_AFTER_Y: Final = 196
_LEGEND_Y: Final = 272
# Of a comparison: one strip per method.
_FIRST_STRIP_Y: Final = 118
_STRIP_HEIGHT: Final = 70

_INK: Final = "#24292f"
_MAX_NAME_CHARS: Final = 70
_CHAR: Final = 9  # width of a character, rounded up
_DOTS_PER_INCH: Final = 200  # of a PNG
_INCH: Final = 100  # in units of the picture


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


_Shape = _Box | _Line | _Arc


def svg(spans: Pieces, *, tokens: int, name: str) -> str:
    """Return the picture as SVG; `name` is the sequence's."""
    drawn = _before_after(spans, tokens=tokens, name=name)
    return _svg(drawn, height=_HEIGHT, name=name)


def comparison_svg(
    sequences: Mapping[str, Pieces], *, source_id: str, tokens: int
) -> str:
    """Return one document, and below it the sequence of each method that holds it.

    `sequences` are the spans by the name of their method, each of `tokens` tokens.
    """
    unit = (WIDTH - 2 * MARGIN) / tokens
    all_spans: list[Span] = []
    documents = {}  # the document before, by method
    for name, spans in sequences.items():
        lead = _document(spans, source_id)
        documents[name] = pieces.document_before(spans, lead)
        all_spans += spans
    # One scale, so that a shade means the same cosine in all sequences.
    shades = pieces.scale(pieces.scored(all_spans))
    # Methods may hold different parts of the document; the longest is shown above.
    longest = max(documents.values(), key=len)

    heading = f"One document: {pieces.short(source_id, _MAX_NAME_CHARS)}"
    drawn: list[_Shape] = [
        _Line(
            x=MARGIN,
            y=30,
            text=heading,
            size=17,
            is_heading=True,
        )
    ]
    drawn += _strip(
        spans=longest,
        lead=longest[0].doc_id,
        y=44,
        unit=unit,
        shades=shades,
    )
    # The captions begin behind the longest name.
    longest_name = max(map(len, sequences))
    max_chars = min(_MAX_NAME_CHARS, longest_name)
    captions_x = MARGIN + max(150, _CHAR * max_chars + 16)
    for number, (name, spans) in enumerate(sequences.items()):
        y = _FIRST_STRIP_Y + _STRIP_HEIGHT * number
        lead = _document(spans, source_id)
        shown_name = pieces.short(name, _MAX_NAME_CHARS)
        drawn.append(
            _Line(
                x=MARGIN,
                y=y,
                text=shown_name,
                size=15,
                is_heading=True,
            )
        )
        caption = _after(spans, lead)
        drawn.append(_Line(captions_x, y, caption))
        drawn += _strip(
            spans=spans,
            lead=lead,
            y=y + 10,
            unit=unit,
            shades=shades,
        )
    height = _FIRST_STRIP_Y + _STRIP_HEIGHT * len(sequences) + 50
    drawn += _legend(all_spans, shades, y=height - 40)
    return _svg(drawn, height=height, name=f"{source_id}, by {', '.join(sequences)}")


def _document(spans: Pieces, source_id: str) -> int:
    return next(span.doc_id for span in spans if span.source_id == source_id)


def _before_after(spans: Pieces, *, tokens: int, name: str) -> Iterator[_Shape]:
    lead = pieces.lead_document(spans)
    meta_chunks = pieces.document_before(spans, lead)
    unit = (WIDTH - 2 * MARGIN) / tokens
    shades = pieces.scale(pieces.scored(spans))
    source = name
    if meta_chunks:
        source = meta_chunks[0].source_id
    chunks = "1 chunk"
    if len(meta_chunks) != 1:
        depending = "each next to the one that it depends on"
        chunks = f"{len(meta_chunks):,} chunks, {depending}"
    before = f"Before: {pieces.short(source, _MAX_NAME_CHARS)}"
    yield _Line(
        x=MARGIN,
        y=30,
        text=before,
        size=17,
        is_heading=True,
    )
    own_tokens = sum(chunk.length for chunk in meta_chunks)
    yield _Line(MARGIN, 54, f"one document of {own_tokens:,} tokens, {chunks}")
    yield from _strip(
        spans=meta_chunks,
        lead=lead,
        y=_BEFORE_Y,
        unit=unit,
        shades=shades,
    )

    after = f"After: one sequence of exactly {tokens:,} tokens"
    yield _Line(
        x=MARGIN,
        y=148,
        text=after,
        size=17,
        is_heading=True,
    )
    yield _Line(MARGIN, 172, _after(spans, lead))
    yield from _strip(
        spans=spans,
        lead=lead,
        y=_AFTER_Y,
        unit=unit,
        shades=shades,
    )
    for first, second in pieces.neighbours_before(spans, lead):
        left = _middle(first) * unit + MARGIN
        right = _middle(second) * unit + MARGIN
        yield _Arc(left, right, _AFTER_Y + _BAR + 2)
    yield from _legend(spans, shades, y=_LEGEND_Y)


def _middle(span: Span) -> float:
    return (span.token_start + span.token_end) / 2


def _after(spans: Pieces, lead: int) -> str:
    """Return what became of the document, in a sentence."""
    count, apart = pieces.others_and_distance(spans, lead)
    others = counted(count, "other document")
    if not apart:
        return f"the unchanged document next to {others}"
    between = f"{count:,} others"
    negatives = sum(span.role == "negative" for span in spans)
    if negatives:
        chunks = counted(negatives, "chunk")
        between = f"{chunks} of {others}, the most similar ones"
    return f"the same chunks up to {apart:,} tokens apart, between {between}"


def _strip(
    spans: Pieces, lead: int, y: int, unit: float, shades: tuple[float, float]
) -> Iterator[_Box]:
    """Yield spans where they are in the sequence, or in the document before."""
    order: dict[int, int] = {}  # of documents
    for span in spans:
        document = order.setdefault(span.doc_id, len(order))
        cosine = f", cosine {span.score:.3f}" if pieces.scored([span]) else ""
        source = span.source_id or span.role
        # A hairline separates the boxes, and the thinnest remain visible.
        width = span.length * unit
        hairline = 0.6 if width > 2 else 0
        yield _Box(
            x=MARGIN + span.token_start * unit,
            y=y,
            width=max(0.3, width - hairline),
            height=_BAR,
            fill=LIGHT[
                colour(
                    piece=span,
                    order=document,
                    lead=lead,
                    scale=shades,
                )
            ],
            title=f"{span.role}: {source}, {span.length:,} tokens{cosine}",
        )


def _legend(
    spans: Pieces, shades: tuple[float, float], *, y: int
) -> Iterator[_Box | _Line]:
    yield _Box(
        x=MARGIN,
        y=y,
        width=14,
        height=14,
        fill=LIGHT["own"],
    )
    yield _Line(MARGIN + 22, y + 12, "the document")
    x = MARGIN + 150
    scored_roles = {span.role for span in spans if pieces.scored([span])}
    if scored_roles:
        yield from _shades_legend(
            roles=scored_roles,
            shades=shades,
            x=x,
            y=y,
        )
        x += 560
    # Documents without a cosine alternate between two greys; a sequence of meta-chunks
    # and negatives has none.
    plain_roles = {span.role for span in spans if math.isnan(span.score)}
    documents = {span.doc_id for span in spans if span.doc_id >= 0}
    if "document" in plain_roles and len(documents) > 1:
        for number in range(2):
            yield _Box(
                x=x + 10 * number,
                y=y,
                width=10,
                height=14,
                fill=LIGHT[f"plain{number}"],
            )
        yield _Line(x + 28, y + 12, "other documents")


def _shades_legend(
    roles: Collection[str], shades: tuple[float, float], x: int, y: int
) -> Iterator[_Box | _Line]:
    """Yield the shades of cosines, from low to high, and what they are of."""
    for number in range(SHADES):
        yield _Box(
            x=x + 10 * number,
            y=y,
            width=10,
            height=14,
            fill=LIGHT[f"shade{number}"],
        )
    words = {
        "negative": "hard negatives",
        "context": "contexts",
        "document": "similar documents",
    }
    named = " and ".join(words[role] for role in words if role in roles)
    low, high = shades
    text = f"{named}, cosine {low:.2f} to {high:.2f}"
    yield _Line(x + 8 + 10 * SHADES, y + 12, text)


def _svg(drawn: Iterable[_Shape], *, height: int, name: str) -> str:
    lines = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'role="img">'
        ),
        f"<title>{_escaped(name)}</title>",
        f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>',
    ]
    for shape in drawn:
        if isinstance(shape, _Box):
            lines.append(_svg_box(shape))
        elif isinstance(shape, _Arc):
            lines.append(_svg_arc(shape))
        else:
            lines.append(_svg_line(shape))
    return "\n".join([*lines, "</svg>"]) + "\n"


def _svg_box(box: _Box) -> str:
    attributes = (
        f'x="{box.x:.2f}" y="{box.y}" width="{box.width:.2f}" height="{box.height}" '
        f'fill="{box.fill}"'
    )
    if not box.title:
        return f"<rect {attributes}/>"
    return f"<rect {attributes}><title>{_escaped(box.title)}</title></rect>"


def _svg_arc(arc: _Arc) -> str:
    middle = f"{(arc.left + arc.right) / 2:.1f} {arc.y + arc.depth}"
    curve = f"M{arc.left:.1f} {arc.y} Q{middle} {arc.right:.1f} {arc.y}"
    return f'<path d="{curve}" fill="none" stroke="{LIGHT["own"]}" stroke-width="1.6"/>'


def _svg_line(line: _Line) -> str:
    weight = 600 if line.is_heading else 400
    style = (
        f'font-size="{line.size}" font-weight="{weight}" '
        f'font-family="system-ui, sans-serif" fill="{_INK}"'
    )
    return f'<text x="{line.x}" y="{line.y}" {style}>{escape(line.text)}</text>'


def _escaped(text: str) -> str:
    return escape(pieces.clean(text))


def png(spans: Pieces, *, tokens: int, name: str) -> bytes:
    """Return the picture as PNG, 2,000 dots wide.

    Raises NextlongError without matplotlib.
    """
    try:
        matplotlib = importlib.import_module("matplotlib")
        figures = importlib.import_module("matplotlib.figure")
    except ImportError:
        raise NextlongError(
            where="matplotlib",
            problem="drawing PNG needs it, and it is not installed",
            fix="pip install 'nextlong[png]', or draw SVG",
        ) from None
    # A $ in a name begins no formula; and a font that lacks a script draws boxes.
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
        # y grows downwards, as in SVG.
        axes.set(xlim=(0, WIDTH), ylim=(_HEIGHT, 0))
        axes.axis("off")
        for shape in _before_after(spans, tokens=tokens, name=name):
            if isinstance(shape, _Line):
                _draw_text(axes, shape)
            else:
                axes.add_patch(_patch(shape))
        file = io.BytesIO()
        figure.savefig(file, format="png")
    return file.getvalue()


def _draw_text(axes: Any, line: _Line) -> None:
    axes.text(
        line.x,
        line.y,
        line.text,
        # In points, of which an inch has 72.
        fontsize=line.size * 72 / _INCH,
        fontweight="bold" if line.is_heading else "normal",
        color=_INK,
    )


def _patch(shape: _Box | _Arc) -> Any:
    """Return a shape as matplotlib draws it."""
    patches = importlib.import_module("matplotlib.patches")
    if isinstance(shape, _Box):
        corner = (shape.x, shape.y)
        return patches.Rectangle(
            corner,
            shape.width,
            shape.height,
            facecolor=shape.fill,
        )
    paths = importlib.import_module("matplotlib.path")
    # 1 moves to a point; 3, twice, is a quadratic curve: its control point and its end.
    control = ((shape.left + shape.right) / 2, shape.y + shape.depth)
    points = [(shape.left, shape.y), control, (shape.right, shape.y)]
    curve = paths.Path(points, [1, 3, 3])
    return patches.PathPatch(
        curve,
        fill=False,
        edgecolor=LIGHT["own"],
        linewidth=1.6 * 72 / _INCH,
    )
