"""Documents: the user's own text as the corpus of an experiment, with facts inserted into held-out text as probes.

In:  any input files. Out: `train.jsonl` and `held-out.jsonl`, `long.jsonl` (the long documents of the first), `long-gzip.jsonl`
(those of them whose compression ratio is in the middle), `first-echoes.jsonl` and `echoes.jsonl` (random spans of it, repeated
verbatim, at once and with other text between), `tokenizer.json` (trained on it).

A document goes to one part by its content alone, so copies stay together, and files may come in any order. Of a probe, `key
value` on a line of its own states a fact: two words that do not occur in the probe's text. A hard negative is text with a fact
of another key, a random one is text alone.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from tokenizers import Tokenizer

from nextlong.corpus.ingest import normalized_hash
from nextlong.engine import store
from nextlong.errors import CorpusError
from nextlong.reading.files import FilePart
from nextlong.reading.formats import read_records
from nextlong.reading.listing import list_files
from nextlong.reading.records import FilteredOut, Reject, RejectKind
from nextlong.recipe.keys import Positive, PositiveLength, Section, Source
from nextlong.replicate.invented import FACTS, Negatives, Probe
from nextlong.rng import keyed_hash, rng_for, threshold_for
from nextlong.sequences.tokenizer import TRAINING_CHARS, train_bpe
from nextlong.text import Json

NEGATIVE_TOKENS: Final = 32  # of a negative, its fact included
_FACT_TOKENS: Final = 4  # a line feed, the key, the value, a line feed
_BETWEEN_TOKENS: Final = 6  # of text before a fact that is asked for, and before a question
_MOST_CHARS: Final = 10_000_000  # of a document, as ingest.max_document_chars
_ECHO_WORDS: Final = (4, 24)  # of a span, uniform in its logarithm
_ECHO_GAP_WORDS: Final = (
    64  # of other text behind a span, at most; without gaps no model learns to look back beyond a span
)
_ECHO_TOTAL_WORDS: Final = 96  # a span is repeated until its document has as many, at least once
_GZIP_DROPPED: Final = (
    0.2  # of the long documents at either end of the compression ratio (arXiv 2512.13961, section 3.6)
)


class Documents(Section):
    """The user's documents."""

    kind: Literal["documents"] = "documents"
    sources: tuple[Source, ...] = Field(
        (), description="as ingest.sources of a data recipe; none: Python's own documentation"
    )
    held_out: Annotated[float, Field(gt=0, lt=1)] = Field(
        0.05, description="share of the documents that no model sees, sampled by their content"
    )
    vocabulary: Annotated[int, Field(ge=300)] = Field(
        4096, description="entries of the BPE that is trained on the corpus"
    )
    chunk_chars: PositiveLength = Field(512, description="granularity s of the methods (chunk.max_chars)")
    long_chars: Positive = Field(16_000, description="a document of as many characters is a natural long document")
    echoes: Positive = Field(20_000, description="documents that repeat a random span verbatim")
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
    def first_echoes(self) -> str:
        """The file that the first leg of a base model is trained on; from repetitions far apart no retrieval forms at first."""
        return "first-echoes"

    @property
    def negative_tokens(self) -> int:
        """Tokens of a negative of the probes, on average."""
        return NEGATIVE_TOKENS

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
        train = texts["train"]
        texts["long"] = [text for text in train if len(text) >= self.long_chars]
        texts["long-gzip"] = _of_middling_compression(texts["long"])
        for name, gap_words in ((self.first_echoes, 0), ("echoes", _ECHO_GAP_WORDS)):
            rngs = (rng_for(self.seed, f"document-{name}", place) for place in range(self.echoes))
            texts[name] = [_echo(rng, train, gap_words=gap_words) for rng in rngs]
        folder.mkdir(parents=True, exist_ok=True)
        for part, found in texts.items():
            rows = (json.dumps({"id": f"{part}-{place}", "text": text}) for place, text in enumerate(found))
            store.write_text(folder / f"{part}.jsonl", "".join(row + "\n" for row in rows))
        store.write_text(folder / "tokenizer.json", train_bpe(self._sample(train), vocab_size=self.vocabulary).to_str())
        return {part: len(found) for part, found in texts.items()} | {"rejected": dict(rejected)}

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
        return HeldOut(folder).probe


