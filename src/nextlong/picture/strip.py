"""Strip: a sequence as one bar, for pages: its chunks side by side, as wide as they have tokens.

In:  the spans of a sequence; texts, if the page is to hold them. Out: markup: the bar, its legend, and the controls that
`page.js` brings to life. One path a colour, not one shape a chunk: a sequence of a million tokens stays small. All
coordinates are tokens.
"""

from __future__ import annotations

from math import isfinite
from typing import Literal

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
from nextlong.text import Json

_FOOT, _FLAT_TOP = (
    102,
    42,
)  # y of the lower edge, and of the upper one if there are no arcs
_ARC_FOOT, _TALL, _LOW = (
    44,
    (46, 100),
    (54, 92),
)  # y of arcs' feet, of the document's chunks, of others


def bar(
    pieces: Pieces,
    *,
    tokens: int,
    lead: int,
    scale: tuple[float, float],
    label: str,
    short: bool = False,
) -> Markup:
    """Return the bar: the chunks of document `lead` tall and in its colour, others in shades from scale[0] to scale[1].

    Arcs join the chunks of that document which used to be neighbours.
    """
    paths: dict[str, list[str]] = {}
    documents: dict[int, int] = {}
    for piece in pieces:
        name = colour(
            piece, documents.setdefault(piece.doc_id, len(documents)), lead, scale
        )
        # A box as a path: from its upper left corner to the right, down, back to the left, and closed.
        top, foot = _TALL if name == "own" else _LOW
        paths.setdefault(name, []).append(
            f"M{piece.token_start} {top}h{piece.length}V{foot}h-{piece.length}z"
        )
    arcs = ""
    for one, other in neighbours_before(pieces, lead):
        left, right = (
            (piece.token_start + piece.token_end) // 2 for piece in (one, other)
        )
        arcs += f"M{left} {_ARC_FOOT}Q{(left + right) // 2} -40 {right} {_ARC_FOOT}"
    joined = {name: "".join(boxes) for name, boxes in sorted(paths.items())}
    top = 0 if arcs else _FLAT_TOP
    return html.macro("picture/strip.html", "bar")(
        joined, arcs, f"0 {top} {tokens} {_FOOT - top}", label, short
    )


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
    """Return a sequence about document `lead`: its caption, its legend, and its strip with a slider and room for texts.

    `name` identifies it on the page. `texts` are those of its pieces and the words that each shares with its partner's ("texts",
    "words"), or the address that returns them ("url"). `opens`: whether texts are shown "at once" (those of the `example` of its
    pieces) or only "when chosen".
    """
    tokens = pieces[-1].token_end  # spans tile their sequence
    drawn = bar(pieces, tokens=tokens, lead=lead, scale=scale, label=label)
    sources = list(dict.fromkeys(piece.source_id for piece in pieces))
    number = {source: place for place, source in enumerate(sources)}
    # What `page.js` reads: one entry per piece in each list but `sources`.
    data: Json = {
        "tokens": tokens,
        "starts": [piece.token_start for piece in pieces],
        "roles": [piece.role for piece in pieces],
        "groups": [piece.group for piece in pieces],
        "scores": [
            round(piece.score, 6) if scored([piece]) else None for piece in pieces
        ],
        "sources": sources,
        "source": [number[piece.source_id] for piece in pieces],
        "partners": partners(pieces),
    }
    if texts is not None:
        data |= {"texts": [], "words": [], "url": ""} | texts
    first = example(pieces) if opens == "at once" else -1
    made, legend = (
        html.macro("picture/strip.html", part) for part in ("explorer", "legend")
    )
    has_plain = any(
        piece.role == "document" and not isfinite(piece.score) for piece in pieces
    )
    what = (
        "negatives"
        if any(piece.role == "negative" for piece in pieces)
        else "other documents"
    )
    shades, has_arcs = (
        SHADES if scored(pieces) else 0,
        bool(neighbours_before(pieces, lead)),
    )
    return {
        "caption": caption(pieces, lead=lead),
        "legend": legend(what, scale, shades, has_plain, has_arcs),
        "strip": made(
            drawn, html.as_json(data), name, label, max(0, len(pieces) - 1), first
        ),
    }
