"""Cluster: the machines that a plan is asked for beside this one, and what a model takes on GPUs that are not here.

A transformer takes 2 operations a parameter and token, and 4 a token, layer and dimension for each token that it attends to; the
table of words does nothing but look up. So its shape says how long it takes, whatever the machine that plans can run.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nextlong.recipe import Encoder

GPU_TFLOP_PER_S = 120.0  # of a data-centre GPU in half precision at some 500 tokens a text: a third of an A100's 312


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

    def operations(self, tokens: float) -> float:
        """Return those of one text of so many tokens."""
        return tokens * (2 * self.parameters + 4 * self.layers * self.width * tokens)


# Of models that need not be here to be planned for (their own config.json).
_KNOWN = {
    "jinaai/jina-embeddings-v3": Shape(24, 1024, 4096),
    "sentence-transformers/all-MiniLM-L6-v2": Shape(6, 384, 1536),
    "BAAI/bge-m3": Shape(24, 1024, 4096),
    "intfloat/multilingual-e5-large": Shape(24, 1024, 4096),
}


def shape_of(encoder: Encoder) -> Shape | None:
    """Return the shape of a model: one in a folder by its config.json, else one that is known; None: neither."""
    config = Path(encoder.name).expanduser() / "config.json"
    try:
        architecture = json.loads(config.read_text(encoding="utf-8"))
        return Shape(
            int(architecture["num_hidden_layers"]),
            int(architecture["hidden_size"]),
            int(architecture["intermediate_size"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return _KNOWN.get(encoder.name)
