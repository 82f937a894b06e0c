"""Probes: what any local causal language model does, without an instruction (docs/evaluate/probes.md).

`dependency`: how much the earlier meta-chunks of a run's sequence lower the loss of the later ones, in nats per token, by the
distance to the nearest, against two controls: other text of the same length in their place (`gain_nats`), and nothing
(`gain_over_shorter_nats`). A sequence is read three times: as a whole, and twice in parts, between which each meta-chunk is scored
and removed; 3T tokens in all.

`attention`: how much of the last token's attention lies on the first and last third of a long context (paper §5.1, App. B.4).
Prompts are questions over long stories (InfiniteBench's Longbook QA, as the paper), or needles where these are missing. No T × T
matrix is made: the prompt is prefilled with sdpa, then the last token alone is run with an attention that keeps the weights.

`short`: the paper's seven tasks of short text, by EleutherAI's lm-eval, with its data sets: acc, as in Table 4, acc_norm beside
it, and the answer to each question.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.data import HAYSTACK
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.results import of_answers, weighted_interval
from nextlong.evaluate.task import ALL_SAMPLES, TaskRequest
from nextlong.evaluate.tasks import needle
from nextlong.evaluate.tasks.helmet.longqa import LLAMA2, LONGBOOK_QA
from nextlong.methods.base import described
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as RunSequence
from nextlong.text import Json, first_sentence

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import DynamicCache

_Ids = NDArray[np.int64]
_SEQUENCES: Final = 20
# Bins double from 64 tokens on, since effects of distance are seen on a logarithmic scale.
_BINS: Final = (0, *(2**power for power in range(6, 21)), 1 << 62)


class _ChunkLoss(NamedTuple):
    sequence: str
    tokens: int
    distance: int  # tokens from the end of the nearest earlier meta-chunk
    earlier: int  # how many meta-chunks there are before it
    # Mean losses in nats per token: after these, after other text in their place, and without them.
    with_earlier: float
    replaced_earlier: float
    without_earlier: float


def _check_run(model: HuggingFaceModel, run_dir: Path | None) -> None:
    """Raise EvaluateError for a model with another tokenizer than the run's, RunError for a folder that is not a run."""
    assert run_dir is not None, "checked before a model is loaded"
    run = Run(run_dir)
    ours, theirs = run.tokenizer.get_vocab(), model.tokenizer.backend.get_vocab()
    if ours != theirs:
        raise EvaluateError(
            f"dependency: the model's tokenizer is not that of {run.path} ({len(theirs):,} entries against {len(ours):,}, or other "
            "ids); give a model with the run's tokenizer, or run the recipe again with the model's: its embeddings are reused"
        )


def _measure_dependency(model: HuggingFaceModel, request: TaskRequest) -> Json:
    """Measure the first sequences of a run, one per sample."""
    assert request.run is not None, "checked before a model is loaded"
    run, losses = Run(request.run), list[_ChunkLoss]()
    # One more than is measured, so that a single one has another beside it.
    samples = request.samples or _SEQUENCES
    read = list(islice(run.sequences(), samples + 1))
    for number, sequence in enumerate(read[:samples]):
        losses += _chunk_losses(
            model,
            sequence,
            _other_text(sequence, [*read[number + 1 :], *read[:number]]),
        )
        request.advance(1)
    if not losses:
        raise EvaluateError(
            f"dependency: {request.run} holds no sequence with two meta-chunks (its method is {described(run.recipe)})"
        )
    scores, n = _summary(losses), len({loss.sequence for loss in losses})
    values = {
        "interval": scores.pop("interval"),
        "scores": scores,
        "by_distance": _by_distance(losses),
        "n": n,
    }
    return {**values, "chunks": [loss._asdict() for loss in losses]}


