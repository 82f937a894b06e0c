"""Probes: what any local causal language model does, without an instruction.

`dependency`: how much the earlier meta-chunks of a run's sequence lower the loss of the
later ones, in nats per token, by the distance to the nearest, against two controls:
other text of the same length in their place (`gain_nats`), and nothing
(`gain_over_shorter_nats`). A sequence is read three times: as a whole, and twice in
parts, between which each meta-chunk is scored and removed; 3T tokens in all.

`attention`: how much of the last token's attention lies on the first and last third of
a long context (paper §5.1, App. B.4). Prompts are questions over long stories
(InfiniteBench's Longbook QA, as the paper), or needles where these are missing. No
T × T matrix is made: the prompt is prefilled with sdpa, then the last token alone is
run with an attention that keeps the weights.

What each figure means: docs/evaluate/probes.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from nextlong.arrays import Doubles, Floats, Ints
from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.data import HAYSTACK
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.probe import Probe
from nextlong.evaluate.registry import all_tasks
from nextlong.evaluate.task import Sample, TaskRequest
from nextlong.evaluate.tasks import needle
from nextlong.evaluate.tasks.helmet.longqa import LLAMA2, LONGBOOK_QA
from nextlong.methods.base import described
from nextlong.runs.run import Run
from nextlong.runs.run import Sequence as RunSequence
from nextlong.significance import weighted_interval
from nextlong.text import Json

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from transformers import DynamicCache

_Ids = Ints
_SEQUENCES: Final = 20
# Bins double from 64 tokens on, since effects of distance are seen on a logarithmic
# scale.
_BINS: Final = (0, *(2**power for power in range(6, 21)), 1 << 62)


class _ChunkLoss(NamedTuple):
    sequence: str
    tokens: int
    distance: int  # tokens from the end of the nearest earlier meta-chunk
    earlier: int  # how many meta-chunks there are before it
    # Mean losses in nats per token: after these, after other text in their place, and
    # without them.
    with_earlier: float
    replaced_earlier: float
    without_earlier: float


def _check_parts(model: HuggingFaceModel, *, probe: str) -> None:
    """Raise EvaluateError for a model that cannot read a text in parts."""
    if model.reads_whole:
        raise EvaluateError(
            where=probe,
            problem="the model has no key-value cache, or RoPE frequencies that depend "
            "on the length, so it cannot read a text in parts",
            fix="leave this probe out",
        )


def _check_run(model: HuggingFaceModel, run_dir: Path | None) -> None:
    """Raise EvaluateError for a model with another tokenizer than the run's.

    Raises RunError for a folder that is not a run.
    """
    _check_parts(model, probe="dependency")
    assert run_dir is not None, "checked before a model is loaded"
    run = Run(run_dir)
    run_vocab = run.tokenizer.get_vocab()
    model_vocab = model.tokenizer.backend.get_vocab()
    if run_vocab != model_vocab:
        sizes = f"{len(model_vocab):,} entries against {len(run_vocab):,}"
        raise EvaluateError(
            where="dependency",
            problem=f"the model's tokenizer is not that of {run.path} ({sizes}, or "
            "other ids)",
            fix="give a model with the run's tokenizer, or run the recipe again with "
            "the model's: its embeddings are reused",
        )


def _measure_dependency(model: HuggingFaceModel, request: TaskRequest) -> Json:
    """Measure the first sequences of a run, one per sample."""
    assert request.run is not None, "checked before a model is loaded"
    run = Run(request.run)
    samples = request.samples or _SEQUENCES
    # One more than is measured, so that a single one has another beside it.
    sequences = list(islice(run.sequences(), samples + 1))
    losses: list[_ChunkLoss] = []
    for index, sequence in enumerate(sequences[:samples]):
        others = [*sequences[index + 1 :], *sequences[:index]]
        losses += _chunk_losses(model, sequence, _other_text(sequence, others))
        request.advance(1)
    if not losses:
        raise EvaluateError(
            where="dependency",
            problem=f"{request.run} holds no sequence with two meta-chunks (its method "
            f"is {described(run.recipe)})",
            fix="give a run whose sequences hold several chunks of a document",
        )
    scores = _summary(losses)
    interval = scores.pop("interval")
    measured_sequences = {loss.sequence for loss in losses}
    return {
        "interval": interval,
        "scores": scores,
        "by_distance": _by_distance(losses),
        "n": len(measured_sequences),
        "chunks": [loss._asdict() for loss in losses],
    }


def _by_distance(losses: Sequence[_ChunkLoss]) -> list[Json]:
    """Return the mean gain of the chunks of each bin of distances that is not empty."""
    bins = []
    for low, high in pairwise(_BINS):
        inside = [loss for loss in losses if low <= loss.distance < high]
        if inside:
            extent = {"from_tokens": low, "to_tokens": high, "chunks": len(inside)}
            bins.append({**extent, **_summary(inside)})
    return bins


def _summary(losses: Sequence[_ChunkLoss]) -> Json:
    """Return mean losses and gains, weighted by tokens.

    `interval` is the bootstrap 95 % interval of the gain over sequences.
    """
    # Of each chunk its tokens, and its losses in nats per token; shape (chunks,) each.
    fields = np.array([loss[1:] for loss in losses], float).T
    tokens, _, _, whole, replaced, without = fields
    by_name = {
        "gain_nats": replaced - whole,
        "gain_over_shorter_nats": without - whole,
        "replaced_earlier_nats": replaced,
        "with_earlier_nats": whole,
        "without_earlier_nats": without,
    }
    summary: Json = {}
    for name, values in by_name.items():
        summary[name] = float(np.average(values, weights=tokens))
    # Chunks of one sequence are drawn together, so each is told by its sequence's
    # number.
    names = [loss.sequence for loss in losses]
    _, sequence_numbers = np.unique(names, return_inverse=True)
    summary["interval"] = weighted_interval(replaced - whole, tokens, sequence_numbers)
    return summary


def _other_text(sequence: RunSequence, others: Sequence[RunSequence]) -> _Ids:
    """Return the tokens of the meta-chunks of the next sequence of another document.

    Empty if there is no such sequence.
    """
    own = {span.doc_id for span in sequence.spans if span.role == "meta"}
    for other in others:
        parts = [
            other.input_ids[span.token_start : span.token_end]
            for span in other.spans
            if span.role == "meta" and span.doc_id not in own
        ]
        if parts:
            return np.concatenate(parts).astype(np.int64)
    return np.empty(0, np.int64)


def _chunk_losses(
    model: HuggingFaceModel, sequence: RunSequence, other_text: _Ids
) -> Iterator[_ChunkLoss]:
    """Yield the losses of a sequence's second and later meta-chunks.

    `other_text`, repeated, replaces the earlier ones.
    """
    ids = np.asarray(sequence.input_ids, np.int64)
    chunks = _meta_chunks(sequence)
    if len(chunks) < 2:
        return
    if model.context is not None and len(ids) > model.context:
        raise EvaluateError(
            where="dependency",
            problem=f"a sequence has {len(ids):,} tokens and the model's context is "
            f"{model.context:,}",
            fix="use a model with a longer context",
        )
    if not len(other_text):
        raise EvaluateError(
            where="dependency",
            problem="the run has no second document whose meta-chunks could replace a "
            "document's own",
            fix="use a run with more sequences",
        )
    # Three readings: with everything, with other text in the earlier meta-chunks'
    # places, and without them.
    whole = read_losses(model, ids.tolist(), model.empty_cache())
    stand_in = np.resize(other_text, len(ids))
    replaced = _behind_others(model, ids, chunks, stand_in)
    alone = _behind_others(model, ids, chunks, None)
    readings = zip(chunks, replaced, alone, strict=True)
    for earlier, ((start, end), replaced_losses, alone_losses) in enumerate(readings):
        if earlier > 0:
            _, earlier_end = chunks[earlier - 1]
            # Index t - 1 holds the loss of token t.
            whole_losses = whole[start - 1 : end - 1]
            yield _ChunkLoss(
                sequence=sequence.id,
                tokens=end - start,
                distance=start - earlier_end,
                earlier=earlier,
                with_earlier=float(whole_losses.mean()),
                replaced_earlier=float(replaced_losses.mean()),
                without_earlier=float(alone_losses.mean()),
            )


def _meta_chunks(sequence: RunSequence) -> list[tuple[int, int]]:
    """Return the tokens [start, end) of each meta-chunk; those that touch are one."""
    # Between chunks that touch there is no distance, and the first token of a sequence
    # has no loss.
    chunks: list[tuple[int, int]] = []
    for span in sequence.spans:
        if span.role != "meta":
            continue
        if chunks and chunks[-1][1] == span.token_start:
            chunks[-1] = (chunks[-1][0], span.token_end)
        elif span.token_end > 1:
            chunks.append((max(span.token_start, 1), span.token_end))
    return chunks


def read_losses(
    model: HuggingFaceModel,
    ids: list[int],
    cache: DynamicCache,
    *,
    following: int | None = None,
) -> Floats:
    """Read ids after a cache and return the loss of the token after each.

    That is the next id, or `following` after the last (without it the loss is 0).
    """
    torch = required("torch")
    # cross_entropy gives a target of -100 no loss.
    targets = [*ids[1:], -100 if following is None else following]
    losses = []
    step = model.chunk_tokens
    for first in range(0, len(ids), step):
        chunk = torch.tensor(ids[first : first + step], device=model.device)
        labels = torch.tensor(targets[first : first + step], device=model.device)
        with torch.inference_mode():
            output = model.model(
                input_ids=chunk[None], past_key_values=cache, use_cache=True
            )
            logits = output.logits[0].float()
        loss = torch.nn.functional.cross_entropy(
            logits, labels, reduction="none", ignore_index=-100
        )
        chunk_losses = loss.cpu().numpy()
        losses.append(chunk_losses)
    return np.concatenate(losses)


def _behind_others(
    model: HuggingFaceModel,
    ids: _Ids,
    chunks: Sequence[tuple[int, int]],
    stand_in: _Ids | None,
) -> Iterator[Floats]:
    """Yield each meta-chunk's token losses after everything before it.

    Earlier meta-chunks are replaced by the ids of `stand_in`, shape (tokens,), in their
    places; None leaves them out.
    """
    cache = model.empty_cache()
    replacement: list[int] = []
    read_until = 0
    for start, end in chunks:
        # `between` is never empty: adjacent chunks are joined, and a chunk at the head
        # begins after its first token.
        between = replacement + ids[read_until:start].tolist()
        chunk = ids[start:end].tolist()
        # The first token of a chunk is predicted by the last one before it, so its loss
        # comes from that reading.
        first_loss = read_losses(model, between, cache, following=chunk[0])[-1:]
        other_losses = read_losses(model, chunk, cache)[:-1]
        cache.crop(-len(chunk))
        read_until = end
        if stand_in is not None:
            replacement = stand_in[start:end].tolist()
        yield np.concatenate([first_loss, other_losses])


# The name of our attention function in transformers.
_LAST_TOKEN: Final = "nextlong_last_token"
_FIRST_THIRD: Final = "first_third_context"
# Tokens at the head that models rest their attention on (Xiao et al. 2023,
# arXiv 2309.17453).
_SINK: Final = 4


def _check_plain(model: HuggingFaceModel, _: Path | None) -> None:
    _check_parts(model, probe="attention")
    if model.prompts.format == "chat":
        raise EvaluateError(
            where="attention",
            problem="the probe finds the context only in plain prompts",
            fix="remove --prompt-format chat, or this probe",
        )


def _measure_attention(model: HuggingFaceModel, request: TaskRequest) -> Json:
    """Measure the shares of attention, in percent, over prompts of a length."""
    rows = []
    for sample in islice(_prompts(request), request.samples):
        if sample is None:
            continue
        ids = model.prompts.ids(sample)
        first, last = _context_tokens(model, sample, len(ids))
        weights = _attention_of(model, ids)
        rows.append(_shares(weights, first, last))
        request.advance(1)
    if not rows:
        raise EvaluateError(
            where="attention",
            problem=f"no prompt fits {request.length:,} tokens",
            fix="give a greater length",
        )
    scores = {}
    by_layer = {}
    for name in rows[0]:
        # Mean over samples by layer, shape (layers,); the score is the mean over
        # layers.
        mean = np.mean([row[name] for row in rows], axis=0)
        scores[name] = float(100 * mean.mean())
        by_layer[name] = [round(float(100 * value), 4) for value in mean]
    outcomes = [float(100 * row[_FIRST_THIRD].mean()) for row in rows]
    return {
        "scores": scores,
        "by_layer": by_layer,
        "outcomes": outcomes,
        "n": len(rows),
    }


def _prompts(request: TaskRequest) -> Iterator[Sample | None]:
    """Return questions over long stories, or needles where the stories are missing."""
    questions = all_tasks()["infbench_qa"]
    if all(request.data.has(name) for name in questions.files):
        return questions.make(request)
    return needle.samples(request)


def _context_tokens(
    model: HuggingFaceModel, sample: Sample, length: int
) -> tuple[int, int]:
    """Return the tokens [first, last) of the context in a prompt of `length` tokens.

    It lies after BOS and the instruction, and before the question.
    """
    # Details count the characters before the story (instruction, examples) and after it
    # (question).
    before = int(sample.details["chars_before"])
    after = int(sample.details["chars_behind"])
    text = sample.text
    first = len(model.tokenizer.prefix) + model.tokenizer.count(text[:before])
    last = length - model.tokenizer.count(text[len(text) - after :])
    return first, last


def _attention_of(model: HuggingFaceModel, ids: list[int]) -> Floats:
    """Return the attention of the last of `ids`, the mean of all heads.

    The shape is (layers, tokens).
    """
    torch = required("torch")
    transformers = required("transformers")
    masks = required("transformers.masking_utils")
    by_layer: dict[int, Floats] = {}

    def attention(
        module: Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor]:
        """Attend from one token.

        Shapes: query (1, heads, 1, size), key and value (1, key-value heads, tokens,
        size).
        """
        # Grouped-query attention: several query heads share the keys and values of one.
        groups = query.shape[1] // key.shape[1]
        key = key.repeat_interleave(groups, dim=1)
        value = value.repeat_interleave(groups, dim=1)
        scaling = options.get("scaling") or query.shape[-1] ** -0.5
        keys_in_columns = key.float().transpose(2, 3)
        scores = query.float() @ keys_in_columns * scaling
        if mask is not None:
            scores = scores + mask[..., : key.shape[-2]].float()
        weights = torch.softmax(scores, dim=-1)
        # The weights of the last token, mean over heads, shape (tokens,).
        last_weights = weights[0, :, -1].mean(0)
        by_layer[module.layer_idx] = last_weights.cpu().numpy()
        output = (weights @ value.float()).to(query.dtype)
        return output.transpose(1, 2).contiguous(), weights

    cache = model.prefilled(ids[:-1])
    transformers.AttentionInterface.register(_LAST_TOKEN, attention)
    masks.AttentionMaskInterface.register(_LAST_TOKEN, masks.eager_mask)
    before = model.model.config._attn_implementation
    model.model.set_attn_implementation(_LAST_TOKEN)
    try:
        model.forward(torch.tensor([ids[-1:]], device=model.device), cache)
    finally:
        model.model.set_attn_implementation(before)
    # The next question of the same story shares all but its last tokens, which stay in
    # the cache.
    model.forget(len(ids) - 1)
    if any(len(weights) < len(ids) for weights in by_layer.values()):
        raise EvaluateError(
            where="attention",
            problem=f"the model's sliding window is shorter than {len(ids):,} tokens",
            fix="leave the length or this probe out",
        )
    return np.stack([by_layer[layer] for layer in sorted(by_layer)])


def _shares(weights: Floats, first: int, last: int) -> dict[str, Doubles]:
    """Return the shares by layer, shape (layers,), of the first and last third.

    Over the whole prompt; over it without its first tokens, where models rest their
    attention, as a share of what lies on the others; and over the context [first, last)
    alone, as a share of what lies on it. The first third is the long one, the last the
    proximal one.
    """
    parts = {
        "whole": weights,
        "context": weights[:, first:last],
        "whole_without_sink": weights[:, _SINK:],
    }
    share_of: dict[str, Doubles] = {}
    for name, part in parts.items():
        tokens = part.shape[1]
        third = tokens // 3
        total = part.sum(1, dtype=np.float64)
        on_first = part[:, :third].sum(1, dtype=np.float64)
        on_last = part[:, tokens - third :].sum(1, dtype=np.float64)
        share_of[f"first_third_{name}"] = on_first / total
        share_of[f"last_third_{name}"] = on_last / total
    return share_of


def _distance_rows(values: Json) -> list[tuple[str, Json]]:
    """Return the rows of the table of `dependency`: one per bin of distances."""
    rows = []
    for part in values["by_distance"]:
        name = f"{part['from_tokens']:,} to {part['to_tokens']:,} tokens"
        rows.append((name, part))
    return rows


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
        columns={
            "With": "with_earlier_nats",
            "Replaced": "replaced_earlier_nats",
            "Without": "without_earlier_nats",
            "Gain": "gain_nats",
            "Gain over shorter": "gain_over_shorter_nats",
            "n": "chunks",
        },
        rows=_distance_rows,
        about="Loss of meta-chunks in nats per token, by the distance to the nearest "
        "earlier meta-chunk: after the earlier meta-chunks, after other text of the "
        "same length, and without them. Gain: of the first over the second, with its "
        "bootstrap 95 % interval over sequences, and over the third, whose context is "
        "shorter.",
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
        columns={
            "First third": _FIRST_THIRD,
            "Last third": "last_third_context",
            "First, prompt": "first_third_whole",
            "Last, prompt": "last_third_whole",
            "First, prompt, no sink": "first_third_whole_without_sink",
        },
        about="Share of the last token's attention, percent, mean over layers and "
        "heads (paper, §5.1 and App. B.4).",
    ),
)
