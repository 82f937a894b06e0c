"""Judge: scores from another model, which rates answers with HELMET's prompts and scales, or from HELMET's own scripts.

In:  a results directory. Out: the same files, their score now the judge's, in percent; the metric's stays among the scores.

    narrativeqa                  a model on a server: fluency (0 or 1) × correctness (0 to 3), as a share of 3
    infbench_sum, multi_lexsum   the same: fluency × F1 of the key points found and of the sentences that the reference supports
    alce_asqa, alce_qampari      an entailment model: mean of answers found, citation recall and precision

Results that HELMET's scripts wrote are read from its JSON (`args`, `averaged_metrics`, `data`), never from the file name, into a
results directory of ours: one file a task and length, with each question's score but without the answers, marked as imported.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from functools import cache, partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Any, Final, NamedTuple

import tokenizers
from rich.console import Console

import nextlong
from nextlong.engine import store
from nextlong.errors import EvaluateError
from nextlong.evaluate import required, results
from nextlong.evaluate.data import SOURCES, DataFiles
from nextlong.evaluate.engines import ServerModel
from nextlong.evaluate.prompts import ModelOptions, Prompts
from nextlong.evaluate.results import JUDGED, Partial, Result
from nextlong.evaluate.task import Sample, TextTokenizer, all_tasks, prompt_of
from nextlong.evaluate.tasks.helmet.passages import Entails, alce_passages, citations
from nextlong.evaluate.tasks.helmet.published import parsed_answer
from nextlong.report import tables
from nextlong.text import Json, first_sentence

_VERSION: Final = 3
# Messages are not tokenized here.
_MESSAGES: Final = Prompts(
    TextTokenizer(tokenizers.Tokenizer(tokenizers.models.BPE())), "messages"
)
_Rate = Callable[[Result, Sequence[Json]], list[Json]]


class _Rubric(NamedTuple):
    needs: str  # the detail of a sample that a rating needs
    prompts: Callable[[Json], tuple[str, ...]]
    # Returns the scores of the judgements with `share`, from 0 to 1; None if a judgement cannot be read.
    read: Callable[[Json, Sequence[str]], Json]


def run(
    folders: Sequence[Path],
    *,
    model: ModelOptions | None,
    nli: str | None,
    data: Path | None,
    console: Console,
) -> list[tuple[Path, float]]:
    """Rate the answers in some results directories that this judge has not rated yet; return all scores.

    `model` rates answers and summaries, the entailment model `nli` citations.
    """
    # `needed`: the tasks, each with the detail of a sample that a rating needs.
    if folders and nli is not None:
        needed, judge, step = (
            {"alce_asqa": "question", "alce_qampari": "question"},
            {"name": nli, "url": None},
            1,
        )
        # Loaded and read once, for all results of a task and length, and only where there is something to rate.
        entails, passages = (
            cache(lambda: _entailment(nli)),
            cache(partial(alce_passages, DataFiles(data))),
        )
        rate: _Rate = partial(_rate_citations, entails, passages)
    elif folders and model is not None:
        needed, judge = (
            {task: one.needs for task, one in _RUBRICS.items()},
            {"name": model.name, "url": model.url},
        )
        # Four rounds of requests between two writes to the disk.
        rate, step = (
            partial(_rate_answers, ServerModel(model, _MESSAGES)),
            4 * model.concurrency,
        )
    else:
        raise EvaluateError(
            "judge: run nextlong evaluate judge RESULTS… --judge MODEL --url http://HOST:PORT/v1, or for citations --nli MODEL "
            "--data FOLDER"
        )
    candidates = [
        one
        for folder in folders
        for one in results.read_results(folder).finished
        if one.task in needed
    ]
    if not candidates:
        tasks = list(needed)
        cure = (
            f"run nextlong evaluate MODEL --tasks {tasks[0]} --out {folders[0]} first"
        )
        raise EvaluateError(
            f"{folders[0]} holds no result of {' or '.join(tasks)}; {cure}"
        )
    scores = []
    for result in candidates:
        before = result.values.get("judge") or {}
        is_judged = (before.get("name"), before.get("version")) == (
            judge["name"],
            _VERSION,
        )
        outcome = (
            "cached"
            if is_judged
            else _judge(result, judge, needed[result.task], rate, step)
        )
        scores.append((result.path, results.read_finished(result.path).score))
        tables.say(f"{result.path}: {scores[-1][1]:.2f}  {outcome}", console)
    return scores


def _rate_answers(
    server: ServerModel, result: Result, samples: Sequence[Json]
) -> list[Json]:
    rubric = _RUBRICS[result.task]
    prompts = [rubric.prompts(sample) for sample in samples]
    texts = server.answers(
        [Sample(prompt, (), 4096) for several in prompts for prompt in several]
    )
    judgements = (
        (sample, list(islice(texts, len(several))))
        for sample, several in zip(samples, prompts, strict=True)
    )
    return [
        {"judgement": "\n\n".join(judged), **rubric.read(sample, judged)}
        for sample, judged in judgements
    ]


def _rate_citations(
    entails: Callable[[], Entails],
    passages: Callable[..., Json],
    result: Result,
    samples: Sequence[Json],
) -> list[Json]:
    name, rated = result.task.removeprefix("alce_"), list[Json]()
    for sample in samples:
        question = str(sample["details"]["question"])
        if (shown := passages(name, result.length or 0).get(question)) is None:
            cure = "give the folder it was measured with"
            raise EvaluateError(
                f"{result.path}: --data holds no question {question!r:.60}; {cure}"
            )
        scores = citations(
            sample["answer"], question, shown, entails(), is_list=name == "qampari"
        )
        found = float(
            sample["scores"]["str_em" if name == "asqa" else "qampari_rec_top5"]
        )
        rated.append({**scores, "share": fmean([found, *scores.values()])})
    return rated


def _entailment(name: str) -> Entails:
    """Return a model that says "1" where a premise entails a hypothesis, as HELMET's google/t5_xxl_true_nli_mixture does."""
    torch, transformers = required("torch"), required("transformers")
    spread = {"device_map": "auto"} if torch.cuda.is_available() else {}
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        model = transformers.AutoModelForSeq2SeqLM.from_pretrained(
            name, dtype=torch.bfloat16, **spread
        ).eval()
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise EvaluateError(
            f"--nli {name} cannot be loaded as an encoder-decoder ({first_sentence(error)})"
        ) from None

    def entails(premise: str, hypothesis: str) -> bool:
        # The form that the model was trained on; it answers "1" or "0".
        ids = tokenizer(
            f"premise: {premise} hypothesis: {hypothesis}", return_tensors="pt"
        ).input_ids.to(model.device)
        with torch.inference_mode():
            output = model.generate(ids, max_new_tokens=10)
        return bool(tokenizer.decode(output[0], skip_special_tokens=True) == "1")

    return entails


