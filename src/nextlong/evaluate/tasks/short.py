"""Short text: the paper's seven tasks (Table 4), asked and scored by lm-eval.

Each is a measurement of its own, so that data that cannot be loaded costs one of them.
acc counts, as in the paper's table; acc_norm is kept beside it.
"""

from __future__ import annotations

from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.task import ALL_SAMPLES, TaskRequest
from nextlong.text import Json, first_sentence

# lm-eval's tasks, with the headings of the paper's table.
_HEADINGS: Final = {
    "hellaswag": "Hel.",
    "lambada_openai": "Lam.",
    "arc_challenge": "AR-C.",
    "arc_easy": "AR-E.",
    "piqa": "PIQA",
    "winogrande": "Win.",
    "logiqa": "Log.",
}
_METRICS: Final = ("acc", "acc_norm")
# Task files of ours, in place of lm-eval's own.
_FILES: Final = {"logiqa": files("nextlong.evaluate.tasks") / "logiqa.yaml"}


def _check(model: HuggingFaceModel, _: Path | None, *, task: str) -> None:
    """Raise EvaluateError for a model without BOS and EOS, or if lm-eval is missing."""
    required("lm_eval")
    tokenizer = model.hub_tokenizer
    if tokenizer.bos_token_id is None and tokenizer.eos_token_id is None:
        raise EvaluateError(
            where=task,
            problem="lm-eval puts BOS or EOS before a text, and the tokenizer defines "
            "neither",
            fix="define one in the tokenizer and save it beside the model",
        )


def _measure(model: HuggingFaceModel, request: TaskRequest, *, task: str) -> Json:
    """Measure acc and acc_norm in percent, with the outcome of each question."""
    evaluated = _evaluated(model, request, task)
    values = evaluated["results"][task]
    scores = {}
    for metric in _METRICS:
        if f"{metric},none" in values:
            scores[metric] = 100 * float(values[f"{metric},none"])
    outcomes = [100 * float(sample["acc"]) for sample in evaluated["samples"][task]]
    return {"scores": scores, "outcomes": outcomes, "n": len(outcomes)}


def _evaluated(model: HuggingFaceModel, request: TaskRequest, task: str) -> Json:
    """Return the results of lm-eval, with every sample."""
    lm_eval = required("lm_eval")
    harness_class = required("lm_eval.models.huggingface").HFLM
    harness = harness_class(
        pretrained=model.model, tokenizer=model.hub_tokenizer, batch_size=8
    )
    limit = None if request.samples == ALL_SAMPLES else request.samples
    try:
        # Its own bootstrap is off, as intervals are computed in results.py.
        evaluated: Json = lm_eval.simple_evaluate(
            harness,
            tasks=[str(_FILES.get(task, task))],
            limit=limit,
            bootstrap_iters=0,
            log_samples=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = f"{type(error).__name__}: {first_sentence(error)}"
        raise EvaluateError(
            where=task,
            problem=f"lm-eval could not load its data ({reason})",
            fix="it downloads them from the Hugging Face Hub on the first use: run it "
            "once where the Hub can be reached, or copy its cache (HF_HOME)",
        ) from None
    return evaluated


def _probe(task: str) -> Probe:
    return Probe(
        name=task,
        suite="short",
        category="Short text",
        metric="acc",
        samples=ALL_SAMPLES,
        measure=partial(_measure, task=task),
        lengths=None,
        version=3,
        check_model=partial(_check, task=task),
        columns={_HEADINGS[task]: "acc"},
        about="lm-eval, zero-shot, acc, percent (paper, Table 4).",
    )


TASKS: Final = tuple(map(_probe, _HEADINGS))
