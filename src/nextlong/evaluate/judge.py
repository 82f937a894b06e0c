"""Judge: answers that no metric scores well are rated by another model, with HELMET's prompts and scales.

In:  a results directory. Out: the same files, their score now the judge's, in percent; the metric's stays among the scores.

    narrativeqa                  a model behind a server: fluency (0 or 1) × correctness (0 to 3), as a share of 3
    infbench_sum, multi_lexsum   the same: fluency × F1 of the key points found and of the sentences that the reference supports
    alce_asqa, alce_qampari      an entailment model: mean of answers found, citation recall and precision

HELMET's judge is gpt-4o-2024-05-13; results and tables name the judge that was used.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import tokenizers
from rich.console import Console

from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required, results
from nextlong.evaluate.data import DataFiles
from nextlong.evaluate.engines import ServerModel
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.results import JUDGED, Partial, Result
from nextlong.evaluate.task import Sample, TextTokenizer, prompt_of
from nextlong.evaluate.tasks.helmet.passages import Entails, alce_passages, citations
from nextlong.evaluate.tasks.helmet.published import parsed_answer
from nextlong.report import tables
from nextlong.text import Json, first_sentence

_VERSION: Final = 3
_BUDGET: Final = 4096
_BATCHES: Final = 4  # rounds of requests between two writes to the disk
_NO_TOKENIZER: Final = TextTokenizer(tokenizers.Tokenizer(tokenizers.models.BPE()))  # messages are not tokenized here
_Rate = Callable[[Result, Sequence[Json]], list[Json]]


@dataclass(frozen=True)
class _Rubric:
    """The detail of a sample that a rating needs, the prompts of the judge, and the reading of its judgements.

    `read` returns among others `share`, the score from 0 to 1; None where a judgement cannot be read.
    """

    needs: str
    prompts: Callable[[Json], tuple[str, ...]]
    read: Callable[[Json, Sequence[str]], Json]


def run(
    folders: Sequence[Path], *, model: ModelOptions | None, nli: str | None, data: Path | None, console: Console
) -> list[tuple[Path, float]]:
    """Rate the answers in some results directories that this judge has not rated yet; return all scores.

    `model` rates answers and summaries, the entailment model `nli` citations.
    """
    if folders and nli is not None:
        # The tasks, each with the detail of a sample that a rating needs.
        needed, judge, step = {"alce_asqa": "question", "alce_qampari": "question"}, {"name": nli, "url": None}, 1
        rate = _entailment_rating(nli, DataFiles(data))
    elif folders and model is not None:
        needed, judge = (
            {task: rubric.needs for task, rubric in _RUBRICS.items()},
            {"name": model.name, "url": model.url},
        )
        rate, step = (
            _server_rating(ServerModel(model, Prompts(_NO_TOKENIZER, "messages"))),
            model.concurrency * _BATCHES,
        )
    else:
        raise EvaluateError(
            "judge: run nextlong evaluate judge RESULTS… --judge MODEL --url http://HOST:PORT/v1, or for citations --nli MODEL "
            "--data FOLDER"
        )
    found = [one for folder in folders for one in results.read_results(folder).finished if one.task in needed]
    if not found:
        tasks = list(needed)
        raise EvaluateError(
            f"{folders[0]} holds no result of {' or '.join(tasks)}; run nextlong evaluate MODEL --tasks {tasks[0]} --out "
            f"{folders[0]} first"
        )
    scores = []
    for result in found:
        before = result.values.get("judge") or {}
        is_judged = (before.get("name"), before.get("version")) == (judge["name"], _VERSION)
        outcome = "cached" if is_judged else _judge(result, judge, needed[result.task], rate, step)
        score = results.read_finished(result.path).score
        tables.say(f"{result.path}: {score:.2f}  {outcome}", console)
        scores.append((result.path, score))
    return scores


def _server_rating(server: ServerModel) -> _Rate:
    """Return a rating by a model behind a server, with the prompts of a task's rubric."""

    def rate(result: Result, samples: Sequence[Json]) -> list[Json]:
        rubric = _RUBRICS[result.task]
        prompts = [rubric.prompts(sample) for sample in samples]
        texts = server.answers([Sample(prompt, (), _BUDGET) for several in prompts for prompt in several])
        said = [list(islice(texts, len(several))) for several in prompts]
        return [
            {"judgement": "\n\n".join(one), **rubric.read(sample, one)}
            for sample, one in zip(samples, said, strict=True)
        ]

    return rate


