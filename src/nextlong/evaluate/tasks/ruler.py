"""RULER's 13 tasks (Hsieh et al. 2024, arXiv 2404.06654), prompt for prompt as NVIDIA's generator makes them.

    niah_*       keys with values hidden in noise, essays or other needles    vt          a chain of assignments in noise
    cwe, fwe     the most frequent words of a list, or of a coded text        qa_1, qa_2  SQuAD and HotpotQA among other paragraphs

Random numbers come from one stream per task, in the order of NVIDIA's scripts (scripts/data/synthetic/*.py), so that the same seed,
words, essays and tokenizer give the same prompts. The context is the largest that fits: a binary search finds its size, and a
sample that is still too long loses `step` units at a time. Deliberate differences: docs/evaluate/ruler.md.
"""

from __future__ import annotations

import random
import string
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count, pairwise
from typing import Annotated, Final, NotRequired

import numpy as np
from annotated_types import Len

from nextlong.errors import EvaluateError
from nextlong.evaluate import texts
from nextlong.evaluate.data import TEXT, DataFiles, origin, record, several
from nextlong.evaluate.task import Sample, Task, TaskRequest, prompt_of
from nextlong.text import Json

_Build = Callable[[int], Sample]  # the size of a context → a question
_LEAST_TOKENS: Final = 1024  # below which a prompt is all instruction
_LEAST_NEEDLE_TOKENS: Final = 256
_REDRAWS: Final = 20  # of the smallest context; NVIDIA's scripts never give up


def _largest(request: TaskRequest, build: _Build, *, lower: int, upper: int, step: int) -> int:
    """Return the largest context in [lower, upper] that fits, else `step`, as NVIDIA's scripts do."""
    best = step
    while lower <= upper:
        middle = (lower + upper) // 2
        if request.fits(build(middle)):
            best, lower = middle, middle + 1
        else:
            upper = middle - 1
    return best


def _upper_bound(request: TaskRequest, build: _Build, *, step: int) -> int:
    """Return three times the context size that the tokens of a small one predict."""
    tokens_per_unit = request.tokenizer.count(build(step).text) / step
    return max(int((request.room / tokens_per_unit) * 3), step * 2)


def _fitting(
    request: TaskRequest, build: Callable[[int, int], Sample | None], *, size: int, step: int
) -> Iterator[Sample | None]:
    """Yield one sample per index with `size` units of context or, where that is too long, `step` less at a time; else None.

    Ends where `build(index, size)` returns None: there are no more questions.
    """
    for index in count():
        used, redraws = size, 0
        while (sample := build(index, used)) is not None and not request.fits(sample):
            if used > step:
                used -= step
            elif (redraws := redraws + 1) > _REDRAWS:
                break
        if sample is None:
            return
        yield sample if redraws <= _REDRAWS else None


# Needles: the score is the share of values that are found.

_NOISE: Final = "The grass is green. The sky is blue. The sun is yellow. Here we go. There and back again."
_DEPTHS: Final = [int(depth) for depth in np.round(np.linspace(0, 100, num=40, endpoint=True))]
_NEEDLE: Final = "One of the special magic {kind} for {key} is: {value}."
# The prompt and the beginning of the answer, where several values are asked for, and where it is one.
_MANY: Final = (
    prompt_of("ruler_niah_many"),
    " The special magic {kind} for {query} mentioned in the provided text are",
)
_ONE: Final = prompt_of("ruler_niah_one"), " The special magic {kind} for {query} mentioned in the provided text is"
_RANDOM: Final[dict[str, Callable[[random.Random], str]]] = {
    "words": lambda draw: draw.choice(texts.hyphenated()),
    "numbers": lambda draw: str(draw.randint(10**6, 10**7 - 1)),
    "uuids": lambda draw: str(uuid.UUID(int=draw.getrandbits(128), version=4)),
}


