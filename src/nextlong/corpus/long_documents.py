"""Long documents: keep those whose text is worth a long context.

In:  the kept documents of every shard, and two settings.
Out: a score for each long document, then one bool per row and shard, as `select` writes
     them. Short documents are not judged, so they are kept.

`ingest.filter: gzip` is Olmo 3's (arXiv 2512.13961, section 3.6): of the documents of
8,192 tokens or more, a fifth that compresses most (repetitive) and a fifth that
compresses least (noise) are removed. `ingest.long_filter` is LongFilter-lite: the gain
of a document is its loss with 2,048 tokens of context minus its loss with all of them,
averaged over its last 512 tokens; the share with the highest gains is kept. LongFilter
(arXiv 2510.25804) compares whole predictions, over the whole document.

Ours: a length is counted as four characters a token, because the tokenizer comes later;
and each source is judged on its own, because code compresses otherwise than prose.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

from nextlong import schemas
from nextlong.arrays import Bools, Doubles
from nextlong.artifacts import corpus_files
from nextlong.artifacts.results import IngestFiles
from nextlong.corpus.select import SelectFiles, sources_of_shards
from nextlong.corpus.splits import Splits
from nextlong.engine.executor import Resources
from nextlong.engine.step import (
    Artifacts,
    ShardFiles,
    Step,
    StepFiles,
    Task,
    TaskResult,
    each_shard,
)
from nextlong.recipe import Recipe
from nextlong.retrieval.surprisal import (
    KnownScorer,
    SurprisalModel,
    known_scorer,
    load_scorer,
    scorer_identity,
    scorer_resources,
)
from nextlong.text import Json

_Scores = Doubles

LONG_CHARS: Final = 32_768  # 8,192 tokens
MIDDLE: Final = (0.2, 0.8)  # quantiles of the compression ratio that are kept
SHORT_CONTEXT: Final = 2_048
SCORED_TOKENS: Final = 512  # at the end of a document
# Of a document that is scored, and of the model's context.
MIN_SCORED_TOKENS: Final = SHORT_CONTEXT + SCORED_TOKENS + 1
_SCORED_AT_ONCE: Final = 16  # documents, whose ids are in memory
_EXAMPLES: Final = 100

_GZIP: Final = "gzip"
_LONG_FILTER: Final = "long_filter"
_NAMES: Final = (_GZIP, _LONG_FILTER)  # of the steps that remove documents


class ScoreFilterResult(TaskResult):
    """How many long documents a filter judged and removed, and some it removed.

    reason: why, as reports say it
    """

    reason: str
    judged: int
    removed: int
    examples: tuple[int, ...] = ()


class ScoreFiles(StepFiles):
    """The score of each document of a shard, float64 (documents,).

    NaN where it is not judged.
    """

    scores = ShardFiles(".scores.npy")


@dataclass(frozen=True, kw_only=True)
class _Filter:
    """A filter by scores, of which a range of quantiles is kept.

    score: returns the scores of some texts
    """

    name: str
    reason: str
    quantiles: tuple[float, float]
    score: Callable[[Sequence[str]], Sequence[float]]
    config: Json
    resources: Resources


def long_document_steps(
    recipe: Recipe, splits: Splits, ingest: Step, kept: Step
) -> list[Step]:
    """Return the steps of the filters that the recipe sets, in order.

    Each filter judges what the step before it keeps; the first what `kept` keeps. The
    last step decides which documents are kept.
    """
    steps: list[Step] = []
    for document_filter in _filters_of(recipe):
        before = steps[-1] if steps else kept
        steps += _steps_of(document_filter, splits, ingest, before)
    return steps


def score_filters(done: Artifacts) -> list[ScoreFilterResult]:
    """Return the results of the filters of a run, in order."""
    names = [name for name in _NAMES if name in done]
    return [done[name].result(ScoreFilterResult) for name in names]


def _filters_of(recipe: Recipe) -> Iterator[_Filter]:
    if recipe.ingest.filter is not None:
        yield _Filter(
            name=_GZIP,
            reason="outside the middle 60 % of compression ratios",
            quantiles=MIDDLE,
            score=_ratios,
            config={},
            resources=Resources(),
        )
    share = recipe.ingest.long_filter
    if share is not None:
        yield _Filter(
            name=_LONG_FILTER,
            reason="gains less from long context than other long documents",
            quantiles=(1 - share, 1.0),
            score=partial(_gains, scorer=known_scorer(recipe.scorer)),
            config={"scorer": scorer_identity(recipe.scorer)},
            resources=scorer_resources(),
        )


def _steps_of(
    document_filter: _Filter, splits: Splits, ingest: Step, before: Step
) -> list[Step]:
    """Return the steps that score the documents, and that keep some of them."""
    scores = Step(
        name=f"{document_filter.name}_scores",
        phase="read",
        version=1,
        config=document_filter.config,
        inputs=(ingest, before),
        tasks=each_shard(
            partial(_score_shard, score=document_filter.score),
            documents=(ingest, IngestFiles.documents),
            keep=(before, SelectFiles.keep),
        ),
        resources=document_filter.resources,
    )

    def tasks(done: Artifacts) -> list[Task]:
        task = partial(
            _keep_quantiles,
            scores=ScoreFiles(done[scores.name]).scores,
            keep=SelectFiles(done[before.name]).keep,
            source_of_shard=sources_of_shards(splits, done["ingest"]),
            quantiles=document_filter.quantiles,
            reason=document_filter.reason,
        )
        return [task]

    keep = Step(
        name=document_filter.name,
        phase="read",
        version=1,
        config={"quantiles": list(document_filter.quantiles)},
        inputs=(ingest, before, scores),
        tasks=tasks,
        result=ScoreFilterResult,
    )
    return [scores, keep]


def compression_ratio(text: str) -> float:
    """Return the compressed bytes per byte of a text, by gzip."""
    raw = text.encode("utf-8", "surrogatepass")
    return len(gzip.compress(raw, mtime=0)) / len(raw)


def within_quantiles(scores: _Scores, quantiles: tuple[float, float]) -> Bools:
    """Return which scores are between two quantiles of them, shape (n,)."""
    if not len(scores):
        return np.zeros(0, np.bool_)
    low, high = np.quantile(scores, quantiles)
    is_within: Bools = (scores >= low) & (scores <= high)
    return is_within


def _score_shard(
    out: Path,
    *,
    documents: Path,
    keep: Path,
    score: Callable[[Sequence[str]], Sequence[float]],
) -> TaskResult:
    """Write `{out}.scores.npy` of the long documents of a shard that are kept."""
    kept = np.load(keep)
    scores = np.full(len(kept), np.nan)
    for first, batch in corpus_files.record_batches(documents):
        rows = np.flatnonzero(kept[first : first + batch.num_rows])
        texts = batch.column("text").take(pa.array(rows)).to_pylist()
        long = [index for index, text in enumerate(texts) if len(text) >= LONG_CHARS]
        for start in range(0, len(long), _SCORED_AT_ONCE):
            part = long[start : start + _SCORED_AT_ONCE]
            scores[first + rows[part]] = score([texts[index] for index in part])
    np.save(f"{out}.scores.npy", scores)
    return TaskResult()


def _ratios(texts: Sequence[str]) -> list[float]:
    return [compression_ratio(text) for text in texts]


def _gains(texts: Sequence[str], *, scorer: KnownScorer) -> list[float]:
    return context_gains(load_scorer(scorer), texts)


def context_gains(model: SurprisalModel, texts: Sequence[str]) -> list[float]:
    """Return what the end of each text gains from context beyond 2,048 tokens, in nats.

    NaN for a text of fewer tokens. A text that is longer than the model's context
    counts as its end.
    """
    # One place is left for the token that some tokenizers put before a text.
    limit = None if model.context is None else 1 - model.context
    rows = []
    firsts = []
    long: list[int] = []
    for index, encoded in enumerate(model.encode(texts)):
        ids = encoded.ids[limit:]
        if len(ids) < MIN_SCORED_TOKENS:
            continue
        long.append(index)
        rows += [ids, ids[-SHORT_CONTEXT - SCORED_TOKENS :]]
        firsts += [len(ids) - SCORED_TOKENS, SHORT_CONTEXT]
    scored = model.score(rows, first=firsts)
    gains = [np.nan] * len(texts)
    for index, full, short in zip(long, scored[::2], scored[1::2], strict=True):
        gained = short.loss[-SCORED_TOKENS:] - full.loss[-SCORED_TOKENS:]
        gains[index] = float(gained.mean())
    return gains


def _keep_quantiles(
    out: Path,
    *,
    scores: Sequence[Path],
    keep: Sequence[Path],
    source_of_shard: Sequence[int],
    quantiles: tuple[float, float],
    reason: str,
) -> ScoreFilterResult:
    """Write `{out}.{shard:05d}.keep.npy`: what is kept so far, within the quantiles.

    Memory holds the scores of one source.
    """
    shards_of_sources: dict[int, list[int]] = {}
    for shard, source in enumerate(source_of_shard):
        shards_of_sources.setdefault(source, []).append(shard)
    judged = 0
    removed = 0
    examples: list[int] = []
    for shards in shards_of_sources.values():
        of_shards: list[Any] = [np.load(scores[shard]) for shard in shards]
        of_source = np.concatenate(of_shards)
        is_judged = ~np.isnan(of_source)
        is_kept = ~is_judged
        is_kept[is_judged] = within_quantiles(of_source[is_judged], quantiles)
        judged += int(is_judged.sum())
        removed += int((~is_kept).sum())
        ends = np.cumsum([len(of_shard) for of_shard in of_shards])
        for shard, shard_kept in zip(shards, np.split(is_kept, ends[:-1]), strict=True):
            np.save(f"{out}.{shard:05d}.keep.npy", np.load(keep[shard]) & shard_kept)
            if len(examples) < _EXAMPLES:
                rows = np.flatnonzero(~shard_kept)
                examples += schemas.pack_ids(shard, rows).tolist()
    return ScoreFilterResult(
        reason=reason,
        judged=judged,
        removed=removed,
        examples=tuple(examples[:_EXAMPLES]),
    )
