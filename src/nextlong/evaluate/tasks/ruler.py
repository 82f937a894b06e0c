"""RULER's 13 tasks (Hsieh et al. 2024, arXiv 2404.06654), prompt for prompt as NVIDIA's generator makes them.

Random numbers come from one stream per task, in the order of NVIDIA's scripts (scripts/data/synthetic/*.py), so that the same seed,
words, essays and tokenizer give the same prompts. The context is the largest that fits: a binary search finds its size, and a
sample that is still too long loses `step` units at a time. Deliberate differences: docs/evaluate/ruler.md.
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
from itertools import accumulate, pairwise, repeat
from typing import Annotated, Final, NamedTuple, NotRequired

import numpy as np
from annotated_types import Len

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.data import ESSAYS, TEXT, DataFiles, origin, record, several
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.text import Json

_LEAST_TOKENS: Final = 1024  # below which a prompt is all instruction
_LEAST_NEEDLE_TOKENS: Final = 256
_REDRAWS: Final = 20  # of the smallest context; NVIDIA's scripts never give up


def essay_words(data: DataFiles) -> list[str]:
    """Return the words of the essays, in order."""
    source = data.source(ESSAYS)
    text = (
        data.json(ESSAYS, record(text=str))["text"]
        if source == ESSAYS
        else data.text(source)
    )
    if not text.strip():
        raise data.error(ESSAYS, "it holds no words")
    return re.sub(r"\s+", " ", text).split(" ")


@lru_cache(maxsize=16)
def sentences(text: str) -> tuple[str, ...]:
    """Split a text into sentences by Punkt with NLTK's English model, as NVIDIA's scripts do."""
    return tuple(required("punkt").sent_tokenize(text))


@cache
def _wonderwords(kind: str) -> tuple[str, ...]:
    """Return a list of the package wonderwords: noun, adjective or verb."""
    required("wonderwords")
    # Read from the package itself: its own functions draw at random, and the samples need the whole list in order.
    text = (files("wonderwords.assets") / f"{kind}list.txt").read_text(encoding="utf-8")
    return tuple(map(str.rstrip, text.splitlines()))


class _Hyphenated:
    """Every adjective-noun once, in the order of `sorted`: six million strings that are computed on access.

    Those of one adjective are contiguous, unless another begins with it and a hyphen: words of such a group are sorted together.
    """

    def __init__(self, adjectives: Sequence[str], nouns: Sequence[str]) -> None:
        # Each group has a stem and the endings of its words; groups without a second stem share the list of nouns.
        self._groups: list[tuple[str, list[str]]] = []
        shared = sorted(set(nouns))
        for stem in sorted({f"{adjective}-" for adjective in adjectives}):
            if self._groups and stem.startswith(first := self._groups[-1][0]):
                more = (stem.removeprefix(first) + noun for noun in shared)
                self._groups[-1] = (first, sorted({*self._groups[-1][1], *more}))
            else:
                self._groups.append((stem, shared))
        self._ends = list(
            accumulate(len(ends) for _, ends in self._groups)
        )  # the index after each group's last word

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> str:
        place = bisect_right(self._ends, index)
        stem, ends = self._groups[place]
        return stem + ends[index - self._ends[place]]


def _largest(
    request: TaskRequest,
    build: Callable[[int], Sample],
    *,
    step: int,
    upper: int = 0,
    room: int | None = None,
) -> int:
    """Return the largest context in [step, upper] that fits, else `step`, as NVIDIA's scripts do.

    Without `upper`: three times what the tokens of a small one predict for `room` tokens (default: the request's).
    """
    if not upper:
        tokens_per_unit = request.tokenizer.count(build(step).text) / step
        upper = max(
            int(((request.room if room is None else room) / tokens_per_unit) * 3),
            step * 2,
        )
    best = lower = step
    while lower <= upper:
        middle = (lower + upper) // 2
        if request.fits(build(middle)):
            best, lower = middle, middle + 1
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
    """Yield each sample with `size` units of context or, where that is too long, `step` less at a time; else None."""
    for build in builds:
        used, redraws = size, 0
        while not request.fits(sample := build(used)):
            if used > step:
                used -= step
            elif (redraws := redraws + 1) > _REDRAWS:
                break
        yield sample if redraws <= _REDRAWS else None


# Needles: the score is the share of values that are found.

_NOISE: Final = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_DEPTHS: Final = [
    int(depth) for depth in np.round(np.linspace(0, 100, num=40, endpoint=True))
]
_NEEDLE: Final = "One of the special magic {kind} for {key} is: {value}."
# The prompt and the beginning of the answer, for several values and for one.
_ASKED: Final = " The special magic {kind} for {query} mentioned in the provided text "
_MANY, _ONE = (
    (prompt_of("ruler_niah_many"), _ASKED + "are"),
    (prompt_of("ruler_niah_one"), _ASKED + "is"),
)
_hyphenated = cache(
    lambda: _Hyphenated(_wonderwords("adjective"), _wonderwords("noun"))
)  # RULER's keys
_RANDOM: Final[dict[str, Callable[[random.Random], str]]] = {
    "words": lambda draw: draw.choice(_hyphenated()),
    "numbers": lambda draw: str(draw.randint(10**6, 10**7 - 1)),
    "uuids": lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}


class _Form(NamedTuple):
    haystack: str  # noise, essay or needle
    key_kind: str = "words"
    value_kind: str = "numbers"
    keys: int = 1
    values: int = 1
    queries: int = 1


_FORMS: Final = {
    "niah_single_1": _Form("noise"),
    "niah_single_2": _Form("essay"),
    "niah_single_3": _Form("essay", value_kind="uuids"),
    "niah_multikey_1": _Form("essay", keys=4),
    "niah_multikey_2": _Form("needle"),
    "niah_multikey_3": _Form("needle", key_kind="uuids", value_kind="uuids"),
    "niah_multivalue": _Form("essay", values=4),
    "niah_multiquery": _Form("essay", keys=4, queries=4),
}


def _needle_samples(request: TaskRequest, form: _Form) -> Iterator[Sample | None]:
    request.require("a needle", tokens=request.length, min_tokens=_LEAST_NEEDLE_TOKENS)
    draw, is_short = random.Random(request.seed), request.length < 4096
    step, essay = 5 if is_short else 25, list[str]()
    if form.haystack == "essay":
        step, essay = (
            50 if is_short else 500,
            essay_words(request.data),
        )  # NVIDIA's 500 words leave no room below
    build = partial(
        _needle_question, form=form, draw=draw, seed=request.seed, essay=essay
    )
    return _fitting(
        request, repeat(build), size=_largest(request, build, step=step), step=step
    )


def _needle_question(
    size: int, *, form: _Form, draw: random.Random, seed: int, essay: list[str]
) -> Sample:
    """Return a question whose haystack has `size` words of the essay, or lines."""
    key, value = _RANDOM[form.key_kind], _RANDOM[form.value_kind]
    stated = [
        (key(draw), [value(draw) for _ in range(form.values)]) for _ in range(form.keys)
    ]
    needles = [
        _NEEDLE.format(kind=form.value_kind, key=name, value=one)
        for name, values in stated
        for one in values
    ]
    random.Random(seed).shuffle(needles)
    if form.haystack == "essay":
        # The essay in sentences, cut at the depths that are drawn, a needle at each cut.
        lines = sentences(" ".join((essay * -(-size // len(essay)))[:size]).strip())
        places = sorted(
            int(len(lines) * (depth / 100))
            for depth in draw.sample(_DEPTHS, len(needles))
        )
        parts: list[str] = []
        for number, (first, last) in enumerate(pairwise([0, *places, len(lines)])):
            parts += [" ".join(lines[first:last]), *needles[number : number + 1]]
        context = " ".join(parts)
    else:
        # Lines of noise, or needles with keys and values that nobody asks for.
        hay = [_NOISE] * size
        if form.haystack == "needle":
            hay = [
                _NEEDLE.format(kind=form.value_kind, key=key(draw), value=value(draw))
                for _ in range(size)
            ]
        for place, needle in zip(
            sorted(draw.sample(range(size), len(needles)), reverse=True),
            needles,
            strict=True,
        ):
            hay.insert(place, needle)
        context = "\n".join(hay)
    queried = [stated[number] for number in draw.sample(range(form.keys), form.queries)]
    *others, last_query = [name for name, _ in queried]
    query = ", ".join(others) + ", and " + last_query if others else last_query
    is_one = form.queries * form.values == 1
    prompt, prefix, kind = (
        (*_ONE, form.value_kind.removesuffix("s"))
        if is_one
        else (*_MANY, form.value_kind)
    )
    answers = tuple(one for _, values in queried for one in values)
    text = prompt.format(kind=kind, context=context, query=query)
    return Sample(text, answers, 128, prefix.format(kind=kind, query=query))


# Variable tracking: the question asks for every variable that has a value, after one worked example.

_HOPS: Final = 4
_EXAMPLE_TOKENS, _EXAMPLE_VALUE = 500, "12345"
_TRACKED: Final = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are: "
)


def _variable_samples(request: TaskRequest) -> Iterator[Sample | None]:
    request.require("vt", tokens=request.length, min_tokens=_LEAST_TOKENS)
    # NVIDIA's two streams: names and places from Python's generator, values from NumPy's.
    draw, numbers = random.Random(request.seed), np.random.RandomState(request.seed)

    def name(letters: int) -> str:
        return "".join(draw.choices(string.ascii_uppercase, k=letters))

    def build(size: int, *, is_example: bool = False) -> Sample:
        letters = 3 if is_example else 5
        names = [name(letters) for _ in range(_HOPS + 1)]
        while len(set(names)) < _HOPS + 1:
            names.append(name(letters))
        names = list(dict.fromkeys(names))
        value = _EXAMPLE_VALUE if is_example else str(numbers.randint(10000, 99999))
        chain = [
            f"VAR {names[0]} = {value}",
            *(f"VAR {later} = VAR {earlier} " for earlier, later in pairwise(names)),
        ]
        lines = [_NOISE] * max(
            size, len(chain)
        )  # each assignment needs a place of its own
        places = sorted(draw.sample(range(len(lines)), len(chain)))
        for number, (place, assignment) in enumerate(zip(places, chain, strict=True)):
            lines.insert(place + number, assignment)
        prompt = prompt_of("ruler_vt").format(
            context="\n".join(lines).replace(". \n", ".\n"), value=value
        )
        return Sample(
            prompt,
            tuple(names),
            0 if is_example else 30,
            _TRACKED.format(count=_HOPS + 1, value=value),
        )

    # The worked example: a short question of the same form followed by its answer, made once for all samples.
    short, worked = (
        replace(request, length=_EXAMPLE_TOKENS),
        partial(build, is_example=True),
    )
    size = _largest(short, worked, step=5)
    shown = next(_fitting(short, [worked], size=size, step=5)) or worked(5)
    example = f"{shown.text} {' '.join(shown.references)}\n"
    step = 10 if request.length >= 4096 else 5
    # The bound comes from the whole length and the search from what the example leaves, as in NVIDIA's script.
    left = replace(request, length=request.length - request.tokenizer.count(example))
    size = _largest(left, build, step=step, room=request.room)

    def with_example(used: int) -> Sample:
        sample, shown = build(used), example
        for old in example.split()[
            -_HOPS - 1 :
        ]:  # the same example, with other names and another value
            shown = shown.replace(old, name(len(old)))
        shown = shown.replace(_EXAMPLE_VALUE, str(numbers.randint(10000, 99999)))
        return replace(sample, prompt=f"{shown}\n{sample.prompt}")

    return _fitting(request, repeat(with_example), size=size, step=step)


# Common words: a numbered list in which ten words occur ten times as often as the rest, after one worked example.

_ENGLISH_WORDS: Final = "ruler/english_words.json"
_COMMON = _WORD_STEP = 10
_LIST: Final = prompt_of("ruler_cwe")
_LISTED: Final = " Answer: The top 10 words that appear most often in the list are:"


def _common_words_samples(request: TaskRequest) -> Iterator[Sample | None]:
    request.require("cwe", tokens=request.length, min_tokens=_LEAST_TOKENS)
    few = sorted(
        {one for kind in ("noun", "adjective", "verb") for one in _wonderwords(kind)}
    )
    random.Random(request.seed).shuffle(few)
    shape = Annotated[dict[str, str], Len(1)]
    many = (
        list(request.data.json(_ENGLISH_WORDS, shape).values())
        if request.data.has(_ENGLISH_WORDS)
        else []
    )
    draw, is_short = random.Random(request.seed), request.length < 4096

    def numbered(words: list[str]) -> str:
        return " ".join(
            f"{number}. {word}" for number, word in enumerate(words, start=1)
        )

    def listed(
        size: int, common_repeats: int, other_repeats: int
    ) -> tuple[str, list[str]]:
        sampled = draw.sample(few if size <= len(few) else many, size)
        common = sampled[:_COMMON]
        shuffled = common * common_repeats + sampled[_COMMON:] * other_repeats
        random.Random(request.seed).shuffle(shuffled)
        return numbered(shuffled), common

    def build(size: int) -> Sample:
        example, answers = listed(*((20, 3, 1) if is_short else (40, 10, 3)))
        context, common = listed(size, *((6, 1) if is_short else (30, 3)))
        shown = f"{_LIST.format(context=example)}{_LISTED} {numbered(answers)}"
        return Sample(
            f"{shown}\n{_LIST.format(context=context)}", tuple(common), 120, _LISTED
        )

    most = max(len(few), len(many))
    tokens_per_word = request.tokenizer.count(build(4096).text) / 4096
    upper = max(int(request.room // tokens_per_word) * 2, _WORD_STEP * 2)
    size = _largest(request, build, step=_WORD_STEP, upper=min(upper, most))
    if size == most < upper:
        raise EvaluateError(
            f"cwe at {request.length:,} tokens needs more than {most:,} different words, and {_ENGLISH_WORDS} is missing; "
            f"{origin(_ENGLISH_WORDS)}, or leave the length out"
        )
    return _fitting(request, repeat(build), size=size, step=_WORD_STEP)


# Frequent words: made-up words with frequencies by Zipf's law; the three most frequent ones but the dots are the answer.

_ALPHA, _LETTERS, _CODED_BUDGET = 2.0, 6, 50
_DECODED: Final = " Answer: According to the coded text above, the three most frequently appeared words are:"


def _frequent_words_samples(request: TaskRequest) -> Iterator[Sample | None]:
    """Yield fwe's samples; the answer's tokens are taken from the length first, and all else follows from the rest."""
    from scipy.special import zeta

    request.require("fwe", tokens=request.length, min_tokens=_LEAST_TOKENS)
    draw, room = random.Random(request.seed), request.room - _CODED_BUDGET

    def new_vocabulary() -> list[str]:
        made = set[str]()
        while len(made) < room // 50:
            made.add("".join(draw.choices(string.ascii_lowercase, k=_LETTERS)))
        vocabulary = sorted(made)
        random.Random(request.seed).shuffle(vocabulary)
        return ["...", *vocabulary[1:]]  # the most frequent is noise

    def build(vocabulary: list[str], words: int) -> Sample:
        # How often each word of the vocabulary occurs, shape (words,), most frequent first.
        counts = (
            words * (np.arange(1, len(vocabulary) + 1) ** -_ALPHA) / zeta(_ALPHA)
        ).astype(int)
        coded = [
            word
            for word, repeats in zip(vocabulary, counts.tolist(), strict=True)
            for _ in range(repeats)
        ]
        random.Random(request.seed).shuffle(coded)
        prompt = prompt_of("ruler_fwe").format(context=" ".join(coded))
        return Sample(prompt, tuple(vocabulary[1:4]), _CODED_BUDGET, _DECODED)

    vocabulary, words, step = new_vocabulary(), room // _LETTERS, room // 32
    while request.tokenizer.count(build(vocabulary, words).text) < room:
        words += step
    while True:
        vocabulary, used = new_vocabulary(), words - step
        while used > 0 and not request.fits(sample := build(vocabulary, used)):
            used -= step
        yield sample if used > 0 else None


# Questions: the documents that answer a question among others; any accepted answer counts.

_SQUAD, _HOTPOTQA = "ruler/squad.json", "ruler/hotpotqa.json"
_QA_STEP: Final = 10


class _Question(NamedTuple):
    text: str
    answers: tuple[str, ...]
    gold: list[int]  # the numbers of the documents that hold the answer
    related: Sequence[int] = ()  # others of the same article


_Questions = tuple[list[_Question], list[str]]  # and the documents


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
_SQUAD_SHAPE: Final = record(data=several(record(paragraphs=several(_PARAGRAPH))))
_HOTPOTQA_SHAPE: Final = several(
    record(question=TEXT, answer=TEXT, context=several(tuple[str, list[str]]))
)


def _read_squad(data: DataFiles) -> _Questions:
    """Read SQuAD 2.0: the answerable questions; documents are paragraphs."""
    articles = [
        article["paragraphs"] for article in data.json(_SQUAD, _SQUAD_SHAPE)["data"]
    ]
    documents = sorted(
        {paragraph["context"] for article in articles for paragraph in article}
    )
    numbers = {text: number for number, text in enumerate(documents)}
    questions = []
    for article in articles:
        same = [numbers[paragraph["context"]] for paragraph in article]
        for gold, paragraph in zip(same, article, strict=True):
            related = [number for number in same if number != gold]
            for one in (
                one for one in paragraph["qas"] if not one.get("is_impossible")
            ):
                answers = tuple(answer["text"] for answer in one["answers"])
                questions.append(_Question(one["question"], answers, [gold], related))
    return questions, documents


def _read_hotpotqa(data: DataFiles) -> _Questions:
    """Read HotpotQA's distractor setting: ten documents per question, title and text."""
    items = data.json(_HOTPOTQA, _HOTPOTQA_SHAPE)
    contexts = [
        [f"{title}\n{''.join(lines)}" for title, lines in item["context"]]
        for item in items
    ]
    documents = sorted({text for context in contexts for text in context})
    numbers = {text: number for number, text in enumerate(documents)}
    return [
        _Question(
            item["question"], (item["answer"],), [numbers[text] for text in context]
        )
        for item, context in zip(items, contexts, strict=True)
    ], documents


def _qa_samples(
    request: TaskRequest, read: Callable[[DataFiles], _Questions]
) -> Iterator[Sample | None]:
    request.require("qa", tokens=request.length, min_tokens=_LEAST_TOKENS)
    questions, documents = read(request.data)
    if not questions:
        raise EvaluateError(
            f"{_SQUAD} or {_HOTPOTQA}: no question in it can be answered; {origin(_SQUAD)}"
        )
    draw = random.Random(request.seed)

    def build(question: _Question, size: int) -> Sample:
        text, answers, gold, related = question
        missing, known = size - len(gold), [*gold, *related]
        # After the documents that hold the answer come those of the same article, then any others, as NVIDIA's script does.
        if size >= len(documents):
            numbers = [number % len(documents) for number in range(size)]
        elif missing > len(related):
            numbers = known + draw.sample(
                sorted({*range(len(documents))} - {*known}), missing - len(related)
            )
        else:
            numbers = gold + draw.sample(related, missing)
        chosen = [documents[number] for number in numbers]
        random.Random(request.seed).shuffle(chosen)
        context = "\n\n".join(
            f"Document {number}:\n{one}" for number, one in enumerate(chosen, start=1)
        )
        return Sample(
            prompt_of("ruler_qa").format(context=context, query=text),
            answers,
            32,
            " Answer:",
        )

    builds = [partial(build, question) for question in questions]
    return _fitting(
        request, builds, size=_largest(request, builds[0], step=_QA_STEP), step=_QA_STEP
    )


def string_match_all(answer: str, references: Sequence[str]) -> float:
    """Return the share of references that the answer contains, lower-cased (scripts/eval/synthetic/constants.py)."""
    return sum(reference.lower() in answer.lower() for reference in references) / len(
        references
    )


def _score_all(answer: str, sample: Sample) -> dict[str, float]:
    return {"string_match_all": string_match_all(answer, sample.references)}


def _score_part(answer: str, sample: Sample) -> dict[str, float]:
    return {"string_match_part": float(string_match_all(answer, sample.references) > 0)}


_all = partial(
    Task,
    suite="ruler",
    category="RULER",
    metric="string_match_all",
    samples=500,
    score=_score_all,
)
_part = partial(_all, metric="string_match_part", score=_score_part)
_essays = {
    name: (ESSAYS,) if form.haystack == "essay" else () for name, form in _FORMS.items()
}
TASKS: Final = (
    *(
        _all(name, make=partial(_needle_samples, form=_FORMS[name]), files=files)
        for name, files in _essays.items()
    ),
    _all("vt", make=_variable_samples, version=2),
    _all("cwe", make=_common_words_samples, optional=lambda _: (_ENGLISH_WORDS,)),
    _all("fwe", make=_frequent_words_samples, version=2),
    _part("qa_1", make=partial(_qa_samples, read=_read_squad), files=(_SQUAD,)),
    _part("qa_2", make=partial(_qa_samples, read=_read_hotpotqa), files=(_HOTPOTQA,)),
)
