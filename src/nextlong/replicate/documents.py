"""Documents: the user's own text as the corpus of an experiment, with facts inserted into it.

In:  any input files. Out: `train.jsonl` and `held-out.jsonl` (short documents of 3 to 6 paragraphs, cut from the input's),
`long.jsonl` (the input's long documents, whole), `long-gzip.jsonl` (those of them whose compression ratio is in the middle),
`echoes.jsonl` (random words, repeated verbatim), `held-out-text.jsonl` (what probes are made of), `tokenizer.json` (trained on
the text).

Real documents seldom restate facts, so small models learn no retrieval from them. Here every document states facts, as those of
the invented corpus do, among its own words: a fact is `NAME value.`, its name an invented word, its value a word that is
typical of the input document. The first paragraph states each fact once, later ones restate facts drawn with replacement.
Short documents cut from one input document share its values and not its names: they are hard negatives of each other. Every
method makes its sequences from these documents.

An input document goes to one part by its content alone, so copies stay together, and files may come in any order.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import log
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import numpy as np
from pydantic import Field, model_validator
from tokenizers import AddedToken, Tokenizer

from nextlong.corpus.ingest import normalized_hash
from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import FilteredOut, Reject, RejectKind
from nextlong.recipe.keys import Positive, Section, Source
from nextlong.replicate.invented import FACTS, WORDS, Negatives, Probe, echo, of_middling_compression, write_jsonl
from nextlong.rng import keyed_hash, rng_for, threshold_for
from nextlong.sequences.tokenizer import TRAINING_CHARS, train_bpe
from nextlong.text import Json

VALUES: Final = 12  # of an input document: the most typical (tf-idf) of its words that are one token
NAMES: Final = tuple(name.upper() for name in WORDS[:320])  # each is one token
_MOST_CHARS: Final = 10_000_000  # of an input document, as ingest.max_document_chars
_PARAGRAPHS: Final = (3, 7)  # of a document, from 3 to 6


class RealDocuments(Section):
    """The user's documents."""

    kind: Literal["documents"] = "documents"
    sources: tuple[Source, ...] = Field(
        (), description="as ingest.sources of a data recipe; none: Python's own documentation"
    )
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.1, description="share of the documents that no model sees, sampled by their content"
    )
    vocabulary: Annotated[int, Field(ge=300)] = Field(
        1024, description="entries of the BPE that is trained on the corpus; names come on top"
    )
    fact_every_words: Annotated[int, Field(ge=2)] = Field(4, description="words of text before each fact, on average")
    long_chars: Positive = Field(4_000, description="a document of as many characters is a natural long document")
    echoes: Positive = Field(6_000, description="documents that repeat random words verbatim")
    encoder: str = Field("lsa", description="as encoder.model of a data recipe")
    seed: int = 0

    @model_validator(mode="after")
    def _whole_sources(self) -> Self:
        for source in self.sources:
            for key in ("weight", "max_documents", "max_chars"):
                if getattr(source, key) is not None:
                    raise ValueError(
                        f"sources: {source.label} has {key}, but all its documents are taken; leave it out"
                    )
        return self

    @property
    def about(self) -> str:
        """What the documents are, in a few words."""
        return "the documents of " + (", ".join(source.label for source in self.sources) or "Python's documentation")

    @property
    def negative_tokens(self) -> int:
        """Tokens of a paragraph, on average, if a word has two."""
        return FACTS * (2 * self.fact_every_words + 3)

    @property
    def chunk_chars(self) -> int:
        """The chunk size of the methods: one paragraph fits, two do not."""
        return round(1.5 * FACTS * (6 * self.fact_every_words + 13))

    def identity(self) -> Json:
        """Return what determines the corpus: the keys, and the files with their sizes and versions."""
        files = [
            [
                (file.name, file.bytes, file.version)
                for file in list_files(source, where=f"corpus.sources[{place}].path")
            ]
            for place, source in enumerate(self.sources)
        ]
        return {**self.model_dump(mode="json"), "files": files}

    def data_keys(self, folder: Path, source: str) -> Json:
        """Return the keys of a data recipe over one file of the corpus."""
        held_out = [] if source == "held-out" else [str(folder / "held-out.jsonl")]
        return {"encoder": {"model": self.encoder}, "decontaminate": {"files": held_out}}

    def write(self, folder: Path) -> Json:
        """Write the files; return how many documents each has. Raises CorpusError if a part is empty."""
        if not self.sources:
            raise CorpusError("corpus.sources is empty; name files with your documents")
        texts: dict[str, list[str]] = {"train": [], "held-out": []}
        rejected: Counter[str] = Counter()
        bound = threshold_for(self.held_out)
        for text in self._texts(rejected):
            # The part depends on a hash of the text alone, so copies of a document are never on both sides.
            hashes = np.array([normalized_hash(text.encode("utf-8"))], np.uint64)
            is_held_out = keyed_hash(hashes, seed=self.seed, stage="held-out")[0] < bound
            texts["held-out" if is_held_out else "train"].append(text)
        if empty := [part for part, found in texts.items() if not found]:
            reasons = ", ".join(f"{count:,} × {kind}" for kind, count in sorted(rejected.items()))
            raise CorpusError(
                f"corpus: of {sum(map(len, texts.values()))} documents none is in the {empty[0]} part "
                f"(corpus.held_out={self.held_out:g}){f'; rejected: {reasons}' if reasons else ''}; add documents, correct "
                "corpus.sources, or change the share"
            )
        folder.mkdir(parents=True, exist_ok=True)
        tokenizer = train_bpe(self._sample(texts["train"]), vocab_size=self.vocabulary)
        tokenizer.add_tokens([AddedToken(f" {name}", normalized=False) for name in NAMES])
        store.write_text(folder / "tokenizer.json", tokenizer.to_str())
        # In how many documents each word occurs.
        counts = Counter(word for text in texts["train"] for word in set(text.split()))
        # The words of lower case that are a token with the blank before them, by rarity.
        known = sorted(token[1:] for token in tokenizer.get_vocab() if token[0] == "Ġ")
        plain = (word for word in known if len(word) > 2 and word.isascii() and word.isalpha() and word.islower())
        words = {word: log(len(texts["train"]) / counts[word]) for word in plain if word in counts}
        store.write_json(folder / "words.json", words)
        made: dict[str, list[str]] = {"held-out-text": texts["held-out"], "train": [], "held-out": [], "long": []}
        for part in ("train", "held-out"):
            for place, text in enumerate(texts[part]):
                source, rng = _Text.of(text, words), rng_for(self.seed, f"facts-{part}", place)
                if source is None:
                    continue
                if part == "train" and len(text) >= self.long_chars:
                    made["long"].append("".join(self._paragraphs(rng, source, most=len(text))[0]))
                first = 0
                while first < len(source.words):
                    paragraphs, first = self._paragraphs(rng, source, first=first, most=int(rng.integers(*_PARAGRAPHS)))
                    if len(paragraphs) >= _PARAGRAPHS[0]:
                        made[part].append("".join(paragraphs))
        made["long-gzip"] = of_middling_compression(made["long"])
        rngs = (rng_for(self.seed, "document-echo", place) for place in range(self.echoes))
        made["echoes"] = [_echoes(rng, [*NAMES, *words]) for rng in rngs]
        for part, found in made.items():
            write_jsonl(folder / f"{part}.jsonl", found)
        return {part: len(found) for part, found in made.items()} | {"rejected": dict(rejected)}

    def _paragraphs(
        self, rng: np.random.Generator, source: _Text, *, first: int = 0, most: int
    ) -> tuple[list[str], int]:
        """Return up to `most` paragraphs that state facts among the words from `first` on, and where the next words begin."""
        facts, paragraphs = source.facts(rng), list[str]()
        while len(paragraphs) < most:
            # The first paragraph states every fact once, later ones restate facts drawn with replacement.
            order = rng.integers(FACTS, size=FACTS) if paragraphs else rng.permutation(FACTS)
            counts = self._counts(rng)
            if (end := first + sum(counts)) > len(source.words):
                return paragraphs, len(source.words)
            paragraphs.append(_paragraph(source.words[first:end], [facts[fact] for fact in order], counts))
            first = end
        return paragraphs, first

    def _counts(self, rng: np.random.Generator) -> list[int]:
        """Return how many words stand before each fact of a paragraph."""
        half = self.fact_every_words // 2
        return [int(rng.integers(self.fact_every_words - half, self.fact_every_words + half + 1)) for _ in range(FACTS)]

    def _texts(self, rejected: Counter[str]) -> Iterator[str]:
        """Yield the documents; count in `rejected` the records that hold none, by reason."""
        for place, source in enumerate(self.sources):
            for file in list_files(source, where=f"corpus.sources[{place}].path"):
                for item in read_records(FilePart(file), source, max_document_chars=_MOST_CHARS):
                    if isinstance(item, FilteredOut):
                        continue
                    if isinstance(item, Reject):
                        rejected[item.kind.value] += 1
                    elif not item.text.strip():
                        rejected[RejectKind.EMPTY.value] += 1
                    elif len(item.text) > _MOST_CHARS:
                        rejected[RejectKind.TOO_LONG.value] += 1
                    else:
                        yield item.text

    def _sample(self, texts: list[str]) -> Iterator[str]:
        chars = 0
        for place in rng_for(self.seed, "document-tokenizer", 0).permutation(len(texts)):
            if (chars := chars + len(texts[place])) > TRAINING_CHARS:
                return
            yield texts[place]

    def probe(self, folder: Path) -> Probe:
        """Return the maker of probes from held-out text."""
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        words = store.read_json(folder / "words.json")
        rows = (folder / "held-out-text.jsonl").read_text(encoding="utf-8").splitlines()
        found = (_Text.of(json.loads(row)["text"], words) for row in rows)
        long = FACTS * 2 * self.fact_every_words
        sources = [source for source in found if source and len(source.words) >= long]
        if len(sources) < 2:
            raise CorpusError("corpus: fewer than two held-out documents can be made into probes; add documents")
        return partial(self._probe, tokenizer, sources)

    def _probe(
        self, tokenizer: Tokenizer, sources: Sequence[_Text], kind: Negatives, negatives: int, rng: np.random.Generator
    ) -> tuple[list[int], list[int]]:
        """Return the tokens of a probe, and the places of the values that are asked for."""
        own = int(rng.integers(len(sources)))
        others = [place for place in range(len(sources)) if place != own]
        facts = sources[own].facts(rng)
        asked = frozenset(fact.split()[0] for fact in facts)
        lines = [self._stated(rng, sources[own], facts)]
        for _ in range(negatives):
            source = sources[own if kind == "hard" else int(rng.choice(others))]
            # Hard negatives state facts of the same document, with values that compete; random ones those of another.
            lines.append(self._stated(rng, source, source.facts(rng, avoid=asked)))
        # `head` holds the facts and the negatives, `again` the questions; a value is the token behind its name.
        head = tokenizer.encode("".join(lines)).ids
        again = tokenizer.encode(self._stated(rng, sources[own], facts)).ids
        names = {tokenizer.token_to_id(f" {name}") for name in asked}
        return head + again, [len(head) + place + 1 for place, token in enumerate(again) if token in names]

    def _stated(self, rng: np.random.Generator, source: _Text, facts: Sequence[str]) -> str:
        """Return a paragraph that states all facts in random order among words of a random place."""
        counts = self._counts(rng)
        first = int(rng.integers(len(source.words) - sum(counts) + 1))
        return _paragraph(
            source.words[first : first + sum(counts)], [facts[fact] for fact in rng.permutation(FACTS)], counts
        )