class HeldOut:
    """The tokens of held-out documents, and the words that facts are made of."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._path = folder / "held-out.jsonl"

    @cached_property
    def ids(self) -> NDArray[np.int64]:
        """The tokens of all held-out documents, in their order: (tokens,)."""
        texts = [json.loads(row)["text"] for row in self._path.read_text(encoding="utf-8").splitlines()]
        return np.concatenate([np.array(one.ids, np.int64) for one in self.tokenizer.encode_batch(texts)])

    @cached_property
    def words(self) -> NDArray[np.int64]:
        """Tokens that are a space and a word: (words,)."""
        vocabulary = self.tokenizer.get_vocab()
        return np.array(
            sorted(
                number
                for token, number in vocabulary.items()
                if token[0] in "Ġ▁" and len(token) > 3 and token[1:].isascii() and token[1:].isalpha()
            ),
            np.int64,
        )

    def probe(self, kind: Negatives, negatives: int, rng: np.random.Generator) -> tuple[list[int], list[int]]:
        """Return the tokens of a probe, and the places of the values that are asked for."""
        between = [self._text(_BETWEEN_TOKENS, rng) for _ in range(2 * FACTS)]
        text_tokens = NEGATIVE_TOKENS - (_FACT_TOKENS if kind == "hard" else 0)
        texts = [self._text(text_tokens, rng) for _ in range(negatives)]
        free = np.setdiff1d(self.words, np.concatenate([*between, *texts]))
        needed = 2 * FACTS + (2 * negatives if kind == "hard" else 0)
        if len(free) < needed:
            raise CorpusError(
                f"corpus: {len(free)} words of the vocabulary do not occur in a probe, and {needed} are needed; raise "
                "corpus.vocabulary, or lower measure.negatives"
            )
        pairs = rng.permutation(free)[:needed].reshape(-1, 2)
        facts, others = pairs[:FACTS], pairs[FACTS:]
        newline = self.tokenizer.encode("\n").ids
        ids: list[int] = []
        for text, (key, value) in zip(between[:FACTS], facts, strict=True):
            ids += [*text, *newline, key, value, *newline]
        for place, text in enumerate(texts):
            half = text_tokens // 2
            fact = [*newline, *others[place], *newline] if kind == "hard" else []
            ids += [*text[:half], *fact, *text[half:]]
        places = []
        for text, fact in zip(between[FACTS:], rng.permutation(FACTS), strict=True):
            ids += [*text, *newline, *facts[fact], *newline]
            places.append(len(ids) - len(newline) - 1)
        return [int(one) for one in ids], places

    def _text(self, tokens: int, rng: np.random.Generator) -> NDArray[np.int64]:
        first = int(rng.integers(len(self.ids) - tokens))
        return self.ids[first : first + tokens]


def _of_middling_compression(texts: list[str]) -> list[str]:
    """Return the texts but those at either end of the compression ratio, in their order."""
    if not texts:
        return []
    ratios = np.array([len(gzip.compress(raw, mtime=0)) / len(raw) for raw in (text.encode("utf-8") for text in texts)])
    low, high = np.quantile(ratios, [_GZIP_DROPPED, 1 - _GZIP_DROPPED])
    return [text for text, ratio in zip(texts, ratios, strict=True) if low <= ratio <= high]


def _echo(rng: np.random.Generator, texts: list[str], *, gap_words: int) -> str:
    """Return a random span of a text that is repeated, each time with up to `gap_words` words of another text before it."""
    least, most = _ECHO_WORDS
    span = _span(rng, texts, round(least * (most / least) ** rng.random()))
    lines = [span]
    while len(lines) < 3 or sum(map(len, map(str.split, lines))) < _ECHO_TOTAL_WORDS:
        lines += [_span(rng, texts, int(rng.integers(gap_words + 1))), span]
    return "\n".join(filter(None, lines)) + "\n"


def _span(rng: np.random.Generator, texts: list[str], count: int) -> str:
    words = texts[int(rng.integers(len(texts)))].split()
    first = int(rng.integers(max(1, len(words) - count + 1)))
    return " ".join(words[first : first + count])