def _judge(result: Result, judge: Json, needs: str, rate: _Rate, step: int) -> str:
    """Rate the answers of a result and rewrite its file; return the outcome in words."""
    answered = [
        sample for sample in result.values["samples"] if not sample.get("refused")
    ]
    if not answered or any(
        needs not in sample.get("details", {}) for sample in answered
    ):
        raise EvaluateError(
            f"{result.path} holds no {needs if needs.endswith('s') else f'{needs}s'}: it was imported, or measured by an earlier "
            "version; evaluate again into another --out"
        )
    depends_on = {
        "judge": judge["name"],
        "version": _VERSION,
        "result": result.values["fingerprint"],
    }
    partial_file = Partial(
        result.path.with_suffix(".judged.partial.jsonl"),
        results.fingerprint(depends_on),
    )
    with closing(partial_file):
        for first in range(len(partial_file.samples), len(answered), step):
            partial_file.append(rate(result, answered[first : first + step]))
    # Between 0 and 1, one for each judgement that could be read.
    shares = [one["share"] for one in partial_file.samples if one["share"] is not None]
    if not shares:
        raise EvaluateError(
            f"--judge {judge['name']}: none of its {len(answered)} judgements ends with its scores as JSON, "
            f"the first with {partial_file.samples[0]['judgement'][-80:]!r}; take a model that follows "
            f"instructions (delete {partial_file.path})"
        )
    # Refused samples were not judged: the judgements belong to the others, in order.
    judged, samples = iter(partial_file.samples), result.values["samples"]
    samples = [
        sample if sample.get("refused") else {**sample, "judged": next(judged)}
        for sample in samples
    ]
    unread = len(answered) - len(shares)
    score = (
        100 * sum(shares) / (len(samples) - unread)
    )  # a refused question counts as 0
    scored = {
        "metric": JUDGED,
        "score": score,
        "scores": {**result.values["scores"], JUDGED: score},
    }
    by = {**judge, "version": _VERSION, "unread": unread}
    results.write(
        result.path, {**result.values, **scored, "judge": by, "samples": samples}
    )
    store.remove_file(partial_file.path)
    left_out = (
        f", {unread} judgements could not be read and are left out" if unread else ""
    )
    return f"judged by {judge['name']}{left_out}"


