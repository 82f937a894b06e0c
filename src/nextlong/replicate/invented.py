"""Invented corpus: documents whose facts can only be known by looking back at the same document.

In:  the sizes below and a seed. Out: `train.jsonl` and `held-out.jsonl` (documents), `echoes.jsonl` (random words, repeated
verbatim), `tokenizer.json` (a token a word).

A document has a topic, two entities, and four facts about each entity. A fact is `entity key value .`; the keys are the topic's,
entities and values are drawn from all names. The first paragraph states every fact once; each later paragraph restates facts
drawn with replacement, among words of the topic. So documents of one topic are hard negatives of each other: they state other
values for the same keys, and only the entity tells them apart. In text of another topic the key alone tells a fact apart.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from nextlong.engine import store
from nextlong.recipe.keys import Positive, Section
from nextlong.rng import rng_for

TOPICS: Final = 12
KEYS: Final = 6  # of a topic
FILLERS: Final = 4  # further words of a topic
ENTITIES: Final = 512
VALUES: Final = 48
_ENTITIES_OF_DOCUMENT: Final = 2
_FACTS_OF_ENTITY: Final = 4
_RESTATED: Final = 4  # facts of a later paragraph
_PARAGRAPHS: Final = (4, 9)  # of a document, from 4 to 8
_ECHO_WORDS: Final = (4, 24)  # of a span, uniform in its logarithm
_ECHO_TOKENS: Final = 96  # a span is repeated until its document has as many, at least once
STOP: Final = "."


class Invented(Section):
    """Sizes of the invented corpus."""

    documents: Positive = 5_000
    held_out: Positive = 500
    echoes: Positive = 6_000
    seed: int = 0


@dataclass(frozen=True)
class Fact:
    """What a document states: the value of a key of an entity, as words."""

    entity: str
    key: str
    value: str

    def words(self) -> list[str]:
        """Return the sentence."""
        return [self.entity, self.key, self.value, STOP]


@dataclass(frozen=True)
class Document:
    """A topic, the facts, and the paragraphs as words; the first one states every fact once."""

    topic: int
    facts: tuple[Fact, ...]
    paragraphs: tuple[tuple[str, ...], ...]

    @property
    def text(self) -> str:
        """The paragraphs as lines."""
        return "".join(map(line, self.paragraphs))


def line(words: Sequence[str]) -> str:
    """Return a paragraph as a line of text."""
    return " ".join(words) + "\n"


class Words:
    """The vocabulary, the same for every seed: names are pronounceable and do not repeat."""

    @cached_property
    def all(self) -> list[str]:
        """Every word but the full stop."""
        consonants, vowels = "bdfgklmnprstvz", "aeiou"
        syllables = [one + two for one in consonants for two in vowels]
        order = rng_for(0, "invented-words", 0).permutation(len(syllables) ** 2)
        count = ENTITIES + VALUES + TOPICS * (KEYS + FILLERS)
        pairs = (divmod(int(place), len(syllables)) for place in order[:count])
        return [syllables[one] + syllables[two] for one, two in pairs]

    @property
    def entities(self) -> list[str]:
        """Names of entities."""
        return self.all[:ENTITIES]

    @property
    def values(self) -> list[str]:
        """Names of values."""
        return self.all[ENTITIES : ENTITIES + VALUES]

    def keys(self, topic: int) -> list[str]:
        """Return the keys of a topic."""
        return self._of_topic(topic)[:KEYS]

    def fillers(self, topic: int) -> list[str]:
        """Return the further words of a topic."""
        return self._of_topic(topic)[KEYS:]

    def _of_topic(self, topic: int) -> list[str]:
        first = ENTITIES + VALUES + topic * (KEYS + FILLERS)
        return self.all[first : first + KEYS + FILLERS]


WORDS: Final = Words()


def document(rng: np.random.Generator, *, topic: int | None = None, avoid: frozenset[str] = frozenset()) -> Document:
    """Return a new document, of a random topic if none is given, without the entities in `avoid`."""
    topic = int(rng.integers(TOPICS)) if topic is None else topic
    allowed = [name for name in WORDS.entities if name not in avoid] if avoid else WORDS.entities
    entities = rng.choice(allowed, _ENTITIES_OF_DOCUMENT, replace=False)
    values = iter(rng.choice(WORDS.values, _ENTITIES_OF_DOCUMENT * _FACTS_OF_ENTITY, replace=False))
    facts = [
        Fact(str(entity), str(key), str(next(values)))
        for entity in entities
        for key in rng.choice(WORDS.keys(topic), _FACTS_OF_ENTITY, replace=False)
    ]
    first = [word for place in rng.permutation(len(facts)) for word in facts[place].words()]
    later = [_later(rng, facts, WORDS.fillers(topic)) for _ in range(int(rng.integers(*_PARAGRAPHS)) - 1)]
    return Document(topic, tuple(facts), (tuple(first), *later))


def _later(rng: np.random.Generator, facts: Sequence[Fact], fillers: Sequence[str]) -> tuple[str, ...]:
    words: list[str] = []
    for place in rng.integers(len(facts), size=_RESTATED):
        words += [*map(str, rng.choice(fillers, int(rng.integers(2, 5)))), *facts[place].words()]
    return tuple(words)


def _echo(rng: np.random.Generator) -> str:
    least, most = _ECHO_WORDS
    count = round(least * (most / least) ** rng.random())
    span = [*map(str, rng.choice(WORDS.all, count)), STOP]
    return line(span) * max(2, -(-_ECHO_TOKENS // len(span)))


def tokenizer() -> Tokenizer:
    """Return the tokenizer: a word and the blank behind it are one token; every line ends in a full stop."""
    pieces = ["<unk>", f"{STOP}\n", *(f"{word} " for word in (STOP, *WORDS.all))]
    made = Tokenizer(models.WordLevel({piece: place for place, piece in enumerate(pieces)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^ \n]*[ \n]"), "isolated")
    made.decoder = decoders.Fuse()
    return made


def write(sizes: Invented, folder: Path) -> None:
    """Write the corpus and its tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, count in (("train", sizes.documents), ("held-out", sizes.held_out)):
        texts = (document(rng_for(sizes.seed, f"invented-{name}", place)).text for place in range(count))
        _write_jsonl(folder / f"{name}.jsonl", texts)
    echoes = (_echo(rng_for(sizes.seed, "invented-echo", place)) for place in range(sizes.echoes))
    _write_jsonl(folder / "echoes.jsonl", echoes)
    store.write_text(folder / "tokenizer.json", tokenizer().to_str())


def _write_jsonl(path: Path, texts: Iterator[str]) -> None:
    lines = (json.dumps({"id": f"{path.stem}-{place}", "text": text}) + "\n" for place, text in enumerate(texts))
    store.write_text(path, "".join(lines))
