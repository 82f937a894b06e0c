"""RULER's 13 tasks (Hsieh et al. 2024, arXiv 2404.06654).

They are made as NVIDIA's generator makes them. Random numbers come from one stream per
task, in the order of NVIDIA's scripts (scripts/data/synthetic/*.py), so that the same
seed, words, essays and tokenizer give the same prompts. The context is the largest that
fits: a binary search finds its size, and a sample that is still too long loses `step`
units at a time. Deliberate differences: docs/evaluate/ruler.md.
"""

from __future__ import annotations

import random
import re
import string
import uuid
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from importlib.resources import files
from itertools import accumulate, chain, pairwise, repeat
from typing import Annotated, Final, NamedTuple, NotRequired

import numpy as np
from annotated_types import Len

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.data import (
    ESSAYS,
    HOTPOTQA,
    SQUAD,
    TEXT,
    DataFiles,
    demo_documents,
    origin,
    record,
    several,
)
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of, table_of
from nextlong.text import Json

_MIN_TOKENS: Final = 1024  # below which a prompt is all instruction
_MIN_NEEDLE_TOKENS: Final = 256
_SHORT_TOKENS: Final = 4096  # below which NVIDIA's scripts take smaller steps
_REDRAWS: Final = 20  # of the smallest context; NVIDIA's scripts never give up


def essay_words(data: DataFiles) -> list[str]:
    """Return the words of the essays, in order."""
    source = data.source(ESSAYS)
    if source == ESSAYS:
        text = data.json(ESSAYS, record(text=str))["text"]
    else:
        text = data.text(source)
    if not text.strip():
        raise data.error(ESSAYS, "it holds no words")
    return re.sub(r"\s+", " ", text).split(" ")


@lru_cache(maxsize=16)
def sentences(text: str) -> tuple[str, ...]:
    """Split a text into sentences by Punkt with NLTK's English model.

    As NVIDIA's scripts do.
    """
    punkt = required("punkt")
    return tuple(punkt.sent_tokenize(text))


@cache
def _wonderwords(kind: str) -> tuple[str, ...]:
    """Return a list of the package wonderwords: noun, adjective or verb."""
    required("wonderwords")
    # Read from the package itself: its own functions draw at random, and the samples
    # need the whole list in order.
    text = (files("wonderwords.assets") / f"{kind}list.txt").read_text(encoding="utf-8")
    return tuple(map(str.rstrip, text.splitlines()))


class _Hyphenated:
    """Every adjective-noun once, in the order of `sorted`.

    Six million strings that are computed on access. Those of one adjective are
    contiguous, unless another begins with it and a hyphen: words of such a group are
    sorted together.
    """

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        # Each group has a stem and the endings of its words; groups without a second
        # stem share the list of nouns.
        self._groups: list[tuple[str, list[str]]] = []
        shared = sorted(set(nouns))
        for stem in sorted({f"{adjective}-" for adjective in adjectives}):
            first, endings = self._groups[-1] if self._groups else ("", [])
            if first and stem.startswith(first):
                rest = stem.removeprefix(first)
                more = {rest + noun for noun in shared}
                self._groups[-1] = (first, sorted({*endings, *more}))
            else:
                self._groups.append((stem, shared))
        # The index after each group's last word.
        sizes = [len(endings) for _, endings in self._groups]
        self._ends = list(accumulate(sizes))

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> str:
        group = bisect_right(self._ends, index)
        stem, endings = self._groups[group]
        return stem + endings[index - self._ends[group]]


def _largest(
    request: TaskRequest,
    build: Callable[[int], Sample],
    *,
    step: int,
    upper: int = 0,
    room: int | None = None,
) -> int:
    """Return the largest context in [step, upper] that fits, else `step`.

    As NVIDIA's scripts do. Without `upper`: three times what the tokens of a small one
    predict for `room` tokens (default: the request's).
    """
    if not upper:
        tokens_per_unit = request.tokenizer.count(build(step).text) / step
        room = request.room if room is None else room
        upper = max(int((room / tokens_per_unit) * 3), step * 2)
    best = lower = step
    while lower <= upper:
        middle = (lower + upper) // 2
        if request.fits(build(middle)):
            best = middle
            lower = middle + 1
        else:
            upper = middle - 1
    return best