def _by_distance(losses: Sequence[_ChunkLoss]) -> list[Json]:
    """Return the mean gain of the chunks whose distance lies in [low, high), for bins that are not empty."""
    return [
        {
            "from_tokens": low,
            "to_tokens": high,
            "chunks": len(inside),
            **_summary(inside),
        }
        for low, high in pairwise(_BINS)
        if (inside := [one for one in losses if low <= one.distance < high])
    ]


def _summary(losses: Sequence[_ChunkLoss]) -> Json:
    """Return mean losses and gains, weighted by tokens, and the bootstrap 95 % interval of the gain over sequences."""
    # Of each chunk its tokens, and its losses in nats per token; shape (chunks,) each.
    tokens, _, _, whole, replaced, without = np.array(
        [loss[1:] for loss in losses], float
    ).T
    each = {
        "gain_nats": replaced - whole,
        "gain_over_shorter_nats": without - whole,
        "replaced_earlier_nats": replaced,
    }
    each |= {"with_earlier_nats": whole, "without_earlier_nats": without}
    means: Json = {
        name: float(np.average(values, weights=tokens)) for name, values in each.items()
    }
    _, numbers = np.unique([loss.sequence for loss in losses], return_inverse=True)
    return {**means, "interval": weighted_interval(replaced - whole, tokens, numbers)}


def _other_text(sequence: RunSequence, others: Sequence[RunSequence]) -> _Ids:
    """Return the tokens of the meta-chunks of the next sequence of another document; empty if there is no such sequence."""
    own = {span.doc_id for span in sequence.spans if span.role == "meta"}
    for other in others:
        if spans := [
            span
            for span in other.spans
            if span.role == "meta" and span.doc_id not in own
        ]:
            return np.concatenate(
                [other.input_ids[one.token_start : one.token_end] for one in spans]
            ).astype(np.int64)
    return np.empty(0, np.int64)


def _chunk_losses(
    model: HuggingFaceModel, sequence: RunSequence, other_text: _Ids
) -> Iterator[_ChunkLoss]:
    """Yield the losses of a sequence's second and later meta-chunks; `other_text`, repeated, replaces the earlier ones."""
    ids = np.asarray(sequence.input_ids, np.int64)
    # Those that touch are one: between them there is no distance. The first token of a sequence has no loss.
    meta_spans: list[tuple[int, int]] = []
    for span in (span for span in sequence.spans if span.role == "meta"):
        if meta_spans and meta_spans[-1][1] == span.token_start:
            meta_spans[-1] = (meta_spans[-1][0], span.token_end)
        elif span.token_end > 1:
            meta_spans.append((max(span.token_start, 1), span.token_end))
    if len(meta_spans) < 2:
        return
    if model.context is not None and len(ids) > model.context:
        raise EvaluateError(
            f"dependency: a sequence has {len(ids):,} tokens and the model's context is {model.context:,}; give a longer one"
        )
    if not len(other_text):
        raise EvaluateError(
            "dependency: the run has no second document whose meta-chunks could replace a document's own; give a longer run"
        )
    # Three readings: with everything, with other text in the earlier meta-chunks' places, and without them.
    whole = _read(
        model, ids.tolist(), required("transformers").DynamicCache(config=model.config)
    )
    replaced = _behind_others(model, ids, meta_spans, np.resize(other_text, len(ids)))
    alone = _behind_others(model, ids, meta_spans, None)
    for number, ((start, end), other, without) in enumerate(
        zip(meta_spans, replaced, alone, strict=True)
    ):
        if number:
            distance = start - meta_spans[number - 1][1]
            # Index t - 1 holds the loss of token t.
            losses = (
                float(one.mean())
                for one in (whole[start - 1 : end - 1], other, without)
            )
            yield _ChunkLoss(sequence.id, end - start, distance, number, *losses)


