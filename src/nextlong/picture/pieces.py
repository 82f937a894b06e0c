"""Pieces: the spans of a sequence as a picture shows them, and which text to hold beside which.

In:  spans. Out: the document that a sequence is about, the range of its cosines, partners of chunks.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from math import isfinite
from typing import Protocol, TypeVar

# What XML 1.0 cannot hold, and what turns the direction of the text around it.
_FORBIDDEN = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]"
)


def clean(text: str) -> str:
    """Return text without control characters, lone surrogates and marks that turn its direction, which no page can hold."""
    return _FORBIDDEN.sub("\ufffd", text)


class Piece(Protocol):
    """A span of a sequence: `nextlong.runs.run.Span` is one."""

    @property
    def chunk_id(self) -> int: ...
    @property
    def doc_id(self) -> int: ...
    @property
    def source_id(self) -> str: ...
    @property
    def role(self) -> str: ...
    @property
    def group(self) -> int: ...
    @property
    def token_start(self) -> int: ...
    @property
    def token_end(self) -> int: ...
    @property
    def score(self) -> float: ...


Pieces = Sequence[Piece]
_PieceT = TypeVar("_PieceT", bound=Piece)
_SEPARATOR_TOKENS = 16  # what may stand between two chunks that still stand side by side
CHUNK_ROLES = ("meta", "negative", "document")


def length(piece: Piece) -> int:
    """Return the tokens of a piece."""
    return piece.token_end - piece.token_start


def lead_document(pieces: Pieces) -> int:
    """Return the doc_id of the meta-document, else of the first document; -1 if there is neither."""
    lead = min(
        (piece for piece in pieces if piece.role in CHUNK_ROLES), key=lambda one: one.role != "meta", default=None
    )
    return -1 if lead is None else lead.doc_id


def chunks_of(pieces: Sequence[_PieceT], doc_id: int) -> list[_PieceT]:
    """Return the pieces of a document as they stood in it, each chunk once: where it stands last."""
    of_document = {piece.chunk_id: piece for piece in pieces if piece.doc_id == doc_id}
    return [piece for _, piece in sorted(of_document.items())]


def scored(pieces: Pieces) -> list[float]:
    """Return the cosines of negatives and documents that have one."""
    return [piece.score for piece in pieces if piece.role in ("negative", "document") and isfinite(piece.score)]


def scale(cosines: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest cosine, which take the lightest and the darkest shade."""
    return (min(cosines), max(cosines)) if cosines else (0.0, 1.0)


def partners(pieces: Pieces) -> list[int]:
    """Return which piece's text to hold beside each: the meta-chunk of a negative, the next meta-chunk of a meta-chunk,
    what stands right before a document; -1 for none.
    """
    of_group = {piece.group: place for place, piece in enumerate(pieces) if piece.role == "meta"}
    meta_pieces = sorted(of_group.values(), key=lambda place: pieces[place].group)
    behind = dict(pairwise(meta_pieces)) | ({meta_pieces[-1]: meta_pieces[-2]} if len(meta_pieces) > 1 else {})
    partner_of, before = [], -1
    for place, piece in enumerate(pieces):
        if piece.role == "negative":
            partner_of.append(of_group.get(piece.group, -1))
        else:
            partner_of.append({"meta": behind.get(place, -1), "document": before}.get(piece.role, -1))
        if piece.role in CHUNK_ROLES:
            before = place
    return partner_of


EXAMPLE = "Shown first: a typical top negative."


def example(pieces: Pieces) -> int:
    """Return the place of the piece to show first; 0 for none.

    Of the most similar negative of each meta-chunk it is the one with the median cosine, else the first that has a partner.
    """
    nearest: dict[int, int] = {}
    for place, piece in enumerate(pieces):
        if piece.role == "negative" and isfinite(piece.score):
            best = nearest.setdefault(piece.group, place)
            nearest[piece.group] = place if piece.score > pieces[best].score else best
    if nearest:
        return sorted(nearest.values(), key=lambda place: pieces[place].score)[len(nearest) // 2]
    return next((place for place, partner in enumerate(partners(pieces)) if partner >= 0), 0)


def neighbours_before(pieces: Pieces, doc_id: int) -> list[tuple[Piece, Piece]]:
    """Return the pieces of a document two by two: those that stood one right behind the other, and no longer do."""
    chunks = chunks_of(pieces, doc_id)
    return [(a, b) for a, b in pairwise(chunks) if not 0 <= b.token_start - a.token_end <= _SEPARATOR_TOKENS]
