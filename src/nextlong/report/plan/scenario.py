"""Scenario: the machines and the corpus that a plan is for, and the costs there.

In:  what was measured here. Out: the amounts and the cost of each step on this machine
and on the machines of the scenario, and the assumptions behind them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from nextlong import pipeline
from nextlong.corpus.splits import shard_bytes_of
from nextlong.engine.step import Step
from nextlong.reading.files import InputFile
from nextlong.recipe import Recipe
from nextlong.recipe.keys import TYPICAL_CHARS_PER_TOKEN
from nextlong.report.plan.amounts import Amounts, amounts_of
from nextlong.report.plan.costs import (
    HEAD_S,
    RAY_HEAD_S,
    WORKER_BYTES,
    Cost,
    Machines,
    Rate,
    costs,
)
from nextlong.report.plan.estimates import estimates_of
from nextlong.report.plan.measure import Measured
from nextlong.report.plan.search_estimates import read_bytes
from nextlong.report.plan.texts import TEXTS
from nextlong.retrieval.encoders.base import kind_of
from nextlong.retrieval.index import GPU_PRODUCT_S
from nextlong.retrieval.indexes.base import index_kind

# Of a data-centre GPU in half precision at some 500 tokens per text: a third of the 312
# of an A100.
GPU_TFLOP_PER_S: Final = 120.0


@dataclass(frozen=True)
class Scenario:
    """The machines and the corpus size to plan for, from the command line.

    None stands for those of this machine and the recipe.
    """

    workers: int | None = None  # processes per node
    nodes: int = 1
    gpus: int = 0  # per node
    chunks: float | None = None  # of the corpus
    gpu_tflops: float = GPU_TFLOP_PER_S
    start_s: float = 0.0  # what a run takes before its first task

    @property
    def is_elsewhere(self) -> bool:
        """Whether the scenario includes other machines than this one."""
        return self.workers is not None or self.nodes > 1 or self.gpus > 0


HERE: Final = Scenario()  # this machine, and the recipe's corpus


class CostsOn(NamedTuple):
    """The amount of work and the cost of each step on some machines."""

    machines: Machines
    amounts: Amounts
    costs: dict[str, Cost]


def costs_on(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    steps: Sequence[Step],
    measured: Measured,
    scenario: Scenario,
) -> list[CostsOn]:
    """Return what the steps cost on this machine, and on those of the scenario."""
    corpus = _corpus(
        recipe=recipe,
        files=files,
        measured=measured,
        scenario=scenario,
    )
    estimates = estimates_of(recipe, steps)
    found = []
    for machines in _machines(recipe, measured, scenario):
        amounts = amounts_of(
            recipe,
            corpus,
            chars_per_token=measured.tokenizing.chars_per_token,
            has_gpu=machines.gpus > 0 and recipe.search.device != "cpu",
        )
        cost_of = costs(
            steps,
            amounts,
            measured.trial,
            _rates(
                recipe=recipe,
                amounts=amounts,
                measured=measured,
                scenario=scenario,
            ),
            estimates=estimates,
            machines=machines,
        )
        found.append(CostsOn(machines, amounts, cost_of))
    return found


def _corpus(
    recipe: Recipe,
    files: Sequence[Sequence[InputFile]],
    measured: Measured,
    scenario: Scenario,
) -> Amounts:
    """Return the amounts of the corpus that is planned for, up to its shards."""
    corpus = measured.sample.size
    if scenario.chunks is None:
        min_shards = len(files)
        shard_bytes = shard_bytes_of(recipe.ingest, files)
    else:
        corpus = corpus.times(scenario.chunks / max(1.0, corpus.chunks))
        # A corpus of another size is not in files: only its text sets the shards.
        min_shards = 1
        shard_bytes = shard_bytes_of(recipe.ingest, text_bytes=corpus.text_bytes)
    shards = max(min_shards, math.ceil(corpus.text_bytes / shard_bytes))
    return replace(corpus, dimensions=measured.dimensions, shards=shards)


def _machines(recipe: Recipe, measured: Measured, scenario: Scenario) -> list[Machines]:
    """Return this machine, and the machines of the scenario if there are others."""
    # The serial executor runs tasks in the main process.
    worker_bytes = 0.0 if recipe.executor == "serial" else WORKER_BYTES
    workers = pipeline.worker_count(recipe)
    here = Machines(
        workers=workers,
        gpus=pipeline.count_gpus_for(recipe),
        head_s=HEAD_S,
        start_s=scenario.start_s,
        process_bytes=measured.process_bytes + worker_bytes * workers,
    )
    if not scenario.is_elsewhere:
        return [here]
    # Each node has as many workers as this machine, if nothing else is asked.
    all_workers = scenario.nodes * (scenario.workers or workers)
    elsewhere = Machines(
        workers=all_workers,
        gpus=scenario.nodes * scenario.gpus,
        # Several nodes are reached through Ray.
        head_s=RAY_HEAD_S if scenario.nodes > 1 else HEAD_S,
        start_s=scenario.start_s,
        process_bytes=measured.process_bytes + worker_bytes * all_workers,
    )
    return [here, elsewhere]


def _rates(
    recipe: Recipe, amounts: Amounts, measured: Measured, scenario: Scenario
) -> dict[str, Rate]:
    """Return the rates of work that the trial does not measure.

    They are keyed by the names in `Estimate.rate`.
    """
    encoding = measured.encoding
    on_gpu = encoding.chunk_s
    if scenario.gpus:
        shape = kind_of(recipe.encoder).shape(recipe.encoder)
        on_gpu = None
        if shape is not None:
            tokens = amounts.chunk_chars / TYPICAL_CHARS_PER_TOKEN
            on_gpu = shape.operations(tokens) / (scenario.gpu_tflops * 1e12)
    return {
        "encoder": Rate(encoding.chunk_s, encoding.unknown, on_gpu),
        # A model that writes queries is not asked for its speed.
        "queries": Rate(None),
        "scorer": measured.scoring,
        "products": Rate(measured.product_s, on_gpu=GPU_PRODUCT_S),
        **measured.tokenizing.rates,
    }


def assumed(
    recipe: Recipe,
    amounts: Amounts,
    on: tuple[Machines, Mapping[str, Cost]],
    scenario: Scenario,
    *,
    product_s: float,
) -> list[str]:
    """Return the assumptions behind costs on other machines, or for another corpus.

    `on` are the machines and the cost of each step on them.
    """
    machines, cost_of = on
    on_gpus = {name for name, cost in cost_of.items() if cost.on_gpus}
    assumptions = []
    if scenario.is_elsewhere:
        assumptions.append(_machines_assumed(machines, cost_of, scenario))
    if "embed" in on_gpus and scenario.gpus:
        assumptions += _embedding_assumed(recipe, amounts, scenario)
    if amounts.queries:
        is_searched_on_gpu = not on_gpus.isdisjoint({"mine", "neighbours"})
        product_rate = f"{2 / product_s / 1e9:,.0f} GFLOP/s per core (measured)"
        if is_searched_on_gpu:
            product_rate = f"{2 / GPU_PRODUCT_S / 1e12:,.0f} TFLOP/s per GPU (assumed)"
        assumptions += _search_assumed(recipe, amounts, product_rate)
    return ["", "assumed:", *(f"  {assumption}" for assumption in assumptions)]


def _machines_assumed(
    machines: Machines, cost_of: Mapping[str, Cost], scenario: Scenario
) -> str:
    disk_bytes = sum(cost.disk_bytes for cost in cost_of.values())
    return TEXTS["machines"].format(
        scenario=scenario,
        s="s" if scenario.nodes > 1 else "",
        workers=machines.workers // scenario.nodes,
        gigabytes=disk_bytes / 1e9,
        head_ms=machines.head_s * 1e3,
    )


def _embedding_assumed(
    recipe: Recipe, amounts: Amounts, scenario: Scenario
) -> list[str]:
    shape = kind_of(recipe.encoder).shape(recipe.encoder)
    if shape is None:
        return []
    tokens = amounts.chunk_chars / TYPICAL_CHARS_PER_TOKEN
    operations = shape.operations(tokens)
    values: dict[str, Any] = {
        "chunks": amounts.chunks,
        "tokens": tokens,
        "parameters": shape.parameters / 1e6,
        "shape": shape,
        "operations": amounts.chunks * operations,
        "tflops": scenario.gpu_tflops,
        "rate": scenario.gpu_tflops * 1e12 / operations,
    }
    return [TEXTS["embed"].format(**values)]


def _search_assumed(recipe: Recipe, amounts: Amounts, product_rate: str) -> list[str]:
    products = amounts.queries * amounts.vectors * amounts.dimensions
    is_built = index_kind(amounts.index).is_built
    visited = f" × {amounts.visited_share:.1%} visited" if is_built else ""
    search = TEXTS["search"].format(
        size=amounts,
        visited=visited,
        operations=2 * products * amounts.visited_share,
        where=product_rate,
        gigabytes=read_bytes(amounts) / 1e9,
    )
    if not is_built:
        return [search]
    return [search, TEXTS["recall"].format(recall=recipe.search.recall)]
