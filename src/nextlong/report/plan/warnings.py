"""Warnings: why a run is likely to fail, or its data to be poor, before it runs.

In:  a recipe, and the amounts and the sample of its corpus. Out: messages; those about
the data are the warnings that the run will give.
"""

from __future__ import annotations

import os
import shutil

from nextlong.checks import too_short
from nextlong.corpus.ingest import allowing
from nextlong.engine.executor import memory_bytes
from nextlong.errors import CorpusError
from nextlong.methods.base import method_of
from nextlong.recipe import Recipe
from nextlong.recipe.keys import EXACT
from nextlong.report.plan.amounts import Amounts, different
from nextlong.report.plan.costs import Total
from nextlong.report.plan.measure import Measured
from nextlong.report.plan.sample import CorpusSample
from nextlong.report.plan.texts import TEXTS
from nextlong.retrieval import index as search_index
from nextlong.retrieval.indexes.base import index_kind
from nextlong.retrieval.sample import none_long_enough
from nextlong.runs.statistics import warnings
from nextlong.runs.statistics.stats import DataWarning
from nextlong.runs.statistics.thresholds import THRESHOLDS
from nextlong.schemas import Layout
from nextlong.sequences.shortfall import (
    LONGER,
    MOST_DROPPED,
    is_extended,
    uses_a_chunk_once,
)

_SHOWN_KINDS = 3  # of rejected records


def none_extended(recipe: Recipe, sample: CorpusSample) -> CorpusError | None:
    """Return the error that no document has enough chunks to be extended, if so."""
    if method_of(recipe).layout != Layout.EXTENDED or sample.size.eligible:
        return None
    documents = f"{len(sample.looked_at):,} documents of a sample"
    if sample.is_whole:
        documents = f"{sample.size.kept_documents:,.0f} documents"
    return none_long_enough(
        documents, recipe.compose.min_meta_chunks, max_chars=recipe.chunk.max_chars
    )


def of_run(recipe: Recipe, amounts: Amounts, sample: CorpusSample) -> list[str]:
    """Return why the run is likely to stop, or would be faster with another index."""
    messages = []
    # As ingest counts them: rejects over all records.
    rejected = sum(sample.rejects.values())
    share = rejected / max(1.0, rejected + sample.size.documents)
    if share > recipe.ingest.max_reject_share:
        kinds = sorted(sample.rejects, key=lambda kind: (-sample.rejects[kind], kind))
        message = TEXTS["rejects"].format(
            share=share,
            kinds=", ".join(kinds[:_SHOWN_KINDS]),
            most=recipe.ingest.max_reject_share,
            allowing=allowing(share),
        )
        messages.append(message)
    refusal = none_extended(recipe, sample)
    if refusal is not None:
        messages.append(f"the run is likely to stop: {refusal}")
    is_exact = recipe.search.index == EXACT and recipe.mine.shortlist is None
    if is_exact and amounts.queries:
        messages += _faster_index(recipe, amounts)
    return messages


def _faster_index(recipe: Recipe, amounts: Amounts) -> list[str]:
    """Return that an approximate index would be faster than exact search, if so."""
    # Chosen as the run would choose under `auto`.
    has_gpu = search_index.has_gpu(recipe.search)
    index, _ = search_index.choose(amounts.search, has_gpu=has_gpu)
    if not index_kind(index).is_built:
        return []
    exact_s, approximate_s = search_index.seconds(amounts.search, has_gpu=has_gpu)
    message = TEXTS["index"].format(
        exact_h=exact_s / 3600, index=index, approximate_h=approximate_s / 3600
    )
    return [message]


def of_this_machine(recipe: Recipe, needed: Total) -> list[str]:
    """Return what this machine lacks for a run: disk space, or memory."""
    messages = []
    run_dir = recipe.run_path.absolute()
    # The run directory may not exist yet; the nearest folder above it is on its disk.
    parents = (path for path in (run_dir, *run_dir.parents) if path.exists())
    free = shutil.disk_usage(next(parents)).free
    if needed.disk_bytes > free:
        messages.append(
            TEXTS["disk"].format(
                needed=needed.disk_bytes / 1e9, run_dir=recipe.run_path, free=free / 1e9
            )
        )
    memory = memory_bytes()
    if needed.memory_bytes > memory:
        is_one_worker = recipe.workers == 1 or (os.cpu_count() or 1) == 1
        fewer = "" if is_one_worker else "fewer workers (--set workers=1), or "
        messages.append(
            TEXTS["memory"].format(
                needed=needed.memory_bytes / 1e9, memory=memory / 1e9, fewer=fewer
            )
        )
    return messages


def of_data(
    recipe: Recipe, amounts: Amounts, measured: Measured, *, dropped: float
) -> list[str]:
    """Return the warnings that the run will give because of the corpus's size.

    They are those of a run that uses all chunks equally often.
    """
    compose = recipe.compose
    sample = measured.sample
    tokens = amounts.kept_chars / measured.tokenizing.chars_per_token
    # Of a corpus that was read as a whole, a run knows the tokens before its first
    # step.
    is_checked = sample.is_whole and amounts.chunks == sample.size.chunks
    is_too_short = uses_a_chunk_once(compose) and tokens < compose.target_tokens
    if is_too_short and not is_checked:
        return [str(too_short(compose, tokens))]
    due = [
        _many_dropped(recipe, amounts, dropped),
        warnings.stand_in_tokenizer(recipe, compose.target_tokens),
    ]
    if uses_a_chunk_once(compose):
        chars = compose.target_tokens * measured.tokenizing.chars_per_token
        chunks_per_sequence = chars / max(1.0, amounts.chunk_chars)
        due += [
            _small_corpus(
                recipe=recipe,
                amounts=amounts,
                measured=measured,
                chunks_per_sequence=chunks_per_sequence,
            ),
            _heavy_reuse(recipe, amounts, chunks_per_sequence),
        ]
    return [str(warning) for warning in due if warning is not None]


def _many_dropped(
    recipe: Recipe, amounts: Amounts, dropped: float
) -> DataWarning | None:
    if not is_extended(recipe.compose) or dropped <= MOST_DROPPED * amounts.eligible:
        return None
    message = TEXTS["many-dropped"].format(
        dropped=dropped,
        eligible=amounts.eligible,
        share=dropped / amounts.eligible,
        tokens=recipe.compose.target_tokens,
        longer=LONGER,
    )
    return DataWarning("many-dropped", message)


def _small_corpus(
    recipe: Recipe, amounts: Amounts, measured: Measured, chunks_per_sequence: float
) -> DataWarning | None:
    if not method_of(recipe).scores:
        return None
    sample = measured.sample
    # The size of the planned corpus over the present one.
    factor = amounts.chunks / max(1.0, sample.size.chunks)
    chunks = chunks_per_sequence / max(1e-9, factor)
    documents = factor * sample.documents_of(chunks)
    in_sequence = measured.trial.documents_share * documents
    return warnings.small_corpus(in_sequence, amounts.kept_documents)


def _heavy_reuse(
    recipe: Recipe, amounts: Amounts, chunks_per_sequence: float
) -> DataWarning | None:
    uses = amounts.sequences * chunks_per_sequence
    # Of so many random uses, `different` chunks are used at all.
    mean = uses / max(1.0, different(amounts.chunks, uses))
    if mean <= THRESHOLDS.max_uses or recipe.compose.max_uses is not None:
        return None
    described = f"about {mean:,.1f} times on average"
    return warnings.heavy_reuse(described, recipe, max_uses=mean)