def _entailment_rating(nli: str, data: DataFiles) -> _Rate:
    """Return a rating of ALCE's citations by a model of transformers that says whether passages entail a claim."""
    loaded: list[Entails] = []
    # By task and length, the passages that each question had before it: read once for all results.
    passages: dict[tuple[str, int | None], dict[str, list[Json]]] = {}

    def rate(result: Result, samples: Sequence[Json]) -> list[Json]:
        name, key = result.task.removeprefix("alce_"), (result.task, result.length)
        if key not in passages:
            passages[key] = alce_passages(data, name, result.length or 0)
        if not loaded:
            loaded.append(_entailment(nli))
        rated: list[Json] = []
        for sample in samples:
            question = str(sample["details"]["question"])
            shown = passages[key].get(question)
            if shown is None:
                raise EvaluateError(
                    f"{result.path}: --data holds no question {question!r:.60}; give the folder it was measured with"
                )
            scores = citations(sample["answer"], question, shown, loaded[0], is_list=name == "qampari")
            # HELMET leaves an answer without any claim out of its means; here it counts as 0, as a wrong answer does.
            scores = scores or {"citation_rec": 0.0, "citation_prec": 0.0}
            found = float(sample["scores"]["str_em" if name == "asqa" else "qampari_rec_top5"])
            rated.append({**scores, "share": fmean([found, *scores.values()])})
        return rated

    return rate


def _entailment(name: str) -> Entails:
    """Return a model that says "1" where a premise entails a hypothesis, as HELMET's google/t5_xxl_true_nli_mixture does."""
    torch, transformers = required("torch"), required("transformers")
    spread = {"device_map": "auto"} if torch.cuda.is_available() else {}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(name, dtype=torch.bfloat16, **spread).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EvaluateError(f"--nli {name} cannot be loaded as an encoder-decoder ({first_sentence(error)})") from None

    def entails(premise: str, hypothesis: str) -> bool:
        # The form that the model was trained on; it answers "1" or "0".
        ids = tokenizer(f"premise: {premise} hypothesis: {hypothesis}", return_tensors="pt").input_ids.to(model.device)
        with torch.inference_mode():
            said = model.generate(ids, max_new_tokens=10)
        return bool(tokenizer.decode(said[0], skip_special_tokens=True) == "1")

    return entails


def _judge(result: Result, judge: Json, needs: str, rate: _Rate, step: int) -> str:
    """Rate the answers of a result and write it anew; return what was done."""
    answered = [sample for sample in result.values["samples"] if not sample.get("refused")]
    if not answered or any(needs not in sample.get("details", {}) for sample in answered):
        raise EvaluateError(
            f"{result.path} holds no {needs if needs.endswith('s') else f'{needs}s'}: it was imported, or measured by an earlier "
            "version; evaluate again into another --out"
        )
    depends_on = {"judge": judge["name"], "version": _VERSION, "result": result.values["fingerprint"]}
    partial_file = Partial(result.path.with_suffix(".judged.partial.jsonl"), results.fingerprint(depends_on))
    try:
        for first in range(len(partial_file.samples), len(answered), step):
            partial_file.append(rate(result, answered[first : first + step]))
    finally:
        partial_file.close()
    # Between 0 and 1, one for each judgement that could be read.
    shares = [one["share"] for one in partial_file.samples if one["share"] is not None]
    if not shares:
        raise EvaluateError(
            f"--judge {judge['name']}: none of its {len(answered)} judgements ends with its scores as JSON, "
            f"the first with {partial_file.samples[0]['judgement'][-80:]!r}; take a model that follows "
            f"instructions (delete {partial_file.path})"
        )
    # Refused samples were not judged: the judgements belong to the others, in order.
    judged = iter(partial_file.samples)
    samples = [
        dict(sample) if sample.get("refused") else {**sample, "judged": next(judged)}
        for sample in result.values["samples"]
    ]
    unread = len(answered) - len(shares)
    score = 100 * sum(shares) / (len(samples) - unread)  # a refused question counts as 0
    values = {
        **result.values,
        "metric": JUDGED,
        "score": score,
        "scores": {**result.values["scores"], JUDGED: score},
        "judge": {**judge, "version": _VERSION, "unread": unread},
        "samples": samples,
    }
    results.write(result.path, values)
    store.remove_file(partial_file.path)
    left_out = f", {unread} judgements could not be read and are left out" if unread else ""
    return f"judged by {judge['name']}{left_out}"


