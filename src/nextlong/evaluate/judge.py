"""Judge: scores from another model, by HELMET's prompts and scales.

In:  a results directory, and a model on a server. Out: the same files, their score now
the judge's, in percent; the metric's stays among the scores.

    narrativeqa     fluency (0 or 1) × correctness (0 to 3), as a share of 3
    infbench_sum,   fluency × F1 of the key points found and of the sentences that the
    multi_lexsum    reference supports
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import tokenizers
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.results import JUDGED, Partial, Result
from nextlong.evaluate.server import ServerModel
from nextlong.evaluate.task import Sample, TextTokenizer, prompt_of
from nextlong.evaluate.tasks.helmet.published import parsed_answer
from nextlong.report import tables
from nextlong.text import Json

_VERSION: Final = 3
# Messages are not tokenized here.
_NO_TOKENIZER: Final = tokenizers.Tokenizer(tokenizers.models.BPE())
_MESSAGES: Final = Prompts(TextTokenizer(_NO_TOKENIZER), "messages")
_MAX_PROMPTS: Final = 3  # of a sample
_MAX_NEW_TOKENS: Final = 4096
_MAX_CORRECTNESS: Final = 3


class _Rubric(NamedTuple):
    """How the answers of a task are rated."""

    needs: str  # the detail of a sample that a rating needs
    prompts: Callable[[Json], tuple[str, ...]]
    # Returns the scores of the judgements with `share`, from 0 to 1; None if a
    # judgement cannot be read.
    read: Callable[[Json, Sequence[str]], Json]


def run(
    folders: Sequence[Path], *, model: ModelOptions, console: Console
) -> list[tuple[Path, float]]:
    """Rate the answers in some results directories; return all scores.

    What this judge has rated already is not rated again.
    """
    server = ServerModel(model, _MESSAGES)
    scores = []
    for result in _results_to_judge(folders):
        judge = result.values.get("judge") or {}
        if (judge.get("name"), judge.get("version")) == (model.name, _VERSION):
            outcome = "cached"
        else:
            outcome = _judge(result, server)
        score = results.read_finished(result.path).score
        tables.say(f"{result.path}: {score:.2f}  {outcome}", console)
        scores.append((result.path, score))
    return scores


def _results_to_judge(folders: Sequence[Path]) -> list[Result]:
    """Return the results of the tasks that are judged; raise if there are none."""
    found = []
    for folder in folders:
        for result in results.read_results(folder).finished:
            if result.task in _RUBRICS:
                found.append(result)
    if not found:
        tasks = list(_RUBRICS)
        raise EvaluateError(
            where=folders[0],
            problem=f"it holds no result of {' or '.join(tasks)}",
            fix=f"first run nextlong evaluate run MODEL --tasks {tasks[0]} "
            f"--out {folders[0]}",
        )
    return found


def _judge(result: Result, server: ServerModel) -> str:
    """Rate the answers of a result and rewrite its file; return what was done."""
    name = server.options.name
    answered = _answered_samples(result)
    depends_on = {
        "judge": name,
        "version": _VERSION,
        "result": result.values["fingerprint"],
    }
    unfinished = result.path.with_suffix(".judged.partial.jsonl")
    partial_file = Partial(unfinished, results.fingerprint(depends_on))
    with closing(partial_file):
        _rate(server, _RUBRICS[result.task], answered, partial_file)

    ratings = [partial_file.samples[number] for number in range(len(answered))]
    # Between 0 and 1, one for each judgement that could be read.
    shares = [rating["share"] for rating in ratings if rating["share"] is not None]
    if not shares:
        raise EvaluateError(
            where=f"--model {name}",
            problem=f"none of its {len(answered)} judgements ends with its scores as "
            f"JSON, the first with {ratings[0]['judgement'][-80:]!r}",
            fix=f"take a model that follows instructions (delete {partial_file.path})",
        )
    unread = len(answered) - len(shares)
    # A refused question counts as 0.
    score = 100 * sum(shares) / (len(result.values["samples"]) - unread)
    values = {
        **result.values,
        "metric": JUDGED,
        "score": score,
        "scores": {**result.values["scores"], JUDGED: score},
        "judge": {
            "name": name,
            "url": server.options.url,
            "version": _VERSION,
            "unread": unread,
        },
        "samples": _with_ratings(result.values["samples"], ratings),
    }
    results.write(result.path, values)
    store.remove_file(partial_file.path)
    if unread:
        return (
            f"judged by {name}, {unread} judgements could not be read and are left out"
        )
    return f"judged by {name}"


def _answered_samples(result: Result) -> list[Json]:
    """Return the samples of a result that can be rated; raise if one cannot."""
    samples = result.values["samples"]
    answered = [sample for sample in samples if not sample.get("refused")]
    needs = _RUBRICS[result.task].needs
    is_complete = all(needs in sample.get("details", {}) for sample in answered)
    if not answered or not is_complete:
        raise EvaluateError(
            where=result.path,
            problem=f"it holds no {needs.removesuffix('s')}s, it was imported, or "
            "measured by an earlier version",
            fix="evaluate again into another --out",
        )
    return answered


def _with_ratings(samples: Sequence[Json], ratings: Sequence[Json]) -> list[Json]:
    """Return samples with their ratings; refused ones were not rated."""
    remaining = iter(ratings)
    rated = []
    for sample in samples:
        if not sample.get("refused"):
            sample = {**sample, "judged": next(remaining)}
        rated.append(sample)
    return rated


def _rate(
    server: ServerModel, rubric: _Rubric, samples: Sequence[Json], ratings: Partial
) -> None:
    """Add a rating of each sample: the judgements as text, and their scores."""
    prompts_by_sample = [rubric.prompts(sample) for sample in samples]
    # A sample has one prompt or three: the number of a question is that of its sample,
    # times three, and that of its prompt.
    questions = []
    for number, prompts in enumerate(prompts_by_sample):
        if number not in ratings.samples:
            for part, prompt in enumerate(prompts):
                question = Sample(prompt, (), _MAX_NEW_TOKENS)
                questions.append((number * _MAX_PROMPTS + part, question))

    received: dict[int, dict[int, str]] = defaultdict(dict)
    for question_number, _, judgement in server.answers(questions):
        number, part = divmod(question_number, _MAX_PROMPTS)
        judgements = received[number]
        judgements[part] = judgement
        if len(judgements) == len(prompts_by_sample[number]):
            ordered = [judgements[part] for part in sorted(judgements)]
            scores = rubric.read(samples[number], ordered)
            ratings.append(number, {"judgement": "\n\n".join(ordered), **scores})


def _longqa_prompt(sample: Json) -> tuple[str, ...]:
    completed = sample["answer_prefix"] + sample["answer"]
    answer = parsed_answer(completed.replace("\n", " "))
    # One pass over the template, so that braces in a text stay as they are. HELMET
    # formats the list of references as Python does.
    prompt = prompt_of("narrativeqa_judge").format(
        question=sample["details"]["question"],
        references=sample["references"],
        answer=answer or "",
    )
    return (prompt,)


def _longqa_scores(_: Json, judgements: Sequence[str]) -> Json:
    """Return the last JSON object of a judgement with both scores in their scales."""
    for braces in reversed(re.findall(r"\{[^{}]*\}", judgements[0])):
        with suppress(ValueError):
            scores = json.loads(braces)
            fluency = scores.get("fluency")
            correctness = scores.get("correctness")
            if fluency in (0, 1) and correctness in (0, 1, 2, 3):
                return {
                    "fluency": int(fluency),
                    "correctness": int(correctness),
                    "share": fluency * correctness / _MAX_CORRECTNESS,
                }
    return dict.fromkeys(("fluency", "correctness", "share"))


def _summary_prompts(task: str, sample: Json) -> tuple[str, ...]:
    summary = sample["answer"].strip()
    details = sample["details"]
    points = [
        f"{number}. {point}"
        for number, point in enumerate(details["keypoints"], start=1)
    ]
    fields = {
        "text": summary,
        "summary": summary,
        "keypoints": "\n".join(points),
        "expert_summary": details["expert"],
    }
    parts = ("fluency", "recall", "precision")
    templates = [prompt_of(f"{task}_{part}") for part in parts]
    return tuple(template.format(**fields) for template in templates)


def _summary_scores(sample: Json, judgements: Sequence[str]) -> Json:
    """Return fluency, recall, precision, and fluency × F1 as HELMET's gpt-4-f1."""
    fluency, recall, precision = map(_parsed_json, judgements)
    try:
        # As `eval_gpt4_summ.py`: key points found of all, supported sentences of all,
        # and their harmonic mean.
        points = len(sample["details"]["keypoints"])
        sentences = precision["sentence_count"]
        found = recall["recall"] / points if points else 0.0
        supported = precision["precision"] / sentences if sentences > 0 else 0.0
        total = found + supported
        share = 0.0
        if total > 0:
            share = fluency["fluency"] * 2 * found * supported / total
        return {
            "fluency": fluency["fluency"],
            "recall": found,
            "precision": supported,
            "share": share,
        }
    except (KeyError, TypeError):
        return dict.fromkeys(("fluency", "recall", "precision", "share"))


def _parsed_json(text: str) -> Any:
    """Return the JSON of a judgement as HELMET's `parse_json`, None without one.

    The last object counts, else what a code block holds.
    """
    for pattern in (r"\{.*?\}", r"(?:```json)(.+)(?:```)"):
        with suppress(IndexError, ValueError):
            last = re.findall(pattern, text, re.DOTALL)[-1]
            return json.loads(last)
    return None


_RUBRICS: Final = {
    "narrativeqa": _Rubric("question", _longqa_prompt, _longqa_scores)
} | {
    task: _Rubric("keypoints", partial(_summary_prompts, task), _summary_scores)
    for task in ("infbench_sum", "multi_lexsum")
}
