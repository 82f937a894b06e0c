"""Cite: long answers with citations, from up to 700 passages (ALCE: ASQA and QAMPARI; Gao et al. 2023, arXiv 2305.14627).

In:  HELMET's data (alce/) and its prompts (prompts/ of its repository). Out: answers whose claims name passages, [3][7]. Scores, as
HELMET's eval_alce.py computes them: for ASQA the share of short answers that are there, for QAMPARI the recall of a list, up to
five. Citation recall and precision need a model that says whether passages entail a claim: `nextlong evaluate judge --nli`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import fmean
from typing import Any, Final

from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.scores import normalize_answer
from nextlong.evaluate.shapes import Alce, AlcePrompt
from nextlong.evaluate.task import JSON, Request, Sample, Task
from nextlong.evaluate.tasks.helmet.published import QUESTIONS, SHOTS, Row, rows_of, shuffled
from nextlong.evaluate.tasks.ruler.words import sentences

PASSAGES_AT: Final = {8192: 30, 16_384: 75, 32_768: 165, 65_536: 345, 131_072: 700}
_BUDGET: Final = 300
_MOST_CITED: Final = 3
_TOP: Final = 5
_SHORTEST_CLAIM: Final = 5  # characters; below lie what a sentence splitter makes of "1."
Entails = Callable[[str, str], bool]  # premise, hypothesis


def files_of(name: str) -> tuple[str, str]:
    """Return the files of a task's questions with their passages, and of its prompt with its examples."""
    return f"helmet/alce/{name}_eval_gtr_top2000.json", f"helmet/prompts/{name}_revised.json"


def samples(request: Request, name: str) -> Iterator[Sample | None]:
    """Yield HELMET's 100 questions for a length, two examples before each."""
    questions, prompts = files_of(name)
    prompt = request.data.json(prompts, AlcePrompt)
    draw = random.Random(request.seed)
    rows = [{**row, "shots": draw.sample(prompt["demos"], SHOTS)} for row in rows_of(request.data, questions, Alce)]
    for row in shuffled(rows, seed=request.seed)[:QUESTIONS]:
        shown = "".join(
            prompt["demo_prompt"].format(
                **{**shot, "instruction": prompt["instruction"], "context": _listed(prompt, shot["docs"])}
            )
            + "\n\n\n"
            for shot in row["shots"]
        )
        context = _listed(prompt, row["docs"][: PASSAGES_AT[request.length]])
        asked = f"{shown}{prompt['instruction']}\n\nQuestion: {row['question']}\n\n{context}"
        groups = row["answers"] if name == "qampari" else [pair["short_answers"] for pair in row["qa_pairs"]]
        details: dict[str, JSON] = {"question": row["question"], "answers": groups}
        sample = Sample(asked, tuple(one for group in groups for one in group), _BUDGET, "\n\nAnswer:", details=details)
        yield sample if request.fits(sample) else None


def _listed(prompt: Row, passages: Sequence[Row]) -> str:
    return "\n\n".join(prompt["doc_prompt"].format(**one, ID=number) for number, one in enumerate(passages, start=1))


def without_citations(text: str) -> str:
    """Return a text without [3] and its like."""
    return re.sub(r"\[\d+", "", re.sub(r" \[\d+", "", text)).replace(" |", "").replace("]", "")


def score_asqa(answer: str, sample: Sample) -> dict[str, float]:
    """Return the share of questions with a short answer in the text, and whether it is all of them."""
    text = normalize_answer(without_citations(_one_line(answer)))
    found = [any(normalize_answer(one) in text for one in group) for group in _groups(sample)]
    return {"str_em": fmean(found), "str_hit": float(all(found))}


def score_qampari(answer: str, sample: Sample) -> dict[str, float]:
    """Return precision and recall of the listed answers, and recall where five right ones are enough."""
    listed = [normalize_answer(one.strip()) for one in _items(without_citations(_one_line(answer)))]
    said = [one for one in listed if one]
    groups = [[normalize_answer(one) for one in group] for group in _groups(sample)]
    right = {one for group in groups for one in group}
    found = sum(any(one in said for one in group) for group in groups)
    return {
        "qampari_rec_top5": min(_TOP, found) / min(_TOP, len(groups)),
        "qampari_rec": found / len(groups),
        "qampari_prec": sum(one in right for one in said) / len(said) if said else 0.0,
    }


def _one_line(answer: str) -> str:
    return re.sub(r"\n+", " ", answer).replace("<|im_end|>", "")


def _items(text: str) -> list[str]:
    return text.rstrip().rstrip(".").rstrip(",").split(",")


def _groups(sample: Sample) -> list[list[str]]:
    groups = sample.details["answers"]
    assert isinstance(groups, list)
    return groups  # type: ignore[return-value]


def citations(
    answer: str, question: str, passages: Sequence[Mapping[str, Any]], entails: Entails, *, is_list: bool
) -> dict[str, float] | None:
    """Return the recall and precision of an answer's citations (AutoAIS); None of an answer without a claim.

    A claim is a sentence, or an item of a list behind its question. Recall: the cited passages together entail it. Precision:
    of the citations of such a claim, those that entail it alone or without which the others do not.
    """
    text = _one_line(answer)
    claims = [f"{question} {one.strip()}" for one in _items(text)] if is_list else sentences(text)
    claims = [one for one in claims if is_list or len(one.strip()) >= _SHORTEST_CLAIM]
    if not claims:
        return None
    supported = cited = needed = 0
    for claim in claims:
        numbers = [int(one[1:]) - 1 for one in re.findall(r"\[\d+", claim)]
        if not numbers or max(numbers) >= len(passages):
            continue
        numbers = numbers[:_MOST_CITED]
        cited += len(numbers)
        told = without_citations(claim).strip()
        shown = [
            f"Title: {passages[one]['title']}\n{passages[one].get('sent') or passages[one]['text']}" for one in numbers
        ]
        if not entails("\n".join(shown), told):
            continue
        supported += 1
        for place, one in enumerate(shown):
            others = "\n".join(shown[:place] + shown[place + 1 :])
            needed += len(shown) == 1 or entails(one, told) or not entails(others, told)
    return {"citation_rec": supported / len(claims), "citation_prec": needed / cited if cited else 0.0}


def passages_of(data: DataFiles, name: str, length: int) -> dict[str, list[Row]]:
    """Return the passages that a question had before it at a length, by the question."""
    return {row["question"]: row["docs"][: PASSAGES_AT[length]] for row in rows_of(data, files_of(name)[0], Alce)}


TASKS: Final = tuple(
    Task(
        f"alce_{name}",
        "helmet",
        "Cite",
        metric,
        partial(samples, name=name),
        score,
        samples=QUESTIONS,
        max_new_tokens=_BUDGET,
        lengths=tuple(PASSAGES_AT),
        files=files_of(name),
    )
    for name, metric, score in (("asqa", "str_em", score_asqa), ("qampari", "qampari_rec_top5", score_qampari))
)