def _read(
    model: HuggingFaceModel,
    ids: list[int],
    cache: DynamicCache,
    *,
    following: int | None = None,
) -> NDArray[np.float32]:
    """Read ids after a cache; return the loss of the token after each: the next id, or `following` after the last (else 0)."""
    torch, losses, step = required("torch"), [], model.chunk_tokens
    targets = [*ids[1:], -100 if following is None else following]
    for first in range(0, len(ids), step):
        chunk, labels = (
            torch.tensor(one[first : first + step], device=model.device)
            for one in (ids, targets)
        )
        with torch.inference_mode():
            logits = (
                model.model(
                    input_ids=chunk[None], past_key_values=cache, use_cache=True
                )
                .logits[0]
                .float()
            )
        loss = torch.nn.functional.cross_entropy(
            logits, labels, reduction="none", ignore_index=-100
        )
        losses.append(loss.cpu().numpy())
    return np.concatenate(losses)


def _behind_others(
    model: HuggingFaceModel,
    ids: _Ids,
    meta_spans: Sequence[tuple[int, int]],
    stand_in: _Ids | None,
) -> Iterator[NDArray[np.float32]]:
    """Yield each meta-chunk's token losses after everything before it, with earlier meta-chunks replaced or left out.

    `stand_in`, shape (tokens,), gives the ids for their places; None leaves them out.
    """
    cache = required("transformers").DynamicCache(config=model.config)
    read, replacement = 0, np.empty(0, np.int64)
    for start, end in meta_spans:
        # `between` is never empty: adjacent chunks are joined, and a chunk at the head begins after its first token.
        between, chunk = (
            [*replacement.tolist(), *ids[read:start].tolist()],
            ids[start:end].tolist(),
        )
        # The first token of a chunk is predicted by the last one before it, so its loss comes from that reading.
        last_loss = _read(model, between, cache, following=chunk[0])[-1:]
        inside = _read(model, chunk, cache)[:-1]
        cache.crop(-len(chunk))
        read, replacement = (
            end,
            replacement if stand_in is None else stand_in[start:end],
        )
        yield np.concatenate([last_loss, inside])


_LAST_TOKEN: Final = (
    "nextlong_last_token"  # the name of our attention function in transformers
)
_FIRST_THIRD: Final = "first_third_context"
_SINK: Final = 4  # tokens at the head that models rest their attention on (Xiao et al. 2023, arXiv 2309.17453)


def _check_plain(model: HuggingFaceModel, _: Path | None) -> None:
    if model.prompts.format == "chat":
        cure = "leave --prompt-format chat out, or this probe"
        raise EvaluateError(
            f"attention: where the context lies is known for plain prompts only; {cure}"
        )


def _measure_attention(model: HuggingFaceModel, request: TaskRequest) -> Json:
    questions, rows = all_tasks()["infbench_qa"], []
    has_stories = all(request.data.has(name) for name in questions.files)
    for sample in islice(
        questions.make(request) if has_stories else needle.samples(request),
        request.samples,
    ):
        if sample is None:
            continue
        ids, text = model.prompts.ids(sample), sample.text
        # Details count the characters before the story (instruction, examples) and after it (question).
        before, after = (
            int(sample.details[name]) for name in ("chars_before", "chars_behind")
        )
        # The context is the tokens [first, last): after BOS and the instruction, before the question.
        first = len(model.tokenizer.prefix) + model.tokenizer.count(text[:before])
        last = len(ids) - (
            model.tokenizer.count(text[len(text) - after :]) if after else 0
        )
        rows.append(_shares(_attention_of(model, ids), first, last))
        request.advance(1)
    if not rows:
        raise EvaluateError(
            f"attention: no prompt fits {request.length:,} tokens; give a greater length"
        )
    # Means over samples by layer, shape (layers,); the score is the mean over layers of these.
    mean = {name: np.mean([row[name] for row in rows], axis=0) for name in rows[0]}
    scores = {name: float(100 * values.mean()) for name, values in mean.items()}
    by_layer = {
        name: [round(float(100 * value), 4) for value in values]
        for name, values in mean.items()
    }
    outcomes = [float(100 * row[_FIRST_THIRD].mean()) for row in rows]
    return {
        "scores": scores,
        "by_layer": by_layer,
        "outcomes": outcomes,
        "n": len(rows),
    }


