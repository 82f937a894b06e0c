"""Judge: scores from another model, by HELMET's prompts and scales.

In:  a results directory, and a model on a server. Out: the same files, their score now
the judge's, in percent; the metric's stays among the scores.

NarrativeQA is the only task that a judge rates: fluency (0 or 1) × correctness (0 to
3), as a share of 3.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

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

_TASK: Final = "narrativeqa"
# The detail of a sample that a rating needs.
_QUESTION: Final = "question"
_VERSION: Final = 3
# Messages are not tokenized here.
_NO_TOKENIZER: Final = tokenizers.Tokenizer(tokenizers.models.BPE())
_MESSAGES: Final = Prompts(TextTokenizer(_NO_TOKENIZER), "messages")
_MAX_NEW_TOKENS: Final = 4096
_MAX_CORRECTNESS: Final = 3


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
    """Return the results of the judged task; raise if there are none."""
    found = []
    for folder in folders:
        found += results.read_results(folder).of_task(_TASK)
    if not found:
        raise EvaluateError(
            where=folders[0],
            problem=f"it holds no result of {_TASK}",
            fix=f"first run nextlong evaluate run MODEL --tasks {_TASK} "
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
        _rate(server, answered, partial_file)

    ratings = [partial_file.samples[number] for number in range(len(answered))]
    # Between 0 and 1, one for each judgement that could be read.
    shares = [rating["share"] for rating in ratings if rating["share"] is not None]
    if not shares:
        raise EvaluateError(
            where=f"--model {name}",
            problem=f"none of its {len(answered)} judgements ends with scores as JSON; "
            f"the first ends with {ratings[0]['judgement'][-80:]!r}",
            fix=f"delete {partial_file.path}, then use a model that follows "
            "instructions",
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
    is_complete = all(_QUESTION in sample.get("details", {}) for sample in answered)
    if not answered or not is_complete:
        raise EvaluateError(
            where=result.path,
            problem="it holds no questions, because it was imported or measured by an "
            "earlier version",
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


def _rate(server: ServerModel, samples: Sequence[Json], ratings: Partial) -> None:
    """Add a rating of each sample: the judgement as text, and its scores."""
    questions = []
    for number, sample in enumerate(samples):
        if number not in ratings.samples:
            question = Sample(_judge_prompt(sample), (), _MAX_NEW_TOKENS)
            questions.append((number, question))
    for number, _, judgement in server.answers(questions):
        ratings.append(number, {"judgement": judgement, **_scores_in(judgement)})


def _judge_prompt(sample: Json) -> str:
    completed = sample["answer_prefix"] + sample["answer"]
    answer = parsed_answer(completed.replace("\n", " "))
    # One pass over the template, so that braces in a text stay as they are. HELMET
    # formats the list of references as Python does.
    return prompt_of("narrativeqa_judge").format(
        question=sample["details"][_QUESTION],
        references=sample["references"],
        answer=answer or "",
    )


def _scores_in(judgement: str) -> Json:
    """Return the last JSON object of a judgement with both scores in their scales."""
    for braces in reversed(re.findall(r"\{[^{}]*\}", judgement)):
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
