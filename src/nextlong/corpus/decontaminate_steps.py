"""Decontaminating, as steps: chunks and evaluation files → the chunks without those that share a run of words."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import xxhash

from nextlong.corpus.decontaminate import clean_shard, contaminated_shard
from nextlong.corpus.evaluation_texts import evaluation_grams
from nextlong.engine.estimate import Estimate, per_shard
from nextlong.engine.step import Finished, Step, Task
from nextlong.errors import CorpusError
from nextlong.inputs.retries import open_binary
from nextlong.recipe import Recipe
from nextlong.results import (
    ChunkResult,
    ContaminatedResult,
    EvalNgramsResult,
)


def cleaning_steps(recipe: Recipe, ingest: Step, chunk: Step) -> list[Step]:
    """Return the steps between the chunks and the cleaned chunks; none if there is no evaluation file."""
    if not recipe.decontaminate.files:
        return []
    eval_ngrams = _eval_ngrams_step(recipe)
    contaminated = _contaminated_step(recipe.decontaminate.files, ingest, chunk, eval_ngrams)
    return [eval_ngrams, contaminated, _clean_step(chunk, contaminated)]


def _eval_ngrams_step(recipe: Recipe) -> Step:
    """Evaluation files → the runs of words to look for; the files' content is part of the fingerprint."""
    files, ngram = recipe.decontaminate.files, recipe.decontaminate.ngram

    def tasks(_: Finished) -> list[Task]:
        return [partial(evaluation_grams, files=files, ngram=ngram)]

    config = {"files": [[file, _content_hash(file)] for file in files], "ngram": ngram}
    estimate = Estimate(
        work=lambda amounts: amounts.evaluation_bytes,
        seconds=1e-7,
        disk=lambda amounts: amounts.evaluation_bytes,
        bytes=0.8,
        memory=lambda amounts: 4 * amounts.evaluation_bytes,
        rate="",
    )
    return Step("eval_ngrams", 1, config, (), tasks, EvalNgramsResult, estimate=estimate)


def _content_hash(file: str) -> str:
    try:
        with open_binary(file) as stream:
            return str(xxhash.xxh3_128_hexdigest(stream.read()))
    except FileNotFoundError:
        raise CorpusError(f"decontaminate: {file} does not exist; correct the path or remove it") from None
    except (OSError, ValueError, ImportError) as error:
        reason = " ".join(str(error).split())
        raise CorpusError(f"decontaminate: {file} cannot be read: {reason}; mend it or remove it") from None


def _contaminated_step(files: Sequence[str], ingest: Step, chunk: Step, eval_ngrams: Step) -> Step:
    """CHUNKS → which of them share a run of words with an evaluation file."""

    def tasks(done: Finished) -> list[Task]:
        heads, grams = (done["eval_ngrams"].file(suffix) for suffix in (".heads.npy", ".grams.npy"))
        shards = zip(done["ingest"].files(".documents.arrow"), done["chunk"].files(".chunks.arrow"), strict=True)
        return [
            partial(contaminated_shard, documents=documents, chunks=chunks, heads=heads, grams=grams, files=files)
            for documents, chunks in shards
        ]

    estimate = Estimate(
        work=lambda amounts: amounts.kept_chars,
        seconds=5e-8,
        disk=lambda amounts: amounts.chunks,
        bytes=1.0,
        tasks=per_shard,
        memory=lambda amounts: amounts.evaluation_bytes,
    )
    return Step("contaminated", 1, {}, (ingest, chunk, eval_ngrams), tasks, ContaminatedResult, estimate=estimate)


def _clean_step(chunk: Step, contaminated: Step) -> Step:
    """CHUNKS → CHUNKS without these."""

    def tasks(done: Finished) -> list[Task]:
        shards = zip(done["chunk"].files(".chunks.arrow"), done["contaminated"].files(".contaminated.npy"), strict=True)
        return [partial(clean_shard, chunks=chunks, contaminated=which) for chunks, which in shards]

    estimate = Estimate(
        work=lambda amounts: amounts.chunks,
        seconds=1e-8,
        disk=lambda amounts: amounts.chunks,
        bytes=21,
        tasks=per_shard,
    )
    return Step("clean", 1, {}, (chunk, contaminated), tasks, ChunkResult, estimate=estimate)
