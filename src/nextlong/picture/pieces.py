"""Pieces: the spans of a sequence as a picture shows them, their colours, the text that each is compared to, and common words.

In:  spans; texts, and how many texts of a sample of the corpus hold each word (their document frequency). Out: the document that
a sequence is about, the range of its cosines, partners of chunks; rare words, which make one text a distractor for the other.

One colour is for one thing, in strips, charts, the viewer and standalone SVG files; pages have a light and a dark palette. Hues
are Okabe and Ito's; `tests/picture/test_pieces.py` simulates three kinds of colour blindness. `shade` colours order cosines from
low to high: pale to deep blue on white, deep to pale on black, so that a high cosine always stands out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise
from math import isfinite
from typing import Final, NamedTuple

from nextlong.schemas import Span
from nextlong.text import counted

SHADES: Final = 8
RUNS: Final = 6  # colours for data sets shown side by side


def _named(
    own: str,
    plain: Sequence[str],
    between: str,
    shades: Sequence[str],
    runs: Sequence[str],
) -> dict[str, str]:
    """Name the colours of: the document that a sequence is about, documents without a cosine, separators, cosines, runs."""
    numbered = {"plain": plain, "shade": shades, "run": runs}
    listed = {
        f"{name}{n}": colour
        for name, colours in numbered.items()
        for n, colour in enumerate(colours)
    }
    return {"own": own, "negative": shades[5], "between": between, **listed}


LIGHT: Final = _named(
    own="#d55e00",
    plain=("#b9c0c9", "#8f99a5"),
    between="#444c56",
    shades=(
        "#d6e6f5",
        "#b9d5ee",
        "#98c1e4",
        "#74abd8",
        "#5193c9",
        "#337ab6",
        "#1b609d",
        "#0b477f",
    ),
    runs=("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"),
)
DARK: Final = _named(
    own="#f58a3a",
    plain=("#5b6571", "#8a95a1"),
    between="#c3ccd6",
    shades=(
        "#17324b",
        "#1d4468",
        "#245785",
        "#2f6ca3",
        "#4285c0",
        "#5f9fd6",
        "#86baea",
        "#b5d8fb",
    ),
    runs=("#3f9bdc", "#f07f35", "#1fb98c", "#e09ac3", "#e8d04a", "#8fd0f5"),
)


def css_of_colours() -> str:
    """Return the palettes as custom properties, and a class for each colour that fills shapes and backgrounds."""
    light, dark = (
        ";".join(f"--{name}:{colour}" for name, colour in colours.items())
        for colours in (LIGHT, DARK)
    )
    classes = "".join(
        f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in LIGHT
    )
    return f":root{{{light}}}@media screen and (prefers-color-scheme:dark){{:root{{{dark}}}}}{classes}\n"


# What XML 1.0 cannot hold, and what turns the direction of the text around it.
_FORBIDDEN = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]"
)


def clean(text: str) -> str:
    """Return text without control characters, lone surrogates and direction marks, which a page must not contain."""
    return _FORBIDDEN.sub("\ufffd", text)


def short(text: str, most: int) -> str:
    """Return text on one line, cut to at most `most` characters."""
    line = " ".join(clean(text).split())
    return line if len(line) <= most else f"{line[: most - 1]}…"


Pieces = Sequence[Span]
_SEPARATOR_TOKENS = 16  # at most between two chunks that count as neighbors
CHUNK_ROLES = ("meta", "negative", "document")
# A letter of a script that is written without spaces counts as a word, as in `page.js`, which finds the words again.
_SOLO: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
)
_WORD: Final = re.compile(rf"[{_SOLO}]|(?:(?![{_SOLO}])[^\W_])+")
_RARE_SHARES: Final = (
    0.01,
    0.03,
)  # of the sampled texts hold a rare word; each only where no shared word is rarer
_FEWEST_TEXTS: Final = 20  # of a sample that can tell rare words from common ones
_MOST_WORDS: Final = 20  # that are marked, the rarest


def lead_document(pieces: Pieces) -> int:
    """Return the doc_id of the meta-document, else of the first document; -1 if there is neither."""
    chunks = [piece for piece in pieces if piece.role in CHUNK_ROLES]
    return min(chunks, key=lambda piece: piece.role != "meta").doc_id if chunks else -1


def chunks_of(pieces: Pieces, doc_id: int) -> list[Span]:
    """Return the pieces of a document in its own order, each chunk once: its last occurrence."""
    of_document = {piece.chunk_id: piece for piece in pieces if piece.doc_id == doc_id}
    return [piece for _, piece in sorted(of_document.items())]


def document_before(pieces: Pieces, doc_id: int) -> list[Span]:
    """Return the chunks of a document as they were before, side by side from token 0 on."""
    chunks = chunks_of(pieces, doc_id)
    ends = accumulate(chunk.length for chunk in chunks)
    return [
        replace(chunk, token_start=end - chunk.length, token_end=end)
        for chunk, end in zip(chunks, ends, strict=True)
    ]


def scored(pieces: Pieces) -> list[float]:
    """Return the cosines of negatives and documents that have one."""
    return [
        piece.score
        for piece in pieces
        if piece.role in ("negative", "document") and isfinite(piece.score)
    ]


def scale(cosines: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest cosine, which take the lightest and the darkest shade."""
    return (min(cosines), max(cosines)) if cosines else (0.0, 1.0)


