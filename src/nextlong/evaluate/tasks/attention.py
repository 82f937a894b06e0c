"""Attention probe: how much of the last token's attention lies on the first and last third of a long context (paper §5.1,
App. B.4).

In:  a Hugging Face model; questions over long stories (InfiniteBench's Longbook QA, as the paper; any text where it is
missing). Out: shares of attention, by layer and overall: of the whole prompt, of the same
without the attention sink, and of the context alone.

No T × T matrix is made: the prompt is prefilled with sdpa, then the last token alone is run with an attention that computes
softmax(q·Kᵀ) in float32 and keeps the weights, summed over thirds.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.task import Probe, Sample, TaskRequest, all_tasks
from nextlong.evaluate.tasks import haystack
from nextlong.evaluate.tasks.helmet.longqa import LLAMA2
from nextlong.evaluate.texts import HAYSTACK
from nextlong.text import Json

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

_NAME: Final = "nextlong_last_token"
_METRIC: Final = "first_third_context"
_SINK: Final = 4  # tokens at the head that models rest their attention on (Xiao et al. 2023, arXiv 2309.17453)
_QA: Final = "infinitebench/longbook_qa_eng.jsonl"


def _check(request: TaskRequest) -> None:
    """Raise EvaluateError where no prompt fits the length."""
    if all(sample is None for sample in islice(_prompts(request), request.samples)):
        raise EvaluateError(f"attention: no prompt fits {request.length:,} tokens; give a greater length")


def _check_model(model: HuggingFaceModel, _: Path | None) -> None:
    """Raise EvaluateError for a model that is asked as a chat model."""
    if model.prompts.format == "chat":
        raise EvaluateError(
            "attention: where the context lies is known for plain prompts only; leave --prompt-format chat out, or this probe"
        )


def _measure(model: HuggingFaceModel, request: TaskRequest) -> Json:
    """Measure the shares over the samples, in percent."""
    _check(request)
    rows = []
    for sample in islice(_prompts(request), request.samples):
        if sample is None:
            continue
        ids, text = model.prompts.ids(sample), sample.text
        # Details count the characters before and behind the story: instruction and examples, question.
        before, behind = (int(str(sample.details.get(name, 0))) for name in ("chars_before", "chars_behind"))
        # The context is the tokens [first, last): behind BOS and the instruction, before the question.
        first = len(model.tokenizer.prefix) + model.tokenizer.count(text[:before])
        last = len(ids) - (model.tokenizer.count(text[len(text) - behind :]) if behind else 0)
        rows.append(_shares(_attention_of(model, ids), first, last))
        request.advance(1)
    # Means over samples by layer, shape (layers,); the score is the mean over layers of these.
    mean = {name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]}
    return {
        "scores": {name: float(100 * values.mean()) for name, values in mean.items()},
        "by_layer": {name: [round(float(100 * value), 4) for value in values] for name, values in mean.items()},
        "outcomes": [float(100 * row[_METRIC].mean()) for row in rows],
        "n": len(rows),
    }


def _prompts(request: TaskRequest) -> Iterator[Sample | None]:
    questions = all_tasks()["infbench_qa"]
    if all(request.data.has(name) for name in questions.files):
        return questions.make(request)
    return haystack.samples(request)


def _attention_of(model: HuggingFaceModel, ids: list[int]) -> NDArray[np.float32]:
    """Return the attention of the last of `ids`, shape (layers, tokens): mean over heads."""
    torch = required("torch")
    cache = model.prefilled(ids[:-1])
    by_layer: dict[int, NDArray[np.float32]] = {}
    with _recorded(model, by_layer):
        model.forward(torch.tensor([ids[-1:]], device=model.device), cache)
    # The next question of the same story shares all but its last tokens, which stay in the cache.
    model.forget(len(ids) - 1)
    return np.stack([by_layer[layer] for layer in sorted(by_layer)])


@contextmanager
def _recorded(model: HuggingFaceModel, by_layer: dict[int, NDArray[np.float32]]) -> Iterator[None]:
    """Replace the model's attention by one that records its weights."""
    torch, transformers = required("torch"), required("transformers")
    masks = required("transformers.masking_utils")

    def attention(
        module: Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        scaling: float | None = None,
        **_: object,
    ) -> tuple[Tensor, Tensor]:
        """Attend from one token; shapes: query (1, heads, 1, size), key and value (1, key-value heads, tokens, size)."""
        # Grouped-query attention: several query heads share the keys and values of one.
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
        scores = query.float() @ key.float().transpose(2, 3) * (scaling or query.shape[-1] ** -0.5)
        if attention_mask is not None:
            scores = scores + attention_mask[..., : key.shape[-2]].float()
        weights = torch.softmax(scores, dim=-1)
        # The weights of the last token, mean over heads, shape (tokens,).
        by_layer[module.layer_idx] = weights[0, :, -1].mean(0).cpu().numpy()
        return (weights @ value.float()).to(query.dtype).transpose(1, 2).contiguous(), weights

    transformers.AttentionInterface.register(_NAME, attention)
    masks.AttentionMaskInterface.register(_NAME, masks.eager_mask)
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation(_NAME)
    try:
        yield
    finally:
        model.model.set_attn_implementation(before)


def _shares(weights: NDArray[np.float32], first: int, last: int) -> dict[str, NDArray[np.float64]]:
    """Return the shares by layer, shape (layers,), of the first (long) and last (proximal) third.

    Over the whole prompt; over it without its first tokens, where models rest their attention, as a share of what lies on the
    others; and over the context [first, last) alone, as a share of what lies on it.
    """
    parts = {"whole": weights, "context": weights[:, first:last], "whole_without_sink": weights[:, _SINK:]}
    share_of: dict[str, NDArray[np.float64]] = {}
    for name, part in parts.items():
        third, total = part.shape[1] // 3, part.sum(1, dtype=np.float64)
        share_of[f"first_third_{name}"] = part[:, :third].sum(1, dtype=np.float64) / total
        share_of[f"last_third_{name}"] = part[:, part.shape[1] - third :].sum(1, dtype=np.float64) / total
    return share_of


TASKS: Final = (
    Probe(
        name="attention",
        suite="attention",
        category="Attention",
        metric=_METRIC,
        samples=50,
        measure=_measure,
        version=3,
        optional=lambda _: (_QA, LLAMA2, HAYSTACK),
        check=_check,
        check_model=_check_model,
        columns={
            "First third": _METRIC,
            "Last third": "last_third_context",
            "First, prompt": "first_third_whole",
            "Last, prompt": "last_third_whole",
            "First, prompt, no sink": "first_third_whole_without_sink",
        },
        about="Share of the last token's attention, percent, mean over layers and heads (paper, §5.1 and App. B.4).",
    ),
)
