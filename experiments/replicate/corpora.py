"""Corpora: documents whose facts can only be known by looking back at the same document: invented ones, or the user's own.

In:  sizes and a seed, or any input files. Out: `train.jsonl` and `held-out.jsonl` (short documents), `long.jsonl` (long ones),
`long-gzip.jsonl` (those of them whose compression ratio is in the middle), `echoes.jsonl` (random words, repeated verbatim),
`tokenizer.json`; of real documents also `held-out-text.jsonl`, what probes are made of.

An invented document has a topic and four facts. A fact is `name value .`; its name is drawn from all names, its value from those
of the topic. The first paragraph states every fact once; each later paragraph restates facts drawn with replacement, among words
of the topic. Documents of one topic are hard negatives of each other: only the name tells which fact is meant.

Real documents seldom restate facts, so small models learn no retrieval from them. Here short documents of 3 to 6 paragraphs are
cut from each input document and state facts in the same way among its own words: a fact is `NAME value.`, its name an invented
word, its value a word that is typical of the input document. Short documents of one input document are hard negatives of each
other. An input document goes to one part by its content alone, so copies stay together, and files may come in any order.
"""

from __future__ import annotations

import gzip
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
VALUES: Final = 12  # of a topic; of an input document: the most typical (tf-idf) of its words that are one token
_ECHO_TOKENS: Final = (
    96  # a span is repeated, at least once, until its document has that many
)

Negatives = Literal["hard", "random"]
# (kind, number of negatives, rng) → a probe's tokens, and the places of the values to recall.
Probe = Callable[[Negatives, int, np.random.Generator], tuple[list[int], list[int]]]