@dataclass(frozen=True)
class _Form:
    """A haystack (noise, essay or needle), the kinds of keys and values, their numbers, and how many keys are queried."""

    haystack: str
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
    request.require(_LEAST_NEEDLE_TOKENS, "a needle")
    draw = random.Random(request.seed)
    essay = texts.essay_words(request.data) if form.haystack == "essay" else []
    build = partial(_needle_question, form=form, draw=draw, seed=request.seed, essay=essay)
    step = 25 if request.length >= 4096 else 5
    if form.haystack == "essay":
        step = 500 if request.length >= 4096 else 50  # NVIDIA's 500 words leave no room below
    upper = _upper_bound(request, build, step=step)
    size = _largest(request, build, lower=step, upper=upper, step=step)
    return _fitting(request, lambda _, used: build(used), size=size, step=step)


def _needle_question(size: int, *, form: _Form, draw: random.Random, seed: int, essay: list[str]) -> Sample:
    """Return a question whose haystack has `size` words of the essay, or lines."""
    keys: list[str] = []
    values: list[list[str]] = []
    needles: list[str] = []
    for _ in range(form.keys):
        keys.append(_RANDOM[form.key_kind](draw))
        values.append([])
        for _ in range(form.values):
            values[-1].append(_RANDOM[form.value_kind](draw))
            needles.append(_NEEDLE.format(kind=form.value_kind, key=keys[-1], value=values[-1][-1]))
    random.Random(seed).shuffle(needles)
    if form.haystack == "essay":
        # The essay in sentences, cut at the depths that are drawn, a needle at each cut.
        lines = texts.sentences(" ".join((essay * -(-size // len(essay)))[:size]).strip())
        places = sorted(int(len(lines) * (depth / 100)) for depth in draw.sample(_DEPTHS, len(needles)))
        parts: list[str] = []
        for number, (first, last) in enumerate(pairwise([0, *places, len(lines)])):
            parts += [" ".join(lines[first:last]), *needles[number : number + 1]]
        context = " ".join(parts)
    else:
        # Lines of noise, or needles with keys and values that nobody asks for.
        hay = [_NOISE] * size
        if form.haystack == "needle":
            key, value = _RANDOM[form.key_kind], _RANDOM[form.value_kind]
            hay = [_NEEDLE.format(kind=form.value_kind, key=key(draw), value=value(draw)) for _ in range(size)]
        for place, needle in zip(sorted(draw.sample(range(size), len(needles)), reverse=True), needles, strict=True):
            hay.insert(place, needle)
        context = "\n".join(hay)
    queried = draw.sample(range(form.keys), form.queries)
    queries = [keys[number] for number in queried]
    query = ", ".join(queries[:-1]) + ", and " + queries[-1] if len(queries) > 1 else queries[0]
    is_one = form.queries * form.values == 1
    prompt, prefix = _ONE if is_one else _MANY
    kind = form.value_kind.removesuffix("s") if is_one else form.value_kind
    answers = tuple(one for number in queried for one in values[number])
    return Sample(
        prompt.format(kind=kind, context=context, query=query), answers, 128, prefix.format(kind=kind, query=query)
    )


# Variable tracking: every variable that has a value is asked for, behind one worked example.

_HOPS: Final = 4
_EXAMPLE_TOKENS: Final = 500
_EXAMPLE_VALUE: Final = "12345"
_TRACK: Final = prompt_of("ruler_vt")
_TRACKED: Final = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned the "
    "value {value}, they are: "
)


class _Draws:
    """NVIDIA's two streams: names and places from Python's generator, values from NumPy's."""

    def __init__(self, seed: int) -> None:
        self.python = random.Random(seed)
        self._numpy = np.random.RandomState(seed)

    def name(self, letters: int) -> str:
        return "".join(self.python.choices(string.ascii_uppercase, k=letters))

    def value(self) -> str:
        return str(self._numpy.randint(10000, 99999))


def _variable_samples(request: TaskRequest) -> Iterator[Sample | None]:
    request.require(_LEAST_TOKENS, "vt")
    draws = _Draws(request.seed)
    # The worked example: a short question of the same form with its answer behind it, made once for all samples.
    short = replace(request, length=_EXAMPLE_TOKENS)
    worked = partial(_chain_question, draws=draws, is_example=True)
    size = _largest(short, worked, lower=5, upper=_upper_bound(short, worked, step=5), step=5)
    shown = next(_fitting(short, lambda _, used: worked(used), size=size, step=5)) or worked(5)
    example = f"{shown.text} {' '.join(shown.references)}\n"
    build = partial(_chain_question, draws=draws)
    step = 10 if request.length >= 4096 else 5
    # The bound comes from the whole length and the search from what the example leaves, as in NVIDIA's script.
    left = replace(request, length=request.length - request.tokenizer.count(example))
    size = _largest(left, build, lower=step, upper=_upper_bound(request, build, step=step), step=step)

    def with_example(_: int, used: int) -> Sample:
        sample, shown = build(used), example
        for name in example.split()[-_HOPS - 1 :]:  # the same example, with other names and another value
            shown = shown.replace(name, draws.name(len(name)))
        return replace(sample, prompt=f"{shown.replace(_EXAMPLE_VALUE, draws.value())}\n{sample.prompt}")

    return _fitting(request, with_example, size=size, step=step)


def _chain_question(size: int, *, draws: _Draws, is_example: bool = False) -> Sample:
    letters = 3 if is_example else 5
    names = [draws.name(letters) for _ in range(_HOPS + 1)]
    while len(set(names)) < _HOPS + 1:
        names.append(draws.name(letters))
    names = list(dict.fromkeys(names))
    value = _EXAMPLE_VALUE if is_example else draws.value()
    chain = [f"VAR {names[0]} = {value}", *(f"VAR {later} = VAR {earlier} " for earlier, later in pairwise(names))]
    lines = [_NOISE] * max(size, len(chain))  # each assignment needs a place of its own
    places = sorted(draws.python.sample(range(len(lines)), len(chain)))
    for number, (place, assignment) in enumerate(zip(places, chain, strict=True)):
        lines.insert(place + number, assignment)
    prompt = _TRACK.format(context="\n".join(lines).replace(". \n", ".\n"), value=value)
    budget = 0 if is_example else 30
    return Sample(prompt, tuple(names), budget, _TRACKED.format(count=_HOPS + 1, value=value))


# Common words: a numbered list in which ten words occur ten times as often as the rest, behind one worked example.

_ENGLISH_WORDS: Final = "ruler/english_words.json"
_WORDS: Final = Annotated[dict[str, str], Len(1)]
_COMMON: Final = 10
_WORD_STEP: Final = 10
_LIST: Final = prompt_of("ruler_cwe")
_LISTED: Final = " Answer: The top 10 words that appear most often in the list are:"


def _common_words_samples(request: TaskRequest) -> Iterator[Sample | None]:
    request.require(_LEAST_TOKENS, "cwe")
    few = sorted({one for kind in ("noun", "adjective", "verb") for one in texts.wonderwords(kind)})
    random.Random(request.seed).shuffle(few)
    many = list(request.data.json(_ENGLISH_WORDS, _WORDS).values()) if request.data.has(_ENGLISH_WORDS) else []
    draw, is_short = random.Random(request.seed), request.length < 4096

    def listed(size: int, common_repeats: int, other_repeats: int) -> tuple[str, list[str]]:
        sampled = draw.sample(few if size <= len(few) else many, size)
        common, others = sampled[:_COMMON], sampled[_COMMON:]
        shuffled = common * common_repeats + others * other_repeats
        random.Random(request.seed).shuffle(shuffled)
        return _numbered(shuffled), common

    def build(size: int) -> Sample:
        example, answers = listed(*((20, 3, 1) if is_short else (40, 10, 3)))
        context, common = listed(size, *((6, 1) if is_short else (30, 3)))
        shown = f"{_LIST.format(context=example)}{_LISTED} {_numbered(answers)}"
        return Sample(f"{shown}\n{_LIST.format(context=context)}", tuple(common), 120, _LISTED)

    most = max(len(few), len(many))
    tokens_per_word = request.tokenizer.count(build(4096).text) / 4096
    upper = max(int(request.room // tokens_per_word) * 2, _WORD_STEP * 2)
    size = _largest(request, build, lower=_WORD_STEP, upper=min(upper, most), step=_WORD_STEP)
    if size == most < upper:
        raise EvaluateError(
            f"cwe at {request.length:,} tokens needs more than {most:,} different words, and {_ENGLISH_WORDS} is missing; "
            f"{origin(_ENGLISH_WORDS)}, or leave the length out"
        )
    return _fitting(request, lambda _, used: build(used), size=size, step=_WORD_STEP)


def _numbered(words: list[str]) -> str:
    return " ".join(f"{number}. {word}" for number, word in enumerate(words, start=1))


# Frequent words: made-up words with frequencies by Zipf's law; the three most frequent behind the dots are asked for.

_ALPHA: Final = 2.0
_LETTERS: Final = 6
_CODED_BUDGET: Final = 50
_CODED: Final = prompt_of("ruler_fwe")
_DECODED: Final = " Answer: According to the coded text above, the three most frequently appeared words are:"


def _frequent_words_samples(request: TaskRequest) -> Iterator[Sample | None]:
    """Yield fwe's samples; the answer's tokens are taken from the length first, and all else follows from the rest."""
    request.require(_LEAST_TOKENS, "fwe")
    draw, room = random.Random(request.seed), request.room - _CODED_BUDGET
    vocabulary, words = _vocabulary(request, draw), room // _LETTERS
    step = room // 32
    while request.tokenizer.count(_coded_text(vocabulary, words, seed=request.seed).text) < room:
        words += step
    while True:
        vocabulary, used = _vocabulary(request, draw), words - step
        while used > 0 and not request.fits(sample := _coded_text(vocabulary, used, seed=request.seed)):
            used -= step
        yield sample if used > 0 else None


def _vocabulary(request: TaskRequest, draw: random.Random) -> list[str]:
    size = (request.room - _CODED_BUDGET) // 50
    made = ["".join(draw.choices(string.ascii_lowercase, k=_LETTERS)) for _ in range(size)]
    while len(set(made)) < size:
        made.append("".join(draw.choices(string.ascii_lowercase, k=_LETTERS)))
    vocabulary = sorted(set(made))
    random.Random(request.seed).shuffle(vocabulary)
    vocabulary[0] = "..."  # the most frequent is noise
    return vocabulary


def _coded_text(vocabulary: list[str], words: int, *, seed: int) -> Sample:
    from scipy.special import zeta

    # How often each word of the vocabulary occurs, shape (words,), most frequent first.
    ranks = np.arange(1, len(vocabulary) + 1)
    counts = (words * (ranks**-_ALPHA) / zeta(_ALPHA)).astype(int)
    coded = [word for word, repeats in zip(vocabulary, counts.tolist(), strict=True) for _ in range(repeats)]
    random.Random(seed).shuffle(coded)
    return Sample(_CODED.format(context=" ".join(coded)), tuple(vocabulary[1:4]), _CODED_BUDGET, _DECODED)


# Questions: the documents that answer a question among others; any accepted answer counts.

_SQUAD, _HOTPOTQA = "ruler/squad.json", "ruler/hotpotqa.json"
_QA_STEP: Final = 10
_ASK: Final = prompt_of("ruler_qa")


@dataclass(frozen=True)
class _Question:
    """A question, its answers, and by number the documents that hold them and others of the same article."""

    text: str
    answers: tuple[str, ...]
    gold: list[int]
    related: list[int] = field(default_factory=list)


_Questions = tuple[list[_Question], list[str]]  # and the documents


def _answerable(question: Json) -> Json:
    if not question["answers"] and not question.get("is_impossible"):
        raise ValueError("it has no answer, and does not say is_impossible")
    return question


_QUESTION: Final = record(
    _answerable, question=TEXT, answers=several(record(text=str), least=0), is_impossible=NotRequired[bool]
)
_PARAGRAPH: Final = record(context=TEXT, qas=several(_QUESTION, least=0))
_SQUAD_SHAPE: Final = record(data=several(record(paragraphs=several(_PARAGRAPH))))
_HOTPOTQA_SHAPE: Final = several(record(question=TEXT, answer=TEXT, context=several(tuple[str, list[str]])))


def _read_squad(data: DataFiles) -> _Questions:
    """Read SQuAD 2.0: the answerable questions; documents are paragraphs."""
    articles = [article["paragraphs"] for article in data.json(_SQUAD, _SQUAD_SHAPE)["data"]]
    documents = sorted({paragraph["context"] for article in articles for paragraph in article})
    numbers = {text: number for number, text in enumerate(documents)}
    questions = []
    for article in articles:
        same = [numbers[paragraph["context"]] for paragraph in article]
        for gold, paragraph in zip(same, article, strict=True):
            related = [number for number in same if number != gold]
            questions += [
                _Question(one["question"], tuple(answer["text"] for answer in one["answers"]), [gold], related)
                for one in paragraph["qas"]
                if not one.get("is_impossible")
            ]
    return questions, documents


def _read_hotpotqa(data: DataFiles) -> _Questions:
    """Read HotpotQA's distractor setting: ten documents per question, title and text."""
    items = data.json(_HOTPOTQA, _HOTPOTQA_SHAPE)
    contexts = [[f"{title}\n{''.join(lines)}" for title, lines in item["context"]] for item in items]
    documents = sorted({text for context in contexts for text in context})
    numbers = {text: number for number, text in enumerate(documents)}
    return [
        _Question(item["question"], (item["answer"],), [numbers[text] for text in context])
        for item, context in zip(items, contexts, strict=True)
    ], documents


def _qa_samples(request: TaskRequest, read: Callable[[DataFiles], _Questions]) -> Iterator[Sample | None]:
    request.require(_LEAST_TOKENS, "qa")
    questions, documents = read(request.data)
    if not questions:
        raise EvaluateError(f"{_SQUAD} or {_HOTPOTQA}: no question in it can be answered; {origin(_SQUAD)}")
    draw = random.Random(request.seed)

    def build(index: int, size: int) -> Sample:
        question = questions[index]
        missing = size - len(question.gold)
        if size >= len(documents):
            chosen = (documents * -(-size // len(documents)))[:size]
        else:
            # Behind the documents that hold the answer: those of the same article, then any others, as NVIDIA's script does.
            more = question.related
            if missing > len(more):
                known = {*question.gold, *more}
                others = [number for number in range(len(documents)) if number not in known]
                more = more + draw.sample(others, max(0, missing - len(more)))
            else:
                more = draw.sample(more, missing)
            chosen = [documents[number] for number in question.gold + more]
        random.Random(request.seed).shuffle(chosen)
        context = "\n\n".join(f"Document {number}:\n{text}" for number, text in enumerate(chosen, start=1))
        return Sample(_ASK.format(context=context, query=question.text), question.answers, 32, " Answer:")

    first = partial(build, 0)
    upper = _upper_bound(request, first, step=_QA_STEP)
    size = _largest(request, first, lower=_QA_STEP, upper=upper, step=_QA_STEP)
    in_order = lambda index, used: build(index, used) if index < len(questions) else None  # noqa: E731
    return _fitting(request, in_order, size=size, step=_QA_STEP)


def string_match_all(answer: str, references: Sequence[str]) -> float:
    """Return the share of references that the answer contains, lower-cased (scripts/eval/synthetic/constants.py)."""
    return sum(reference.lower() in answer.lower() for reference in references) / len(references)


_task = partial(Task, suite="ruler", category="RULER", samples=500)
_all = partial(
    _task,
    metric="string_match_all",
    score=lambda answer, sample: {"string_match_all": string_match_all(answer, sample.references)},
)
_part = partial(
    _task,
    metric="string_match_part",
    # 1 if the answer contains any reference, lower-cased.
    score=lambda answer, sample: {
        "string_match_part": float(any(reference.lower() in answer.lower() for reference in sample.references))
    },
    max_new_tokens=32,
)
TASKS: Final = (
    *(
        _all(
            name=name,
            make=partial(_needle_samples, form=form),
            max_new_tokens=128,
            files=(texts.ESSAYS,) if form.haystack == "essay" else (),
        )
        for name, form in _FORMS.items()
    ),
    _all(name="vt", make=_variable_samples, max_new_tokens=30, version=2),
    _all(name="cwe", make=_common_words_samples, max_new_tokens=120, optional=lambda _: (_ENGLISH_WORDS,)),
    _all(name="fwe", make=_frequent_words_samples, max_new_tokens=_CODED_BUDGET, version=2),
    _part(name="qa_1", make=partial(_qa_samples, read=_read_squad), files=(_SQUAD,)),
    _part(name="qa_2", make=partial(_qa_samples, read=_read_hotpotqa), files=(_HOTPOTQA,)),
)