def _fitting(
    request: TaskRequest,
    builds: Iterable[Callable[[int], Sample]],
    *,
    size: int,
    step: int,
) -> Iterator[Sample | None]:
    """Yield each sample with `size` units of context, or None if it cannot fit.

    A sample that is too long is drawn again with `step` units less at a time.
    """
    for build in builds:
        used = size
        redraws = 0
        sample = build(used)
        while not request.fits(sample) and redraws <= _REDRAWS:
            if used > step:
                used -= step
            else:
                redraws += 1
            if redraws <= _REDRAWS:
                sample = build(used)
        yield sample if redraws <= _REDRAWS else None


# Needles: the score is the share of values that are found.

_NOISE: Final = (
    "The grass is green. The sky is blue. The sun is yellow. Here we go. There and "
    "back again."
)
_DEPTHS: Final = [int(depth) for depth in np.linspace(0, 100, num=40).round()]
_NEEDLE: Final = "One of the special magic {kind} for {key} is: {value}."
_ASKED: Final = " The special magic {kind} for {query} mentioned in the provided text "


class Asked(NamedTuple):
    """Templates of a prompt, and of the beginning of its answer."""

    prompt: str
    prefix: str


_ONE: Final = Asked(prompt_of("ruler_niah_one"), _ASKED + "is")
_MANY: Final = Asked(prompt_of("ruler_niah_many"), _ASKED + "are")


@cache
def _hyphenated() -> _Hyphenated:
    """Return RULER's keys."""
    return _Hyphenated(_wonderwords("adjective"), _wonderwords("noun"))


_RANDOM: Final[dict[str, Callable[[random.Random], str]]] = {
    "words": lambda draw: draw.choice(_hyphenated()),
    "numbers": lambda draw: str(draw.randint(10**6, 10**7 - 1)),
    "uuids": lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}


class Form(NamedTuple):
    """What a haystack of needles is made of."""

    haystack: str  # noise, essay or needle
    key_kind: str = "words"
    value_kind: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1

    @property
    def asked(self) -> Asked:
        return _ONE if self.queries * self.values == 1 else _MANY


_FORMS: Final = {name: Form(**form) for name, form in table_of("ruler").items()}


def _needle_samples(request: TaskRequest, form: Form) -> Iterator[Sample | None]:
    request.require("a needle", tokens=request.length, min_tokens=_MIN_NEEDLE_TOKENS)
    is_short = request.length < _SHORT_TOKENS
    if form.haystack == "essay":
        essay = essay_words(request.data)
        # NVIDIA's 500 words leave no room in a short prompt.
        step = 50 if is_short else 500
    else:
        essay = []
        step = 5 if is_short else 25
    build = partial(
        _needle_question,
        form=form,
        draw=random.Random(request.seed),
        seed=request.seed,
        essay=essay,
    )
    size = _largest(request, build, step=step)
    return _fitting(request, repeat(build), size=size, step=step)


class _Stated(NamedTuple):
    """A key and the values that the context states for it."""

    key: str
    values: list[str]


