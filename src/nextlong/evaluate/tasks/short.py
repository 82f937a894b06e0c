"""Short text: the paper's seven tasks, by EleutherAI's lm-eval.

In:  a Hugging Face model; lm-eval's data sets, from the hub or its cache. Out: acc of each task, the answer to each question, and
acc_norm beside it. The paper's Table 4 is acc throughout: Llama-3-8B has 60.13 on HellaSwag and 50.34 on ARC-C there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.results import Score
from nextlong.evaluate.task import ALL_SAMPLES, Probe, TaskRequest
from nextlong.text import Json, first_sentence

_HARNESS: Final = {  # with the headings of the paper's table
    "hellaswag": "Hel.",
    "lambada_openai": "Lam.",
    "arc_challenge": "AR-C.",
    "arc_easy": "AR-E.",
    "piqa": "PIQA",
    "winogrande": "Win.",
    "logiqa": "Log.",
}


def _check_model(model: HuggingFaceModel, _: Path | None) -> None:
    """Raise EvaluateError for a model without BOS and EOS, and where lm-eval is not installed."""
    required("lm_eval")
    if model.hub_tokenizer.bos_token_id is None and model.hub_tokenizer.eos_token_id is None:
        raise EvaluateError(
            "short: lm-eval puts BOS or EOS before a text, and the tokenizer names neither; set one and save it beside the model"
        )


def _measure(model: HuggingFaceModel, request: TaskRequest) -> Json:
    """Measure acc and acc_norm of each task, in percent, and its answers, a 1 or 0 per question; the score is the mean acc."""
    lm_eval = required("lm_eval")
    harness = required("lm_eval.models.huggingface").HFLM(
        pretrained=model.model, tokenizer=model.hub_tokenizer, batch_size=8
    )
    limit = None if request.samples in (None, ALL_SAMPLES) else request.samples
    try:
        # The harness gets the loaded model and its usual tokenizer; its own bootstrap is off, as intervals are
        # computed in results.py.
        evaluated: Json = lm_eval.simple_evaluate(
            harness, tasks=list(_HARNESS), limit=limit, bootstrap_iters=0, log_samples=True
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise EvaluateError(
            f"short: lm-eval could not load its data ({type(error).__name__}: {first_sentence(error)}); it downloads them from the "
            "Hugging Face hub on the first use: run it once where the hub can be reached, or copy its cache (HF_HOME)"
        ) from None
    scores = {
        f"{task} {metric}": 100 * float(values[f"{metric},none"])
        for task, values in evaluated["results"].items()
        for metric in ("acc", "acc_norm")
        if f"{metric},none" in values
    }
    # A string of 1 and 0 for each task: right or wrong by acc, the metric of the paper.
    answers = {
        task: "".join(str(int(sample["acc"])) for sample in samples) for task, samples in evaluated["samples"].items()
    }
    average = Score.mean([Score.of_answers(task, right) for task, right in answers.items()])
    return {"scores": {"average": average.value, **scores}, "answers": answers, "n": average.n}


TASKS: Final = (
    Probe(
        name="short",
        suite="short",
        category="Short text",
        metric="average",
        samples=ALL_SAMPLES,
        measure=_measure,
        lengths=None,
        version=2,
        check_model=_check_model,
        columns={"Avg.": "average", **{heading: f"{task} acc" for task, heading in _HARNESS.items()}},
        about="lm-eval, zero-shot, acc, percent (paper, Table 4).",
    ),
)
