"""Published: what HELMET's tasks share: sampled questions and examples, prompts cut to the length, and scores.

Sampling is HELMET's: questions by Python's `random` with the seed, examples by a hash of the question, as `datasets.shuffle` does.
So are the scores, between 0 and 1, after DrQA and DensePhrases (utils.py of princeton-nlp/HELMET).
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

from nextlong.evaluate.task import Sample, Scorer, TaskRequest, prompt_of
from nextlong.text import Json

SHOTS: Final = 2
QUESTIONS: Final = 100
LENGTHS: Final = (8192, 16_384, 32_768, 65_536, 131_072)
_T = TypeVar("_T")
_Metric = Callable[[str, Sequence[str]], float]
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def prompted(
    request: TaskRequest, template: str, sample: Sample, *, context: str, **fields: str
) -> Sample:
    """Return a sample with the prompt of a template, its context cut to what the length leaves.

    As in HELMET's `tokenize`, the tokens that exceed the length are cut from the end of the context; BOS is counted.
    """
    before, after = (
        part.format(**fields) for part in prompt_of(template).split("{context}")
    )
    room, kept = (
        request.room - sample.max_new_tokens - len(request.tokenizer.prefix),
        context,
    )
    # Cutting may merge tokens at the edge, so the count is taken again until it fits.
    while (
        kept
        and (
            over := request.tokenizer.count(
                before + kept + after + sample.answer_prefix
            )
            - room
        )
        > 0
    ):
        bounds = request.tokenizer.boundaries(kept)
        kept = kept[: bounds[-over][0]] if over <= len(bounds) else ""
    about = {"context_cut": kept != context, "chars_before": len(before)}
    about["chars_behind"] = len(after + sample.answer_prefix)
    return replace(
        sample, prompt=before + kept + after, details={**about, **sample.details}
    )


def sampled_questions(rows: Sequence[Json], key: str, *, seed: int) -> list[Json]:
    """Return every record of 100 questions; one question has a record for each depth of its gold passage."""
    # HELMET samples among sorted keys; numbers sort before strings so that mixed ids can be sorted.
    keys = sorted(
        {row[key] for row in rows}, key=lambda name: (isinstance(name, str), name)
    )
    chosen = set(random.Random(seed).sample(keys, min(QUESTIONS, len(keys))))
    return [row for row in rows if row[key] in chosen]


def sampled_examples(
    rows: Sequence[Json], key: str, question: str, excluded: set[str]
) -> list[Json]:
    """Return two examples for a question, always the same ones, of other keys than `excluded`."""
    # The seed is a hash of the question, so that its examples do not depend on the questions before it.
    kept = [row for row in rows if str(row[key]) not in excluded]
    seed = int(hashlib.sha256(question.encode("utf-8")).hexdigest(), 16) % 2**31
    first: dict[str | int, Json] = {}
    for number in np.random.default_rng(seed).permutation(len(kept)).tolist():
        first.setdefault(kept[number][key], kept[number])
        if len(first) == SHOTS:
            break
    return list(first.values())


def shuffled(rows: Sequence[_T], *, seed: int) -> list[_T]:
    """Return records in the order of `datasets.shuffle(seed)`."""
    return [
        rows[number]
        for number in np.random.default_rng(seed).permutation(len(rows)).tolist()
    ]


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation and articles, and join words by single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer equals a reference, both normalised."""
    return float(
        normalize_answer(answer)
        in {normalize_answer(reference) for reference in references}
    )


def substring_exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer contains a reference, both normalised (SubEM)."""
    normalised = normalize_answer(answer)
    return float(
        any(normalize_answer(reference) in normalised for reference in references)
    )


def parsed_answer(answer: str, prefix: str = "Answer:") -> str | None:
    """Return the rest of the line after `prefix`, else the first line; None for an empty answer."""
    # As `parse_output` of utils.py: the text after the prefix, else the first line.
    for pattern in (rf"(?:{prefix})(.*)(?:\n|$)", r"(?:^)(.*)(?:\n|$)"):
        match = re.search(pattern, answer, flags=re.IGNORECASE)
        if match is not None:
            return re.sub(
                f"^{re.escape(prefix)}", "", match[1].strip(), flags=re.IGNORECASE
            ).strip()
    return None


def best_of(prefix: str = "Answer:", **metrics: _Metric) -> Scorer:
    """Return HELMET's scorer, by the names of the scores: `default_post_process`.

    The answer is scored together with its prefix, both as it is and as parsed; the better score counts.
    """

    def score(answer: str, sample: Sample) -> dict[str, float]:
        completed = sample.completed(answer)
        texts = [
            one
            for one in (completed, parsed_answer(completed, prefix))
            if one is not None
        ]
        return {
            name: max(metric(text, sample.references) for text in texts)
            for name, metric in metrics.items()
        }

    return score
