"""Invented corpus: documents whose facts can only be known by looking back at the same document.

In:  the sizes below and a seed. Out: `train.jsonl` and `held-out.jsonl` (documents of 4 to 8 paragraphs), `long.jsonl`
(17 to 80), `echoes.jsonl` (random words, repeated verbatim), `tokenizer.json` (a token a word).

A document has a topic and four facts. A fact is `name value .`; its name is drawn from all names, its value from those of the
topic. The first paragraph states every fact once; each later paragraph restates facts drawn with replacement, among words of
the topic. Documents of one topic are hard negatives of each other: their facts have the same possible values, and only the
name tells which one is meant. In text of other topics the possible values alone tell a document's own facts apart.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from nextlong.engine import store
from nextlong.recipe.keys import Positive, Section
from nextlong.rng import rng_for
from nextlong.text import Json

TOPICS: Final = 12
NAMES: Final = 640
VALUES: Final = 12  # of a topic
_FILLERS: Final = 6  # further words of a topic
FACTS: Final = 4  # of a document, and statements of a paragraph
PARAGRAPH_TOKENS: Final = 24  # on average
_PARAGRAPHS: Final = (4, 9)  # of a document, from 4 to 8
_LONG_PARAGRAPHS: Final = (16, 81)  # of a long document
_FILLERS_BETWEEN: Final = (2, 5)  # before a fact, from 2 to 4
_ECHO_WORDS: Final = (4, 24)  # of a span, uniform in its logarithm
_ECHO_TOKENS: Final = 96  # a span is repeated until its document has as many, at least once
# Of the long documents at either end of the compression ratio (arXiv 2512.13961, section 3.6).
_GZIP_DROPPED: Final = 0.2

Negatives = Literal["hard", "random"]
# (kind, number of negatives, rng) → a probe's tokens, and the places of the values that are asked for.
Probe = Callable[[Negatives, int, np.random.Generator], tuple[list[int], list[int]]]


class Invented(Section):
    """Sizes of the invented corpus."""

    kind: Literal["invented"] = "invented"
    documents: Positive = 10_000
    held_out: Positive = 500
    long: Positive = 1_000
    echoes: Positive = 6_000
    seed: int = 0

    @property
    def about(self) -> str:
        """What the documents are, in a few words."""
        return f"{self.documents:,} invented documents"

    @property
    def negative_tokens(self) -> int:
        """Tokens of a negative of the probes, on average."""
        return PARAGRAPH_TOKENS

    @property
    def vocabulary(self) -> int:
        """Entries of the tokenizer."""
        return len(WORDS) + 3

    @property
    def chunk_chars(self) -> int:
        """The chunk size of the methods: a paragraph."""
        return 160

    def identity(self) -> Json:
        """Return what determines the corpus."""
        return self.model_dump(mode="json", exclude={"kind"})

    def data_keys(self, folder: Path, source: str) -> Json:  # noqa: ARG002 (of one form with those of `RealDocuments`)
        """Return the keys of a data recipe over one file of the corpus."""
        return {"encoder": {"model": "lsa"}}

    def write(self, folder: Path) -> Json:
        """Write the corpus and its tokenizer; return the number of documents."""
        folder.mkdir(parents=True, exist_ok=True)
        texts: dict[str, list[str]] = {}
        for part, count in (("train", self.documents), ("held-out", self.held_out), ("long", self.long)):
            paragraphs = _LONG_PARAGRAPHS if part == "long" else _PARAGRAPHS
            rngs = (rng_for(self.seed, f"invented-{part}", place) for place in range(count))
            texts[part] = [document(rng, paragraphs=paragraphs).text for rng in rngs]
        texts["long-gzip"] = of_middling_compression(texts["long"])
        texts["echoes"] = [echo(rng_for(self.seed, "invented-echo", place), WORDS) for place in range(self.echoes)]
        for part, found in texts.items():
            write_jsonl(folder / f"{part}.jsonl", found)
        store.write_text(folder / "tokenizer.json", tokenizer().to_str())
        return {"documents": self.documents}

    def probe(self, folder: Path) -> Probe:  # noqa: ARG002 (its tokenizer is the same for every corpus)
        """Return the maker of probes."""
        return partial(_probe, tokenizer())


def _vocabulary() -> list[str]:
    """Return every word but the full stop, the same for every seed: pronounceable, none twice."""
    consonants, vowels = "bdfgklmnprstvz", "aeiou"
    syllables = [one + two for one in consonants for two in vowels]
    order = rng_for(0, "invented-words", 0).permutation(len(syllables) ** 2)
    pairs = (divmod(int(place), len(syllables)) for place in order[: NAMES + TOPICS * (VALUES + _FILLERS)])
    return [syllables[one] + syllables[two] for one, two in pairs]


WORDS: Final = _vocabulary()  # the names of facts, then of each topic its values and its fillers


def words_of(topic: int) -> tuple[list[str], list[str]]:
    """Return the possible values of a topic's facts, and its further words."""
    first = NAMES + topic * (VALUES + _FILLERS)
    return WORDS[first : first + VALUES], WORDS[first + VALUES : first + VALUES + _FILLERS]


