"""Task: a generator of prompts with known answers that fit a length, and a scorer.

The samples of (task, length, tokenizer, seed, data) are always the same, so an
interrupted evaluation resumes where it stopped. Each file of the folder `tasks`
declares its tasks and probes in `TASKS`; nothing else knows their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache, cached_property
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal

import tokenizers
import yaml

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.recipe.keys import read_length
from nextlong.text import Json

Scorer = Callable[[str, "Sample"], dict[str, float]]
# How a benchmark asks a chat model: with its template and the beginning of the answer,
# with its template alone, or as a base model, with plain text.
ChatProtocol = Literal["begun answer", "template", "plain text"]
# The number of samples of a measurement that reads everything there is.
ALL_SAMPLES: Final = 10**9
# A token is hardly ever over eight characters, nor under one.
_MAX_TOKEN_CHARS: Final = 8
# How people write lengths, the greatest unit first.
_UNITS: Final = {"M": 1024 * 1024, "K": 1024}


@dataclass(frozen=True)
class TextTokenizer:
    """A tokenizer of Hugging Face `tokenizers`.

    With what it puts before a text: its BOS, or nothing.
    """

    backend: tokenizers.Tokenizer

    @classmethod
    def read(cls, source: str | Path) -> TextTokenizer:
        """Read a tokenizer.json, a folder with one, or a name on the Hugging Face hub.

        Raises EvaluateError.
        """
        path = Path(source).expanduser()
        file = path / "tokenizer.json" if path.is_dir() else path
        try:
            if file.is_file():
                return cls(tokenizers.Tokenizer.from_file(str(file)))
            return cls(tokenizers.Tokenizer.from_pretrained(str(source)))
        # The library raises a bare Exception whatever is wrong.
        except Exception as error:
            raise EvaluateError(
                where=f"--tokenizer {source}",
                problem=f"it cannot be read ({error})",
                fix="give a tokenizer.json, a folder with one, or the name of a "
                "tokenizer on the hub",
            ) from None

    def __post_init__(self) -> None:
        # A tokenizer.json may truncate or pad to a length of its training, which would
        # change every count.
        self.backend.no_truncation()
        self.backend.no_padding()

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, no special ones added."""
        return self.backend.encode(text, add_special_tokens=False).ids

    def count(self, text: str) -> int:
        return len(self.encode(text))

    def boundaries(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [start, end) of each token."""
        return self.backend.encode(text, add_special_tokens=False).offsets

    @cached_property
    def hash(self) -> str:
        """A hash of the whole tokenizer.

        Tokenizers with the same hash split every text in the same way.
        """
        content = self.backend.to_str().encode()
        return hashlib.blake2b(content, digest_size=16).hexdigest()

    @cached_property
    def prefix(self) -> tuple[int, ...]:
        """The special ids that the tokenizer puts before a text."""
        # Whatever precedes the ids of the text itself; what follows them (EOS) would
        # end the prompt, so it is left out.
        with_special = self.backend.encode("a").ids
        without = self.encode("a")
        for start in range(len(with_special)):
            if with_special[start : start + len(without)] == without:
                return tuple(with_special[:start])
        return ()

    def with_prefix(self, ids: Sequence[int]) -> list[int]:
        """Return ids preceded by the special ones, unless they begin with these."""
        if tuple(ids[: len(self.prefix)]) == self.prefix:
            return list(ids)
        return [*self.prefix, *ids]


@dataclass(frozen=True)
class Sample:
    """One question.

    The answer continues `prompt` and `answer_prefix`; a chat model gets `prompt` as the
    user's turn, and the prefix only where its benchmark begins the answer.

    turns: the roles and contents of a conversation for a chat model; `prompt` is the
        same as one text
    stop: what follows the answer of a base model, which does not end by itself
    """

    prompt: str
    references: tuple[str, ...]
    max_new_tokens: int
    answer_prefix: str = ""
    stop: str | None = None
    details: Json = field(default_factory=dict)
    turns: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        return self.prompt + self.answer_prefix

    def completed(self, answer: str) -> str:
        """Return the answer's prefix and the answer.

        HELMET scores both and shows both to its judge.
        """
        return self.answer_prefix.lstrip("\n") + answer


@dataclass(frozen=True)
class TaskRequest:
    """A request for `samples` questions of at most `length` tokens.

    Answer and the `overhead` of a chat template included. A probe calls `advance` with
    the number of samples that it has measured.

    begins_answer: whether a sample's `answer_prefix` is a part of what the model reads
    """

    length: int
    tokenizer: TextTokenizer
    data: DataFiles
    samples: int | None = None
    seed: int = 42
    overhead: int = 0
    begins_answer: bool = True
    run: Path | None = None
    advance: Callable[[int], None] = lambda _: None

    @property
    def room(self) -> int:
        """Tokens for the prompt and its answer."""
        return self.length - self.overhead

    def fits(self, sample: Sample) -> bool:
        tokens = self.tokenizer.count(sample.text)
        return tokens + sample.max_new_tokens <= self.room

    def require(self, task: str, *, tokens: int, min_tokens: int) -> None:
        """Raise EvaluateError for a length that leaves a task too few tokens."""
        if tokens < min_tokens:
            min_length = self.length + min_tokens - tokens
            raise EvaluateError(
                where="--lengths",
                problem=f"{task} needs at least {min_length:,} tokens, not "
                f"{self.length:,}",
                fix="leave the length or the task out",
            )

    def is_in_band(self, sample: Sample) -> bool:
        """Return whether a published sample's tokens lie in (length / 2, length].

        Answer included.
        """
        # Most samples need not be tokenized, since characters bound tokens.
        max_chars = _MAX_TOKEN_CHARS * self.length
        if not self.length / 2 < len(sample.prompt) <= max_chars:
            return False
        tokens = self.tokenizer.count(sample.prompt) + sample.max_new_tokens
        return self.length / 2 < tokens <= self.length


@dataclass(frozen=True)
class Measurement:
    """What tasks and probes declare alike.

    Reports have one table per suite and one per category.

    metric: names the score that counts
    lengths: those that the benchmark defines, () for any, None for a measurement
        without lengths
    files, files_at, optional: files that are read at each length, at one, and where
        they exist
    published: the benchmark's own file of samples at a length, which is read instead of
        all others where the user has it; the tables name results without it
    reads: whether a run (`--run`) is needed
    splits: adds a table of the score over parts of the samples: the heading of a
        column, the name of a detail, and the value that it has in that part
    about: printed below the table
    """

    name: str
    suite: str
    category: str
    metric: str
    samples: int
    _: KW_ONLY
    lengths: tuple[int, ...] | None = ()
    files: tuple[str, ...] = ()
    files_at: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    optional: Callable[[int], tuple[str, ...]] = lambda _: ()
    published: Callable[[int], str | None] = lambda _: None
    reads: Literal["run", "text"] = "text"
    chat: ChatProtocol = "begun answer"
    splits: tuple[tuple[str, str, str], ...] = ()
    version: int = 1
    about: str = ""

    def needs(self, length: int | None) -> tuple[str, ...]:
        """Return the files that are read at a length."""
        return (*self.files, *self.files_at.get(length or 0, ()))


@dataclass(frozen=True)
class Task(Measurement):
    """A generator of samples with its scorer.

    make: yields samples, and None for one that cannot be made to fit: this one, and a
        sample that does not fit with its answer, is refused and scores 0
    """

    make: Callable[[TaskRequest], Iterator[Sample | None]]
    score: Scorer


@dataclass(frozen=True)
class ImportedTask(Measurement):
    """A task that another program measures; `nextlong evaluate import` reads its files.

    program: the program, as messages name it
    """

    program: str


@cache
def prompt_of(name: str) -> str:
    """Return a published prompt, word for word.

    A template for `str.format`, from the folder tasks/prompts.
    """
    folder = files("nextlong.evaluate.tasks") / "prompts"
    return (folder / f"{name}.txt").read_text(encoding="utf-8")


@cache
def table_of(name: str) -> Any:
    """Return what a YAML file of the folder tasks holds."""
    content = (files("nextlong.evaluate.tasks") / f"{name}.yaml").read_text("utf-8")
    return yaml.safe_load(content)


def parse_lengths(text: str) -> list[int]:
    """Return lengths in tokens, ascending.

    `8k,32k` are two, `8k..128k` is 8,192 and its doublings. Raises EvaluateError.
    """
    lengths: set[int] = set()
    for part in text.split(","):
        first, dots, last = part.strip().partition("..")
        low = read_length(first)
        high = read_length(last if dots else first)
        if not low or not high:
            raise EvaluateError(
                where="--lengths",
                problem=f"{part.strip()!r} is not a length",
                fix="write 8192, 8k, 8k,32k or 8k..128k",
            )
        if high < low:
            raise EvaluateError(
                where=f"--lengths {part.strip()}",
                problem="the second is smaller than the first",
                fix="write 8k..128k",
            )
        # A range holds its first length and every doubling up to its last.
        while low <= high:
            lengths.add(low)
            low *= 2
    return sorted(lengths)


def short(length: int | None) -> str:
    """Return a length as people write it: 8K, 512, 1M."""
    if length is None:
        return "–"
    for unit, size in _UNITS.items():
        if length % size == 0:
            return f"{length // size}{unit}"
    return f"{length:,}"
