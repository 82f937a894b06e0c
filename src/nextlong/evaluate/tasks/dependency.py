"""Dependency probe: how much the earlier meta-chunks of a sequence lower the loss of the later ones, by distance.

In:  a run, and any causal language model with the run's tokenizer. Out: the gain of each meta-chunk from the earlier ones of its
document in nats per token, by the distance to the nearest, against two controls: the same sequence with other text of the same
length in their place (`gain_nats`), and without them (`gain_over_shorter_nats`), whose context is shorter as well.

The probe evaluates the data before a model is trained on them: where a model gains nothing from the earlier chunks, there is no
dependence to learn, or the model is too weak to use it. The other text is the meta-chunks of another document of the run. A
sequence is read three times: as a whole, and twice in parts, between which each meta-chunk is scored and removed; 3T tokens in all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.huggingface import HuggingFaceModel
from nextlong.evaluate.results import weighted_interval
from nextlong.evaluate.task import Probe, Request
from nextlong.text import Json

if TYPE_CHECKING:
    from nextlong.runs.run import Sequence as RunSequence

_SAMPLES: Final = 20
_BINS: Final = tuple(2**power for power in range(6, 21))


@dataclass(frozen=True)
class _ChunkLoss:
    """A meta-chunk's mean loss in nats per token: behind the meta-chunks before it, behind other text in their place, and without.

    `distance` is the tokens from the end of the nearest earlier meta-chunk, `earlier` how many there are.
    """

    sequence: str
    tokens: int
    distance: int
    earlier: int
    with_earlier: float
    replaced_earlier: float
    without_earlier: float

    @property
    def gain(self) -> float:
        """The loss with other text in place of the earlier meta-chunks minus the loss with them, in nats per token."""
        return self.replaced_earlier - self.with_earlier


def check_model(model: HuggingFaceModel, run_dir: Path | None) -> None:
    """Raise EvaluateError for a model with another tokenizer than the run's, RunError for a run that is none."""
    from nextlong.runs import run as opened

    assert run_dir is not None, "checked before a model is loaded"
    run = opened.Run(run_dir)
    ours, theirs = run.tokenizer.get_vocab(), model.tokenizer.backend.get_vocab()
    if ours != theirs:
        raise EvaluateError(
            f"dependency: the model's tokenizer is not that of {run.path} ({len(theirs):,} entries against {len(ours):,}, or other "
            "ids); give a model with the run's tokenizer, or run the recipe again with the model's: its embeddings are reused"
        )


def measure(model: HuggingFaceModel, request: Request) -> Json:
    """Measure the sequences of a run, as many as there are samples."""
    from nextlong.methods.base import described
    from nextlong.runs import run as opened

    assert request.run is not None, "checked before a model is loaded"
    run = opened.Run(request.run)
    losses: list[_ChunkLoss] = []
    # One more than is measured, so that a single one has another beside it.
    read = list(islice(run.sequences(), (request.samples or _SAMPLES) + 1))
    for number, sequence in enumerate(read[: request.samples or _SAMPLES]):
        losses += _chunk_losses(model, sequence, _other_text(sequence, [*read[number + 1 :], *read[:number]]))
        request.advance(1)
    if not losses:
        raise EvaluateError(
            f"dependency: {request.run} holds no sequence with two meta-chunks (its method is {described(run.recipe)})"
        )
    return {
        "scores": _means(losses),
        "interval": _interval(losses),
        "by_distance": [*_binned(losses)],
        "n": len({loss.sequence for loss in losses}),
        "chunks": [asdict(loss) for loss in losses],
    }


def _other_text(sequence: RunSequence, others: Sequence[RunSequence]) -> NDArray[np.int64]:
    """Return the tokens of the meta-chunks of the next sequence of another document; none where there is no such sequence."""
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
    model: HuggingFaceModel, sequence: RunSequence, other_text: NDArray[np.int64]
) -> Iterator[_ChunkLoss]:
    """Yield the losses of a sequence's second and later meta-chunks; `other_text`, repeated, stands for the earlier ones."""
    ids = np.asarray(sequence.input_ids, np.int64)
    spans = [(span.token_start, span.token_end) for span in sequence.spans if span.role == "meta"]
    meta_spans = _joined(spans)
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
    whole = token_losses(model, ids.tolist())
    replaced = _behind_others(model, ids, meta_spans, np.resize(other_text, len(ids)))
    alone = _behind_others(model, ids, meta_spans, None)
    for number, ((start, end), other, without) in enumerate(zip(meta_spans, replaced, alone, strict=True)):
        if number:
            distance = start - meta_spans[number - 1][1]
            # The loss of token t stands at t - 1.
            with_earlier = float(whole[start - 1 : end - 1].mean())
            losses = (with_earlier, float(other.mean()), float(without.mean()))
            yield _ChunkLoss(sequence.id, end - start, distance, number, *losses)


