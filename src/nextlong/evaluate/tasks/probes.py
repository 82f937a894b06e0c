"""Probes of long-range dependence, by losses and likelihoods, without an instruction; any causal language model answers them.

`dependency`: how much the earlier meta-chunks of a run's sequence lower the loss of the later ones, in nats per token, by the
distance to the nearest, against two controls: the same sequence with other text of the same length in their place (`gain_nats`),
and without them (`gain_over_shorter_nats`), whose context is shorter as well. It evaluates the data before a model is trained on
them: where a model gains nothing from the earlier chunks, there is no dependence to learn, or the model is too weak to use it.
The other text is the meta-chunks of another document of the run. A sequence is read three times: as a whole, and twice in parts,
between which each meta-chunk is scored and removed; 3T tokens in all.

`copying`: how much an earlier copy of a passage lowers the loss of the passage when it occurs again far behind it, in nats per
token. Copying is the first ability that long contexts need (Olsson et al. 2022, arXiv 2209.11895). Both contexts have the passage
at the same position behind the same text; only their heads differ: the passage itself, or another one of the same length.

`key_values`: how often the value of a key is the most likely of all values in the context when the key occurs again, in percent;
chance is 1 / the number of pairs. This is JSON KV without an instruction and without identifiers of dozens of tokens: keys
and values are single tokens, and only the values of the context are compared.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from nextlong.errors import EvaluateError
from nextlong.evaluate import required
from nextlong.evaluate.engines import HuggingFaceModel
from nextlong.evaluate.results import weighted_interval
from nextlong.evaluate.task import Probe, TaskRequest, TextTokenizer
from nextlong.evaluate.texts import HAYSTACK, haystack_ids
from nextlong.text import Json

if TYPE_CHECKING:
    from transformers import DynamicCache

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


def _check_run(model: HuggingFaceModel, run_dir: Path | None) -> None:
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


def _measure_dependency(model: HuggingFaceModel, request: TaskRequest) -> Json:
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
        "by_distance": _by_distance(losses),
        "n": len({loss.sequence for loss in losses}),
        "chunks": [asdict(loss) for loss in losses],
    }


def _by_distance(losses: Sequence[_ChunkLoss]) -> list[Json]:
    """Return the mean gain of the chunks whose distance lies in [low, high), for bins that are not empty."""
    bins = []
    for low, high in zip((0, *_BINS), (*_BINS, 1 << 62), strict=True):
        if inside := [loss for loss in losses if low <= loss.distance < high]:
            # Bins double from 64 tokens on, since effects of distance are seen on a logarithmic scale.
            bounds = {"from_tokens": low, "to_tokens": high, "chunks": len(inside)}
            bins.append({**bounds, "interval": _interval(inside), **_means(inside)})
    return bins


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
    whole = _token_losses(model, ids.tolist())
    replaced = _behind_others(model, ids, meta_spans, np.resize(other_text, len(ids)))
    alone = _behind_others(model, ids, meta_spans, None)
    for number, ((start, end), other, without) in enumerate(zip(meta_spans, replaced, alone, strict=True)):
        if number:
            distance = start - meta_spans[number - 1][1]
            # The loss of token t stands at t - 1.
            with_earlier = float(whole[start - 1 : end - 1].mean())
            losses = (with_earlier, float(other.mean()), float(without.mean()))
            yield _ChunkLoss(sequence.id, end - start, distance, number, *losses)


def _token_losses(model: HuggingFaceModel, ids: list[int]) -> NDArray[np.float32]:
    """Return the loss of every token but the first, in nats, shape (n - 1,); read in chunks."""
    return _read(model, ids, required("transformers").DynamicCache(config=model.config))[:-1]


def _read(
    model: HuggingFaceModel, ids: list[int], cache: DynamicCache, *, following: int | None = None
) -> NDArray[np.float32]:
    """Read ids behind a cache; return the loss of what follows each: of the next id, of `following` behind the last (else 0)."""
    torch = required("torch")
    targets = [*ids[1:], -100 if following is None else following]
    losses = []
    step = model.chunk_tokens
    for first in range(0, len(ids), step):
        chunk = torch.tensor([ids[first : first + step]], device=model.device)
        wanted = torch.tensor(targets[first : first + step], device=model.device)
        logits = model.all_logits(chunk, cache)[0].float()
        loss = torch.nn.functional.cross_entropy(logits, wanted, reduction="none", ignore_index=-100)
        losses.append(loss.cpu().numpy())
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
        # The first token of a chunk is predicted by the last one before it, so its loss comes from that reading.
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
    # Of the mean over chunks; the interval over sequences is in `interval`.
    error = float(np.std(replaced - whole, ddof=1) / len(losses) ** 0.5) if len(losses) > 1 else 0.0
    weighted = {name: float(np.average(values, weights=tokens)) for name, values in means.items()}
    return {**weighted, "gain_standard_error": error}


_PASSAGE_TOKENS: Final = 64
_PAIRS: Final = 8
_SPACES: Final = "Ġ▁"  # how byte-level and sentencepiece vocabularies write the space before a word
_LEAST_LETTERS: Final = 3


def _check_copying(request: TaskRequest) -> None:
    """Raise EvaluateError for a length without room for the passages, and for a text that is too short."""
    request.require(4 * _PASSAGE_TOKENS, "copying")
    haystack_ids(request, request.length + _PASSAGE_TOKENS, part=0)


def _measure_copying(model: HuggingFaceModel, request: TaskRequest) -> Json:
    """Measure the samples: a passage, other text (`length` less the two passages), and the passage again."""
    _check_copying(request)
    losses = []
    for number in range(request.samples or _SAMPLES):
        # Passage, another passage, and the text between, all from different places of the haystack.
        ids = haystack_ids(request, request.length + _PASSAGE_TOKENS, part=number)
        ends = [_PASSAGE_TOKENS, 2 * _PASSAGE_TOKENS, request.length - len(model.tokenizer.prefix)]
        passage, other, between = (part.tolist() for part in np.split(ids, ends)[:3])
        whole = [model.tokenizer.with_prefix([*head, *between, *passage]) for head in (other, passage)]
        losses.append([float(_token_losses(model, ids)[-_PASSAGE_TOKENS:].mean()) for ids in whole])
        request.advance(1)
    # Mean loss of the passage in nats per token, shape (samples,): behind another passage, and behind its copy.
    without, with_copy = np.array(losses).T
    gains = without - with_copy
    scores = {
        "gain_nats": float(gains.mean()),
        "without_copy_nats": float(without.mean()),
        "with_copy_nats": float(with_copy.mean()),
        "gain_standard_error": float(gains.std(ddof=1) / len(gains) ** 0.5) if len(gains) > 1 else 0.0,
    }
    distance = request.length - 2 * _PASSAGE_TOKENS
    return {"scores": scores, "distance": distance, "outcomes": gains.tolist(), "n": len(gains)}


def _check_key_values(request: TaskRequest) -> None:
    """Raise EvaluateError for a length without room for the pairs, a tokenizer without words, and a text that is too short."""
    request.require(16 * _PAIRS, "key_values")
    _words(request.tokenizer)
    haystack_ids(request, request.length, part=0)


def _measure_key_values(model: HuggingFaceModel, request: TaskRequest) -> Json:
    """Ask for every pair of every sample."""
    _check_key_values(request)
    torch, words = required("torch"), _words(model.tokenizer)
    colon, newline = model.tokenizer.encode(":"), model.tokenizer.encode("\n")
    # Whether each value is the likeliest, shape (samples, pairs), pairs at the head of the context first.
    right = np.zeros((request.samples or _SAMPLES, _PAIRS))
    for number, row in enumerate(right):
        sampled = random.Random(f"{request.seed} key_values {number}").sample(words, 2 * _PAIRS)
        keys, values = sampled[:_PAIRS], sampled[_PAIRS:]
        lines = [[*newline, key, *colon, value, *newline] for key, value in zip(keys, values, strict=True)]
        room = request.length - sum(map(len, lines)) - len(newline) - 1 - len(colon) - len(model.tokenizer.prefix)
        filler = np.array_split(haystack_ids(request, room, part=number), _PAIRS)
        # Each pair on a line of its own, and behind it its share of the haystack.
        ids = model.tokenizer.with_prefix(
            [one for line, between in zip(lines, filler, strict=True) for one in (*line, *between.tolist())]
        )
        cache = model.prefilled(ids)
        for place, key in enumerate(keys):
            query = torch.tensor([[*newline, key, *colon]], device=model.device)
            row[place] = int(model.forward(query, cache)[0][values].argmax()) == place
            # Every key is asked behind the context alone, not behind the keys before it.
            model.forget(len(ids))
        request.advance(1)
    return {
        "scores": {"accuracy": 100 * float(right.mean()), "chance": 100 / _PAIRS},
        "by_depth": [100 * float(share) for share in right.mean(axis=0)],
        "outcomes": [100 * float(share) for share in right.mean(axis=1)],  # the pairs of a sample share its context
        "n": right.size,
    }


def _words(tokenizer: TextTokenizer) -> list[int]:
    """Return the ids of whole words: a space, then letters."""
    vocabulary = tokenizer.backend.get_vocab(with_added_tokens=False)
    words = sorted(
        number
        for token, number in vocabulary.items()
        if token[:1] in _SPACES and len(token) > _LEAST_LETTERS and token[1:].isascii() and token[1:].isalpha()
    )
    if len(words) < 2 * _PAIRS:
        raise EvaluateError(
            f"key_values: the tokenizer has {len(words)} tokens that are words, and {2 * _PAIRS} are needed; leave the probe out"
        )
    return words


TASKS: Final = (
    Probe(
        name="dependency",
        suite="dependency",
        category="Dependence on earlier meta-chunks",
        metric="gain_nats",
        samples=_SAMPLES,
        measure=_measure_dependency,
        lengths=None,
        version=2,
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
        rows=lambda values: (
            (f"{part['from_tokens']:,} to {part['to_tokens']:,} tokens", part) for part in values["by_distance"]
        ),
        about="Loss of meta-chunks in nats per token, by the distance to the nearest earlier meta-chunk: behind the earlier "
        "meta-chunks, behind other text of their length, and without them. Gain: of the first over the second, with its "
        "bootstrap 95 % interval over sequences, and over the third, whose context is shorter.",
    ),
    Probe(
        name="copying",
        suite="copying",
        category="Copying",
        metric="gain_nats",
        samples=_SAMPLES,
        measure=_measure_copying,
        optional=lambda _: (HAYSTACK,),
        check=_check_copying,
        columns={"Gain": "gain_nats", "With a copy": "with_copy_nats", "Without": "without_copy_nats"},
        about="Loss of a passage in nats per token, with and without an earlier copy, and the difference.",
    ),
    Probe(
        name="key_values",
        suite="key-values",
        category="Recall by choice",
        metric="accuracy",
        samples=_SAMPLES,
        measure=_measure_key_values,
        optional=lambda _: (HAYSTACK,),
        check=_check_key_values,
        columns={"Value chosen": "accuracy", "Chance": "chance"},
        about="Percent of the keys whose value is the most likely of the values in the context.",
    ),
)
