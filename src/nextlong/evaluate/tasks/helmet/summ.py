"""Summ: summaries of books (InfiniteBench) and of civil rights lawsuits (Multi-LexSum; Shen et al. 2022, arXiv 2206.10883).

In:  the data sets as published, and HELMET's key points of their reference summaries. Out: a summary, scored by ROUGE-L F1 until a
judge has rated it with HELMET's prompts (`nextlong evaluate judge`): fluency (0 or 1) times the F1 of the key points that it holds
and of its sentences that the reference supports.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.scores import rouge_l_f1
from nextlong.evaluate.shapes import Book, KeyPoints, Lawsuit
from nextlong.evaluate.task import Request, Sample, Task, prompt_of
from nextlong.evaluate.tasks.helmet import longqa
from nextlong.evaluate.tasks.helmet.published import QUESTIONS, SHOTS, shuffled
from nextlong.plain_data import Json

TASK_NAMES: Final = ("infbench_sum", "multi_lexsum")
_BOOKS, _BOOK_POINTS = "infinitebench/longbook_sum_eng.jsonl", "helmet/infbench/longbook_sum_eng_keypoints.jsonl"
_CASES, _CASES_TRAIN = "multi_lexsum/validation.jsonl", "multi_lexsum/train.jsonl"
_CASE_POINTS: Final = "helmet/multi_lexsum/multi_lexsum_val.jsonl"
_LEAST_TOKENS: Final = 65_536


def _books(data: DataFiles, seed: int) -> Iterator[Json]:
    rows = list(data.json_lines(_BOOKS, Book))
    for row in shuffled(rows, seed=seed)[:QUESTIONS]:
        others = shuffled([one for one in rows if one["id"] != row["id"]], seed=seed)[:SHOTS]
        shown = "\n\n".join(f"[story text]\nSummary: {_first(one['answer']).strip()}" for one in others)
        demo = f"For example:\n\n{shown}\n\nNow, read the following story:\n\n"
        reference = _first(row["answer"])
        yield {"id": row["id"], "context": row["context"], "demo": demo, "answers": [reference], "expert": reference}


def _cases(data: DataFiles, seed: int) -> Iterator[Json]:
    examples = [row["summary/short"] for row in data.json_lines(_CASES_TRAIN, Lawsuit) if row["summary/short"]]
    rows = [row for row in data.json_lines(_CASES, Lawsuit) if row["summary/short"]]
    long = [row for row in rows if len(longqa.llama2(data).encode("\n\n".join(row["sources"])).ids) >= _LEAST_TOKENS]
    if not long:
        raise EvaluateError(
            f"multi_lexsum: no case of {data.path(_CASES)} has {_LEAST_TOKENS:,} tokens of Llama 2, and HELMET summarizes those "
            "only; give the whole validation split"
        )
    draw = random.Random(seed)
    for row in shuffled(long, seed=seed)[:QUESTIONS]:
        shown = "\n\n".join(f"Summary: {one}" for one in draw.sample(examples, min(SHOTS, len(examples))))
        demo = f"Example summaries:\n\n{shown}\n\nNow, write a summary of the following legal documents.\n"
        answers, context = [row["summary/short"]], "\n\n".join(row["sources"])
        yield {"id": row["id"], "context": context, "demo": demo, "answers": answers, "expert": row["summary/long"]}


def _first(answer: str | list[str]) -> str:
    return answer if isinstance(answer, str) else answer[0]


def samples(request: Request, name: str) -> Iterator[Sample | None]:
    """Yield HELMET's 100 documents, each cut to what the length leaves."""
    is_book = name == "infbench_sum"
    items = list((_books if is_book else _cases)(request.data, request.seed))
    points = _key_points(request.data, is_book=is_book)
    made = longqa.samples(
        request,
        lambda *_: ((item | {"question": ""}, item["demo"]) for item in items),
        prompt=prompt_of(name),
        prefix="\n\nSummary:",
        budget=_BUDGETS[name],
    )
    for item, sample in zip(items, made, strict=True):
        told = {"keypoints": points.get(str(item["id"]), []), "expert": item["expert"]}
        yield sample and replace(sample, details={**sample.details, **told})


def _key_points(data: DataFiles, *, is_book: bool) -> dict[str, list[Any]]:
    rows = data.json_lines(_BOOK_POINTS if is_book else _CASE_POINTS, KeyPoints)
    return {str(row["id"]): row.get("keypoints") or row.get("summary/short_keypoints") or [] for row in rows}


def score(answer: str, sample: Sample) -> dict[str, float]:
    """Return ROUGE-L F1 to the reference summary."""
    return {"rougeL_f1": rouge_l_f1(answer, sample.references)}


def questions(name: str, sample: Json) -> tuple[str, ...]:
    """Return what a judge is asked of a summary: HELMET's prompts for fluency, recall and precision."""
    summary, details = sample["answer"].strip(), sample["details"]
    points = "\n".join(f"{number}. {point}" for number, point in enumerate(details["keypoints"], start=1))
    fields = {"text": summary, "summary": summary, "keypoints": points, "expert_summary": details["expert"]}
    return tuple(prompt_of(f"{name}_{part}").format(**fields) for part in ("fluency", "recall", "precision"))


def judged(sample: Json, said: Sequence[str]) -> Json:
    """Return fluency, recall and precision of three judgements, and their product and harmonic mean as HELMET's gpt-4-f1."""
    fluency, recall, precision = (_last_json(one) for one in said)
    try:
        total = len(sample["details"]["keypoints"])
        found = recall["recall"] / total if total else 0.0
        supported = precision["precision"] / precision["sentence_count"] if precision["sentence_count"] > 0 else 0.0
        both = found + supported
        share = fluency["fluency"] * 2 * found * supported / both if both > 0 else 0.0
        return {"fluency": fluency["fluency"], "recall": found, "precision": supported, "share": share}
    except (KeyError, TypeError):
        return {"fluency": None, "recall": None, "precision": None, "share": None}


def _last_json(text: str) -> Any:
    """Return the last JSON object of a text, as HELMET's `parse_json` finds it; None without one."""
    for found in (re.findall(r"\{.*?\}", text, re.DOTALL), re.findall(r"(?:```json)(.+)(?:```)", text, re.DOTALL)):
        try:
            return json.loads(found[-1])
        except (IndexError, ValueError):
            continue
    return None


_BUDGETS: Final = {"infbench_sum": 1200, "multi_lexsum": 400}
TASKS: Final = tuple(
    Task(
        name,
        "helmet",
        "Summ",
        "rougeL_f1",
        partial(samples, name=name),
        score,
        samples=QUESTIONS,
        max_new_tokens=_BUDGETS[name],
        files=files,
    )
    for name, files in (
        ("infbench_sum", (_BOOKS, _BOOK_POINTS)),
        ("multi_lexsum", (_CASES, _CASES_TRAIN, _CASE_POINTS)),
    )
)