def _needle_question(
    size: int, *, form: Form, draw: random.Random, seed: int, essay: list[str]
) -> Sample:
    """Return a question whose haystack has `size` words of the essay, or lines."""
    draw_key = _RANDOM[form.key_kind]
    draw_value = _RANDOM[form.value_kind]
    stated = []
    for _ in range(form.keys):
        key = draw_key(draw)
        values = [draw_value(draw) for _ in range(form.values)]
        stated.append(_Stated(key, values))
    needles = []
    for key, values in stated:
        for value in values:
            needles.append(_NEEDLE.format(kind=form.value_kind, key=key, value=value))
    random.Random(seed).shuffle(needles)
    if form.haystack == "essay":
        context = _in_essay(essay, size, needles, draw)
    else:
        context = _in_lines(size, needles, form, draw)
    queried = [stated[index] for index in draw.sample(range(form.keys), form.queries)]
    *others, query = [key for key, _ in queried]
    if others:
        query = ", ".join(others) + ", and " + query
    asked = form.asked
    kind = form.value_kind.removesuffix("s") if asked is _ONE else form.value_kind
    answers = chain.from_iterable(values for _, values in queried)
    return Sample(
        prompt=asked.prompt.format(kind=kind, context=context, query=query),
        references=tuple(answers),
        max_new_tokens=128,
        answer_prefix=asked.prefix.format(kind=kind, query=query),
    )


