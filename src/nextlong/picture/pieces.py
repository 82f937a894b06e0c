"""Pieces: the spans of a sequence as a picture shows them.

In:  spans; texts, and how many texts of a sample of the corpus hold each word (their
document frequency). Out: the document that a sequence is about, the range of its
cosines, partners of chunks; rare words, which make one text a distractor for the other.

One colour is for one thing, in strips, charts, the viewer and standalone SVG files;
pages have a light and a dark palette. Hues are Okabe and Ito's;
`tests/picture/test_pieces.py` simulates three kinds of colour blindness. `shade`
colours order cosines from low to high: pale to deep blue on white, deep to pale on
black, so that a high cosine always stands out.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
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
    task: str,
    shades: Sequence[str],
    runs: Sequence[str],
) -> dict[str, str]:
    """Return the colours by name.

    They are those of the document that a sequence is about, of documents without a
    cosine, of separators, of inserted tasks, of cosines, and of runs.
    """
    named = {"own": own, "negative": shades[5], "between": between, "task": task}
    for name, colours in (("plain", plain), ("shade", shades), ("run", runs)):
        for index, listed in enumerate(colours):
            named[f"{name}{index}"] = listed
    return named


LIGHT: Final = _named(
    own="#d55e00",
    plain=("#b9c0c9", "#8f99a5"),
    between="#444c56",
    task="#009e73",
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
    task="#1fb98c",
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
    """Return the palettes as custom properties.

    A class for each colour fills shapes and backgrounds.
    """
    # `fill` is for shapes of SVG, `background` for keys of legends.
    classes = [
        f".{name}{{fill:var(--{name});background:var(--{name})}}" for name in LIGHT
    ]
    dark = f"@media screen and (prefers-color-scheme:dark){{{_css(DARK)}}}"
    return f"{_css(LIGHT)}{dark}{''.join(classes)}\n"


def _css(colours: Mapping[str, str]) -> str:
    properties = [f"--{name}:{value}" for name, value in colours.items()]
    return f":root{{{';'.join(properties)}}}"


# What XML 1.0 cannot hold, and what turns the direction of the text around it.
_FORBIDDEN: Final = re.compile(
    r"[^\t\n\r\x20-\x7e\xa0-\ud7ff\ue000-\ufdcf\ufdf0-\ufffd\U00010000-\U0010ffff]"
    r"|[\u202a-\u202e\u2066-\u2069]"
)


def clean(text: str) -> str:
    """Return text without control characters, lone surrogates and direction marks.

    A page must not contain them.
    """
    return _FORBIDDEN.sub("\ufffd", text)


def short(text: str, max_chars: int) -> str:
    """Return text on one line, cut to at most `max_chars` characters."""
    words = clean(text).split()
    line = " ".join(words)
    if len(line) <= max_chars:
        return line
    return f"{line[: max_chars - 1]}…"


Pieces = Sequence[Span]
_SEPARATOR_TOKENS: Final = 16  # at most between two chunks that count as neighbors
# By how much a sequence is about them.
CHUNK_ROLES: Final = ("meta", "document", "context", "negative")
# A letter of a script that is written without spaces counts as a word, as in `page.js`,
# which finds the words again.
_SOLO: Final = (
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
)
_WORD: Final = re.compile(rf"[{_SOLO}]|(?:(?![{_SOLO}])[^\W_])+")
# Of the sampled texts that hold a rare word; each only where no shared word is rarer.
_RARE_SHARES: Final = (0.01, 0.03)
_MIN_TEXTS: Final = 20  # of a sample that can tell rare words from common ones
_MAX_WORDS: Final = 20  # that are marked, the rarest


def lead_document(pieces: Pieces) -> int:
    """Return the doc_id of the meta-document, else of the first document.

    -1 if there is neither.
    """
    chunks = [piece for piece in pieces if piece.role in CHUNK_ROLES]
    if not chunks:
        return -1
    return min(chunks, key=lambda piece: CHUNK_ROLES.index(piece.role)).doc_id


def chunks_of(pieces: Pieces, doc_id: int) -> list[Span]:
    """Return the last occurrence of each chunk of a document, in its own order."""
    # Ids of chunks ascend in reading order.
    of_document = {piece.chunk_id: piece for piece in pieces if piece.doc_id == doc_id}
    return [piece for _, piece in sorted(of_document.items())]


def document_before(pieces: Pieces, doc_id: int) -> list[Span]:
    """Return the chunks of a document as they were before, from token 0 on."""
    chunks = chunks_of(pieces, doc_id)
    ends = accumulate(chunk.length for chunk in chunks)
    return [
        replace(chunk, token_start=end - chunk.length, token_end=end)
        for chunk, end in zip(chunks, ends, strict=True)
    ]


def scored(pieces: Pieces) -> list[float]:
    """Return the cosines of negatives and documents that have one."""
    return [piece.score for piece in pieces if _is_scored(piece)]


def _is_scored(piece: Span) -> bool:
    is_other = piece.role in CHUNK_ROLES and piece.role != "meta"
    return is_other and isfinite(piece.score)


def scale(cosines: Sequence[float]) -> tuple[float, float]:
    """Return the least and the largest cosine.

    They take the lightest and the darkest shade.
    """
    return (min(cosines), max(cosines)) if cosines else (0.0, 1.0)


def colour(piece: Span, order: int, lead: int, scale: tuple[float, float]) -> str:
    """Return the name of a piece's colour.

    `order` counts documents, of which those without cosines alternate.
    """
    if piece.role == "task":
        return piece.role
    if piece.role not in CHUNK_ROLES:
        return "between"
    if piece.doc_id == lead:
        return "own"
    if not isfinite(piece.score):
        return f"plain{order % 2}"
    low, high = scale  # the cosines of the first shade and of the last
    share = 1.0
    if high > low:
        share = (piece.score - low) / (high - low)
    # The scale may be that of other sequences, so a cosine may be beyond it.
    shade = max(0, int(share * SHADES))
    shade = min(SHADES - 1, shade)
    return f"shade{shade}"


def partners(pieces: Pieces) -> list[int]:
    """Return the index of the piece that each is compared to; -1 for none.

    That is a negative's meta-chunk, a meta-chunk's next one, the document behind a
    context, or the piece before a document.
    """
    # A negative is of the group of the meta-chunk that it was found for, a context of
    # that of its document.
    # The index of the meta-chunk of each group; groups count meta-chunks in the order
    # of their document.
    meta_of_group: dict[int, int] = {}
    document_of_group: dict[int, int] = {}
    for index, piece in enumerate(pieces):
        if piece.role == "meta":
            meta_of_group[piece.group] = index
        elif piece.role == "document":
            document_of_group.setdefault(piece.group, index)
    targets = meta_of_group or document_of_group
    meta_indexes = [meta_of_group[group] for group in sorted(meta_of_group)]
    following = dict(pairwise(meta_indexes))
    if len(meta_indexes) > 1:
        following[meta_indexes[-1]] = meta_indexes[-2]

    partner_of = []
    before = -1
    for index, piece in enumerate(pieces):
        partner = -1
        if piece.role in ("negative", "context"):
            partner = targets.get(piece.group, -1)
        elif piece.role == "meta":
            partner = following.get(index, -1)
        elif piece.role == "document":
            partner = before
        partner_of.append(partner)
        if piece.role in CHUNK_ROLES:
            before = index
    return partner_of


EXAMPLE: Final = "Shown first: a typical top negative."


def example(pieces: Pieces) -> int:
    """Return the index of the piece to show first; 0 for none.

    Of the most similar negative of each meta-chunk it is the one with the median
    cosine, else the first that has a partner.
    """
    nearest: dict[int, int] = {}  # by group
    for index, piece in enumerate(pieces):
        if piece.role == "negative" and isfinite(piece.score):
            best = nearest.setdefault(piece.group, index)
            if piece.score > pieces[best].score:
                nearest[piece.group] = index
    if nearest:
        # The median, so that neither the best nor the worst pair stands for the
        # sequence.
        by_cosine = sorted(nearest.values(), key=lambda index: pieces[index].score)
        return by_cosine[len(by_cosine) // 2]
    for index, partner in enumerate(partners(pieces)):
        if partner >= 0:
            return index
    return 0


def neighbours_before(pieces: Pieces, doc_id: int) -> list[tuple[Span, Span]]:
    """Return the pairs of pieces that were neighbors and no longer are."""
    pairs = []
    for first, second in pairwise(chunks_of(pieces, doc_id)):
        gap = second.token_start - first.token_end
        if not 0 <= gap <= _SEPARATOR_TOKENS:
            pairs.append((first, second))
    return pairs


def others_and_distance(pieces: Pieces, lead: int) -> tuple[int, int]:
    """Return the number of documents other than `lead`, and the distance of neighbors.

    The largest distance of former neighbors is in tokens, 0 if the chunks of the
    document are still next to each other.
    """
    others = {piece.doc_id for piece in pieces if piece.role in CHUNK_ROLES} - {lead}
    distances = [
        abs(second.token_start - first.token_end)
        for first, second in neighbours_before(pieces, lead)
    ]
    return len(others), max(distances, default=0)


def caption(pieces: Pieces, *, lead: int) -> str:
    """Return the composition of a sequence in a sentence or two."""
    chunks = counted(sum(piece.doc_id == lead for piece in pieces), "chunk")
    tokens = pieces[-1].token_end
    count, apart = others_and_distance(pieces, lead)
    others = counted(count, "other document")
    composed = f"{tokens:,} tokens: {chunks} of the document and text of {others}."
    if not apart:
        return f"{composed} The chunks of the document are still next to each other."
    return (
        f"{composed} Chunks that were neighbors are now up to {apart:,} tokens apart."
    )


class Frequencies(NamedTuple):
    """How many of `texts` texts hold each word."""

    texts: int
    of: Counter[str]


def words_of(text: str) -> set[str]:
    """Return the distinct words of a text, in lower case."""
    return {word.lower() for word in _WORD.findall(text)}


def frequencies(texts: Iterable[str]) -> Frequencies:
    """Return the document frequency of every word of some texts."""
    counts: Counter[str] = Counter()
    number = 0
    for text in texts:
        number += 1
        counts.update(words_of(text))
    return Frequencies(number, counts)


def shared_words(text: str, other: str, known: Frequencies) -> list[str]:
    """Return the rarest words that two texts share, sorted.

    Those that many texts hold do not count.
    """
    shared = words_of(text) & words_of(other)
    # In a few texts, every word would be rare.
    if known.texts >= _MIN_TEXTS:
        shared = _rarest(shared, known)
    by_rarity = sorted(shared, key=lambda word: (known.of[word], word))
    return sorted(by_rarity[:_MAX_WORDS])


def _rarest(words: Collection[str], known: Frequencies) -> set[str]:
    """Return the words of the smallest share of texts that has any of them."""
    for share in _RARE_SHARES:
        max_texts = share * known.texts
        rare = {word for word in words if known.of[word] <= max_texts}
        if rare:
            return rare
    return set()


def shared_with_partners(
    pieces: Pieces, texts: Sequence[str], known: Frequencies
) -> list[list[str]]:
    """Return the rarest words that the text of each piece shares with its partner's."""
    shared: list[list[str]] = []
    for text, partner in zip(texts, partners(pieces), strict=True):
        if partner < 0:
            shared.append([])
        else:
            shared.append(shared_words(text, texts[partner], known))
    return shared
