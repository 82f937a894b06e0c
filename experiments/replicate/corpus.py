"""Corpus: invented documents whose facts need two words to be told apart.

In:  sizes and a seed.
Out: `train.jsonl` and `held-out.jsonl` (documents), `echoes.jsonl` (spans repeated
     verbatim), `tokenizer.json`.

A document has one subject and five relations, and states facts `subject relation
value`. Three of its relations are those of its topic, two those of its family of eight
topics; its values are drawn from those of the family. So a document of the same topic,
a look-alike, has the same relations with other values; one of the family shares two
relations; one of another family shares no word. Among unrelated documents a relation
alone tells which value is meant. Look-alikes refute this shortcut: only subject and
relation together tell it.

Subjects are written in signs, which the encoder does not read, so retrieval finds
documents of the same topic and not those of the same subject. Within a topic, every
document has a subject of its own, so that no fact is contradicted.

Echoes are spans of random words over small alphabets. Within a span a word has several
successors, so two words of context tell the next one. With large alphabets one word
does, and the base model never learns to match two.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

from nextlong.engine import store
from nextlong.recipe.keys import Positive, Section, keyed
from nextlong.rng import rng_for
from nextlong.text import Json

FAMILIES: Final = 4
TOPICS_PER_FAMILY: Final = 8
TOPICS: Final = FAMILIES * TOPICS_PER_FAMILY
SUBJECTS: Final = 128
TOPIC_RELATIONS: Final = 3
FAMILY_RELATIONS: Final = 2
FACTS: Final = TOPIC_RELATIONS + FAMILY_RELATIONS  # of a document and of a paragraph
VALUES: Final = 24  # of a family
_FILLERS: Final = 8  # of a family
_FILLER_SHARE: Final = 0.3  # of facts that follow a filler
PARAGRAPHS: Final = (2, 7)  # of a document, from 2 to 6
PARAGRAPH_TOKENS: Final = FACTS * 3 + FACTS * _FILLER_SHARE + 1  # on average
# By file. One paragraph of a document fits, two do not: a paragraph has 16 to 21 tokens
# of up to 5 characters. An echo fits as a whole.
CHUNK_CHARS: Final = {"train": 110, "held-out": 110, "echoes": 400}
_MEAN_PARAGRAPHS: Final = 4
_SIGNS: Final = "!#$%&*+-/:;<=>?@"  # the encoder reads none of them
# Rows of echoes hold whole documents, so that none is cut.
ECHO_TOKENS: Final = 64
# Words of the alphabet of an echo, and of its span; how often the span stands there.
_ALPHABETS: Final = (5, 8, 12, 24, 64)
_SPAN_WORDS: Final = (8, 28)
_COPIES: Final = (2, 4)

Kind = Literal["same", "far"]
# (kind, number of negatives, rng) → a probe's tokens, and the positions of the values
# to recall.
Probe = Callable[[Kind, int, np.random.Generator], tuple[list[int], list[int]]]


def _words(count: int) -> list[str]:
    """Return pronounceable words of four letters, none twice; always the same."""
    letters = product("bdfgklmnprstvz", "aeiou")
    syllables = ["".join(pair) for pair in letters]
    # A word is a pair of syllables, by its number among all pairs.
    order = rng_for(0, "invented-words", 0).permutation(len(syllables) ** 2)
    words = []
    for number in order[:count].tolist():
        first, second = divmod(number, len(syllables))
        words.append(syllables[first] + syllables[second])
    return words


class _Vocabulary(NamedTuple):
    """Every word but the full stop, none with two meanings.

    relations: (topics, 5), those of the family last
    values, fillers: (families, …)
    """

    subjects: list[str]
    relations: list[list[str]]
    values: list[list[str]]
    fillers: list[list[str]]

    @classmethod
    def make(cls) -> _Vocabulary:
        per_family = FAMILY_RELATIONS + VALUES + _FILLERS
        words = _words(FAMILIES * per_family + TOPICS * TOPIC_RELATIONS)
        relations: list[list[str]] = []
        values = []
        fillers = []
        for _ in range(FAMILIES):
            family_relations = _taken(words, FAMILY_RELATIONS)
            values.append(_taken(words, VALUES))
            fillers.append(_taken(words, _FILLERS))
            for _ in range(TOPICS_PER_FAMILY):
                relations.append(_taken(words, TOPIC_RELATIONS) + family_relations)
        subjects = ["".join(pair) for pair in product(_SIGNS, _SIGNS[:8])]
        return cls(subjects, relations, values, fillers)

    @property
    def words(self) -> list[str]:
        words = set(self.subjects)
        for group in (*self.relations, *self.values, *self.fillers):
            words.update(group)
        return sorted(words)


def _taken(words: list[str], count: int) -> list[str]:
    """Return the first words, and remove them."""
    taken = words[:count]
    del words[:count]
    return taken


VOCABULARY: Final = _Vocabulary.make()


class Document(NamedTuple):
    """A topic, a subject, the value of each relation, and the paragraphs as lines.

    The first paragraph states every fact once.
    """

    topic: int
    subject: str
    values: list[str]
    paragraphs: list[str]


def _document(rng: np.random.Generator, topic: int, subject: str) -> Document:
    family_values = VOCABULARY.values[topic // TOPICS_PER_FAMILY]
    values = rng.choice(family_values, FACTS, replace=False).tolist()
    document = Document(topic, subject, values, [])
    # The relations that each paragraph states, in order.
    orders = [rng.permutation(FACTS)]
    for _ in range(int(rng.integers(*PARAGRAPHS)) - 1):
        orders.append(rng.integers(FACTS, size=FACTS))
    for order in orders:
        document.paragraphs.append(_stated(rng, document, order))
    return document


def _stated(
    rng: np.random.Generator, document: Document, order: NDArray[np.int64]
) -> str:
    """Return the line that states facts in this order, among words of the family."""
    fillers = VOCABULARY.fillers[document.topic // TOPICS_PER_FAMILY]
    relations = VOCABULARY.relations[document.topic]
    words: list[str] = []
    for fact in order.tolist():
        if rng.random() < _FILLER_SHARE:
            words.append(str(rng.choice(fillers)))
        words += [document.subject, relations[fact], document.values[fact]]
    return " ".join([*words, "."]) + "\n"


def _echo(rng: np.random.Generator) -> str:
    """Return spans of random words over small alphabets, each repeated as lines.

    Rows begin with a document. If it began with the first copy of a span, a model would
    learn to continue the third copy alone, so it begins anywhere in a span's copies.
    """
    pieces = _repeated_span(rng)
    pieces = pieces[int(rng.integers(len(pieces))) :]
    while len(pieces) < ECHO_TOKENS:
        pieces += _repeated_span(rng)
    return "".join([*pieces[: ECHO_TOKENS - 1], ".\n"])


def _repeated_span(rng: np.random.Generator) -> list[str]:
    """Return the copies of a span, each a line, in pieces of one token."""
    size = int(rng.choice(_ALPHABETS))
    alphabet = rng.choice(VOCABULARY.words, size, replace=False)
    span = rng.choice(alphabet, int(rng.integers(*_SPAN_WORDS))).tolist()
    line = [f"{word} " for word in span]
    return [*line, ".\n"] * int(rng.integers(*_COPIES))


def word_tokenizer() -> Tokenizer:
    """Return the tokenizer: a word and the space after it are one token.

    Every line ends in a full stop.
    """
    pieces = ["<unk>", ".\n", *(f"{word} " for word in VOCABULARY.words)]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^ \n]*[ \n]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


class Corpus(Section):
    """Sizes of the corpus."""

    documents: Annotated[int, Field(ge=2 * TOPICS, le=SUBJECTS * TOPICS)] = keyed(
        4096, f"of training; at most {SUBJECTS} of each of the {TOPICS} topics"
    )
    held_out: Positive = keyed(500, "documents whose loss is measured")
    echoes: Positive = 32_000
    seed: int = 0

    @property
    def candidates(self) -> int:
        """Chunks retrieved for a meta-chunk: twice as many as its topic has."""
        return 2 * _MEAN_PARAGRAPHS * (self.documents // TOPICS)

    def write(self, folder: Path) -> Json:
        """Write the files; return the number of documents."""
        texts = {
            "train": self._documents("train", self.documents),
            "held-out": self._documents("held-out", self.held_out),
            "echoes": [],
        }
        for number in range(self.echoes):
            texts["echoes"].append(_echo(rng_for(self.seed, "echo", number)))
        folder.mkdir(parents=True, exist_ok=True)
        store.write_file(folder / "tokenizer.json", word_tokenizer().to_str())
        for part, documents in texts.items():
            lines = []
            for number, text in enumerate(documents):
                record = {"id": f"{part}-{number}", "text": text}
                lines.append(json.dumps(record) + "\n")
            store.write_file(folder / f"{part}.jsonl", "".join(lines))
        return {"documents": self.documents}

    def _documents(self, part: str, count: int) -> list[str]:
        subjects = []
        for topic in range(TOPICS):
            rng = rng_for(self.seed, f"subjects-{part}", topic)
            subjects.append(rng.permutation(VOCABULARY.subjects).tolist())
        texts = []
        for number in range(count):
            of_topic, topic = divmod(number, TOPICS)
            rng = rng_for(self.seed, f"document-{part}", number)
            document = _document(rng, topic, subjects[topic][of_topic])
            texts.append("".join(document.paragraphs))
        return texts


def topic_of(document_id: str) -> int:
    """Return the topic of a document that `Corpus` wrote."""
    _, _, number = document_id.rpartition("-")
    return int(number) % TOPICS


def probe_maker() -> Probe:
    """Return what makes probes."""
    tokenizer = word_tokenizer()

    def probe(
        kind: Kind, count: int, rng: np.random.Generator
    ) -> tuple[list[int], list[int]]:
        # The first paragraph of a new document, `count` paragraphs of others, and the
        # facts again.
        topic = int(rng.integers(TOPICS))
        subject = str(rng.choice(VOCABULARY.subjects))
        document = _document(rng, topic, subject)
        lines = [document.paragraphs[0]]
        for _ in range(count):
            lines.append(_negative(rng, kind, document))
        relations = VOCABULARY.relations[topic]
        facts = []
        for fact in rng.permutation(FACTS).tolist():
            facts += [subject, relations[fact], document.values[fact]]
        before = tokenizer.encode("".join(lines)).ids
        questions = tokenizer.encode(" ".join(facts) + " ").ids
        first = len(before) + 2
        positions = range(first, len(before) + len(questions), 3)
        return before + questions, list(positions)

    return probe


def _negative(rng: np.random.Generator, kind: Kind, document: Document) -> str:
    """Return a paragraph of another document: a look-alike, or of another family."""
    topic = document.topic
    family = topic // TOPICS_PER_FAMILY
    if kind == "far":
        topic = int(rng.choice(_topics_outside(family)))
    subject = _subject_but(rng, {document.subject})
    paragraphs = _document(rng, topic, subject).paragraphs
    return paragraphs[int(rng.integers(len(paragraphs)))]


def _topics_outside(family: int) -> Sequence[int]:
    return [topic for topic in range(TOPICS) if topic // TOPICS_PER_FAMILY != family]


def _subject_but(rng: np.random.Generator, avoided: Collection[str]) -> str:
    allowed = [subject for subject in VOCABULARY.subjects if subject not in avoided]
    return str(rng.choice(allowed))
