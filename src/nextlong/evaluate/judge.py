"""Judge: NarrativeQA's answers, scored by a model behind an OpenAI-compatible server, on HELMET's scale.

In:  a results directory with narrativeqa, whose samples hold question, answer and references. Out: the same files, their
score now the mean of fluency (0 or 1) × correctness (0 to 3), as a share of 3, in percent; ROUGE-L F1 stays among the scores.

Rubric, scale and form are those of HELMET's scripts/eval_gpt4_longqa.py, which asks gpt-4o-2024-05-13; the words are ours, so
scores compare with one another and with HELMET's only as far as judges do. The results name the judge, and tables do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.models.server import Server
from nextlong.evaluate.results import JUDGED, Partial, Result
from nextlong.evaluate.scores import parsed_answer
from nextlong.evaluate.task import Sample
from nextlong.plain_data import Json
from nextlong.report import tables

TASK: Final = "narrativeqa"
_VERSION: Final = 2
_BUDGET: Final = 1024
_MOST: Final = 3  # fluency × correctness
_AT_A_TIME: Final = 4  # rounds of requests between two writes to the disk
_PROMPT: Final = """You are an impartial judge. Rate an answer to a question about a story. You do not see the story; compare the \
answer with the correct answers below, each of which deserves full marks.

Fluency:
- 0: the answer is incoherent, incomplete, gibberish, or repeats itself, in the same words or in others.
- 1: the answer is coherent, grammatical and does not repeat itself.

Correctness:
- 0: the answer agrees with none of the correct answers.
- 1: it agrees with one of them in part, for example in the date but not in the person asked for.
- 2: it agrees with one of them wholly, and also says something that has nothing to do with the question. Further details \
that are to the point are no fault, even where no correct answer has them.
- 3: it agrees with one of them wholly, and everything in it is to the point. It may be longer: "They are headed for the \
North Pole" deserves a 3 where "the North Pole" is correct.

Reason step by step first. Then give your scores as JSON in this form: {{"fluency": 0, "correctness": 1}}

Question: {question}
Correct answers: {references}
Answer: {answer}
"""


def judge(folders: Sequence[Path], server: Server, console: Console) -> list[tuple[Path, float]]:
    """Judge what NarrativeQA answered in some results directories, unless this judge has by today's rubric; return all scores."""
    scores = []
    judged = [one for folder in folders for one in results.read_results(folder).finished if one.task == TASK]
    if not judged:
        raise EvaluateError(
            f"{folders[0]} holds no result of {TASK}; say nextlong evaluate MODEL --tasks {TASK} --out {folders[0]} first"
        )
    for result in judged:
        before = result.values.get("judge") or {}
        is_judged = (before.get("name"), before.get("version")) == (server.name, _VERSION)
        outcome = "kept" if is_judged else _judge(result, server)
        score = results.read_finished(result.path).score
        tables.say(f"{result.path}: {score:.2f}  {outcome}", console)
        scores.append((result.path, score))
    return scores


def _judge(result: Result, server: Server) -> str:
    answered = [sample for sample in result.values["samples"] if not sample.get("refused")]
    if not answered or any("question" not in sample.get("details", {}) for sample in answered):
        raise EvaluateError(
            f"{result.path} holds no questions: it was imported, or measured by an earlier version; evaluate again into "
            "another --out"
        )
    depends_on = {"judge": server.name, "version": _VERSION, "result": result.values["fingerprint"]}
    partial = Partial(result.path.with_suffix(".judged.partial.jsonl"), results.fingerprint(depends_on))
    try:
        step = server.options.concurrency * _AT_A_TIME
        for first in range(len(partial.samples), len(answered), step):
            asked = [_question(sample) for sample in answered[first : first + step]]
            partial.append([{"judgement": text, **_scores(text)} for text in server.answers(asked)])
    finally:
        partial.close()
    return _finish(result, server, answered, partial)


def _question(sample: Json) -> Sample:
    answer = parsed_answer((sample["answer_prefix"] + sample["answer"]).replace("\n", " ")) or ""
    question, references = str(sample["details"]["question"]), json.dumps(sample["references"], ensure_ascii=False)
    # One pass over the template, so that braces in a text stay as they are.
    return Sample(_PROMPT.format(question=question, references=references, answer=answer), (), _BUDGET)


def _scores(text: str) -> Json:
    """Return the two scores of a judgement: the last JSON object in it; None where it holds none in the scale."""
    for braces in reversed(re.findall(r"\{[^{}]*\}", text)):
        try:
            scores = json.loads(braces)
        except ValueError:
            continue
        fluency, correctness = scores.get("fluency"), scores.get("correctness")
        if fluency in (0, 1) and correctness in (0, 1, 2, 3):
            return {
                "fluency": int(fluency),
                "correctness": int(correctness),
                "share": fluency * correctness / _MOST,
            }
    return {"fluency": None, "correctness": None, "share": None}


def _finish(result: Result, server: Server, answered: Sequence[Json], partial: Partial) -> str:
    read = [one["share"] for one in partial.samples if one["share"] is not None]
    if not read:
        raise EvaluateError(
            f"--judge {server.name}: none of its {len(answered)} judgements ends with fluency and correctness as JSON, "
            f"the first with {partial.samples[0]['judgement'][-80:]!r}; take a model that follows "
            f"instructions (delete {partial.path})"
        )
    samples, judged = [dict(sample) for sample in result.values["samples"]], iter(partial.samples)
    for sample in samples:
        if not sample.get("refused"):
            sample["judged"] = next(judged)
    unread = len(answered) - len(read)
    score = 100 * sum(read) / (len(samples) - unread)  # a refused question counts as 0
    values = {
        **result.values,
        "metric": JUDGED,
        "score": score,
        "scores": {**result.values["scores"], JUDGED: score},
        "judge": {"name": server.name, "url": server.options.url, "version": _VERSION, "unread": unread},
        "samples": samples,
    }
    results.write(result.path, values)
    store.remove_file(partial.path)
    return f"judged by {server.name}" + (f", {unread} judgements could not be read and are left out" if unread else "")
