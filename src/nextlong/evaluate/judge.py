"""Judge: answers that no metric scores well, rated by another model, on HELMET's scales.

In:  a results directory. Out: the same files, their score now the judge's, in percent; the metric's stays among the scores.

    narrativeqa                  a model behind a server: fluency (0 or 1) × correctness (0 to 3), as a share of 3
    infbench_sum, multi_lexsum   the same, with HELMET's prompts: fluency × F1 of key points and supported sentences
    alce_asqa, alce_qampari      an entailment model: mean of answers found, citation recall and precision

NarrativeQA's rubric, scale and form are those of HELMET's scripts/eval_gpt4_longqa.py, which asks gpt-4o-2024-05-13; the words are
ours, so scores compare with one another and with HELMET's only as far as judges do. The results name the judge, and tables do.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import results
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.extra import required
from nextlong.evaluate.models.server import Server
from nextlong.evaluate.results import JUDGED, Partial, Result
from nextlong.evaluate.scores import parsed_answer
from nextlong.evaluate.task import Sample
from nextlong.evaluate.tasks.helmet import cite, summ
from nextlong.model_names import first_sentence
from nextlong.plain_data import Json
from nextlong.report import tables


@dataclass(frozen=True)
class Rubric:
    """How an answer is judged: the detail of its sample that is needed, what is asked, and what the judgements say.

    Of that `share` is the score, from 0 to 1; None where a judgement cannot be read.
    """

    needs: str
    ask: Callable[[Json], tuple[str, ...]]
    read: Callable[[Json, Sequence[str]], Json]


_VERSION: Final = 2
_BUDGET: Final = 4096
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
    """Judge the answers in some results directories, unless this judge has by today's rubric; return all scores."""

    def rate(result: Result, samples: Sequence[Json]) -> list[Json]:
        rubric = RUBRICS[result.task]
        asked = [rubric.ask(sample) for sample in samples]
        texts = server.answers([Sample(prompt, (), _BUDGET) for prompts in asked for prompt in prompts])
        said = [list(islice(texts, len(prompts))) for prompts in asked]
        return [
            {"judgement": "\n\n".join(one), **rubric.read(sample, one)}
            for sample, one in zip(samples, said, strict=True)
        ]

    named = {"name": server.name, "url": server.options.url}
    needed = {task: rubric.needs for task, rubric in RUBRICS.items()}
    return _rated(folders, needed, named, rate, console, step=server.options.concurrency * _AT_A_TIME)


def entailed(folders: Sequence[Path], nli: str, data: DataFiles, console: Console) -> list[tuple[Path, float]]:
    """Rate ALCE's citations by a model of transformers that says whether passages entail a claim; return all scores."""
    entails: list[cite.Entails] = []
    passages: dict[tuple[str, int | None], dict[str, Any]] = {}

    def rate(result: Result, samples: Sequence[Json]) -> list[Json]:
        name, key = result.task.removeprefix("alce_"), (result.task, result.length)
        if key not in passages:
            passages[key] = cite.passages_of(data, name, result.length or 0)
        if not entails:
            entails.append(entailment(nli))
        rated: list[Json] = []
        for sample in samples:
            question = str(sample["details"]["question"])
            shown = passages[key].get(question)
            if shown is None:
                raise EvaluateError(
                    f"{result.path}: --data holds no question {question!r:.60}; give the folder it was measured with"
                )
            scores = cite.citations(sample["answer"], question, shown, entails[0], is_list=name == "qampari")
            scores = scores or {"citation_rec": 0.0, "citation_prec": 0.0}
            found = float(sample["scores"]["str_em" if name == "asqa" else "qampari_rec_top5"])
            rated.append({**scores, "share": fmean([found, *scores.values()])})
        return rated

    needed = {"alce_asqa": "question", "alce_qampari": "question"}
    return _rated(folders, needed, {"name": nli, "url": None}, rate, console, step=1)


