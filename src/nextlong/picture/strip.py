"""Strip: a sequence as one bar, for pages: its chunks side by side.

In:  the spans of a sequence; texts, if the page is to hold them. Out: markup: the bar,
its legend, and the controls that `page.js` brings to life. There is one path per
colour, not one shape per chunk, so that a sequence of a million tokens stays small. All
coordinates are tokens.
"""

from __future__ import annotations

from math import isfinite
from typing import Final, Literal

from markupsafe import Markup

from nextlong.picture import html
from nextlong.picture.pieces import (
    SHADES,
    Pieces,
    caption,
    colour,
    example,
    neighbours_before,
    partners,
    scored,
)
from nextlong.schemas import Span
from nextlong.text import Json

_FOOT: Final = 102  # y of the lower edge …
_FLAT_TOP: Final = 42  # … and of the upper one if there are no arcs
_ARC_FOOT: Final = 44  # y of the feet of arcs
_ARC_TOP: Final = -40  # y of the control point of an arc
# y of the upper and lower edges of the document's chunks, and of others.
_TALL: Final = (46, 100)
_LOW: Final = (54, 92)


def bar(
    pieces: Pieces,
    *,
    tokens: int,
    lead: int,
    scale: tuple[float, float],
    label: str,
    short: bool = False,
) -> Markup:
    """Return the bar: the chunks of document `lead` tall and in its colour.

    Others are in shades from scale[0] to scale[1]. Arcs join the chunks of that
    document which used to be neighbours.
    """
    boxes: dict[str, list[str]] = {}  # by colour
    order: dict[int, int] = {}  # of documents
    for piece in pieces:
        document = order.setdefault(piece.doc_id, len(order))
        name = colour(
            piece=piece,
            order=document,
            lead=lead,
            scale=scale,
        )
        top, foot = _TALL if name == "own" else _LOW
        # A box as a path: from its upper left corner to the right, down, back to the
        # left, and closed.
        box = f"M{piece.token_start} {top}h{piece.length}V{foot}h-{piece.length}z"
        boxes.setdefault(name, []).append(box)
    paths = {name: "".join(boxes[name]) for name in sorted(boxes)}
    former_neighbours = neighbours_before(pieces, lead)
    arcs = "".join(_arc(*pair) for pair in former_neighbours)
    # Without arcs, the room above the chunks is cut off.
    top = 0 if arcs else _FLAT_TOP
    view_box = f"0 {top} {tokens} {_FOOT - top}"
    draw = html.macro("picture/strip.html", "bar")
    return draw(
        paths,
        arcs,
        view_box,
        label,
        short,
    )


def _arc(first: Span, second: Span) -> str:
    """Return an arc from the middle of one piece to that of another."""
    left = (first.token_start + first.token_end) // 2
    right = (second.token_start + second.token_end) // 2
    middle = (left + right) // 2
    return f"M{left} {_ARC_FOOT}Q{middle} {_ARC_TOP} {right} {_ARC_FOOT}"


def explorer(
    pieces: Pieces,
    *,
    lead: int,
    scale: tuple[float, float],
    name: str,
    label: str,
    texts: Json | None = None,
    opens: Literal["at once", "when chosen"] = "at once",
) -> dict[str, Markup | str]:
    """Return a sequence about document `lead`: caption, legend and strip.

    `name` identifies it on the page. `texts` are those of its pieces and the words that
    each shares with its partner's ("texts", "words"), or the address that returns them
    ("url"). `opens`: whether texts are shown "at once" (those of the `example` of its
    pieces) or only "when chosen".
    """
    tokens = pieces[-1].token_end  # spans tile their sequence
    drawn = bar(
        pieces,
        tokens=tokens,
        lead=lead,
        scale=scale,
        label=label,
    )
    data = _data(pieces)
    if texts is not None:
        data |= {"texts": [], "words": [], "url": ""} | texts
    # The piece that `page.js` shows at once; -1: none.
    first = -1
    if opens == "at once":
        first = example(pieces)
    last = max(0, len(pieces) - 1)
    draw = html.macro("picture/strip.html", "explorer")
    explorer = draw(
        drawn,
        html.as_json(data),
        name,
        label,
        last,
        first,
    )
    return {
        "caption": caption(pieces, lead=lead),
        "legend": _legend(pieces, lead=lead, scale=scale),
        "strip": explorer,
    }


def _data(pieces: Pieces) -> Json:
    """Return what `page.js` reads: one entry per piece in each list but `sources`."""
    # Sources by number, because many pieces share one.
    source_numbers: dict[str, int] = {}
    sources = []
    scores = []
    for piece in pieces:
        number = source_numbers.setdefault(piece.source_id, len(source_numbers))
        sources.append(number)
        score = round(piece.score, 6) if scored([piece]) else None
        scores.append(score)
    return {
        "tokens": pieces[-1].token_end,
        "starts": [piece.token_start for piece in pieces],
        "roles": [piece.role for piece in pieces],
        "groups": [piece.group for piece in pieces],
        "scores": scores,
        "sources": list(source_numbers),
        "source": sources,
        "partners": partners(pieces),
    }


def _legend(pieces: Pieces, *, lead: int, scale: tuple[float, float]) -> Markup:
    """Return what the colours of a bar mean, as far as they are in it."""
    what = "other documents"
    if any(piece.role == "context" for piece in pieces):
        what = "contexts"
    elif any(piece.role == "negative" for piece in pieces):
        what = "negatives"
    shades = SHADES if scored(pieces) else 0
    plain_roles = {piece.role for piece in pieces if not isfinite(piece.score)}
    has_arcs = len(neighbours_before(pieces, lead)) > 0
    draw = html.macro("picture/strip.html", "legend")
    return draw(
        what,
        scale,
        shades,
        "document" in plain_roles,
        any(piece.role == "task" for piece in pieces),
        has_arcs,
    )