def colour(piece: Span, order: int, lead: int, scale: tuple[float, float]) -> str:
    """Return the name of a piece's colour; `order` counts documents, of which those without cosines alternate."""
    if piece.role not in CHUNK_ROLES:
        return "between"
    if piece.doc_id == lead:
        return "own"
    if not isfinite(piece.score):
        return f"plain{order % 2}"
    least, most = scale  # the cosines of the first shade and of the last
    share = (piece.score - least) / (most - least) if most > least else 1.0
    return f"shade{min(SHADES - 1, max(0, int(share * SHADES)))}"


def partners(pieces: Pieces) -> list[int]:
    """Return the place of the piece that each is compared to: a negative's meta-chunk, a meta-chunk's next one, the piece
    before a document; -1 for none.
    """
    of_group = {
        piece.group: place for place, piece in enumerate(pieces) if piece.role == "meta"
    }
    meta_pieces = sorted(of_group.values(), key=lambda place: pieces[place].group)
    behind = dict(pairwise(meta_pieces)) | (
        {meta_pieces[-1]: meta_pieces[-2]} if len(meta_pieces) > 1 else {}
    )
    partner_of, before = [], -1
    for place, piece in enumerate(pieces):
        of_role = {
            "negative": of_group.get(piece.group, -1),
            "meta": behind.get(place, -1),
            "document": before,
        }
        partner_of.append(of_role.get(piece.role, -1))
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
            nearest[piece.group] = max(
                nearest.get(piece.group, place),
                place,
                key=lambda one: pieces[one].score,
            )
    if nearest:
        return sorted(nearest.values(), key=lambda place: pieces[place].score)[
            len(nearest) // 2
        ]
    return next(
        (place for place, partner in enumerate(partners(pieces)) if partner >= 0), 0
    )


def neighbours_before(pieces: Pieces, doc_id: int) -> list[tuple[Span, Span]]:
    """Return the pairs of pieces that were neighbors in a document and no longer are."""
    chunks = chunks_of(pieces, doc_id)
    return [
        (a, b)
        for a, b in pairwise(chunks)
        if not 0 <= b.token_start - a.token_end <= _SEPARATOR_TOKENS
    ]


def others_and_distance(pieces: Pieces, lead: int) -> tuple[int, int]:
    """Return the number of other documents in a sequence about document `lead`, and the largest distance of former neighbors.

    The distance is in tokens, 0 if the chunks of the document are still next to each other.
    """
    others = {piece.doc_id for piece in pieces if piece.doc_id >= 0} - {lead}
    return len(others), max(
        (abs(b.token_start - a.token_end) for a, b in neighbours_before(pieces, lead)),
        default=0,
    )


def caption(pieces: Pieces, *, lead: int) -> str:
    """Return the composition of a sequence in a sentence or two."""
    count = sum(piece.doc_id == lead for piece in pieces)
    tokens, (others, apart) = pieces[-1].token_end, others_and_distance(pieces, lead)
    held = f"{counted(count, 'chunk')} of the document and text of {counted(others, 'other document')}"
    if not apart:
        return f"{tokens:,} tokens: {held}. The chunks of the document are still next to each other."
    return f"{tokens:,} tokens: {held}. Chunks that were neighbors are now up to {apart:,} tokens apart."


class Frequencies(NamedTuple):
    """How many of `texts` texts hold each word."""

    texts: int
    of: Counter[str]


def words_of(text: str) -> set[str]:
    """Return the distinct words of a text, in lower case."""
    return set(map(str.lower, _WORD.findall(text)))


def frequencies(texts: Iterable[str]) -> Frequencies:
    """Return the document frequency of every word of some texts."""
    held = [words_of(text) for text in texts]
    return Frequencies(len(held), Counter(word for words in held for word in words))


def shared_words(one: str, other: str, known: Frequencies) -> list[str]:
    """Return the rarest words that two texts share, sorted; those of few letters and those that many texts hold do not count."""
    common = words_of(one) & words_of(other)
    if known.texts >= _FEWEST_TEXTS:
        rare = (
            {word for word in common if known.of[word] <= share * known.texts}
            for share in _RARE_SHARES
        )
        common = next(filter(None, rare), set())
    return sorted(sorted(common, key=lambda word: (known.of[word], word))[:_MOST_WORDS])


def shared_with_partners(
    pieces: Pieces, texts: Sequence[str], known: Frequencies
) -> list[list[str]]:
    """Return the rarest words that the text of each piece shares with its partner's."""
    return [
        shared_words(text, texts[partner], known) if partner >= 0 else []
        for text, partner in zip(texts, partners(pieces), strict=True)
    ]
