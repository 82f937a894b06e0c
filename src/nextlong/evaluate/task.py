"""Task: prompts with known answers, made to fit a length, and how an answer is scored.

A task is a generator of samples and a scorer. The samples of (task, length, tokenizer, seed, data) are always the same, so a run
that was killed goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Final, Literal, Protocol

from nextlong.evaluate.data import DataFiles
from nextlong.plugins import Plugins

JSON = str | int | float | bool | None | list["JSON"] | dict[str, "JSON"]
Scorer = Callable[[str, "Sample"], dict[str, float]]


class Tokenizer(Protocol):
    """What tasks need of a tokenizer. Special tokens are never added or counted here."""

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text."""

    def count(self, text: str) -> int:
        """Return the number of tokens of a text."""

    @property
    def prefix(self) -> tuple[int, ...]:
        """The special ids that the tokenizer puts before a text."""

    def boundaries(self, text: str) -> list[tuple[int, int]]:
        """Return the characters [start, end) of each token of a text."""


@dataclass(frozen=True)
class Sample:
    """One question. `prompt` ends before `answer_prefix`, which the answer continues; a chat model is asked `prompt` as the user.

    `input_ids`, where given, are the ids of a prompt that was cut between tokens: `prompt` is the same cut in characters, but need
    not be tokenized the same again. `turns`, where given, are the roles and contents of a conversation, which a chat model is
    asked as such; `prompt` is the same as one text.
    """

    prompt: str
    references: tuple[str, ...]
    max_new_tokens: int
    answer_prefix: str = ""
    stop: str | None = None
    details: Mapping[str, JSON] = field(default_factory=dict)
    input_ids: tuple[int, ...] | None = None
    turns: tuple[tuple[str, str], ...] = ()

    @property
    def text(self) -> str:
        """The whole text that the model continues."""
        return self.prompt + self.answer_prefix

    def completed(self, answer: str) -> str:
        """Return an answer behind the words that it continues, which HELMET scores and shows to its judge."""
        return self.answer_prefix.lstrip("\n") + answer


def _untold(_: int) -> None:
    return


@dataclass(frozen=True)
class Request:
    """What a task is asked for: `samples` questions of at most `length` tokens, answer included.

    `overhead` is what a chat template adds to each. A probe tells `advance` how many samples more it has measured.
    """

    length: int
    tokenizer: Tokenizer
    data: DataFiles
    samples: int | None = None
    seed: int = 42
    overhead: int = 0
    run: Path | None = None
    advance: Callable[[int], None] = _untold

    @property
    def room(self) -> int:
        """Tokens for the prompt and its answer."""
        return self.length - self.overhead

    def fits(self, sample: Sample) -> bool:
        """Say whether a sample with its answer is no longer than there is room."""
        tokens = self.tokenizer.count(sample.text) if sample.input_ids is None else len(sample.input_ids)
        return tokens + sample.max_new_tokens <= self.room


@dataclass(frozen=True)
class Task:
    """A named generator of samples with its scorer.

    `make` yields samples that fit, and None for each one that cannot: those are counted as refused, never cut. `metric` names the
    entry of the scores that counts. `lengths` are those that the benchmark defines, () for any; `usual_length` is the only one
    that is measured unless the user names lengths. `follow_up` makes of an answer the question whose answer is scored.
    `files` are what it reads at
    each of them, `files_at` what it reads at one, `optional` what it reads at a length where it is there; `reads` says whether
    it needs the user's run.

    Reports have a table a suite, and one a category with the models side by side. `splits` adds one of the score over parts of
    the samples: a column's heading, and the detail of a sample with the value that belongs there. `about` is said below it.
    """

    name: str
    suite: str
    category: str
    metric: str
    make: Callable[[Request], Iterator[Sample | None]]
    score: Scorer
    samples: int
    max_new_tokens: int
    lengths: tuple[int, ...] = ()
    usual_length: int | None = None
    files: tuple[str, ...] = ()
    reads: Literal["run", "text"] = "text"
    files_at: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    optional: Callable[[int], tuple[str, ...]] = lambda _: ()
    version: int = 1
    follow_up: Callable[[str, Sample], Sample] | None = None
    splits: tuple[tuple[str, str, JSON], ...] = ()
    about: str = ""

    def needs(self, length: int) -> tuple[str, ...]:
        """Return the files that it reads at a length."""
        return (*self.files, *self.files_at.get(length, ()))


def prompt_of(name: str) -> str:
    """Return a published prompt, word for word: a template for `str.format`, from the folder tasks/prompts."""
    return (files("nextlong.evaluate.tasks") / "prompts" / f"{name}.txt").read_text(encoding="utf-8")


FAMILIES: Final = Plugins("family of tasks", "nextlong.evaluate.tasks", "TASKS", "nextlong.tasks", frozenset())


@cache
def all_tasks() -> dict[str, Task]:
    """Return every task by name, those of other distributions last. Raises PluginError for what is no task or is there twice."""
    found: dict[str, Task] = {}
    for family in FAMILIES.names():
        tasks = FAMILIES.load(family)
        if not isinstance(tasks, tuple) or not all(isinstance(task, Task) for task in tasks):
            raise FAMILIES.broken(family, "has no tuple of nextlong.evaluate.task.Task where its entry point points")
        for task in tasks:
            if task.name in found:
                raise FAMILIES.broken(family, f"brings a second task {task.name!r}")
            found[task.name] = task
    return found
