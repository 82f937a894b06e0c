"""Strip: a sequence as one bar, for pages: its chunks side by side, as wide as they have tokens.

In:  the spans of a sequence; texts, if the page is to hold them. Out: elements: the bar, what it can tell of each chunk, a
legend. `strip.js` makes it answer to the mouse, the keyboard and a finger; `strip.css` colours it, in light and dark.

One path a shade, not one shape a chunk: a sequence of a million tokens stays small. All coordinates are tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from math import isfinite
from typing import Literal
from xml.etree.ElementTree import Element

from nextlong.picture.elements import clean, element
from nextlong.picture.pieces import CHUNK_ROLES, Piece, Pieces, length, neighbours_before, partners, scored

SHADES = 8
_FOOT, _FLAT_TOP = 102, 42  # y of the lower edge, and of the upper one where nothing is pulled apart
_ARC_FOOT, _TALL, _LOW = 44, (46, 100), (54, 92)  # y of arcs' feet, of the document's chunks, of others


@dataclass(frozen=True, kw_only=True)
class Held:
    """What a page holds of the texts: one a piece, and the words each shares with its partner's; or where to ask for them."""

    texts: Sequence[str] = ()
    words: Sequence[Sequence[str]] = ()
    url: str = ""
    shortened_to: int = 0  # characters of each text, if they are not whole


def asset(name: str) -> str:
    """Return `strip.js` or `strip.css`."""
    return resources.files(__package__).joinpath(name).read_text("utf-8")


def bar(pieces: Pieces, *, tokens: int, lead: int, scale: tuple[float, float], label: str) -> Element:
    """Return the bar: the chunks of document `lead` tall and in its colour, others in shades from scale[0] to scale[1].

    Arcs join the chunks of that document which used to be neighbours.
    """
    paths: dict[str, list[str]] = {}
    documents: dict[int, int] = {}
    for piece in pieces:
        order = documents.setdefault(piece.doc_id, len(documents))
        name = _shade(piece, order, lead, scale)
        top, foot = _TALL if name == "own" else _LOW
        box = f"M{piece.token_start} {top}h{length(piece)}V{foot}h-{length(piece)}z"
        paths.setdefault(name, []).append(box)
    arcs = "".join(
        f"M{_middle(a)} {_ARC_FOOT}Q{(_middle(a) + _middle(b)) // 2} -40 {_middle(b)} {_ARC_FOOT}"
        for a, b in neighbours_before(pieces, lead)
    )
    drawn = [element("path", class_="arc", d=arcs)] if arcs else []
    drawn += [element("path", class_=name, d="".join(boxes)) for name, boxes in sorted(paths.items())]
    top = 0 if arcs else _FLAT_TOP
    frame = {
        "viewBox": f"0 {top} {tokens} {_FOOT - top}",
        "preserveAspectRatio": "none",
        "role": "img",
        "aria-label": label,
    }
    svg = element("svg", *drawn, class_="strip" if arcs else "strip flat")
    for key, value in frame.items():
        svg.set(key, clean(value))
    return svg


def _middle(piece: Piece) -> int:
    return (piece.token_start + piece.token_end) // 2


def _shade(piece: Piece, order: int, lead: int, scale: tuple[float, float]) -> str:
    """Return the class that colours a piece; documents without a cosine take two greys in turn."""
    if piece.role not in CHUNK_ROLES:
        return "between"
    if piece.doc_id == lead:
        return "own"
    if not isfinite(piece.score):
        return f"plain{order % 2}"
    return f"shade{shade(piece.score, scale)}"


def shade(score: float, scale: tuple[float, float]) -> int:
    """Return which of the shades, from 0, a cosine has."""
    least, most = scale
    share = (score - least) / (most - least) if most > least else 1.0
    return min(SHADES - 1, max(0, int(share * SHADES)))


def explorer(
    pieces: Pieces,
    *,
    tokens: int,
    lead: int,
    scale: tuple[float, float],
    name: str,
    label: str,
    held: Held | None = None,
    opens: Literal["at once", "when chosen"] = "at once",
) -> Element:
    """Return the bar with what lets a reader walk along it; `name` tells it from others on the page.

    `opens`: whether it shows texts "at once", those of its first negative, or only "when chosen".
    """
    description = element(
        "p", "Point at the bar, or move the slider: here stands which chunk it is.", class_="told", id=f"{name}-told"
    )
    data = element("script", _json(_data(pieces, tokens, held)), type="application/json")
    return element(
        "div",
        bar(pieces, tokens=tokens, lead=lead, scale=scale, label=label),
        _slider(name, label, len(pieces)),
        description,
        element("div", class_="pair"),
        data,
        class_="sequence",
        data_opens=opens,
    )


def _slider(name: str, label: str, count: int) -> Element:
    slider = element(
        "input", type="range", min="0", max=str(max(0, count - 1)), value="0", step="1", aria_label=f"Chunk of: {label}"
    )
    slider.set("aria-describedby", f"{name}-told")
    back = element("button", "‹", type="button", class_="back", aria_label="The chunk before")
    on = element("button", "›", type="button", class_="on", aria_label="The chunk behind")
    return element("div", back, slider, on, class_="walk", hidden="hidden")


def legend(pieces: Pieces, *, lead: int, scale: tuple[float, float]) -> Element:
    """Return what the colours mean of a bar drawn for document `lead`."""
    entries = [element("li", element("span", class_="key own"), "the chunks of the document")]
    if scored(pieces):
        ramp = [element("span", class_=f"key shade{number}") for number in range(SHADES)]
        what = f"other documents' chunks, by cosine: {scale[0]:.2f} (pale) to {scale[1]:.2f} (strong)"
        entries.append(element("li", element("span", *ramp, class_="ramp"), what))
    if any(piece.role == "document" and not isfinite(piece.score) for piece in pieces):
        plain = [element("span", class_="key plain0"), element("span", class_="key plain1")]
        entries.append(element("li", element("span", *plain, class_="ramp"), "other documents, in turn"))
    if neighbours_before(pieces, lead):
        line = element("span", class_="key line")
        entries.append(element("li", line, "joins chunks that stood side by side in the document"))
    return element("ul", *entries, class_="legend")


def _data(pieces: Pieces, tokens: int, held: Held | None) -> dict[str, object]:
    sources = list(dict.fromkeys(piece.source_id for piece in pieces))
    number = {source: place for place, source in enumerate(sources)}
    data: dict[str, object] = {
        "tokens": tokens,
        "starts": [piece.token_start for piece in pieces],
        "roles": [piece.role for piece in pieces],
        "groups": [piece.group for piece in pieces],
        "scores": [round(piece.score, 6) if isfinite(piece.score) else None for piece in pieces],
        "sources": [clean(source) for source in sources],
        "source": [number[piece.source_id] for piece in pieces],
        "partners": partners(pieces),
    }
    if held is not None:
        data |= {
            "texts": [clean(text) for text in held.texts],
            "words": [list(piece_words) for piece_words in held.words],
            "url": held.url,
            "shortened": held.shortened_to,
        }
    return data


def _json(data: object) -> str:
    """Return JSON that ends no script element and opens no comment."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
