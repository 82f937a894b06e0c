"""Short text: the paper's seven tasks, by EleutherAI's lm-eval, which does them right.

In:  a Hugging Face model, or a server with log-probabilities; lm-eval's data sets, from the hub or its cache. Out: acc and
acc_norm a task.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from nextlong.errors import EvaluateError
from nextlong.evaluate.extra import required
from nextlong.evaluate.models.huggingface import HuggingFaceModel
from nextlong.evaluate.probe import Probe, Values
from nextlong.evaluate.task import Request
from nextlong.plain_data import Json

# As the paper's table names them; the paper does not say which metric it reports, acc or acc_norm is our choice.
TASKS: Final = {
    "hellaswag": ("Hel.", "acc_norm"),
    "lambada_openai": ("Lam.", "acc"),
    "arc_challenge": ("AR-C.", "acc_norm"),
    "arc_easy": ("AR-E.", "acc"),
    "piqa": ("PIQA", "acc"),
    "winogrande": ("Win.", "acc"),
    "logiqa": ("Log.", "acc"),
}
EVERYTHING: Final = 10**9


def check_model(model: HuggingFaceModel, _: Path | None) -> None:
    """Raise EvaluateError for a model without BOS and EOS, and where lm-eval is not installed."""
    required("lm_eval")
    if model.hub_tokenizer.bos_token_id is None and model.hub_tokenizer.eos_token_id is None:
        raise EvaluateError(
            "short: lm-eval puts BOS or EOS before a text, and the tokenizer names neither; set one and save it beside the model"
        )


def measure(model: HuggingFaceModel, request: Request, _: Path | None) -> Values:
    """Measure the seven tasks, in percent; the score is their mean, each by the paper's metric."""
    limit = None if request.samples in (None, EVERYTHING) else request.samples
    measured = harness_results(model, list(TASKS), limit=limit)
    scores = {f"{task} {metric}": 100 * value for task, values in measured.items() for metric, value in values.items()}
    paper = {task: scores[f"{task} {metric}"] for task, (_, metric) in TASKS.items()}
    return {
        "category": "Short text",
        "scores": {"average": sum(paper.values()) / len(paper), **scores},
        "tasks": paper,
        "n": len(paper),
    }


def harness_results(
    model: HuggingFaceModel, tasks: list[str], *, limit: int | None, include: Path | None = None
) -> dict[str, dict[str, float]]:
    """Return lm-eval's acc and acc_norm of each task, as shares; `include` is a folder of further task definitions."""
    lm_eval = required("lm_eval")
    harness = required("lm_eval.models.huggingface").HFLM(
        pretrained=model.model, tokenizer=model.hub_tokenizer, batch_size=8
    )
    manager = required("lm_eval.tasks").TaskManager(include_path=str(include) if include else None)
    try:
        evaluated: Json = lm_eval.simple_evaluate(
            harness, tasks=tasks, limit=limit, task_manager=manager, bootstrap_iters=0
        )
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise EvaluateError(
            f"short: lm-eval could not load its data ({type(error).__name__}: {first}); it fetches them from the "
            f"Hugging Face hub on the first "
            "use: run it once where the hub can be reached, or copy its cache (HF_HOME)"
        ) from None
    return {
        task: {metric: float(values[f"{metric},none"]) for metric in ("acc", "acc_norm") if f"{metric},none" in values}
        for task, values in evaluated["results"].items()
    }


PROBE: Final = Probe("short", "short", "average", measure, lengths="none", samples=EVERYTHING, check_model=check_model)
