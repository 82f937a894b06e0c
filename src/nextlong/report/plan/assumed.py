"""Assumed: the rates that no trial tells, and the lines under a plan that say which were taken."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from nextlong.engine.estimate import Amounts
from nextlong.recipe import Recipe
from nextlong.report.plan.cluster import Asked, Shape, shape_of
from nextlong.report.plan.costs import Cost, Machines, Rate
from nextlong.report.plan.sample import Measured
from nextlong.retrieval.encoders.base import kind_of
from nextlong.retrieval.indexes import costs
from nextlong.retrieval.indexes.base import is_built
from nextlong.retrieval.mine import read_bytes

_MODEL_TOKEN_CHARS = 4.5  # characters to a token of an encoder, of English


def rates(recipe: Recipe, amounts: Amounts, measured: Measured, asked: Asked) -> dict[str, Rate]:
    """Return the rates of what is not tried on a sample, by their names in `Estimate.rate`."""
    shape = _shape(recipe)
    on_gpu = None
    if shape is not None:
        on_gpu = shape.operations(_tokens(amounts)) / (asked.gpu_tflops * 1e12)
    tokenizing = measured.tokenizing
    encoder = Rate(measured.encode_s, measured.encode_unknown, measured.encode_s if not asked.gpus else on_gpu)
    return {
        "encoder": encoder,
        "queries": Rate(None),
        "tokens": Rate(tokenizing.fast_s, start_s=tokenizing.start_s),
        "tokenizer": Rate(tokenizing.slow_s, start_s=lambda _: tokenizing.read_s),
        "products": Rate(measured.product_s, on_gpu=costs.GPU_PRODUCT_S),
    }


def _shape(recipe: Recipe) -> Shape | None:
    return shape_of(recipe.encoder) if kind_of(recipe.encoder).asks_for_gpus else None


def _tokens(amounts: Amounts) -> float:
    return amounts.chunk_chars / _MODEL_TOKEN_CHARS


def lines(
    recipe: Recipe,
    amounts: Amounts,
    on: Sequence[tuple[Machines, Mapping[str, Cost]]],
    measured: Measured,
    asked: Asked,
) -> list[str]:
    """Return what the figures of a plan rest on, where it is more than what was measured here."""
    machines, cost_of = on[-1]
    if not (asked.is_elsewhere or asked.chunks is not None):
        return []
    written = sum(cost.disk_bytes for cost in cost_of.values())
    said = ["", "assumed:"]
    if asked.is_elsewhere:
        each = asked.workers or machines.workers // max(1, asked.nodes)
        said.append(
            f"  {asked.nodes} node{'s' * (asked.nodes > 1)} of {each} workers and {asked.gpus} GPUs, a worker as fast as a core "
            f"here; a shared file system that takes {written / 1e9:,.0f} GB meanwhile; "
            f"{machines.head_s * 1e3:.0f} ms of the head a task"
        )
    shape = _shape(recipe)
    if "embed" in cost_of and cost_of["embed"].on_gpus and shape is not None and asked.gpus:
        tokens = _tokens(amounts)
        operations = shape.operations(tokens)
        said.append(
            f"  embed: {amounts.chunks:,.0f} chunks × {tokens:,.0f} tokens × (2 × {shape.parameters / 1e6:,.0f} M parameters + 4 × "
            f"{shape.layers} layers × {shape.width:,} × {tokens:,.0f} of attention) = {amounts.chunks * operations:.1e} "
            f"operations; {asked.gpu_tflops:g} TFLOP/s a GPU (--gpu-tflops): "
            f"{asked.gpu_tflops * 1e12 / operations:,.0f} chunks/s each"
        )
    if amounts.queries:
        pairs = 2 * amounts.queries * amounts.vectors * amounts.dimensions * amounts.visited_share
        where = (
            f"{2 / costs.GPU_PRODUCT_S / 1e12:,.0f} TFLOP/s a GPU (assumed)"
            if any(cost_of[name].on_gpus for name in ("mine", "neighbours") if name in cost_of)
            else f"{2 / measured.product_s / 1e9:,.0f} GFLOP/s a core (measured)"
        )
        looked = f" × {amounts.visited_share:.1%} visited" if is_built(amounts.index) else ""
        said.append(
            f"  search, {amounts.index}: 2 × {amounts.queries:,.0f} queries × {amounts.vectors:,.0f} vectors × "
            f"{amounts.dimensions:,.0f} dimensions{looked} = {pairs:.1e} operations, at {where}; "
            f"{read_bytes(amounts) / 1e9:,.1f} GB of vectors are read"
        )
    return said