def _longqa_prompt(sample: Json) -> tuple[str, ...]:
    answer = (
        parsed_answer((sample["answer_prefix"] + sample["answer"]).replace("\n", " "))
        or ""
    )
    fields = {
        "question": sample["details"]["question"],
        "references": sample["references"],
        "answer": answer,
    }
    # One pass over the template, so that braces in a text stay as they are. HELMET formats the list of references as Python does.
    return (prompt_of("narrativeqa_judge").format(**fields),)


def _longqa_scores(_: Json, judgements: Sequence[str]) -> Json:
    """Return the scores of a judgement: those of the last JSON object with both in their scales, else None."""
    for braces in reversed(re.findall(r"\{[^{}]*\}", judgements[0])):
        with suppress(ValueError):
            scores = json.loads(braces)
            fluency, correctness = scores.get("fluency"), scores.get("correctness")
            if fluency in (0, 1) and correctness in (0, 1, 2, 3):
                return {
                    "fluency": int(fluency),
                    "correctness": int(correctness),
                    "share": fluency * correctness / 3,
                }
    return dict.fromkeys(("fluency", "correctness", "share"))


def _summary_prompts(task: str, sample: Json) -> tuple[str, ...]:
    summary, details = sample["answer"].strip(), sample["details"]
    points = "\n".join(
        f"{number}. {point}"
        for number, point in enumerate(details["keypoints"], start=1)
    )
    fields = {
        "text": summary,
        "summary": summary,
        "keypoints": points,
        "expert_summary": details["expert"],
    }
    return tuple(
        prompt_of(f"{task}_{part}").format(**fields)
        for part in ("fluency", "recall", "precision")
    )


def _summary_scores(sample: Json, judgements: Sequence[str]) -> Json:
    """Return fluency, recall and precision of three judgements, and fluency × their harmonic mean as HELMET's gpt-4-f1."""

    def parsed(text: str) -> Any:
        # As HELMET's `parse_json`: the last object, else what a code block holds; None without one.
        for pattern in (r"\{.*?\}", r"(?:```json)(.+)(?:```)"):
            with suppress(IndexError, ValueError):
                return json.loads(re.findall(pattern, text, re.DOTALL)[-1])
        return None

    fluency, recall, precision = map(parsed, judgements)
    try:
        # As `eval_gpt4_summ.py`: key points found of all, supported sentences of all, and their harmonic mean.
        total, sentences = (
            len(sample["details"]["keypoints"]),
            precision["sentence_count"],
        )
        found = recall["recall"] / total if total else 0.0
        supported = precision["precision"] / sentences if sentences > 0 else 0.0
        both = found + supported
        share = fluency["fluency"] * 2 * found * supported / both if both > 0 else 0.0
        return {
            "fluency": fluency["fluency"],
            "recall": found,
            "precision": supported,
            "share": share,
        }
    except (KeyError, TypeError):
        return dict.fromkeys(("fluency", "recall", "precision", "share"))


_RUBRICS: Final = {
    "narrativeqa": _Rubric("question", _longqa_prompt, _longqa_scores)
} | {
    task: _Rubric("keypoints", partial(_summary_prompts, task), _summary_scores)
    for task in ("infbench_sum", "multi_lexsum")
}


_TASKS: Final[dict[str, str]] = SOURCES[
    "helmet_tasks"
]  # task names, joined by a space, by a part of HELMET's name
_JUDGED_BY_HELMET: Final = (
    "gpt-4-score"  # of NarrativeQA, from 0 to 3; without a judge, ROUGE counts
)