def _joined(spans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return spans with those that touch made one: between them there is no distance."""
    joined: list[tuple[int, int]] = []
    for start, end in spans:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start > 0 or end > 1:
            joined.append((max(start, 1), end) if start == 0 else (start, end))
    return joined


def token_losses(model: HuggingFaceModel, ids: list[int]) -> NDArray[np.float32]:
    """Return the loss of every token but the first, in nats, shape (n - 1,); read in chunks."""
    cache = required("transformers").DynamicCache(config=model.config)
    return _read(model, ids, cache)[:-1]


def _read(model: HuggingFaceModel, ids: list[int], cache: Any, *, following: int | None = None) -> NDArray[np.float32]:
    """Read ids behind a cache; return the loss of what follows each: of the next id, of `following` behind the last (else 0)."""
    torch = required("torch")
    targets = [*ids[1:], -100 if following is None else following]
    losses = []
    step = model.chunk_tokens
    for first in range(0, len(ids), step):
        chunk = torch.tensor([ids[first : first + step]], device=model.device)
        wanted = torch.tensor(targets[first : first + step], device=model.device)
        logits = model.all_logits(chunk, cache)[0].float()
        losses.append(
            torch.nn.functional.cross_entropy(logits, wanted, reduction="none", ignore_index=-100).cpu().numpy()
        )
    return np.concatenate(losses)


def _behind_others(
    model: HuggingFaceModel,
    ids: NDArray[np.int64],
    meta_spans: Sequence[tuple[int, int]],
    stand_in: NDArray[np.int64] | None,
) -> Iterator[NDArray[np.float32]]:
    """Yield each meta-chunk's token losses behind all that stands before it, the earlier meta-chunks replaced or left out.

    `stand_in`, shape (tokens,), gives the ids for their places; None leaves them out.
    """
    cache = required("transformers").DynamicCache(config=model.config)
    read, behind = 0, np.empty(0, np.int64)
    for start, end in meta_spans:
        # Something stands before every chunk: those that touch are joined, and one at the head begins behind its first token.
        between, chunk = [*behind.tolist(), *ids[read:start].tolist()], ids[start:end].tolist()
        last_loss = _read(model, between, cache, following=chunk[0])[-1:]
        inside = _read(model, chunk, cache)[:-1]
        cache.crop(-len(chunk))
        read, behind = end, behind if stand_in is None else stand_in[start:end]
        yield np.concatenate([last_loss, inside])


def _interval(losses: Sequence[_ChunkLoss]) -> tuple[float, float]:
    """Return the bootstrap 95 % interval of the gain over sequences."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(loss.sequence for loss in losses))}
    gains, tokens = np.array([(loss.gain, loss.tokens) for loss in losses]).T
    return weighted_interval(gains, tokens, np.array([numbers[loss.sequence] for loss in losses]))


def _means(losses: Sequence[_ChunkLoss]) -> dict[str, float]:
    # A row per chunk: its tokens, which weigh the means, and its losses in nats per token; shape (chunks,) each.
    tokens, whole, replaced, without = np.array(
        [(loss.tokens, loss.with_earlier, loss.replaced_earlier, loss.without_earlier) for loss in losses]
    ).T
    means = {
        "gain_nats": replaced - whole,
        "gain_over_shorter_nats": without - whole,
        "replaced_earlier_nats": replaced,
        "with_earlier_nats": whole,
        "without_earlier_nats": without,
    }
    error = float(np.std(replaced - whole, ddof=1) / len(losses) ** 0.5) if len(losses) > 1 else 0.0
    weighted = {name: float(np.average(values, weights=tokens)) for name, values in means.items()}
    return {**weighted, "gain_standard_error": error}


def _binned(losses: Sequence[_ChunkLoss]) -> Iterator[dict[str, Any]]:
    """Yield the mean gain of the chunks whose distance lies in [low, high), for bins that are not empty."""
    for low, high in zip((0, *_BINS), (*_BINS, 1 << 62), strict=True):
        inside = [loss for loss in losses if low <= loss.distance < high]
        if inside:
            about = {"from_tokens": low, "to_tokens": high, "chunks": len(inside), "interval": _interval(inside)}
            yield {**about, **_means(inside)}


def _parts(values: Json) -> Iterator[tuple[str, Json]]:
    """Yield the rows of the table: a range of distances, and its scores."""
    for part in values["by_distance"]:
        yield f"{part['from_tokens']:,} to {part['to_tokens']:,} tokens", part


TASKS: Final = (
    Probe(
        name="dependency",
        suite="dependency",
        category="Dependence on earlier meta-chunks",
        metric="gain_nats",
        samples=_SAMPLES,
        measure=measure,
        lengths=None,
        version=2,
        reads="run",
        check_model=check_model,
        columns={
            "With": "with_earlier_nats",
            "Replaced": "replaced_earlier_nats",
            "Without": "without_earlier_nats",
            "Gain": "gain_nats",
            "Gain over shorter": "gain_over_shorter_nats",
            "n": "chunks",
        },
        rows=_parts,
        about="Loss of meta-chunks in nats per token, by the distance to the nearest earlier meta-chunk: behind the earlier "
        "meta-chunks, behind other text of their length, and without them. Gain: of the first over the second, with its "
        "bootstrap 95 % interval over sequences, and over the third, whose context is shorter.",
    ),
)
