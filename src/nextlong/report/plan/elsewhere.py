"""Elsewhere: plans for other machines and larger corpora, and what their figures assume beyond what was measured here.

A transformer takes 2 operations a parameter and token, and 4 a token, layer and dimension for each token that it attends to; its
table of words is only looked up. So its shape says how long it takes on GPUs that are not here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nextlong.engine.step import Amounts
from nextlong.recipe import Encoder, Recipe
from nextlong.report.plan.costs import Cost, Machines
from nextlong.retrieval.encoders.base import kind_of
from nextlong.retrieval.indexes.base import is_built
from nextlong.retrieval.indexes.costs import GPU_PRODUCT_S
from nextlong.retrieval.mine import read_bytes

GPU_TFLOP_PER_S = 120.0  # of a data-centre GPU in half precision at some 500 tokens a text: a third of an A100's 312
_MODEL_TOKEN_CHARS = 4.5  # characters to a token of an encoder, of English


@dataclass(frozen=True)
class Asked:
    """What the command line asks a plan for; None: as this machine and the recipe have it."""

    workers: int | None = None  # processes a node
    nodes: int = 1
    gpus: int = 0  # a node
    chunks: float | None = None  # as if the corpus had so many
    gpu_tflops: float = GPU_TFLOP_PER_S

    @property
    def is_elsewhere(self) -> bool:
        """Say whether there is more to tell than of this machine."""
        return self.workers is not None or self.nodes > 1 or self.gpus > 0


class Shape(NamedTuple):
    """What sets a transformer's operations: layers, width, and width of the feed-forward part."""

    layers: int
    width: int
    inner: int

    @property
    def parameters(self) -> float:
        """Parameters that multiply: four square matrices of attention and two of the feed-forward part a layer."""
        return float(self.layers * (4 * self.width**2 + 2 * self.width * self.inner))

    def operations(self, chars: float) -> float:
        """Return those of one text of so many characters."""
        tokens = chars / _MODEL_TOKEN_CHARS
        return tokens * (2 * self.parameters + 4 * self.layers * self.width * tokens)


# Of models that need not be here to be planned for (their own config.json).
_KNOWN = {
    "jinaai/jina-embeddings-v3": Shape(24, 1024, 4096),
    "sentence-transformers/all-MiniLM-L6-v2": Shape(6, 384, 1536),
    "BAAI/bge-m3": Shape(24, 1024, 4096),
    "intfloat/multilingual-e5-large": Shape(24, 1024, 4096),
}


def shape_of(encoder: Encoder) -> Shape | None:
    """Return the shape of a transformer: of one in a folder by its config.json, else of one that is known; None: neither."""
    if not kind_of(encoder).asks_for_gpus:
        return None
    try:
        config = json.loads((Path(encoder.name).expanduser() / "config.json").read_text(encoding="utf-8"))
        return Shape(*(int(config[key]) for key in ("num_hidden_layers", "hidden_size", "intermediate_size")))
    except (OSError, ValueError, KeyError, TypeError):
        return _KNOWN.get(encoder.name)


def assumed(
    recipe: Recipe, amounts: Amounts, on: tuple[Machines, Mapping[str, Cost]], asked: Asked, *, product_s: float
) -> Sequence[str]:
    """Return the lines that say what the costs `on` other machines, or of another corpus, rest on."""
    machines, cost_of = on
    said = ["", "assumed:"]
    if asked.is_elsewhere:
        written = sum(cost.disk_bytes for cost in cost_of.values())
        said.append(
            f"  {asked.nodes} node{'s' * (asked.nodes > 1)} of {machines.workers // asked.nodes} workers and {asked.gpus} GPUs, "
            f"a worker as fast as a core here; a shared file system that takes {written / 1e9:,.0f} GB meanwhile; "
            f"{machines.head_s * 1e3:.0f} ms of the head a task"
        )
    shape = shape_of(recipe.encoder)
    if "embed" in cost_of and cost_of["embed"].on_gpus and shape is not None and asked.gpus:
        tokens, operations = amounts.chunk_chars / _MODEL_TOKEN_CHARS, shape.operations(amounts.chunk_chars)
        said.append(
            f"  embed: {amounts.chunks:,.0f} chunks × {tokens:,.0f} tokens × (2 × {shape.parameters / 1e6:,.0f} M parameters + 4 × "
            f"{shape.layers} layers × {shape.width:,} × {tokens:,.0f} of attention) = {amounts.chunks * operations:.1e} "
            f"operations; {asked.gpu_tflops:g} TFLOP/s a GPU (--gpu-tflops): "
            f"{asked.gpu_tflops * 1e12 / operations:,.0f} chunks/s each"
        )
    if amounts.queries:
        pairs = 2 * amounts.queries * amounts.vectors * amounts.dimensions * amounts.visited_share
        is_on_gpus = any(cost_of[name].on_gpus for name in ("mine", "neighbours") if name in cost_of)
        where = (
            f"{2 / GPU_PRODUCT_S / 1e12:,.0f} TFLOP/s a GPU (assumed)"
            if is_on_gpus
            else f"{2 / product_s / 1e9:,.0f} GFLOP/s a core (measured)"
        )
        visited = f" × {amounts.visited_share:.1%} visited" if is_built(amounts.index) else ""
        said.append(
            f"  search, {amounts.index}: 2 × {amounts.queries:,.0f} queries × {amounts.vectors:,.0f} vectors × "
            f"{amounts.dimensions:,.0f} dimensions{visited} = {pairs:.1e} operations, at {where}; "
            f"{read_bytes(amounts) / 1e9:,.1f} GB of vectors are read"
        )
    return said