def _in_essay(
    essay: list[str], size: int, needles: Sequence[str], draw: random.Random
) -> str:
    """Return `size` words of the essay, with a needle at each depth that is drawn."""
    words = (essay * -(-size // len(essay)))[:size]
    text = " ".join(words).strip()
    lines = sentences(text)
    depths = draw.sample(_DEPTHS, len(needles))
    cuts = sorted(int(len(lines) * (depth / 100)) for depth in depths)
    parts: list[str] = []
    for index, (first, last) in enumerate(pairwise([0, *cuts, len(lines)])):
        parts.append(" ".join(lines[first:last]))
        parts += needles[index : index + 1]
    return " ".join(parts)


def _in_lines(
    size: int, needles: Sequence[str], form: Form, draw: random.Random
) -> str:
    """Return lines of noise, or needles nobody asks for, with the needles in them."""
    hay = [_NOISE] * size
    if form.haystack == "needle":
        hay = []
        for _ in range(size):
            key = _RANDOM[form.key_kind](draw)
            value = _RANDOM[form.value_kind](draw)
            hay.append(_NEEDLE.format(kind=form.value_kind, key=key, value=value))
    # Inserted from the last to the first, so that each index still counts lines of hay.
    indices = draw.sample(range(max(size, len(needles))), len(needles))
    indices.sort(reverse=True)
    for index, needle in zip(indices, needles, strict=True):
        hay.insert(index, needle)
    return "\n".join(hay)


# Variable tracking: the question asks for every variable that has a value, after one
# worked example.

_HOPS: Final = 4
_EXAMPLE_TOKENS: Final = 500
_EXAMPLE_VALUE: Final = "12345"
_EXAMPLE_STEP: Final = 5
_TRACKED: Final = Asked(
    prompt_of("ruler_vt"),
    " Answer: According to the chain(s) of variable assignment in the text above, "
    "{count} variables are assigned the value {query}, they are: ",
)


class _Variables:
    """Draws chains of assignments from NVIDIA's two streams.

    Names and places come from Python's generator, values from NumPy's.
    """

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.numbers = np.random.RandomState(seed)

    def name(self, letters: int) -> str:
        return "".join(self.draw.choices(string.ascii_uppercase, k=letters))

    def value(self) -> str:
        return str(self.numbers.randint(10000, 99999))

    def names(self, letters: int) -> list[str]:
        """Return one distinct name per variable of a chain."""
        count = _HOPS + 1
        names = [self.name(letters) for _ in range(count)]
        while len(set(names)) < count:
            names.append(self.name(letters))
        return list(dict.fromkeys(names))

    def question(self, size: int) -> Sample:
        """Return a question of `size` lines of noise."""
        names = self.names(letters=5)
        return self._asked(size, names, self.value(), max_new_tokens=30)

    def example(self, size: int) -> Sample:
        """Return the worked example, of which no answer is asked."""
        names = self.names(letters=3)
        return self._asked(size, names, _EXAMPLE_VALUE, max_new_tokens=0)

    def renamed(self, example: str) -> str:
        """Return the same example, with other names and another value."""
        names = example.split()[-_HOPS - 1 :]
        for name in names:
            other = self.name(len(name))
            example = example.replace(name, other)
        return example.replace(_EXAMPLE_VALUE, self.value())

    def _asked(
        self, size: int, names: Sequence[str], value: str, *, max_new_tokens: int
    ) -> Sample:
        assignments = [f"VAR {names[0]} = {value}"]
        for earlier, later in pairwise(names):
            assignments.append(f"VAR {later} = VAR {earlier} ")
        # Each assignment needs a place of its own.
        lines = [_NOISE] * max(size, len(assignments))
        indices = self.draw.sample(range(len(lines)), len(assignments))
        indices.sort()
        for inserted, index in enumerate(indices):
            lines.insert(inserted + index, assignments[inserted])
        context = "\n".join(lines).replace(". \n", ".\n")
        return Sample(
            prompt=_TRACKED.prompt.format(context=context, query=value),
            references=tuple(names),
            max_new_tokens=max_new_tokens,
            answer_prefix=_TRACKED.prefix.format(count=_HOPS + 1, query=value),
        )


def _variable_samples(request: TaskRequest) -> Iterator[Sample | None]:
    request.require("vt", tokens=request.length, min_tokens=_MIN_TOKENS)
    variables = _Variables(request.seed)

    # The worked example: a short question of the same form followed by its answer, made
    # once for all samples.
    short = replace(request, length=_EXAMPLE_TOKENS)
    size = _largest(short, variables.example, step=_EXAMPLE_STEP)
    examples = _fitting(short, [variables.example], size=size, step=_EXAMPLE_STEP)
    worked = next(examples) or variables.example(_EXAMPLE_STEP)
    example = f"{worked.text} {' '.join(worked.references)}\n"

    # The bound comes from the whole length and the search from what the example leaves,
    # as in NVIDIA's script.
    step = 5 if request.length < _SHORT_TOKENS else 10
    left = replace(request, length=request.length - request.tokenizer.count(example))
    size = _largest(left, variables.question, step=step, room=request.room)

    def with_example(used: int) -> Sample:
        sample = variables.question(used)
        shown = variables.renamed(example)
        return replace(sample, prompt=f"{shown}\n{sample.prompt}")

    return _fitting(request, repeat(with_example), size=size, step=step)


# Common words: a numbered list in which ten words occur ten times as often as the rest,
# after one worked example.

_ENGLISH_WORDS: Final = "ruler/english_words.json"
_COMMON: Final = 10
_WORD_STEP: Final = 10
_MEASURED_WORDS: Final = 4096  # of which the tokens per word are measured
_LISTED: Final = Asked(
    prompt_of("ruler_cwe"),
    " Answer: The top 10 words that appear most often in the list are:",
)


class _WordLists:
    """Draws numbered lists; of few or of many words, by the number asked for."""

    def __init__(self, request: TaskRequest) -> None:
        words: set[str] = set()
        for kind in ("noun", "adjective", "verb"):
            words.update(_wonderwords(kind))
        self.few = sorted(words)
        random.Random(request.seed).shuffle(self.few)
        self.many: list[str] = []
        if request.data.has(_ENGLISH_WORDS):
            shape = Annotated[dict[str, str], Len(1)]
            words_by_key = request.data.json(_ENGLISH_WORDS, shape)
            self.many = list(words_by_key.values())
        self.seed = request.seed
        self.draw = random.Random(request.seed)
        self.is_short = request.length < _SHORT_TOKENS

    @property
    def max_words(self) -> int:
        return max(len(self.few), len(self.many))

    def question(self, size: int) -> Sample:
        """Return a question about a list of `size` words, after the worked example."""
        if self.is_short:
            example, answers = self._listed(20, common_repeats=3, other_repeats=1)
            context, common = self._listed(size, common_repeats=6, other_repeats=1)
        else:
            example, answers = self._listed(40, common_repeats=10, other_repeats=3)
            context, common = self._listed(size, common_repeats=30, other_repeats=3)
        prompt, prefix = _LISTED
        shown = f"{prompt.format(context=example)}{prefix} {_numbered(answers)}"
        return Sample(
            prompt=f"{shown}\n{prompt.format(context=context)}",
            references=tuple(common),
            max_new_tokens=120,
            answer_prefix=prefix,
        )

    def _listed(
        self, size: int, *, common_repeats: int, other_repeats: int
    ) -> tuple[str, list[str]]:
        """Return a list of `size` different words, and the common ones."""
        words = self.few if size <= len(self.few) else self.many
        sampled = self.draw.sample(words, size)
        common = sampled[:_COMMON]
        shuffled = common * common_repeats + sampled[_COMMON:] * other_repeats
        random.Random(self.seed).shuffle(shuffled)
        return _numbered(shuffled), common


def _numbered(words: Sequence[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))


def _common_words_samples(request: TaskRequest) -> Iterator[Sample | None]:
    request.require("cwe", tokens=request.length, min_tokens=_MIN_TOKENS)
    lists = _WordLists(request)
    measured = lists.question(_MEASURED_WORDS).text
    tokens_per_word = request.tokenizer.count(measured) / _MEASURED_WORDS
    upper = max(int(request.room // tokens_per_word) * 2, _WORD_STEP * 2)
    max_words = lists.max_words
    size = _largest(
        request, lists.question, step=_WORD_STEP, upper=min(upper, max_words)
    )
    if size == max_words < upper:
        raise EvaluateError(
            where="--lengths",
            problem=f"cwe at {request.length:,} tokens needs more than {max_words:,} "
            f"different words, and {_ENGLISH_WORDS} is missing",
            fix=f"{origin(_ENGLISH_WORDS)}, or leave the length out",
        )
    return _fitting(request, repeat(lists.question), size=size, step=_WORD_STEP)


# Frequent words: made-up words with frequencies by Zipf's law; the three most frequent
# ones but the dots are the answer.

_ALPHA: Final = 2.0
_LETTERS: Final = 6
_CODED_BUDGET: Final = 50
_DECODED: Final = Asked(
    prompt_of("ruler_fwe"),
    " Answer: According to the coded text above, the three most frequently appeared "
    "words are:",
)


def _frequent_words_samples(request: TaskRequest) -> Iterator[Sample | None]:
    """Yield fwe's samples.

    The answer's tokens are taken from the length first, and all else follows from the
    rest.
    """
    request.require("fwe", tokens=request.length, min_tokens=_MIN_TOKENS)
    draw = random.Random(request.seed)
    room = request.room - _CODED_BUDGET
    step = room // 32
    vocabulary = _new_vocabulary(draw, room // 50, seed=request.seed)
    words = room // _LETTERS
    while True:
        sample = _coded(vocabulary, words, seed=request.seed)
        if request.tokenizer.count(sample.text) >= room:
            break
        words += step
    while True:
        vocabulary = _new_vocabulary(draw, room // 50, seed=request.seed)
        used = words - step
        fitting = None
        while used > 0 and fitting is None:
            sample = _coded(vocabulary, used, seed=request.seed)
            if request.fits(sample):
                fitting = sample
            used -= step
        yield fitting


def _new_vocabulary(draw: random.Random, size: int, *, seed: int) -> list[str]:
    """Return made-up words, the most frequent first; that one is noise."""
    drawn: set[str] = set()
    while len(drawn) < size:
        letters = draw.choices(string.ascii_lowercase, k=_LETTERS)
        drawn.add("".join(letters))
    vocabulary = sorted(drawn)
    random.Random(seed).shuffle(vocabulary)
    return ["...", *vocabulary[1:]]


def _coded(vocabulary: Sequence[str], words: int, *, seed: int) -> Sample:
    """Return a question about a text of `words` words.

    Their frequencies follow Zipf's law.
    """
    from scipy.special import zeta

    # (vocabulary,) how often each word occurs.
    ranks = np.arange(1, len(vocabulary) + 1)
    counts = (words * (ranks**-_ALPHA) / zeta(_ALPHA)).astype(int)
    coded: list[str] = []
    for word, count in zip(vocabulary, counts.tolist(), strict=True):
        coded += [word] * count
    random.Random(seed).shuffle(coded)
    context = " ".join(coded)
    return Sample(
        prompt=_DECODED.prompt.format(context=context),
        references=tuple(vocabulary[1:4]),
        max_new_tokens=_CODED_BUDGET,
        answer_prefix=_DECODED.prefix,
    )


# Questions: the documents that answer a question among others; any accepted answer
# counts.

# Characters of a module's documentation.
_MAX_DEMO_CHARS: Final = 600
_QA_STEP: Final = 10
_ANSWERED: Final = Asked(prompt_of("ruler_qa"), " Answer:")


class _Question(NamedTuple):
    text: str
    answers: tuple[str, ...]
    gold: list[int]  # the numbers of the documents that hold the answer
    related: Sequence[int] = ()  # others of the same article


class _Questions(NamedTuple):
    """Questions, and the documents that all of them refer to."""

    questions: list[_Question]
    documents: list[str]


def _answerable(question: Json) -> Json:
    if not question["answers"] and not question.get("is_impossible"):
        raise ValueError("it has no answer, and does not say is_impossible")
    return question


_QUESTION: Final = record(
    _answerable,
    question=TEXT,
    answers=several(record(text=str), min_items=0),
    is_impossible=NotRequired[bool],
)
_PARAGRAPH: Final = record(context=TEXT, qas=several(_QUESTION, min_items=0))
_ARTICLE: Final = record(paragraphs=several(_PARAGRAPH))
_SQUAD_SHAPE: Final = record(data=several(_ARTICLE))
_TITLED_LINES: Final = several(tuple[str, list[str]])
_HOTPOTQA_ITEM: Final = record(question=TEXT, answer=TEXT, context=_TITLED_LINES)
_HOTPOTQA_SHAPE: Final = several(_HOTPOTQA_ITEM)


def _of_modules() -> _Questions:
    """Return questions about the modules of Python, for want of published ones."""
    questions = []
    documents: list[str] = []
    for row in demo_documents():
        module = row["id"].partition("/")[2]
        name, _, rest = row["text"].partition("\n")
        summary = rest.partition("\n")[0]
        if name == module and summary:
            text = f"Which module is documented as follows? {summary}"
            questions.append(_Question(text, (module,), [len(documents)]))
            documents.append(row["text"][:_MAX_DEMO_CHARS])
    return _Questions(questions, documents)


def _read_squad(data: DataFiles) -> _Questions:
    """Read SQuAD 2.0: the answerable questions; documents are paragraphs."""
    items = data.json(SQUAD, _SQUAD_SHAPE)["data"]
    articles = [article["paragraphs"] for article in items]
    paragraphs = chain.from_iterable(articles)
    documents = sorted({paragraph["context"] for paragraph in paragraphs})
    number_of = {text: number for number, text in enumerate(documents)}
    questions = []
    for article in articles:
        same = [number_of[paragraph["context"]] for paragraph in article]
        for gold, paragraph in zip(same, article, strict=True):
            related = [number for number in same if number != gold]
            for question in paragraph["qas"]:
                if question.get("is_impossible"):
                    continue
                answers = tuple(answer["text"] for answer in question["answers"])
                questions.append(
                    _Question(question["question"], answers, [gold], related)
                )
    return _Questions(questions, documents)


def _read_hotpotqa(data: DataFiles) -> _Questions:
    """Read HotpotQA's distractor setting.

    It has ten documents per question, each with title and text.
    """
    items = data.json(HOTPOTQA, _HOTPOTQA_SHAPE)
    contexts = []
    for item in items:
        context = [f"{title}\n{''.join(lines)}" for title, lines in item["context"]]
        contexts.append(context)
    distinct = set(chain.from_iterable(contexts))
    documents = sorted(distinct)
    number_of = {text: number for number, text in enumerate(documents)}
    questions = []
    for item, context in zip(items, contexts, strict=True):
        gold = [number_of[text] for text in context]
        questions.append(_Question(item["question"], (item["answer"],), gold))
    return _Questions(questions, documents)


def _qa_samples(
    request: TaskRequest, read: Callable[[DataFiles], _Questions]
) -> Iterator[Sample | None]:
    request.require("qa", tokens=request.length, min_tokens=_MIN_TOKENS)
    if request.data.folder is None:
        questions, documents = _of_modules()
    else:
        questions, documents = read(request.data)
    if not questions:
        raise EvaluateError(
            where=f"{SQUAD} or {HOTPOTQA}",
            problem="no question in it can be answered",
            fix=origin(SQUAD),
        )
    draw = random.Random(request.seed)

    def build(question: _Question, size: int) -> Sample:
        numbers = _documents_of(question, size, len(documents), draw)
        chosen = [documents[number] for number in numbers]
        random.Random(request.seed).shuffle(chosen)
        parts = []
        for number, document in enumerate(chosen, start=1):
            parts.append(f"Document {number}:\n{document}")
        context = "\n\n".join(parts)
        prompt = _ANSWERED.prompt.format(context=context, query=question.text)
        return Sample(prompt, question.answers, 32, _ANSWERED.prefix)

    builds = [partial(build, question) for question in questions]
    size = _largest(request, builds[0], step=_QA_STEP)
    return _fitting(request, builds, size=size, step=_QA_STEP)


def _documents_of(
    question: _Question, size: int, documents: int, draw: random.Random
) -> list[int]:
    """Return the numbers of `size` documents for a question.

    After the documents that hold the answer come those of the same article, then any
    others, as NVIDIA's script does.
    """
    if size >= documents:
        return [number % documents for number in range(size)]
    missing = size - len(question.gold)
    unrelated = missing - len(question.related)
    if unrelated > 0:
        known = [*question.gold, *question.related]
        others = sorted({*range(documents)} - {*known})
        return known + draw.sample(others, unrelated)
    return question.gold + draw.sample(question.related, missing)


def string_match_all(answer: str, references: Sequence[str]) -> float:
    """Return the share of references that the answer contains, lower-cased.

    As scripts/eval/synthetic/constants.py does.
    """
    answer = answer.lower()
    is_found = [reference.lower() in answer for reference in references]
    return is_found.count(True) / len(references)


def _score_all(answer: str, sample: Sample) -> dict[str, float]:
    return {"string_match_all": string_match_all(answer, sample.references)}


def _score_part(answer: str, sample: Sample) -> dict[str, float]:
    has_any = string_match_all(answer, sample.references) > 0
    return {"string_match_part": float(has_any)}


_all = partial(
    Task,
    suite="ruler",
    category="RULER",
    metric="string_match_all",
    samples=500,
    score=_score_all,
)
_part = partial(_all, metric="string_match_part", score=_score_part)


def needle_task(name: str, form: Form) -> Task:
    needed = (ESSAYS,) if form.haystack == "essay" else ()
    return _all(name, make=partial(_needle_samples, form=form), files=needed)


TASKS: Final = (
    *(needle_task(name, form) for name, form in _FORMS.items()),
    _all("vt", make=_variable_samples, version=2),
    _all("cwe", make=_common_words_samples, optional=lambda _: (_ENGLISH_WORDS,)),
    _all("fwe", make=_frequent_words_samples, version=2),
    _part("qa_1", make=partial(_qa_samples, read=_read_squad), files=(SQUAD,)),
    _part("qa_2", make=partial(_qa_samples, read=_read_hotpotqa), files=(HOTPOTQA,)),
)
# What each task asks: {context}, {query}, {kind} of needles, {count} of variables.
TEMPLATES: Final = {
    **{name: form.asked for name, form in _FORMS.items()},
    "vt": _TRACKED,
    "cwe": _LISTED,
    "fwe": _DECODED,
    "qa_1": _ANSWERED,
    "qa_2": _ANSWERED,
}