@dataclass(frozen=True)
class _Document:
    """A topic, the facts as names and values, and the paragraphs as words; the first one states every fact once."""

    topic: int
    facts: tuple[tuple[str, str], ...]
    paragraphs: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The paragraphs as lines."""
        return "".join(map(_line, self.paragraphs))


def _line(words: Sequence[str]) -> str:
    return " ".join(words) + "\n"


def document(
    rng: np.random.Generator,
    *,
    topic: int | None = None,
    avoid: frozenset[str] = frozenset(),
    paragraphs: tuple[int, int] = _PARAGRAPHS,
) -> _Document:
    """Return a new document, of a random topic if none is given, without the names in `avoid`."""
    topic = int(rng.integers(TOPICS)) if topic is None else topic
    allowed = [name for name in WORDS[:NAMES] if name not in avoid]
    names, values = (rng.choice(words, FACTS, replace=False).tolist() for words in (allowed, words_of(topic)[0]))
    facts = tuple(zip(names, values, strict=True))
    again = (rng.integers(FACTS, size=FACTS) for _ in range(int(rng.integers(*paragraphs)) - 1))
    stated = [rng.permutation(FACTS), *again]
    return _Document(topic, facts, tuple(_paragraph(rng, topic, [facts[one] for one in places]) for places in stated))


def _paragraph(rng: np.random.Generator, topic: int, facts: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """Return the words that state facts in this order, among further words of the topic."""
    words: list[str] = []
    for fact in facts:
        fillers = rng.choice(words_of(topic)[1], int(rng.integers(*_FILLERS_BETWEEN))).tolist()
        words += [*fillers, *fact, "."]
    return tuple(words)


def _probe(tokenizer: Tokenizer, kind: Negatives, count: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
    """Return the tokens of a first paragraph, of `count` paragraphs of other documents, and of the facts again."""
    asked = document(rng)
    avoid = frozenset(name for name, _ in asked.facts)
    again = _paragraph(rng, asked.topic, [asked.facts[place] for place in rng.permutation(FACTS)])
    paragraphs = [asked.paragraphs[0]]
    others = [topic for topic in range(TOPICS) if topic != asked.topic]
    for _ in range(count):
        made = document(rng, topic=asked.topic if kind == "hard" else int(rng.choice(others)), avoid=avoid)
        paragraphs.append(made.paragraphs[int(rng.integers(len(made.paragraphs)))])
    ids = tokenizer.encode("".join(map(_line, [*paragraphs, again]))).ids
    first = len(ids) - len(again)
    return ids, [first + place + 1 for place, word in enumerate(again) if word in avoid]


def echo(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return a span of random words, repeated verbatim, each time as a line."""
    least, most = _ECHO_WORDS
    count = round(least * (most / least) ** rng.random())
    span = [*rng.choice(words, count).tolist(), "."]
    return _line(span) * max(2, -(-_ECHO_TOKENS // len(span)))


def tokenizer() -> Tokenizer:
    """Return the tokenizer: a word and the blank behind it are one token; every line ends in a full stop."""
    pieces = ["<unk>", ".\n", *(f"{word} " for word in (".", *WORDS))]
    made = Tokenizer(models.WordLevel({piece: place for place, piece in enumerate(pieces)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^ \n]*[ \n]"), "isolated")
    made.decoder = decoders.Fuse()
    return made


def write_jsonl(path: Path, texts: Iterable[str]) -> None:
    """Write documents, named by their file and their number."""
    rows = (json.dumps({"id": f"{path.stem}-{place}", "text": text}) + "\n" for place, text in enumerate(texts))
    store.write_text(path, "".join(rows))


def of_middling_compression(texts: Sequence[str]) -> list[str]:
    """Return the texts but those at either end of the compression ratio, in their order."""
    if not texts:
        return []
    # Compressed bytes per byte of each text, shape (texts,).
    ratios = np.array([len(gzip.compress(raw, mtime=0)) / len(raw) for raw in (text.encode("utf-8") for text in texts)])
    low, high = np.quantile(ratios, [_GZIP_DROPPED, 1 - _GZIP_DROPPED])
    return [text for text, ratio in zip(texts, ratios, strict=True) if low <= ratio <= high]
