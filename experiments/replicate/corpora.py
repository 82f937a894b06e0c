"""Corpora: documents whose facts can only be known by looking back at the same document.

In:  sizes and a seed (invented documents), or any input files (the user's own).
Out: `train.jsonl` and `held-out.jsonl` (short documents), `long.jsonl` (long ones),
     `long-gzip.jsonl` (those of them whose compression ratio is in the middle),
     `echoes.jsonl` (random words, repeated verbatim), `tokenizer.json`; of real
     documents also `held-out-text.jsonl`, what probes are made of.

An invented document has a topic and four facts. A fact is `name value .`; its name is
drawn from all names, its value from those of the topic. The first paragraph states
every fact once; each later paragraph restates facts drawn with replacement, among words
of the topic. Documents of one topic are hard negatives of each other: only the name
tells which fact is meant.

Real documents seldom restate facts, so small models learn no retrieval from them. Here
short documents of 3 to 6 paragraphs are cut from each input document and state facts in
the same way among its own words: a fact is `NAME value.`, its name an invented word,
its value a word that is typical of the input document. Short documents of one input
document are hard negatives of each other. An input document goes to one part by its
content alone, so copies stay together, and files may come in any order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import log
from pathlib import Path
from typing import Annotated, ClassVar, Final, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, model_validator
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from nextlong.corpus.ingest import normalized_hash
from nextlong.corpus.long_documents import MIDDLE, compression_ratio, within_quantiles
from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart, InputFile
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import FilteredOut, Reject, Skip, text_problem
from nextlong.recipe.keys import Positive, Section, Source, keyed
from nextlong.rng import keyed_hash, rng_for, threshold_for
from nextlong.sequences.tokenizer import TRAINING_CHARS, train_bpe
from nextlong.text import Json

FACTS: Final = 4  # of a document, and statements of a paragraph
# Of a topic; of an input document: the most typical (tf-idf) of its words that are one
# token.
VALUES: Final = 12
# A span is repeated, at least once, until its document has that many.
_ECHO_TOKENS: Final = 96

Negatives = Literal["hard", "random"]
# (kind, number of negatives, rng) → a probe's tokens, and the positions of the values
# to recall.
Probe = Callable[[Negatives, int, np.random.Generator], tuple[list[int], list[int]]]


def _echo(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return a span of random words, repeated verbatim, each time as a line."""
    # From 4 to 24 words, uniform in its logarithm.
    count = round(4 * (24 / 4) ** rng.random())
    span = [*rng.choice(words, count).tolist(), "."]
    copies = max(2, -(-_ECHO_TOKENS // len(span)))
    return (" ".join(span) + "\n") * copies


def _of_middling_compression(texts: Sequence[str]) -> list[str]:
    """Return the texts but those at either end of the compression ratio, in order."""
    # Compressed bytes per byte of each text, shape (texts,).
    ratios = np.array([compression_ratio(text) for text in texts])
    is_middling = within_quantiles(ratios, MIDDLE)
    return [text for text, kept in zip(texts, is_middling, strict=True) if kept]


def _probe(
    tokenizer: Tokenizer, head: str, again: str, names: Iterable[str]
) -> tuple[list[int], list[int]]:
    """Return a probe: facts and negatives, then the facts again.

    The values to recall are the tokens after `names`.
    """
    before = tokenizer.encode(head).ids
    questions = tokenizer.encode(again).ids
    name_ids = set(map(tokenizer.token_to_id, names))
    positions = []
    for position, token in enumerate(questions, start=len(before)):
        if token in name_ids:
            positions.append(position + 1)
    return before + questions, positions


def _write(
    folder: Path, texts: dict[str, list[str]], tokenizer: Tokenizer
) -> dict[str, int]:
    """Write the documents of each part, and the tokenizer; return their numbers.

    A document is named by its file and its number.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store.write_file(folder / "tokenizer.json", tokenizer.to_str())
    texts = {**texts, "long-gzip": _of_middling_compression(texts["long"])}
    counts = {}
    for part, documents in texts.items():
        lines = []
        for number, text in enumerate(documents):
            lines.append(json.dumps({"id": f"{part}-{number}", "text": text}) + "\n")
        store.write_file(folder / f"{part}.jsonl", "".join(lines))
        counts[part] = len(documents)
    return counts


# of the invented corpus
TOPICS: Final = 12
NAMES: Final = 640
_PARAGRAPH_TOKENS: Final = 24  # on average
_FILLERS: Final = 6  # further words of a topic
_PARAGRAPHS: Final = (4, 9)  # of a document, from 4 to 8
_LONG_PARAGRAPHS: Final = (16, 81)  # of a long document
_FILLERS_BETWEEN: Final = (2, 5)  # before a fact, from 2 to 4


def _vocabulary() -> list[str]:
    """Return every word but the full stop: pronounceable, none twice.

    The same for every seed: the names of facts, then of each topic its values and its
    fillers.
    """
    letters = product("bdfgklmnprstvz", "aeiou")
    syllables = ["".join(pair) for pair in letters]
    # A word is a pair of syllables, by its number among all pairs.
    order = rng_for(0, "invented-words", 0).permutation(len(syllables) ** 2)
    words = []
    for number in order[: NAMES + TOPICS * (VALUES + _FILLERS)].tolist():
        first, second = divmod(number, len(syllables))
        words.append(syllables[first] + syllables[second])
    return words


_WORDS: Final = _vocabulary()


def _words_of(topic: int) -> tuple[list[str], list[str]]:
    """Return the possible values of a topic's facts, and its further words."""
    first = NAMES + topic * (VALUES + _FILLERS)
    words = _WORDS[first : first + VALUES + _FILLERS]
    return words[:VALUES], words[VALUES:]


class _Document(NamedTuple):
    """A topic, the facts as names and values, and the paragraphs as lines.

    The first paragraph states every fact once.
    """

    topic: int
    facts: list[tuple[str, str]]
    paragraphs: list[str]


def _invented_document(
    rng: np.random.Generator,
    topic: int | None = None,
    avoid: Collection[str] = (),
    paragraphs: tuple[int, int] = _PARAGRAPHS,
) -> _Document:
    """Return a new document, without the names in `avoid`.

    Its topic is a random one if none is given.
    """
    if topic is None:
        topic = int(rng.integers(TOPICS))
    allowed = [name for name in _WORDS[:NAMES] if name not in avoid]
    topic_values, _ = _words_of(topic)
    names = rng.choice(allowed, FACTS, replace=False).tolist()
    values = rng.choice(topic_values, FACTS, replace=False).tolist()
    facts = list(zip(names, values, strict=True))
    # The facts that each paragraph states, in order.
    count = int(rng.integers(*paragraphs))
    orders = [rng.permutation(FACTS)]
    for _ in range(count - 1):
        orders.append(rng.integers(FACTS, size=FACTS))
    lines = []
    for order in orders:
        lines.append(_stated(rng, topic, [facts[index] for index in order]))
    return _Document(topic, facts, lines)


def _stated(
    rng: np.random.Generator, topic: int, facts: Sequence[tuple[str, str]]
) -> str:
    """Return the line that states facts in this order, among words of the topic."""
    _, fillers = _words_of(topic)
    words: list[str] = []
    for name, value in facts:
        count = int(rng.integers(*_FILLERS_BETWEEN))
        words += rng.choice(fillers, count).tolist()
        words += [name, value, "."]
    return " ".join(words) + "\n"


def _word_tokenizer() -> Tokenizer:
    """Return the invented corpus's tokenizer.

    A word and the space after it are one token; every line ends in a full stop.
    """
    pieces = ["<unk>", ".\n", *(f"{word} " for word in (".", *_WORDS))]
    vocabulary = {piece: number for number, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^ \n]*[ \n]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


class Invented(Section):
    """Sizes of the invented corpus."""

    negative_tokens: ClassVar[int] = _PARAGRAPH_TOKENS
    vocabulary: ClassVar[int] = len(_WORDS) + 3
    chunk_chars: ClassVar[int] = 160  # a paragraph
    encoder: ClassVar[str] = "lsa"

    kind: Literal["invented"] = "invented"
    documents: Positive = 10_000
    held_out: Positive = 500
    long: Positive = 1_000
    echoes: Positive = 6_000
    seed: int = 0

    @property
    def about(self) -> str:
        return f"{self.documents:,} invented documents"

    def identity(self) -> Json:
        return self.model_dump(mode="json", exclude={"kind"})

    def write(self, folder: Path) -> Json:
        texts = {
            "train": self._documents("train", self.documents, _PARAGRAPHS),
            "held-out": self._documents("held-out", self.held_out, _PARAGRAPHS),
            "long": self._documents("long", self.long, _LONG_PARAGRAPHS),
            "echoes": [],
        }
        for number in range(self.echoes):
            rng = rng_for(self.seed, "invented-echo", number)
            texts["echoes"].append(_echo(rng, _WORDS))
        _write(folder, texts, _word_tokenizer())
        return {"documents": self.documents}

    def _documents(
        self, part: str, count: int, paragraphs: tuple[int, int]
    ) -> list[str]:
        texts = []
        for number in range(count):
            rng = rng_for(self.seed, f"invented-{part}", number)
            document = _invented_document(rng, paragraphs=paragraphs)
            texts.append("".join(document.paragraphs))
        return texts

    # The folder is not read: the tokenizer is the same for every corpus.
    def probe(self, folder: Path) -> Probe:  # noqa: ARG002
        tokenizer = _word_tokenizer()

        def probe(
            kind: Negatives, count: int, rng: np.random.Generator
        ) -> tuple[list[int], list[int]]:
            # A first paragraph, `count` paragraphs of other documents, and the facts
            # again.
            document = _invented_document(rng)
            names = [name for name, _ in document.facts]
            order = rng.permutation(FACTS)
            facts = [document.facts[index] for index in order]
            again = _stated(rng, document.topic, facts)
            paragraphs = [document.paragraphs[0]]
            others = [topic for topic in range(TOPICS) if topic != document.topic]
            for _ in range(count):
                topic = document.topic
                if kind == "random":
                    topic = int(rng.choice(others))
                negative = _invented_document(rng, topic, avoid=names)
                index = int(rng.integers(len(negative.paragraphs)))
                paragraphs.append(negative.paragraphs[index])
            name_tokens = [f"{name} " for name in names]
            return _probe(tokenizer, "".join(paragraphs), again, name_tokens)

        return probe


# of the user's documents
REAL_NAMES: Final = tuple(name.upper() for name in _WORDS[:320])  # each is one token
# Of an input document, as ingest.max_document_chars.
_MAX_CHARS: Final = 10_000_000
_REAL_PARAGRAPHS: Final = (3, 7)  # of a document, from 3 to 6


class _Text(NamedTuple):
    """An input document: its words in order, and those that its facts have as values."""

    words: list[str]
    values: list[str]

    @classmethod
    def of(cls, text: str, weights: Mapping[str, float]) -> _Text | None:
        """Return a document, None if it has too few words for values.

        `weights` are those of words that are a token, by rarity.
        """
        words = text.split()
        counts = Counter(word for word in words if word in weights)
        # The words with the highest tf-idf: frequent in this document and rare in the
        # others.
        by_weight = sorted(
            counts, key=lambda word: (counts[word] * weights[word], word)
        )
        values = by_weight[-VALUES:]
        return cls(words, values) if len(values) == VALUES else None

    def facts(
        self, rng: np.random.Generator, *, avoid: Collection[str] = ()
    ) -> list[str]:
        """Return new facts, without the names in `avoid`."""
        allowed = [name for name in REAL_NAMES if name not in avoid]
        names = rng.choice(allowed, FACTS, replace=False)
        values = rng.choice(self.values, FACTS, replace=False)
        return [f"{name} {value}." for name, value in zip(names, values, strict=True)]


class RealDocuments(Section):
    """The user's documents."""

    kind: Literal["documents"] = "documents"
    sources: tuple[Source, ...] = keyed(
        (), "as ingest.sources of a data recipe; none: Python's own documentation"
    )
    held_out: Annotated[float, Field(gt=0, lt=1)] = keyed(
        0.1, "share of the documents that no model sees, sampled by their content"
    )
    vocabulary: Annotated[int, Field(ge=300)] = keyed(
        1024, "entries of the BPE that is trained on the corpus; names come on top"
    )
    fact_every_words: Annotated[int, Field(ge=2)] = keyed(
        4, "words of text before each fact, on average"
    )
    long_chars: Positive = keyed(
        4_000, "characters from which a document counts as a natural long document"
    )
    echoes: Positive = keyed(6_000, "documents that repeat random words verbatim")
    encoder: str = keyed("lsa", "as encoder.model of a data recipe")
    seed: int = 0

    @model_validator(mode="after")
    def _whole_sources(self) -> Self:
        limits = ("weight", "max_documents", "max_chars")
        for source, key in product(self.sources, limits):
            if getattr(source, key) is not None:
                raise ValueError(
                    f"sources: {source.label} has {key}, but all its documents are "
                    "taken; leave it out"
                )
        return self

    @property
    def about(self) -> str:
        """What the documents are, in a few words."""
        labels = ", ".join(source.label for source in self.sources)
        return "the documents of " + (labels or "Python's documentation")

    @property
    def negative_tokens(self) -> int:
        """Tokens of a paragraph, on average, if a word has two."""
        return FACTS * (2 * self.fact_every_words + 3)

    @property
    def chunk_chars(self) -> int:
        """The chunk size of the methods: one paragraph fits, two do not."""
        return round(1.5 * FACTS * (6 * self.fact_every_words + 13))

    def _files(self) -> Iterator[tuple[Source, Sequence[InputFile]]]:
        for index, source in enumerate(self.sources):
            yield source, list_files(source, where=f"corpus.sources[{index}].path")

    def identity(self) -> Json:
        """Return what determines the corpus.

        The keys, and the files with their sizes and versions.
        """
        files = []
        for _, listed in self._files():
            files.append([(file.name, file.bytes, file.version) for file in listed])
        return {**self.model_dump(mode="json"), "files": files}

    def write(self, folder: Path) -> Json:
        """Write the files; return how many documents each has.

        Raises CorpusError if a part is empty.
        """
        train, held_out, rejected = self._read()
        tokenizer = self._trained_tokenizer(train)
        words = _rarities(train, tokenizer)
        train_short, long = self._made("train", train, words)
        held_out_short, _ = self._made("held-out", held_out, words)
        echoes = []
        for number in range(self.echoes):
            rng = rng_for(self.seed, "document-echo", number)
            echoes.append(_begun_echo(rng, [*REAL_NAMES, *words]))
        texts = {
            "held-out-text": held_out,
            "train": train_short,
            "held-out": held_out_short,
            "long": long,
            "echoes": echoes,
        }
        counts = _write(folder, texts, tokenizer)
        store.write_json(folder / "words.json", words)
        return {**counts, "rejected": dict(rejected)}

    def _read(self) -> tuple[list[str], list[str], Counter[str]]:
        """Return the input documents of training, the held-out ones, and rejections."""
        if not self.sources:
            raise CorpusError(
                where="corpus.sources",
                problem="it is empty",
                fix="name files with your documents",
            )
        train: list[str] = []
        held_out: list[str] = []
        rejected: Counter[str] = Counter()
        for source, files in self._files():
            for file in files:
                for text in _texts(file, source, rejected):
                    part = held_out if self._is_held_out(text) else train
                    part.append(text)
        if not train or not held_out:
            empty = "held-out" if train else "train"
            problem = (
                f"of {len(train) + len(held_out)} documents none is in the {empty} part "
                f"(corpus.held_out={self.held_out:g})"
            )
            if rejected:
                kinds = [
                    f"{count:,} × {kind}" for kind, count in sorted(rejected.items())
                ]
                problem += f"; rejected: {', '.join(kinds)}"
            raise CorpusError(
                where="corpus",
                problem=problem,
                fix="add documents, correct corpus.sources, or change the share",
            )
        return train, held_out, rejected

    def _is_held_out(self, text: str) -> bool:
        # The part depends on a hash of the text alone, so copies of a document are
        # never on both sides.
        hashes = np.array([normalized_hash(text.encode("utf-8"))], np.uint64)
        keyed_hashes = keyed_hash(hashes, seed=self.seed, stage="held-out")
        return bool(keyed_hashes[0] < threshold_for(self.held_out))

    def _trained_tokenizer(self, texts: Sequence[str]) -> Tokenizer:
        """Return a BPE of a sample of the documents, with the names on top."""
        order = rng_for(self.seed, "document-tokenizer", 0).permutation(len(texts))
        chars = np.cumsum([len(texts[index]) for index in order])
        count = np.searchsorted(chars, TRAINING_CHARS, side="right")
        sample = [texts[index] for index in order[:count]]
        tokenizer = train_bpe(sample, vocab_size=self.vocabulary)
        names = [AddedToken(f" {name}", normalized=False) for name in REAL_NAMES]
        tokenizer.add_tokens(names)
        return tokenizer

    def _made(
        self, part: str, texts: Sequence[str], words: Mapping[str, float]
    ) -> tuple[list[str], list[str]]:
        """Return the short documents that are cut from a part, and the long ones.

        Only documents of training are made into long ones.
        """
        short: list[str] = []
        long: list[str] = []
        min_paragraphs, _ = _REAL_PARAGRAPHS
        for number, text in enumerate(texts):
            document = _Text.of(text, words)
            if document is None:
                continue
            rng = rng_for(self.seed, f"facts-{part}", number)
            if part == "train" and len(text) >= self.long_chars:
                paragraphs, _ = self._paragraphs(rng, document, len(text))
                long.append("".join(paragraphs))
            first = 0
            while first < len(document.words):
                max_paragraphs = int(rng.integers(*_REAL_PARAGRAPHS))
                paragraphs, first = self._paragraphs(
                    rng, document, max_paragraphs, first
                )
                if len(paragraphs) >= min_paragraphs:
                    short.append("".join(paragraphs))
        return short, long

    def _paragraphs(
        self,
        rng: np.random.Generator,
        source: _Text,
        max_paragraphs: int,
        first: int = 0,
    ) -> tuple[list[str], int]:
        """Return paragraphs that state facts among the words from `first` on.

        And where the next words begin.
        """
        facts = source.facts(rng)
        paragraphs: list[str] = []
        while len(paragraphs) < max_paragraphs:
            # The first paragraph states every fact once, later ones restate facts drawn
            # with replacement.
            if paragraphs:
                order = rng.integers(FACTS, size=FACTS)
            else:
                order = rng.permutation(FACTS)
            counts = self._counts(rng)
            end = first + sum(counts)
            if end > len(source.words):
                return paragraphs, len(source.words)
            stated = [facts[index] for index in order]
            paragraphs.append(_paragraph(source.words[first:end], stated, counts))
            first = end
        return paragraphs, first

    def _counts(self, rng: np.random.Generator) -> list[int]:
        """Return the number of words before each fact of a paragraph."""
        half = self.fact_every_words // 2
        low = self.fact_every_words - half
        high = self.fact_every_words + half + 1
        return [int(rng.integers(low, high)) for _ in range(FACTS)]

    def probe(self, folder: Path) -> Probe:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        sources = self._probe_sources(folder)

        def stated(
            rng: np.random.Generator, source: _Text, facts: Sequence[str]
        ) -> str:
            # A paragraph that states all facts in random order among words of a random
            # place.
            counts = self._counts(rng)
            total = sum(counts)
            first = int(rng.integers(len(source.words) - total + 1))
            words = source.words[first : first + total]
            order = rng.permutation(FACTS)
            return _paragraph(words, [facts[index] for index in order], counts)

        def probe(
            kind: Negatives, negatives: int, rng: np.random.Generator
        ) -> tuple[list[int], list[int]]:
            own = int(rng.integers(len(sources)))
            others = [index for index in range(len(sources)) if index != own]
            facts = sources[own].facts(rng)
            names = [fact.split()[0] for fact in facts]
            lines = [stated(rng, sources[own], facts)]
            for _ in range(negatives):
                # Hard negatives state facts of the same document, with values that
                # compete; random ones those of another.
                other = own if kind == "hard" else int(rng.choice(others))
                other_facts = sources[other].facts(rng, avoid=names)
                lines.append(stated(rng, sources[other], other_facts))
            again = stated(rng, sources[own], facts)
            name_tokens = [f" {name}" for name in names]
            return _probe(tokenizer, "".join(lines), again, name_tokens)

        return probe

    def _probe_sources(self, folder: Path) -> list[_Text]:
        """Return the held-out documents that are long enough for probes."""
        words = store.read_json(folder / "words.json")
        rows = (folder / "held-out-text.jsonl").read_text(encoding="utf-8")
        min_words = FACTS * 2 * self.fact_every_words
        sources = []
        for row in rows.splitlines():
            source = _Text.of(json.loads(row)["text"], words)
            if source is not None and len(source.words) >= min_words:
                sources.append(source)
        if len(sources) < 2:
            raise CorpusError(
                where="corpus",
                problem="fewer than two held-out documents can be made into probes",
                fix="add documents",
            )
        return sources


def _texts(file: InputFile, source: Source, rejected: Counter[str]) -> Iterator[str]:
    """Yield the texts of a file; count its other records by the reason."""
    for item in read_records(FilePart(file), source, max_document_chars=_MAX_CHARS):
        if isinstance(item, FilteredOut | Skip):
            continue
        if isinstance(item, Reject):
            rejected[item.kind.value] += 1
            continue
        reason = text_problem(item.text, _MAX_CHARS)
        if reason is None:
            yield item.text
        else:
            kind, _ = reason
            rejected[kind.value] += 1


def _rarities(texts: Sequence[str], tokenizer: Tokenizer) -> dict[str, float]:
    """Return the words of lower case that are a token with the blank before them.

    Each with its inverse document frequency.
    """
    # The number of documents with each word.
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(set(text.split()))
    vocabulary = tokenizer.get_vocab()
    after_blank = sorted(token[1:] for token in vocabulary if token[0] == "Ġ")
    rarities = {}
    for word in after_blank:
        is_plain = (
            len(word) > 2 and word.isascii() and word.isalpha() and word.islower()
        )
        if is_plain and word in counts:
            rarities[word] = log(len(texts) / counts[word])
    return rarities


def _begun_echo(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return the end of one echo and a whole echo; each line begins with a space.

    Rows begin with a document. If it began with the first copy of a span, a model would
    learn to continue the third copy alone.
    """
    begun = _echo(rng, words).splitlines()
    whole = _echo(rng, words).splitlines()
    span = begun[0].split()
    # How many words of the first echo are left out.
    omitted = int(rng.integers(len(begun) * len(span)))
    copies, first = divmod(omitted, len(span))
    lines = [" ".join(span[first:]), *begun[copies + 1 :], *whole]
    return "".join(f" {line}\n" for line in lines)


def _paragraph(
    words: Sequence[str], facts: Sequence[str], counts: Sequence[int]
) -> str:
    """Return a line that states facts, each after the next `counts` words."""
    parts: list[str] = []
    first = 0
    for fact, count in zip(facts, counts, strict=True):
        parts += [*words[first : first + count], fact]
        first += count
    return " ".join(parts) + "\n"