def import_helmet(
    files: Sequence[Path], *, out: Path | None, label: str | None, console: Console
) -> results.ModelResults:
    """Read files of one model into `out`; return its results. Raises EvaluateError."""
    if not files or out is None:
        raise EvaluateError(
            "import: run nextlong evaluate import HELMET-RESULT.json… --out RESULTS"
        )
    records: dict[Path, Json] = {}
    for file in files:
        try:
            records[file] = record = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise EvaluateError(
                f"{file} cannot be read ({error}); give result files of HELMET's eval.py"
            ) from None
        parts = (
            [record.get(name) for name in ("args", "averaged_metrics")]
            if isinstance(record, dict)
            else [None]
        )
        if not all(isinstance(part, dict) for part in parts):
            raise EvaluateError(
                f"{file} is not a result of HELMET's eval.py: its `args` or `averaged_metrics` hold no fields (.score files "
                "lack them); give a file as HELMET wrote it"
            )
    models = sorted(
        {str(record["args"].get("model_name_or_path")) for record in records.values()}
    )
    if len(models) > 1:
        cure = "import each into its own --out"
        raise EvaluateError(
            f"import: the files are of {len(models)} models, {models[0]} and {models[1]}; {cure}"
        )
    written: dict[Path, Path] = {}
    for file, record in records.items():
        for values in _imported(record, file):
            place = results.place_of(out, values["task"], values["length"])
            if place in written:
                raise EvaluateError(
                    f"import: {written[place]} and {file} are both {values['task']} at {values['length']:,}; leave one out"
                )
            with store.explained(out):
                place.parent.mkdir(parents=True, exist_ok=True)
            results.write(place, values)
            written[place] = file
    results.write_index(out, {"kind": "helmet", "name": models[0], "label": label})
    tables.say(
        f"read {len(files)} files of {models[0]} into {len(written)} results in {out}",
        console,
    )
    return results.read_results(out)


def _imported(record: Json, file: Path) -> Iterator[Json]:
    arguments, metrics = record["args"], record["averaged_metrics"]
    dataset = str(arguments.get("datasets"))
    ours = next((ours for name, ours in _TASKS.items() if name in dataset), "")
    tasks = [all_tasks()[one] for one in ours.split()]
    if not tasks:
        raise EvaluateError(
            f"{file}: HELMET's data set {dataset!r} is not one of the paper's; leave the file out"
        )
    is_judged = tasks[0].name == "narrativeqa" and _JUDGED_BY_HELMET in metrics
    metric = _JUDGED_BY_HELMET if is_judged else tasks[0].metric
    if metric not in metrics:
        cure = "score it with HELMET's scripts first"
        raise EvaluateError(
            f"{file}: {dataset} has no {metric} (it has {', '.join(metrics)}); {cure}"
        )
    try:
        length, score = (
            int(arguments["input_max_length"]),
            float(metrics[metric]) * (100 / 3 if is_judged else 1),
        )
    except (KeyError, TypeError, ValueError):
        raise EvaluateError(
            f"{file}: no number in `args.input_max_length` or `averaged_metrics.{metric}`; give a file as HELMET wrote it"
        ) from None
    # Each question's score; none where a file does not hold those of all.
    samples, questions = list[Json](), record.get("data") or []
    for number, item in enumerate(questions):
        try:
            judged, value = item.get("gpt-4-scores"), item.get(metric)
            # The score of a question as `eval_gpt4_longqa.py` computes it, here as a share of its most, 3.
            if is_judged and judged:
                value = judged["fluency"] * judged["correctness"] / 3
            if value is None:
                samples = []
                break
            # HELMET asks one question at several depths; such questions are resampled together.
            group = item.get("id", item.get("qid", item.get("question")))
            samples.append(
                {
                    "scores": {metric: float(value)},
                    "details": {"group": group} if group else {},
                }
            )
        except (AttributeError, KeyError, TypeError, ValueError):
            raise EvaluateError(
                f"{file}: data[{number}] is {item!r:.60}, not a question with its {metric}; give a file as HELMET wrote it"
            ) from None
    # Compared as part of the protocol: scores of chat prompts are not compared with those of plain ones.
    prompt_format = {True: "chat", False: "completion"}.get(
        arguments.get("use_chat_template")
    )
    mark = results.fingerprint({"imported": arguments, "metrics": metrics})
    depends_on = {
        "seed": arguments.get("seed"),
        "model": {"prompt_format": prompt_format},
    }
    for task in tasks:
        about: Json = {
            "format": results.FORMAT,
            "nextlong": nextlong.__version__,
            "suite": task.suite,
        }
        about |= {
            "category": task.category,
            "task": task.name,
            "metric": metric,
            "length": length,
            "score": score,
        }
        about |= {"scores": {metric: score}, "n": len(questions), "refused": 0}
        about |= {"imported_from": file.name, "fingerprint": mark}
        yield {**about, "depends_on": depends_on, "samples": samples}
