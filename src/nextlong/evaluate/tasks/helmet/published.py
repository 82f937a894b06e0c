"""Published: what HELMET's tasks share.

Sampled questions and examples, prompts cut to the length, and scores. Sampling is
HELMET's: questions by Python's `random` with the seed, examples by a hash of the
question, as `datasets.shuffle` does. So are the scores, between 0 and 1, after DrQA and
DensePhrases (utils.py of princeton-nlp/HELMET).
"""

from __future__ import annotations

import hashlib
import random
import re
import string
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import numpy as np

from nextlong.evaluate.task import Sample, Scorer, TaskRequest, table_of
from nextlong.text import Json

SHOTS: Final = 2
QUESTIONS: Final = 100
LENGTHS: Final = (8192, 16_384, 32_768, 65_536, 131_072)
NUMBERS: Final[Json] = table_of("helmet")
_T = TypeVar("_T")
_Metric = Callable[[str, Sequence[str]], float]
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def at_lengths(numbers: Sequence[int]) -> dict[int, int]:
    """Return the number at each of HELMET's lengths."""
    return dict(zip(LENGTHS, numbers, strict=True))


def prompted(
    request: TaskRequest, template: str, sample: Sample, *, context: str, **fields: str
) -> Sample:
    """Return a sample with a template filled, its context cut to what fits.

    As in HELMET's `tokenize`, the tokens that exceed the length are cut from the end of
    the context; BOS is counted.
    """
    head, tail = template.split("{context}")
    before = head.format(**fields)
    after = tail.format(**fields)
    behind = after + (sample.answer_prefix if request.begins_answer else "")
    room = request.room - sample.max_new_tokens - len(request.tokenizer.prefix)
    kept = context
    # Cutting may merge tokens at the edge, so the count is taken again until it fits.
    while kept:
        excess = request.tokenizer.count(before + kept + behind) - room
        if excess <= 0:
            break
        bounds = request.tokenizer.boundaries(kept)
        if excess <= len(bounds):
            first_cut_char, _ = bounds[-excess]
            kept = kept[:first_cut_char]
        else:
            kept = ""
    details = {
        "context_cut": kept != context,
        "chars_before": len(before),
        "chars_behind": len(behind),
        **sample.details,
    }
    return replace(sample, prompt=before + kept + after, details=details)


def sampled_questions(rows: Sequence[Json], key: str, *, seed: int) -> list[Json]:
    """Return every record of 100 questions.

    One question has a record for each depth of its gold passage.
    """
    # HELMET samples among sorted keys; numbers sort before strings so that mixed ids
    # can be sorted.
    distinct = {row[key] for row in rows}
    keys = sorted(distinct, key=lambda name: (isinstance(name, str), name))
    draw = random.Random(seed)
    count = min(QUESTIONS, len(keys))
    chosen = set(draw.sample(keys, count))
    return [row for row in rows if row[key] in chosen]


def sampled_examples(
    rows: Sequence[Json], key: str, question: str, excluded: set[str]
) -> list[Json]:
    """Return two examples for a question, of other keys than `excluded`.

    They are always the same ones.
    """
    kept = [row for row in rows if str(row[key]) not in excluded]
    first_of_key: dict[str | int, Json] = {}
    for row in shuffled(kept, seed=seed_of(question)):
        first_of_key.setdefault(row[key], row)
        if len(first_of_key) == SHOTS:
            break
    return list(first_of_key.values())


def seed_of(question: str, offset: int = 0) -> int:
    """Return a seed that depends on a question alone, not on those before it."""
    digest = hashlib.sha256(question.encode("utf-8"))
    return (int(digest.hexdigest(), 16) + offset) % 2**31


def shuffled(rows: Sequence[_T], *, seed: int) -> list[_T]:
    """Return records in the order of `datasets.shuffle(seed)`."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(rows))
    return [rows[index] for index in order.tolist()]


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation and articles, and join words by one space."""
    without_punctuation = text.lower().translate(_PUNCTUATION)
    without_articles = _ARTICLES.sub(" ", without_punctuation)
    return " ".join(without_articles.split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer equals a reference, both normalised."""
    normalised = normalize_answer(answer)
    is_equal = any(
        normalize_answer(reference) == normalised for reference in references
    )
    return float(is_equal)


def substring_exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer contains a reference, both normalised (SubEM)."""
    normalised = normalize_answer(answer)
    is_found = any(
        normalize_answer(reference) in normalised for reference in references
    )
    return float(is_found)


def parsed_answer(answer: str, prefix: str = "Answer:") -> str | None:
    """Return the rest of the line after `prefix`, else the first line.

    None for an empty answer.
    """
    # As `parse_output` of utils.py: the text after the prefix, else the first line.
    for pattern in (rf"(?:{prefix})(.*)(?:\n|$)", r"(?:^)(.*)(?:\n|$)"):
        match = re.search(pattern, answer, flags=re.IGNORECASE)
        if match is not None:
            line = match[1].strip()
            again = f"^{re.escape(prefix)}"
            return re.sub(again, "", line, flags=re.IGNORECASE).strip()
    return None


def best_of(prefix: str = "Answer:", **metrics: _Metric) -> Scorer:
    """Return HELMET's scorer, by the names of the scores: `default_post_process`.

    The answer is scored together with its prefix, both as it is and as parsed; the
    better score counts.
    """

    def score(answer: str, sample: Sample) -> dict[str, float]:
        completed = sample.completed(answer)
        texts = [completed]
        parsed = parsed_answer(completed, prefix)
        if parsed is not None:
            texts.append(parsed)
        best = {}
        for name, metric in metrics.items():
            best[name] = max(metric(text, sample.references) for text in texts)
        return best

    return score