def _attention_of(model: HuggingFaceModel, ids: list[int]) -> NDArray[np.float32]:
    """Return the attention of the last of `ids`, shape (layers, tokens): mean over heads."""
    torch, transformers, masks = map(
        required, ("torch", "transformers", "transformers.masking_utils")
    )
    by_layer: dict[int, NDArray[np.float32]] = {}

    def attention(
        module: Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **given: Any,
    ) -> tuple[Tensor, Tensor]:
        """Attend from one token; shapes: query (1, heads, 1, size), key and value (1, key-value heads, tokens, size)."""
        # Grouped-query attention: several query heads share the keys and values of one.
        groups = query.shape[1] // key.shape[1]
        key, value = (
            key.repeat_interleave(groups, dim=1),
            value.repeat_interleave(groups, dim=1),
        )
        scores = (
            query.float()
            @ key.float().transpose(2, 3)
            * (given.get("scaling") or query.shape[-1] ** -0.5)
        )
        if mask is not None:
            scores = scores + mask[..., : key.shape[-2]].float()
        weights = torch.softmax(scores, dim=-1)
        # The weights of the last token, mean over heads, shape (tokens,).
        by_layer[module.layer_idx] = weights[0, :, -1].mean(0).cpu().numpy()
        return (weights @ value.float()).to(query.dtype).transpose(
            1, 2
        ).contiguous(), weights

    cache = model.prefilled(ids[:-1])
    transformers.AttentionInterface.register(_LAST_TOKEN, attention)
    masks.AttentionMaskInterface.register(_LAST_TOKEN, masks.eager_mask)
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation(_LAST_TOKEN)
    try:
        model.forward(torch.tensor([ids[-1:]], device=model.device), cache)
    finally:
        model.model.set_attn_implementation(before)
    # The next question of the same story shares all but its last tokens, which stay in the cache.
    model.forget(len(ids) - 1)
    if any(len(weights) < len(ids) for weights in by_layer.values()):
        cure = "leave the length or this probe out"
        raise EvaluateError(
            f"attention: the model's sliding window is shorter than {len(ids):,} tokens; {cure}"
        )
    return np.stack([by_layer[layer] for layer in sorted(by_layer)])


def _shares(
    weights: NDArray[np.float32], first: int, last: int
) -> dict[str, NDArray[np.float64]]:
    """Return the shares by layer, shape (layers,), of the first (long) and last (proximal) third.

    Over the whole prompt; over it without its first tokens, where models rest their attention, as a share of what lies on the
    others; and over the context [first, last) alone, as a share of what lies on it.
    """
    parts = {
        "whole": weights,
        "context": weights[:, first:last],
        "whole_without_sink": weights[:, _SINK:],
    }
    share_of: dict[str, NDArray[np.float64]] = {}
    for name, part in parts.items():
        third, total = part.shape[1] // 3, part.sum(1, dtype=np.float64)
        share_of[f"first_third_{name}"] = (
            part[:, :third].sum(1, dtype=np.float64) / total
        )
        share_of[f"last_third_{name}"] = (
            part[:, part.shape[1] - third :].sum(1, dtype=np.float64) / total
        )
    return share_of


# lm-eval's tasks, with the headings of the paper's table.
_HARNESS: Final = {
    "hellaswag": "Hel.",
    "lambada_openai": "Lam.",
    "arc_challenge": "AR-C.",
    "arc_easy": "AR-E.",
}
_HARNESS.update(piqa="PIQA", winogrande="Win.", logiqa="Log.")