def _echo(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return a span of random words, repeated verbatim, each time as a line."""
    count = round(
        4 * (24 / 4) ** rng.random()
    )  # from 4 to 24, uniform in its logarithm
    span = [*rng.choice(words, count).tolist(), "."]
    return (" ".join(span) + "\n") * max(2, -(-_ECHO_TOKENS // len(span)))


def _of_middling_compression(texts: Sequence[str]) -> list[str]:
    """Return the texts but those at either end of the compression ratio, in their order."""
    if not texts:
        return []
    # Compressed bytes per byte of each text, shape (texts,).
    ratios = np.array(
        [
            len(gzip.compress(raw, mtime=0)) / len(raw)
            for raw in (text.encode("utf-8") for text in texts)
        ]
    )
    low, high = np.quantile(ratios, [0.2, 0.8])  # as arXiv 2512.13961, section 3.6
    return [
        text for text, ratio in zip(texts, ratios, strict=True) if low <= ratio <= high
    ]


def _probe(
    tokenizer: Tokenizer, head: str, again: str, names: Iterable[str]
) -> tuple[list[int], list[int]]:
    """Return a probe: facts and negatives, then the facts again; the values to recall are the tokens after `names`."""
    before, questions = tokenizer.encode(head).ids, tokenizer.encode(again).ids
    name_ids = set(map(tokenizer.token_to_id, names))
    return before + questions, [
        len(before) + place + 1
        for place, token in enumerate(questions)
        if token in name_ids
    ]


def _write(
    folder: Path, texts: dict[str, list[str]], tokenizer: Tokenizer
) -> dict[str, int]:
    """Write the documents of each part, named by their file and their number, and the tokenizer; return their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    store.write_file(folder / "tokenizer.json", tokenizer.to_str())
    texts = {**texts, "long-gzip": _of_middling_compression(texts["long"])}
    for part, documents in texts.items():
        rows = (
            json.dumps({"id": f"{part}-{place}", "text": text}) + "\n"
            for place, text in enumerate(documents)
        )
        store.write_file(folder / f"{part}.jsonl", "".join(rows))
    return {part: len(documents) for part, documents in texts.items()}


# of the invented corpus
TOPICS: Final = 12
NAMES: Final = 640
_PARAGRAPH_TOKENS: Final = 24  # on average
_FILLERS: Final = 6  # further words of a topic
_PARAGRAPHS: Final = (4, 9)  # of a document, from 4 to 8
_LONG_PARAGRAPHS: Final = (16, 81)  # of a long document
_FILLERS_BETWEEN: Final = (2, 5)  # before a fact, from 2 to 4


def _vocabulary() -> list[str]:
    """Return every word but the full stop, the same for every seed: pronounceable, none twice."""
    syllables = [one + two for one in "bdfgklmnprstvz" for two in "aeiou"]
    order = rng_for(0, "invented-words", 0).permutation(len(syllables) ** 2)
    pairs = (
        divmod(int(place), len(syllables))
        for place in order[: NAMES + TOPICS * (VALUES + _FILLERS)]
    )
    return [syllables[one] + syllables[two] for one, two in pairs]


_WORDS: Final = (
    _vocabulary()
)  # the names of facts, then of each topic its values and its fillers


def _words_of(topic: int) -> tuple[list[str], list[str]]:
    """Return the possible values of a topic's facts, and its further words."""
    first = NAMES + topic * (VALUES + _FILLERS)
    return _WORDS[first : first + VALUES], _WORDS[
        first + VALUES : first + VALUES + _FILLERS
    ]


class _Document(NamedTuple):
    """A topic, the facts as names and values, and the paragraphs as lines; the first one states every fact once."""

    topic: int
    facts: list[tuple[str, str]]
    paragraphs: list[str]


def _invented_document(
    rng: np.random.Generator,
    topic: int | None = None,
    avoid: Collection[str] = (),
    paragraphs: tuple[int, int] = _PARAGRAPHS,
) -> _Document:
    """Return a new document, of a random topic if none is given, without the names in `avoid`."""
    topic = int(rng.integers(TOPICS)) if topic is None else topic
    allowed = [name for name in _WORDS[:NAMES] if name not in avoid]
    names, values = (
        rng.choice(words, FACTS, replace=False).tolist()
        for words in (allowed, _words_of(topic)[0])
    )
    facts = list(zip(names, values, strict=True))
    again = (
        rng.integers(FACTS, size=FACTS)
        for _ in range(int(rng.integers(*paragraphs)) - 1)
    )
    stated = [rng.permutation(FACTS), *again]
    return _Document(
        topic,
        facts,
        [_stated(rng, topic, [facts[one] for one in places]) for places in stated],
    )


def _stated(
    rng: np.random.Generator, topic: int, facts: Sequence[tuple[str, str]]
) -> str:
    """Return the line that states facts in this order, among further words of the topic."""
    words: list[str] = []
    for fact in facts:
        words += [
            *rng.choice(
                _words_of(topic)[1], int(rng.integers(*_FILLERS_BETWEEN))
            ).tolist(),
            *fact,
            ".",
        ]
    return " ".join(words) + "\n"


def _word_tokenizer() -> Tokenizer:
    """Return the invented corpus's tokenizer: a word and the space after it are one token; every line ends in a full stop."""
    pieces = ["<unk>", ".\n", *(f"{word} " for word in (".", *_WORDS))]
    made = Tokenizer(
        models.WordLevel(
            {piece: place for place, piece in enumerate(pieces)}, unk_token="<unk>"
        )
    )
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[^ \n]*[ \n]"), "isolated")
    made.decoder = decoders.Fuse()
    return made


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
        texts: dict[str, list[str]] = {}
        for part, count in (
            ("train", self.documents),
            ("held-out", self.held_out),
            ("long", self.long),
        ):
            paragraphs = _LONG_PARAGRAPHS if part == "long" else _PARAGRAPHS
            rngs = (
                rng_for(self.seed, f"invented-{part}", place) for place in range(count)
            )
            texts[part] = [
                "".join(_invented_document(rng, paragraphs=paragraphs).paragraphs)
                for rng in rngs
            ]
        texts["echoes"] = [
            _echo(rng_for(self.seed, "invented-echo", place), _WORDS)
            for place in range(self.echoes)
        ]
        _write(folder, texts, _word_tokenizer())
        return {"documents": self.documents}

    def probe(self, folder: Path) -> Probe:  # noqa: ARG002 (its tokenizer is the same for every corpus)
        tokenizer = _word_tokenizer()

        def probe(
            kind: Negatives, count: int, rng: np.random.Generator
        ) -> tuple[list[int], list[int]]:
            # A first paragraph, `count` paragraphs of other documents, and the facts again.
            document = _invented_document(rng)
            names = [name for name, _ in document.facts]
            again = _stated(
                rng,
                document.topic,
                [document.facts[place] for place in rng.permutation(FACTS)],
            )
            paragraphs = [document.paragraphs[0]]
            others = [topic for topic in range(TOPICS) if topic != document.topic]
            for _ in range(count):
                made = _invented_document(
                    rng,
                    document.topic if kind == "hard" else int(rng.choice(others)),
                    names,
                )
                paragraphs.append(
                    made.paragraphs[int(rng.integers(len(made.paragraphs)))]
                )
            return _probe(
                tokenizer, "".join(paragraphs), again, [f"{name} " for name in names]
            )

        return probe


# of the user's documents
REAL_NAMES: Final = tuple(name.upper() for name in _WORDS[:320])  # each is one token
_MOST_CHARS: Final = 10_000_000  # of an input document, as ingest.max_document_chars
_REAL_PARAGRAPHS: Final = (3, 7)  # of a document, from 3 to 6


class _Text(NamedTuple):
    """An input document: its words in order, and those of them that its facts have as values."""

    words: list[str]
    values: list[str]

    @classmethod
    def of(cls, text: str, weights: Mapping[str, float]) -> _Text | None:
        """Return a document, None if it has too few words for values; `weights`: of words that are a token, by rarity."""
        words = text.split()
        counts = Counter(word for word in words if word in weights)
        # The words with the highest tf-idf: frequent in this document and rare in the others.
        typical = sorted(counts, key=lambda word: (counts[word] * weights[word], word))[
            -VALUES:
        ]
        return cls(words, typical) if len(typical) == VALUES else None

    def facts(
        self, rng: np.random.Generator, *, avoid: Collection[str] = ()
    ) -> list[str]:
        """Return new facts, without the names in `avoid`."""
        names = rng.choice(
            [name for name in REAL_NAMES if name not in avoid], FACTS, replace=False
        )
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
        for source, key in product(
            self.sources, ("weight", "max_documents", "max_chars")
        ):
            if getattr(source, key) is not None:
                raise ValueError(
                    f"sources: {source.label} has {key}, but all its documents are taken; leave it out"
                )
        return self

    @property
    def about(self) -> str:
        """What the documents are, in a few words."""
        return "the documents of " + (
            ", ".join(source.label for source in self.sources)
            or "Python's documentation"
        )

    @property
    def negative_tokens(self) -> int:
        """Tokens of a paragraph, on average, if a word has two."""
        return FACTS * (2 * self.fact_every_words + 3)

    @property
    def chunk_chars(self) -> int:
        """The chunk size of the methods: one paragraph fits, two do not."""
        return round(1.5 * FACTS * (6 * self.fact_every_words + 13))

    def _files(self) -> Iterator[tuple[Source, Sequence[InputFile]]]:
        for place, source in enumerate(self.sources):
            yield source, list_files(source, where=f"corpus.sources[{place}].path")

    def identity(self) -> Json:
        """Return what determines the corpus: the keys, and the files with their sizes and versions."""
        files = [
            [(file.name, file.bytes, file.version) for file in listed]
            for _, listed in self._files()
        ]
        return {**self.model_dump(mode="json"), "files": files}

    def write(self, folder: Path) -> Json:
        """Write the files; return how many documents each has. Raises CorpusError if a part is empty."""
        if not self.sources:
            raise CorpusError("corpus.sources is empty; name files with your documents")
        texts: dict[str, list[str]] = {"train": [], "held-out": []}
        rejected: Counter[str] = Counter()
        bound = threshold_for(self.held_out)
        for source, file in (
            (source, file) for source, listed in self._files() for file in listed
        ):
            for item in read_records(
                FilePart(file), source, max_document_chars=_MOST_CHARS
            ):
                if isinstance(item, FilteredOut | Skip):
                    continue
                if isinstance(item, Reject):
                    rejected[item.kind.value] += 1
                elif reason := text_problem(item.text, _MOST_CHARS):
                    rejected[reason[0].value] += 1
                else:
                    # The part depends on a hash of the text alone, so copies of a document are never on both sides.
                    hashes = np.array(
                        [normalized_hash(item.text.encode("utf-8"))], np.uint64
                    )
                    is_held_out = (
                        keyed_hash(hashes, seed=self.seed, stage="held-out")[0] < bound
                    )
                    texts["held-out" if is_held_out else "train"].append(item.text)
        if empty := [part for part, documents in texts.items() if not documents]:
            reasons = ", ".join(
                f"{count:,} × {kind}" for kind, count in sorted(rejected.items())
            )
            none = f"corpus: of {sum(map(len, texts.values()))} documents none is in the {empty[0]} part"
            share = f"(corpus.held_out={self.held_out:g}){f'; rejected: {reasons}' if reasons else ''}"
            raise CorpusError(
                f"{none} {share}; add documents, correct corpus.sources, or change the share"
            )
        order = rng_for(self.seed, "document-tokenizer", 0).permutation(
            len(texts["train"])
        )
        chars = np.cumsum([len(texts["train"][place]) for place in order])
        sample = [
            texts["train"][place]
            for place in order[: np.searchsorted(chars, TRAINING_CHARS, side="right")]
        ]
        tokenizer = train_bpe(sample, vocab_size=self.vocabulary)
        tokenizer.add_tokens(
            [AddedToken(f" {name}", normalized=False) for name in REAL_NAMES]
        )
        # The number of documents with each word.
        counts = Counter(word for text in texts["train"] for word in set(text.split()))
        # The words of lower case that are a token with the blank before them, by rarity.
        known = sorted(token[1:] for token in tokenizer.get_vocab() if token[0] == "Ġ")
        plain = (
            word
            for word in known
            if len(word) > 2 and word.isascii() and word.isalpha() and word.islower()
        )
        words = {
            word: log(len(texts["train"]) / counts[word])
            for word in plain
            if word in counts
        }
        made: dict[str, list[str]] = {
            "held-out-text": texts["held-out"],
            "train": [],
            "held-out": [],
            "long": [],
        }
        for part in ("train", "held-out"):
            for place, text in enumerate(texts[part]):
                document, rng = (
                    _Text.of(text, words),
                    rng_for(self.seed, f"facts-{part}", place),
                )
                if document is None:
                    continue
                if part == "train" and len(text) >= self.long_chars:
                    made["long"].append(
                        "".join(self._paragraphs(rng, document, len(text))[0])
                    )
                first = 0
                while first < len(document.words):
                    paragraphs, first = self._paragraphs(
                        rng, document, int(rng.integers(*_REAL_PARAGRAPHS)), first
                    )
                    if len(paragraphs) >= _REAL_PARAGRAPHS[0]:
                        made[part].append("".join(paragraphs))
        rngs = (
            rng_for(self.seed, "document-echo", place) for place in range(self.echoes)
        )
        made["echoes"] = [_begun_echo(rng, [*REAL_NAMES, *words]) for rng in rngs]
        written = _write(folder, made, tokenizer)
        store.write_json(folder / "words.json", words)
        return {**written, "rejected": dict(rejected)}

    def _paragraphs(
        self, rng: np.random.Generator, source: _Text, most: int, first: int = 0
    ) -> tuple[list[str], int]:
        """Return up to `most` paragraphs that state facts among the words from `first` on, and where the next words begin."""
        facts, paragraphs = source.facts(rng), list[str]()
        while len(paragraphs) < most:
            # The first paragraph states every fact once, later ones restate facts drawn with replacement.
            order = (
                rng.integers(FACTS, size=FACTS)
                if paragraphs
                else rng.permutation(FACTS)
            )
            counts = self._counts(rng)
            if (end := first + sum(counts)) > len(source.words):
                return paragraphs, len(source.words)
            paragraphs.append(
                _paragraph(
                    source.words[first:end], [facts[fact] for fact in order], counts
                )
            )
            first = end
        return paragraphs, first

    def _counts(self, rng: np.random.Generator) -> list[int]:
        """Return the number of words before each fact of a paragraph."""
        half = self.fact_every_words // 2
        return [
            int(
                rng.integers(
                    self.fact_every_words - half, self.fact_every_words + half + 1
                )
            )
            for _ in range(FACTS)
        ]

    def probe(self, folder: Path) -> Probe:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        words = store.read_json(folder / "words.json")
        rows = (folder / "held-out-text.jsonl").read_text(encoding="utf-8").splitlines()
        candidates = (_Text.of(json.loads(row)["text"], words) for row in rows)
        sources = [
            source
            for source in candidates
            if source and len(source.words) >= FACTS * 2 * self.fact_every_words
        ]
        if len(sources) < 2:
            raise CorpusError(
                "corpus: fewer than two held-out documents can be made into probes; add documents"
            )

        def stated(
            rng: np.random.Generator, source: _Text, facts: Sequence[str]
        ) -> str:
            # A paragraph that states all facts in random order among words of a random place.
            counts = self._counts(rng)
            first = int(rng.integers(len(source.words) - sum(counts) + 1))
            words = source.words[first : first + sum(counts)]
            return _paragraph(
                words, [facts[fact] for fact in rng.permutation(FACTS)], counts
            )

        def probe(
            kind: Negatives, negatives: int, rng: np.random.Generator
        ) -> tuple[list[int], list[int]]:
            own = int(rng.integers(len(sources)))
            others = [place for place in range(len(sources)) if place != own]
            facts = sources[own].facts(rng)
            names = [fact.split()[0] for fact in facts]
            lines = [stated(rng, sources[own], facts)]
            for _ in range(negatives):
                # Hard negatives state facts of the same document, with values that compete; random ones those of another.
                source = sources[own if kind == "hard" else int(rng.choice(others))]
                lines.append(stated(rng, source, source.facts(rng, avoid=names)))
            return _probe(
                tokenizer,
                "".join(lines),
                stated(rng, sources[own], facts),
                [f" {name}" for name in names],
            )

        return probe


def _begun_echo(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return the end of one echo and a whole echo; each line begins with a space.

    Rows begin with a document. If it began with the first copy of a span, a model would learn to continue the third copy alone.
    """
    first, second = (_echo(rng, words).splitlines() for _ in range(2))
    span = first[0].split()
    copies, begun = divmod(int(rng.integers(len(first) * len(span))), len(span))
    return "".join(
        f" {row}\n" for row in (" ".join(span[begun:]), *first[copies + 1 :], *second)
    )


def _paragraph(
    words: Sequence[str], facts: Sequence[str], counts: Sequence[int]
) -> str:
    """Return a line that states facts, each after the next `counts` words."""
    parts, first = list[str](), 0
    for fact, count in zip(facts, counts, strict=True):
        parts += [*words[first : first + count], fact]
        first += count
    return " ".join(parts) + "\n"