def entailment(name: str) -> cite.Entails:
    """Return a model that says "1" where a premise entails a hypothesis, as HELMET's google/t5_xxl_true_nli_mixture does."""
    torch, transformers = required("torch"), required("transformers")
    spread = {"device_map": "auto"} if torch.cuda.is_available() else {}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(name, dtype=torch.bfloat16, **spread).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EvaluateError(f"--nli {name} cannot be loaded as an encoder-decoder ({first_sentence(error)})") from None

    def entails(premise: str, hypothesis: str) -> bool:
        ids = tokenizer(f"premise: {premise} hypothesis: {hypothesis}", return_tensors="pt").input_ids.to(model.device)
        with torch.inference_mode():
            said = model.generate(ids, max_new_tokens=10)
        return bool(tokenizer.decode(said[0], skip_special_tokens=True) == "1")

    return entails


def _rated(
    folders: Sequence[Path],
    needed: Mapping[str, str],
    judge_of: Json,
    rate: Callable[[Result, Sequence[Json]], list[Json]],
    console: Console,
    *,
    step: int,
) -> list[tuple[Path, float]]:
    """Rate what this judge has not rated yet. `needed` are the tasks, each with the detail of a sample that a rating needs."""
    scores = []
    found = [one for folder in folders for one in results.read_results(folder).finished if one.task in needed]
    if not found:
        tasks = list(needed)
        raise EvaluateError(
            f"{folders[0]} holds no result of {' or '.join(tasks)}; say nextlong evaluate MODEL --tasks {tasks[0]} --out "
            f"{folders[0]} first"
        )
    for result in found:
        before = result.values.get("judge") or {}
        is_judged = (before.get("name"), before.get("version")) == (judge_of["name"], _VERSION)
        outcome = "kept" if is_judged else _judge(result, judge_of, needed[result.task], partial(rate, result), step)
        score = results.read_finished(result.path).score
        tables.say(f"{result.path}: {score:.2f}  {outcome}", console)
        scores.append((result.path, score))
    return scores


def _judge(result: Result, judge_of: Json, needs: str, rate: Callable[[Sequence[Json]], list[Json]], step: int) -> str:
    answered = [sample for sample in result.values["samples"] if not sample.get("refused")]
    if not answered or any(needs not in sample.get("details", {}) for sample in answered):
        raise EvaluateError(
            f"{result.path} holds no {needs if needs.endswith('s') else f'{needs}s'}: it was imported, or measured by an earlier "
            "version; evaluate again into another --out"
        )
    depends_on = {"judge": judge_of["name"], "version": _VERSION, "result": result.values["fingerprint"]}
    under_way = Partial(result.path.with_suffix(".judged.partial.jsonl"), results.fingerprint(depends_on))
    try:
        for first in range(len(under_way.samples), len(answered), step):
            under_way.append(rate(answered[first : first + step]))
    finally:
        under_way.close()
    return _finish(result, judge_of, answered, under_way)


def _question(sample: Json) -> tuple[str, ...]:
    answer = parsed_answer((sample["answer_prefix"] + sample["answer"]).replace("\n", " ")) or ""
    question, references = str(sample["details"]["question"]), json.dumps(sample["references"], ensure_ascii=False)
    # One pass over the template, so that braces in a text stay as they are.
    return (_PROMPT.format(question=question, references=references, answer=answer),)


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


def _finish(result: Result, judge_of: Json, answered: Sequence[Json], under_way: Partial) -> str:
    read = [one["share"] for one in under_way.samples if one["share"] is not None]
    if not read:
        raise EvaluateError(
            f"--judge {judge_of['name']}: none of its {len(answered)} judgements ends with its scores as JSON, "
            f"the first with {under_way.samples[0]['judgement'][-80:]!r}; take a model that follows "
            f"instructions (delete {under_way.path})"
        )
    samples, judged = [dict(sample) for sample in result.values["samples"]], iter(under_way.samples)
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
        "judge": {**judge_of, "version": _VERSION, "unread": unread},
        "samples": samples,
    }
    results.write(result.path, values)
    store.remove_file(under_way.path)
    return f"judged by {judge_of['name']}" + (
        f", {unread} judgements could not be read and are left out" if unread else ""
    )


RUBRICS: Final = {
    "narrativeqa": Rubric("question", _question, lambda _, said: _scores(said[0])),
    **{name: Rubric("keypoints", partial(summ.questions, name), summ.judged) for name in summ.TASK_NAMES},
}