def _check_special(model: HuggingFaceModel, _: Path | None) -> None:
    """Raise EvaluateError for a model without BOS and EOS, and where lm-eval is not installed."""
    required("lm_eval")
    if (
        model.hub_tokenizer.bos_token_id is None
        and model.hub_tokenizer.eos_token_id is None
    ):
        cure = "set one and save it beside the model"
        raise EvaluateError(
            f"short: lm-eval puts BOS or EOS before a text, and the tokenizer names neither; {cure}"
        )


def _measure_short(model: HuggingFaceModel, request: TaskRequest) -> Json:
    """Measure acc and acc_norm of each task, in percent, and its answers, a 1 or 0 per question; the score is the mean acc."""
    lm_eval, harness_class = (
        required("lm_eval"),
        required("lm_eval.models.huggingface").HFLM,
    )
    harness = harness_class(
        pretrained=model.model, tokenizer=model.hub_tokenizer, batch_size=8
    )
    limit = None if request.samples in (None, ALL_SAMPLES) else request.samples
    try:
        # Its own bootstrap is off, as intervals are computed in results.py.
        given: Json = {
            "tasks": list(_HARNESS),
            "limit": limit,
            "bootstrap_iters": 0,
            "log_samples": True,
        }
        evaluated: Json = lm_eval.simple_evaluate(harness, **given)
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
    by_task = evaluated["samples"].items()
    answers = {
        task: "".join(str(int(sample["acc"])) for sample in samples)
        for task, samples in by_task
    }
    average = of_answers(answers)
    return {
        "scores": {"average": average.value, **scores},
        "answers": answers,
        "n": average.n,
    }


_LOSSES: Final = {
    "With": "with_earlier_nats",
    "Replaced": "replaced_earlier_nats",
    "Without": "without_earlier_nats",
}
_GAINS: Final = {
    "Gain": "gain_nats",
    "Gain over shorter": "gain_over_shorter_nats",
    "n": "chunks",
}
_CONTEXT: Final = {"First third": _FIRST_THIRD, "Last third": "last_third_context"}
_PROMPT: Final = {
    "First, prompt": "first_third_whole",
    "Last, prompt": "last_third_whole",
}
TASKS: Final = (
    Probe(
        name="dependency",
        suite="dependency",
        category="Dependence on earlier meta-chunks",
        metric="gain_nats",
        samples=_SEQUENCES,
        measure=_measure_dependency,
        lengths=None,
        version=3,
        reads="run",
        check_model=_check_run,
        columns=_LOSSES | _GAINS,
        rows=lambda values: [
            (f"{part['from_tokens']:,} to {part['to_tokens']:,} tokens", part)
            for part in values["by_distance"]
        ],
        about="Loss of meta-chunks in nats per token, by the distance to the nearest earlier meta-chunk: after the earlier "
        "meta-chunks, after other text of the same length, and without them. Gain: of the first over the second, with its "
        "bootstrap 95 % interval over sequences, and over the third, whose context is shorter.",
    ),
    Probe(
        name="attention",
        suite="attention",
        category="Attention",
        metric=_FIRST_THIRD,
        samples=50,
        measure=_measure_attention,
        version=3,
        optional=lambda _: (LONGBOOK_QA, LLAMA2, HAYSTACK),
        check_model=_check_plain,
        columns=_CONTEXT
        | _PROMPT
        | {"First, prompt, no sink": "first_third_whole_without_sink"},
        about="Share of the last token's attention, percent, mean over layers and heads (paper, §5.1 and App. B.4).",
    ),
    Probe(
        name="short",
        suite="short",
        category="Short text",
        metric="average",
        samples=ALL_SAMPLES,
        measure=_measure_short,
        lengths=None,
        version=2,
        check_model=_check_special,
        columns={
            "Avg.": "average",
            **{heading: f"{task} acc" for task, heading in _HARNESS.items()},
        },
        about="lm-eval, zero-shot, acc, percent (paper, Table 4).",
    ),
)