@dataclass(frozen=True)
class _Text:
    """An input document: its words in order, and those of them that its facts have as values."""

    words: list[str]
    values: list[str]

    @classmethod
    def of(cls, text: str, weights: Mapping[str, float]) -> _Text | None:
        """Return a document, None if it has too few words for values; `weights`: of words that are a token, by rarity."""
        words = text.split()
        counts = Counter(word for word in words if word in weights)
        # The words with the highest tf-idf: frequent in this document and rare in the others.
        typical = sorted(counts, key=lambda word: (counts[word] * weights[word], word))[-VALUES:]
        return cls(words, typical) if len(typical) == VALUES else None

    def facts(self, rng: np.random.Generator, *, avoid: frozenset[str] = frozenset()) -> list[str]:
        """Return new facts, without the names in `avoid`."""
        names = rng.choice([name for name in NAMES if name not in avoid], FACTS, replace=False)
        values = rng.choice(self.values, FACTS, replace=False)
        return [f"{name} {value}." for name, value in zip(names, values, strict=True)]


def _echoes(rng: np.random.Generator, words: Sequence[str]) -> str:
    """Return the end of one echo and a whole one, each line behind a blank.

    Rows begin with a document. If it began with the first copy of a span, a model would learn to continue the third copy alone.
    """
    first, second = (echo(rng, words).splitlines() for _ in range(2))
    span = first[0].split()
    copies, begun = divmod(int(rng.integers(len(first) * len(span))), len(span))
    return "".join(f" {row}\n" for row in (" ".join(span[begun:]), *first[copies + 1 :], *second))


def _paragraph(words: Sequence[str], facts: Sequence[str], counts: Sequence[int]) -> str:
    """Return a line that states facts, each behind the next `counts` words."""
    parts, first = list[str](), 0
    for fact, count in zip(facts, counts, strict=True):
        parts += [*words[first : first + count], fact]
        first += count
    return " ".join(parts) + "\n"
