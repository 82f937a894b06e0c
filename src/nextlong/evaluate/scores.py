"""Scores: an answer and its references → a number between 0 and 1. Pure functions, and the scorers that tasks make of them.

RULER: `string_match_all`, `string_match_part` (scripts/eval/synthetic/constants.py of NVIDIA/RULER). HELMET: `normalize_answer` and
what is built on it, after DrQA and DensePhrases (utils.py of princeton-nlp/HELMET); NDCG as trec_eval; ROUGE by `rouge_score`.
"""

from __future__ import annotations

import math
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from nextlong.evaluate import required
from nextlong.evaluate.task import Scorer

_Metric = Callable[[str, Sequence[str]], float]
_ARTICLES: Final = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION: Final = str.maketrans("", "", string.punctuation)


def string_match_all(answer: str, references: Sequence[str]) -> float:
    """Return the share of references that the answer contains, lower-cased."""
    return sum(reference.lower() in answer.lower() for reference in references) / len(references)


def string_match_part(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer contains any reference, lower-cased."""
    return float(any(reference.lower() in answer.lower() for reference in references))


def normalize_answer(text: str) -> str:
    """Lower-case, drop ASCII punctuation and articles, and join words by single spaces."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer equals a reference, both normalised."""
    return float(normalize_answer(answer) in {normalize_answer(reference) for reference in references})


def substring_exact_match(answer: str, references: Sequence[str]) -> float:
    """Return 1 if the answer contains a reference, both normalised (SubEM)."""
    normalised = normalize_answer(answer)
    return float(any(normalize_answer(reference) in normalised for reference in references))


def rouge_l_f1(answer: str, references: Sequence[str]) -> float:
    """Return the best ROUGE-L F1 over the references, with stemming (`rouge_score`; extra `nextlong[evaluate]`)."""
    scorer = required("rouge_score.rouge_scorer").RougeScorer(["rougeL"], use_stemmer=True)
    return max(float(scorer.score(target=reference, prediction=answer)["rougeL"].fmeasure) for reference in references)


def parsed_answer(answer: str, prefix: str = "Answer:") -> str | None:
    """Return the rest of the line behind `prefix`, else the first line; None for an answer without any."""
    for pattern in (rf"(?:{prefix})(.*)(?:\n|$)", r"(?:^)(.*)(?:\n|$)"):
        match = re.search(pattern, answer, flags=re.IGNORECASE)
        if match is not None:
            return re.sub(f"^{re.escape(prefix)}", "", match[1].strip(), flags=re.IGNORECASE).strip()
    return None


def best_of_raw_and_parsed(
    metric: _Metric, answer: str, references: Sequence[str], *, prefix: str = "Answer:"
) -> float:
    """Return the better score of the answer as it is and as parsed, `default_post_process` of HELMET."""
    parsed = parsed_answer(answer, prefix)
    return max(metric(answer, references), 0.0 if parsed is None else metric(parsed, references))


def plain(metric: _Metric) -> Scorer:
    """Return a scorer of the answer alone, under the name of its metric."""
    return lambda answer, sample: {metric.__name__: metric(answer, sample.references)}


def helmet(prefix: str = "Answer:", **metrics: _Metric) -> Scorer:
    """Return HELMET's scorer: of the answer behind its prefix, raw or parsed, whichever is better; by the names of the scores."""
    return lambda answer, sample: {
        name: best_of_raw_and_parsed(metric, sample.completed(answer), sample.references, prefix=prefix)
        for name, metric in metrics.items()
    }


def parsed_ranking(answer: str) -> list[str]:
    """Return the ids of the longest `3 > 1 > 2` in an answer, best first, each once; brackets, colons and `ID` are ignored."""
    cleaned = re.sub(r"[\[\]:]", "", answer).lower().replace("id", "")
    runs = [match.group(0) for match in re.finditer(r"(\d+)(?:\s*>\s*(\d+))*", cleaned)]
    longest = max(runs, key=len, default="")
    return list(dict.fromkeys(part.strip() for part in longest.split(">") if part.strip().isdigit()))


def ndcg(ranking: Sequence[str], relevance: Mapping[str, int], *, at: int = 10) -> float:
    """Return NDCG@`at` as trec_eval's ndcg_cut: gain = relevance, discount = log2(rank + 1), ideal over all judged."""
    gained = sum(
        max(relevance.get(name, 0), 0) / math.log2(rank + 1) for rank, name in enumerate(ranking[:at], start=1)
    )
    best = sorted((value for value in relevance.values() if value > 0), reverse=True)[:at]
    ideal = sum(value / math.log2(rank + 1) for rank, value in enumerate(best, start=1))
    return gained / ideal if ideal else 0.0


def chosen_letter(answer: str) -> str | None:
    """Return the letter of `The correct answer is (B)`, as LongBench v2 reads it; None without one."""
    cleaned = answer.replace("*", "")
    match = re.search(r"The correct answer is \(([A-D])\)", cleaned) or re.search(
        r"The correct answer is ([A-D])", cleaned
    )
    return match[1] if match else None