def _longqa_prompt(sample: Json) -> tuple[str, ...]:
    answer = parsed_answer((sample["answer_prefix"] + sample["answer"]).replace("\n", " ")) or ""
    question, references = str(sample["details"]["question"]), sample["references"]
    # One pass over the template, so that braces in a text stay as they are. HELMET formats the list of references as Python does.
    return (prompt_of("narrativeqa_judge").format(question=question, references=references, answer=answer),)


def _longqa_scores(said: str) -> Json:
    """Return the scores of a judgement: of the last JSON object with both in their scales; None where there is none."""
    for braces in reversed(re.findall(r"\{[^{}]*\}", said)):
        try:
            scores = json.loads(braces)
        except ValueError:
            continue
        fluency, correctness = scores.get("fluency"), scores.get("correctness")
        if fluency in (0, 1) and correctness in (0, 1, 2, 3):
            share = fluency * correctness / 3
            return {"fluency": int(fluency), "correctness": int(correctness), "share": share}
    return dict.fromkeys(("fluency", "correctness", "share"))


def _summary_prompts(task: str, sample: Json) -> tuple[str, ...]:
    summary, details = sample["answer"].strip(), sample["details"]
    points = "\n".join(f"{number}. {point}" for number, point in enumerate(details["keypoints"], start=1))
    fields = {"text": summary, "summary": summary, "keypoints": points, "expert_summary": details["expert"]}
    return tuple(prompt_of(f"{task}_{part}").format(**fields) for part in ("fluency", "recall", "precision"))


def _summary_scores(sample: Json, said: Sequence[str]) -> Json:
    """Return fluency, recall and precision of three judgements, and fluency × their harmonic mean as HELMET's gpt-4-f1."""
    found_in: list[Any] = []  # the JSON object of each judgement
    for one in said:
        # As HELMET's `parse_json`: the last object, else what a code block holds; None without one.
        for pattern in (r"\{.*?\}", r"(?:```json)(.+)(?:```)"):
            try:
                found_in.append(json.loads(re.findall(pattern, one, re.DOTALL)[-1]))
                break
            except (IndexError, ValueError):
                continue
        else:
            found_in.append(None)
    fluency, recall, precision = found_in
    try:
        total = len(sample["details"]["keypoints"])
        # As `eval_gpt4_summ.py`: key points found of all, supported sentences of all, and their harmonic mean.
        found = recall["recall"] / total if total else 0.0
        supported = precision["precision"] / precision["sentence_count"] if precision["sentence_count"] > 0 else 0.0
        both = found + supported
        share = fluency["fluency"] * 2 * found * supported / both if both > 0 else 0.0
        return {"fluency": fluency["fluency"], "recall": found, "precision": supported, "share": share}
    except (KeyError, TypeError):
        return dict.fromkeys(("fluency", "recall", "precision", "share"))


_RUBRICS: Final = {
    "narrativeqa": _Rubric("question", _longqa_prompt, lambda _, said: _longqa_scores(said[0])),
    **{
        task: _Rubric("keypoints", partial(_summary_prompts, task), _summary_scores)
        for task in ("infbench_sum", "multi_lexsum")
    },
}
